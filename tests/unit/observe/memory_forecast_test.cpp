// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/memory_forecast.hpp"

#include "saturate/error.hpp"
#include "saturate/observe/fits.hpp"
#include "saturate/observe/free_memory.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/optim/adamw.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <limits>
#include <new>
#include <stdexcept>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

int64_t measured(const std::function<void(int64_t)>& probe, int64_t samples) {
  const st::MemoryMeter meter;
  probe(samples);
  return meter.counts().peak_bytes;
}

// Small batches peak where the gradients are complete, large ones where the last activation is.
void two_lines(int64_t n) {
  std::vector<at::Tensor> activations;
  for (int i = 0; i < 4; ++i) activations.push_back(torch::empty({n, 100}));
  std::vector<at::Tensor> gradients;
  while (!activations.empty()) {
    gradients.push_back(torch::empty({1000}));
    activations.pop_back();
  }
}

struct NormedImpl : torch::nn::Module {
  NormedImpl()
      : first(register_module("first", torch::nn::Linear(6, 512))),
        norm(register_module("norm", torch::nn::BatchNorm1d(512))),
        drop(register_module("drop", torch::nn::Dropout(0.5))),
        second(register_module("second", torch::nn::Linear(512, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    if (x.size(0) > fails_above) throw std::runtime_error("thrown in forward");
    if (x.size(0) > runs_out_above) throw std::bad_alloc();
    return second(drop(torch::relu(norm(first(x)))));
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear second;
  int64_t fails_above = 1 << 20, runs_out_above = 1 << 20;
};
TORCH_MODULE(Normed);

// Everything that a probe might change.
struct Everything {
  explicit Everything(const Normed& net) {
    for (const auto& item : net->named_parameters()) {
      values.push_back(item.value().detach().clone());
      if (item.value().grad().defined()) values.push_back(item.value().grad().clone());
    }
    for (const auto& item : net->named_buffers()) values.push_back(item.value().clone());
    values.push_back(at::detail::getDefaultCPUGenerator().get_state());
    for (const auto& part : net->modules()) modes.push_back(part->is_training());
  }
  bool operator==(const Everything& other) const {
    return modes == other.modes && support::same_bits(values, other.values);
  }
  std::vector<at::Tensor> values;
  std::vector<bool> modes;
};

}  // namespace

TEST_CASE("a forecast follows each moment, so that it finds the peak that small batches do not have") {
  const auto forecast = st::forecast_memory(two_lines, {1, 2});
  CHECK(forecast.by_moments());
  CHECK(measured(two_lines, 2) == 16000 + 800);           // the gradients' end
  CHECK(measured(two_lines, 1000) == 4 * 400000 + 4000);  // their beginning
  for (const int64_t n : {1, 2, 3, 10, 100, 1000}) CHECK(forecast.peak_bytes(n) == measured(two_lines, n));
  CHECK(forecast.probes().size() == 2);
  CHECK(forecast.probes()[0].peak_bytes == measured(two_lines, 1));
}

TEST_CASE("a forecast of the largest batch is the largest: one more is too much") {
  const auto forecast = st::forecast_memory(two_lines, {2, 1, 2});
  for (const int64_t limit : {20000, 500'000, 1 << 30}) {
    const int64_t n = forecast.largest_batch(limit);
    CHECK(measured(two_lines, n) <= limit);
    CHECK(measured(two_lines, n + 1) > limit);
  }
  CHECK(forecast.largest_batch(100) == 0);
}

TEST_CASE("a third probe shows what grows with the square of the batch") {
  const auto pairs = [](int64_t n) { const at::Tensor all = torch::empty({n, n}), some = torch::empty({n, 10}); };
  CHECK(st::forecast_memory(pairs, {10, 20, 40}).peak_bytes(400) == measured(pairs, 400));
  CHECK(st::forecast_memory(pairs, {20, 40}).peak_bytes(400) < measured(pairs, 400) / 2);
}

TEST_CASE("probes that allocate differently give a line through their peaks, and say so") {
  const auto changing = [](int64_t n) {
    const at::Tensor one = torch::empty({n, 100});
    if (n > 3) const at::Tensor another = torch::empty({n, 50});
  };
  const auto forecast = st::forecast_memory(changing, {2, 4, 8});
  CHECK(forecast.by_moments());  // the two largest are alike, and count
  CHECK(forecast.peak_bytes(100) == measured(changing, 100));
  const auto rough = st::forecast_memory(changing, {2, 4});
  CHECK_FALSE(rough.by_moments());
  CHECK(rough.peak_bytes(4) == measured(changing, 4));
}

TEST_CASE("what is allocated the first time only is no part of a forecast") {
  at::Tensor kept;
  const auto lazy = [&](int64_t n) {
    if (!kept.defined()) kept = torch::empty({100'000});
    const at::Tensor activation = torch::empty({n, 10});
  };
  CHECK(st::forecast_memory(lazy, {1, 2}).peak_bytes(50) == 2000);
}

TEST_CASE("a forecast refuses sizes that cannot work") {
  CHECK_THROWS_MATCHES(st::forecast_memory(two_lines, {}), st::ConfigError,
                       MessageMatches(ContainsSubstring("two or three")));
  CHECK_THROWS_MATCHES(st::forecast_memory(two_lines, {0, 4}), st::ConfigError,
                       MessageMatches(ContainsSubstring("is 0")));
  CHECK_THROWS_AS(st::forecast_memory(two_lines, {1, 2}).peak_bytes(0), st::ConfigError);
}

TEST_CASE("fits: what is held, what is to come and what a step adds, against a limit") {
  auto net = support::seeded<Normed>(1);
  const auto batch = support::classes(64, 3);
  st::optim::AdamW optimizer(net->parameters());
  const int64_t parameter_bytes = 4 * (6 * 512 + 512 + 512 + 512 + 512 * 4 + 4);
  int64_t buffer_bytes = 0;
  for (const at::Tensor& buffer : net->buffers()) buffer_bytes += static_cast<int64_t>(buffer.nbytes());
  const auto report = st::fits(net, st::CrossEntropy{}, batch, {.optimizer = &optimizer});
  CHECK(report.fits);
  CHECK(report.samples == 64);
  CHECK(report.held_bytes == parameter_bytes + buffer_bytes);
  CHECK(report.state_bytes == 2 * parameter_bytes + 4);
  CHECK(report.peak_bytes == report.held_bytes + report.state_bytes + report.step_bytes);
  CHECK(report.limit_bytes > report.peak_bytes);
  CHECK(report.message().find("a batch of 64 fits") == 0);
  std::vector<int64_t> tried;
  for (const auto& probe : report.forecast->probes()) tried.push_back(probe.samples);
  CHECK(tried == std::vector<int64_t>{8, 16, 32});

  // A step of the whole batch needs what was said.
  {
    const st::MemoryMeter meter;
    st::CrossEntropy{}(net->forward(batch.first), batch.second).backward();
    const double actual = static_cast<double>(meter.counts().peak_bytes);
    CHECK(std::abs(static_cast<double>(report.step_bytes) - actual) < 0.02 * actual);
  }
  optimizer.step();
  const auto later = st::fits(net, st::CrossEntropy{}, batch, {.optimizer = &optimizer});
  CHECK(later.state_bytes == 0);
  CHECK(later.held_bytes == report.held_bytes + report.state_bytes + parameter_bytes);  // the gradients above

  const auto tight = st::fits(net, st::CrossEntropy{}, batch,
                              {.optimizer = &optimizer, .limit_bytes = later.peak_bytes - 10'000, .reserve = 0});
  CHECK_FALSE(tight.fits);
  CHECK(tight.message().find("a batch of 64 does not fit") == 0);
  CHECK(tight.largest_batch < 64);
  CHECK(tight.largest_batch > 32);
  CHECK(
      st::fits(net, st::CrossEntropy{}, batch, {.optimizer = &optimizer, .limit_bytes = later.peak_bytes, .reserve = 0})
          .fits);
}

TEST_CASE("fits leaves no trace, not after an exception either") {
  auto net = support::seeded<Normed>(1);
  const auto batch = support::classes(16, 3);
  net->norm->eval();
  st::CrossEntropy{}(net->forward(batch.first), batch.second).backward();
  net->second->bias.mutable_grad().reset();
  torch::randn({3});
  const Everything before(net);
  CHECK(st::fits(net, st::CrossEntropy{}, batch).fits);
  CHECK(Everything(net) == before);
  CHECK_FALSE(net->second->bias.grad().defined());
  net->fails_above = 4;
  CHECK_THROWS_AS(st::fits(net, st::CrossEntropy{}, batch), std::runtime_error);
  CHECK(Everything(net) == before);
  net->fails_above = 1 << 20;
  net->runs_out_above = 4;  // an answer, not an error
  const auto report = st::fits(net, st::CrossEntropy{}, batch);
  CHECK_FALSE(report.fits);
  CHECK(report.peak_bytes == std::numeric_limits<int64_t>::max());
  CHECK(report.message().find("ran out of memory") != std::string::npos);
  CHECK(Everything(net) == before);
}

TEST_CASE("fits takes small batches, batches without targets, and refuses what cannot work") {
  auto net = support::seeded(1);
  CHECK(st::fits(net, st::CrossEntropy{}, support::classes(1, 3)).forecast->probes().size() == 1);
  CHECK(st::fits(net, st::CrossEntropy{}, support::classes(2, 3)).forecast->probes().size() == 2);
  CHECK(st::fits(net, st::CrossEntropy{}, support::classes(3, 3)).samples == 3);
  CHECK(st::fits(net, torch::randn({32, 6})).fits);
  const auto batch = support::classes(8, 3);
  CHECK_THROWS_AS(st::fits(net, st::CrossEntropy{}, batch, {.reserve = 1}), st::ConfigError);
  CHECK_THROWS_AS(st::fits(net, st::CrossEntropy{}, batch, {.limit_bytes = -1}), st::ConfigError);
  CHECK_THROWS_MATCHES(st::fits(net, st::CrossEntropy{}, batch, {.probe_sizes = {9}}), st::ConfigError,
                       MessageMatches(ContainsSubstring("a probe of 9")));
  CHECK_THROWS_AS(st::fits(net, st::CrossEntropy{}, support::classes(0, 3)), st::ConfigError);
}

TEST_CASE("free memory of the CPU is some, and not more than there is") {
  const int64_t free = st::free_memory_bytes(c10::kCPU);
  CHECK(free > 0);
  CHECK(free < int64_t{1} << 50);
}
