// SPDX-License-Identifier: Apache-2.0
// Windows that run out of memory, brought about by a model that throws what LibTorch's allocators throw.
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/tensor_source.hpp"
#include "saturate/error.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/precision/precision.hpp"
#include "saturate/trainer.hpp"
#include "support.hpp"

#include <c10/util/Exception.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <limits>
#include <stdexcept>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using support::Batch;

namespace {

enum class Where { forward, backward };

// Batch norm and dropout, so that a forward leaves traces.
struct TightImpl : torch::nn::Module {
  explicit TightImpl(int64_t room, Where where = Where::forward, bool exact = false)
      : room(room),
        where(where),
        exact(exact),
        first(register_module("first", torch::nn::Linear(6, 8))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        second(register_module("second", torch::nn::Linear(8, 4))) {}

  at::Tensor forward(const at::Tensor& x) {
    sizes.push_back(x.size(0));
    at::Tensor y = first(x);
    if (!exact) y = torch::dropout(norm(y), 0.25, is_training());
    if (where == Where::backward) {
      y.register_hook(
          [this, n = x.size(0)](const at::Tensor&) { require_room(n); });  // second has its gradients by now
    } else {
      require_room(x.size(0));
    }
    return second(torch::tanh(y));
  }
  void require_room(int64_t n) const {
    if (n > room) TORCH_CHECK_WITH(OutOfMemoryError, false, "Tried to allocate ", n, " GiB");
  }

  int64_t room;
  Where where;
  bool exact;
  std::vector<int64_t> sizes;  // of the batches that forward saw
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
};
TORCH_MODULE(Tight);

struct Masked {
  at::Tensor x, mask, y;
};
auto inputs(const Masked& batch) { return std::tie(batch.x, batch.mask); }
const at::Tensor& target(const Masked& batch) { return batch.y; }

constexpr int64_t endless = std::numeric_limits<int64_t>::max();
const st::TrainerOptions halve{.on_oom = st::OnOom::halve_microbatch};

std::vector<at::Tensor> state_of(Tight& net) {
  std::vector<at::Tensor> state = support::clones(net->parameters());
  for (const at::Tensor& buffer : net->buffers()) state.push_back(buffer.clone());
  state.push_back(at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).get_state());
  return state;
}

template <class... Policies>
std::vector<at::Tensor> trained(Tight net, const std::vector<std::vector<Batch>>& windows, Policies... policies) {
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.05}), st::CrossEntropy{}, policies...);
  torch::manual_seed(9);
  std::vector<at::Tensor> losses;
  for (const auto& window : windows) losses.push_back(trainer.step(window).loss_sum.clone());
  auto state = state_of(net);
  state.insert(state.end(), losses.begin(), losses.end());
  return state;
}

}  // namespace

TEST_CASE("out of memory: the window starts again with half the micro-batch, as if it had always had that size") {
  const Where where = GENERATE(Where::forward, Where::backward);
  CAPTURE(static_cast<int>(where));
  const Batch a = support::classes(16, 1), b = support::classes(16, 2), c = support::classes(16, 3);
  const auto quarters = [](const Batch& batch) { return support::split(batch, {4, 4, 4, 4}); };
  const auto of_four =
      trained(support::seeded<Tight>(5, at::kFloat, endless, where), {quarters(a), quarters(b), quarters(c)});
  support::LogCapture log;
  Tight net = support::seeded<Tight>(5, at::kFloat, 4, where);
  CHECK(support::same_bits(trained(net, {{a}, {b}, {c}}, halve), of_four));
  // 16, then 8, then 4 four times; later windows begin with 4.
  CHECK(net->sizes == std::vector<int64_t>{16, 8, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4});
  CHECK(log.contains("out of memory with micro-batches of 16"));
  CHECK(log.contains("out of memory with micro-batches of 8 samples: the window starts again with 4"));
  CHECK(log.contains("has BatchNorm"));
  CHECK(log.lines.size() == 2);
}

TEST_CASE("out of memory: the gradient is that of the whole window") {
  const Batch batch = support::classes(14, 1, at::kDouble, /*ignore_every=*/3);
  const auto gradients = [&](int64_t room, const std::vector<Batch>& window) {
    Tight net = support::seeded<Tight>(5, at::kDouble, room, Where::forward, /*exact=*/true);
    std::vector<at::Tensor> seen;
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.0}), st::CrossEntropy{}, halve,
                        support::SpyGradients{&seen});
    trainer.step(window);
    return seen;
  };
  const auto whole = gradients(endless, {batch});
  CHECK(support::relative_error(gradients(7, {batch}), whole) < 1e-10);
  CHECK(support::relative_error(gradients(3, {batch}), whole) < 1e-10);
  CHECK(support::relative_error(gradients(2, support::split(batch, {9, 5})), whole) < 1e-10);
}

TEST_CASE("out of memory: a scaler goes on as if nothing had been") {
  const Batch batch = support::classes(8, 1);
  const auto halves = support::split(batch, {4, 4});
  const auto scales = [](Tight net, const std::vector<Batch>& window) {
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                        st::Fp16({.init_scale = 256, .growth_interval = 2}), halve);
    torch::manual_seed(3);
    for (int i = 0; i < 3; ++i) trainer.step(window);
    auto state = state_of(net);
    state.push_back(trainer.template policy<st::Fp16>().scaler().scale_on(c10::Device(c10::kCPU)).clone());
    return state;
  };
  CHECK(support::same_bits(scales(support::seeded<Tight>(5, at::kFloat, 4, Where::backward), {batch}),
                           scales(support::seeded<Tight>(5, at::kFloat, endless, Where::backward), halves)));
}

TEST_CASE("out of memory: by default, and with one sample, the caller gets the error and nothing has changed") {
  const Batch batch = support::classes(8, 1);
  const auto check = [&](int64_t room, const st::TrainerOptions& options, int64_t attempts) {
    Tight net = support::seeded<Tight>(5, at::kFloat, room, Where::backward, /*exact=*/true);
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, options);
    const auto before = support::clones(net->parameters());
    CHECK_THROWS_AS(trainer.step(batch), c10::OutOfMemoryError);
    CHECK(support::same_bits(support::clones(net->parameters()), before));
    for (const at::Tensor& parameter : net->parameters()) CHECK_FALSE(parameter.grad().defined());
    CHECK(trainer.state().step == 0);
    CHECK(static_cast<int64_t>(net->sizes.size()) == attempts);
  };
  check(4, {}, 1);
  check(0, halve, 4);  // 8, 4, 2, 1
}

TEST_CASE("out of memory: other errors are nobody's lack of memory") {
  struct BrokenImpl : support::MlpImpl {
    int calls = 0;
    at::Tensor forward(const at::Tensor&) {
      ++calls;
      throw std::runtime_error("cable pulled");
    }
  };
  auto net = std::make_shared<BrokenImpl>();
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, halve);
  CHECK_THROWS_AS(trainer.step(support::classes(8, 1)), std::runtime_error);
  CHECK(net->calls == 1);
}

TEST_CASE("out of memory: a tensor without a row for each sample cannot be split, and says so") {
  struct WeightedImpl : torch::nn::Module {
    TightImpl tight{2};
    WeightedImpl() : linear(register_module("linear", torch::nn::Linear(6, 4))) {}
    at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
      tight.require_room(x.size(0));
      return linear(x * mask);
    }
    torch::nn::Linear linear;
  };
  auto net = std::make_shared<WeightedImpl>();
  const Batch batch = support::classes(4, 1);
  const auto step = [&](const at::Tensor& mask) {
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, halve);
    trainer.step(Masked{batch.first, mask, batch.second});
  };
  CHECK_THROWS_MATCHES(step(torch::ones({6})), st::StateError, MessageMatches(ContainsSubstring("shape [6]")));
  CHECK_NOTHROW(step(torch::ones({4, 6})));
  CHECK_NOTHROW(step(torch::tensor(2.0)));
}

TEST_CASE("out of memory: when another rank has, this one starts again too") {
  struct OtherRank {
    using axis = st::axis::distributed;
    int asked = 0;
    st::detail::NothingScope micro_step(bool) { return {}; }
    void finish() {}
    void agree(at::Tensor&) {}
    void reduce_count(double&, at::Tensor&) {}
    bool any_out_of_memory(bool here) { return ++asked == 1 || here; }
  };
  Tight net = support::seeded<Tight>(5, at::kFloat, endless);
  const Batch batch = support::classes(8, 1);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, halve, OtherRank{});
  torch::manual_seed(9);
  trainer.step(batch);
  CHECK(net->sizes == std::vector<int64_t>{8, 4, 4});
  Tight other = support::seeded<Tight>(5, at::kFloat, endless);
  st::Trainer plain(other, st::optim::SGD(other->parameters(), {.lr = 0.1}), st::CrossEntropy{});
  torch::manual_seed(9);
  plain.step(support::split(batch, {4, 4}));
  CHECK(support::same_bits(state_of(net), state_of(other)));
}

TEST_CASE("Trainer: fits forecasts with the Trainer's policies and changes nothing") {
  const Batch batch = support::classes(64, 1);
  const auto report = [&](auto... policies) {
    Tight net = support::seeded<Tight>(5, at::kFloat, endless);
    st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.05}), st::CrossEntropy{}, policies...);
    torch::manual_seed(9);
    const auto before = state_of(net);
    const st::FitsReport forecast = trainer.fits(batch, {.limit_bytes = int64_t{1} << 30});
    CHECK(support::same_bits(state_of(net), before));
    for (const at::Tensor& parameter : net->parameters()) CHECK_FALSE(parameter.grad().defined());
    trainer.step(batch);
    net->sizes.clear();
    const st::MemoryMeter meter;
    trainer.step(batch);
    const auto measured = meter.counts().peak_bytes;
    CHECK(std::abs(forecast.step_bytes - measured) < 0.05 * measured);
    CHECK(forecast.fits);
    return forecast;
  };
  report();
  report(st::Bf16());
  report(st::Fp16());
  CHECK(report().samples == 64);
  CHECK(report().state_bytes > 0);
}

TEST_CASE("evaluate runs under inference mode, and training goes on with the loader's batches") {
  struct WatchImpl : support::MlpImpl {
    std::vector<bool> inference;
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor y = support::MlpImpl::forward(x);
      inference.push_back(y.is_inference());
      return y;
    }
  };
  const Batch batch = support::classes(8, 1);
  const auto run = [&](bool inference_mode) {
    auto net = std::make_shared<WatchImpl>();
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                        st::TrainerOptions{.inference_mode = inference_mode});
    st::data::PrefetchLoader loader(st::data::TensorSource(batch.first, batch.second), {.batch_size = 4, .workers = 0});
    const double loss = trainer.evaluate(loader).at("loss");
    trainer.fit(loader);
    CHECK(net->inference == std::vector<bool>{inference_mode, inference_mode, false, false});
    return loss;
  };
  torch::manual_seed(4);
  const double with = run(true);
  torch::manual_seed(4);
  CHECK(run(false) == with);
}
