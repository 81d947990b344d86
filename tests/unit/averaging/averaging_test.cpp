// SPDX-License-Identifier: Apache-2.0
// Averages against Python's AveragedModel (tests/oracle/averages.txt), on the host's and on the device's way of
// counting; refused windows; layouts, dtypes and ties; state.
#include "averaging_model.hpp"
#include "saturate/averaging/ema.hpp"
#include "saturate/averaging/swa.hpp"
#include "saturate/error.hpp"
#include "saturate/observe/op_counter.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

namespace st = saturate;
using averaging::Model;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

at::Tensor expected(const std::string& wanted) {
  std::ifstream file(SATURATE_SOURCE_DIR "/tests/oracle/averages.txt");
  std::string line, name;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    words >> name;
    if (name != wanted) continue;
    std::vector<double> values;
    for (double value; words >> value;) values.push_back(value);
    return torch::tensor(values, at::kDouble);
  }
  FAIL("no case " + wanted);
  return {};
}

at::Tensor values_of(const st::AveragedWeights& averages) {
  return torch::cat({averages.average("weight").flatten(), averages.average("bias"), averages.average("mean")});
}

// A flag that is there makes the device count, where it may.
at::Tensor taken(bool on_device) { return on_device ? torch::zeros({}) : at::Tensor(); }
at::Tensor refused() { return torch::ones({}); }

template <class Average, class Options>
void compare(const char* name, Options options) {
  INFO(name);
  for (const bool on_device : {false, true}) {
    options.count_on_device = on_device;
    Model net;
    Average average(*net, options);
    for (int64_t step = 0; step < 50; ++step) {
      net->move(step);
      average.update(taken(on_device));
    }
    const at::Tensor want = expected(name);
    CHECK(((values_of(average) - want).abs() / want.abs()).max().template item<double>() < 1e-12);
    CHECK(average.steps() == 50);
    if (options.every == 1) CHECK(average.average("count").template item<int64_t>() == 49);
  }
}

std::vector<at::Tensor> all_averages(const st::AveragedWeights& averages) {
  std::vector<at::Tensor> result;
  for (const std::string& name : averages.names()) result.push_back(averages.average(name).clone());
  return result;
}

template <class Average>
void check_refused(Average&& make) {
  Model net, twin;
  auto average = make(*net), never_met_one = make(*twin);
  const auto step = [](auto& model, auto& averages, int64_t i) {
    model->move(i);
    averages.update(torch::zeros({}));
  };
  const auto refuse = [&] {
    const torch::NoGradGuard no_grad;
    const auto before = all_averages(average);
    const int64_t steps = average.steps();
    const at::Tensor mean = net->mean.clone();
    net->mean.fill_(NAN);  // statistics of a bad batch get in before anybody can refuse it
    average.update(refused());
    CHECK(support::same_bits(before, all_averages(average)));
    CHECK(average.steps() == steps);
    net->mean.copy_(mean);
  };
  refuse();  // also as the very first window
  for (int64_t i = 0; i < 12; ++i) {
    step(net, average, i);
    step(twin, never_met_one, i);
    if (i % 3 == 1) refuse();
    if (i % 5 == 4) refuse();
  }
  CHECK(support::same_bits(all_averages(average), all_averages(never_met_one)));
  CHECK(average.updates() == never_met_one.updates());
}

// Layouts and dtypes of many kinds in one model.
struct ZooImpl : torch::nn::Module {
  ZooImpl() {
    torch::manual_seed(3);
    for (int i = 0; i < 40; ++i) add("small" + std::to_string(i), torch::randn({1 + i * 7}));
    add("large", torch::randn({70, 1000}));
    add("channels_last", torch::randn({8, 3, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast));
    add("transposed", torch::randn({6, 9}).t());
    add("gaps", torch::randn({6, 10}).narrow(1, 2, 5));
    add("double", torch::randn({33}, at::kDouble));
    add("bfloat16", torch::randn({9001}).to(at::kBFloat16));
    add("half", torch::randn({77}).to(at::kHalf));
    add("none", torch::zeros({0, 4}));
    add("scalar", torch::randn({}));
    register_buffer("repeated", torch::randn({1, 4}).expand({3, 4}));
    register_buffer("mask", torch::rand({12}) > 0.5);
  }
  void add(const std::string& name, const at::Tensor& value) { register_parameter(name, value); }
  void move() {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& p : parameters()) {
      p.set_data(torch::randn_like(p, p.options().dtype(at::kFloat)).to(p.scalar_type()));
    }
  }
};
TORCH_MODULE(Zoo);

}  // namespace

TEST_CASE("Ema gives Python's averages over 50 steps, however it counts") {
  compare<st::Ema, st::EmaOptions>("ema", {.decay = 0.95, .buffers = st::AverageBuffers::copy});
  compare<st::Ema, st::EmaOptions>("ema_buffers", {.decay = 0.9});
  compare<st::Ema, st::EmaOptions>("ema_every", {.decay = 0.8, .every = 3, .buffers = st::AverageBuffers::copy});
  compare<st::Ema, st::EmaOptions>("ema_warmup", {.decay = 0.85, .warmup = true, .buffers = st::AverageBuffers::copy});
}

TEST_CASE("Swa gives Python's averages over 50 steps, however it counts") {
  compare<st::Swa, st::SwaOptions>("swa", {});
  compare<st::Swa, st::SwaOptions>("swa_start", {.start = 10, .every = 4});
  compare<st::Swa, st::SwaOptions>("swa_buffers", {.buffers = st::AverageBuffers::average});
}

TEST_CASE("law 2: a refused window changes no average, bit for bit, and does not count") {
  const bool on_device = GENERATE(false, true);
  const int64_t every = GENERATE(1, 2, 5);
  check_refused([&](auto& net) {
    return st::Ema(net, {.decay = 0.7, .warmup = true, .every = every, .count_on_device = on_device});
  });
  check_refused([&](auto& net) { return st::Swa(net, {.start = 3, .every = every, .count_on_device = on_device}); });
  // What gating by a weight of 0 would do.
  CHECK_FALSE(torch::lerp(torch::ones({1}), torch::full({1}, NAN), 0.0).isfinite().all().item<bool>());
}

TEST_CASE("law 6: an update reads nothing on the host") {
  const bool on_device = GENERATE(false, true);
  Zoo net;
  st::Ema ema(*net, {.warmup = true, .every = 2, .count_on_device = on_device});
  st::Swa swa(*net, {.count_on_device = on_device});
  const st::OpCounter counter;
  for (int i = 0; i < 4; ++i) {
    ema.update(i == 1 ? refused() : torch::zeros({}));
    swa.update(i == 2 ? refused() : torch::zeros({}));
    swa.update();
  }
  CHECK(counter.host_reads() == 0);
}

TEST_CASE("any layout and dtype is averaged, in float32 at least") {
  const bool on_device = GENERATE(false, true);
  Zoo net;
  st::Ema ema(*net, {.decay = 0.6, .count_on_device = on_device});
  std::map<std::string, at::Tensor> reference;
  for (int step = 0; step < 6; ++step) {
    net->move();
    ema.update(taken(on_device));
    for (const auto& item : net->named_parameters()) {
      const at::Tensor now = item.value().detach().to(at::kDouble);
      at::Tensor& average = reference[item.key()];
      average = step == 0 ? now.clone() : average * 0.6 + now * 0.4;
    }
  }
  for (const auto& [name, want] : reference) {
    INFO(name);
    const at::Tensor& got = ema.average(name);
    CHECK(got.scalar_type() == (name == "double" ? at::kDouble : at::kFloat));
    CHECK(torch::allclose(got.to(at::kDouble), want, 1e-5, 1e-6));
  }
  CHECK(ema.average("channels_last").is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(torch::equal(ema.average("mask"), net->named_buffers()["mask"]));
  CHECK(torch::equal(ema.average("repeated"), net->named_buffers()["repeated"]));
}

TEST_CASE("averages follow a parameter into another memory format or dtype, and refuse another shape") {
  const bool on_device = GENERATE(false, true);
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 4, 3)), twin(torch::nn::Conv2dOptions(3, 4, 3));
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 2; ++i) twin->parameters()[i].copy_(conv->parameters()[i]);
  }
  st::Ema ema(*conv, {.decay = 0.5, .count_on_device = on_device});
  st::Ema other(*twin, {.decay = 0.5, .count_on_device = on_device});
  for (int step = 0; step < 6; ++step) {
    const at::Tensor value = torch::randn({4, 3, 3, 3});
    if (step == 2) conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    if (step == 4) {
      conv->to(at::kBFloat16);
      twin->to(at::kBFloat16);
    }
    conv->weight.data().copy_(value);
    twin->weight.data().copy_(value);
    ema.update(taken(on_device));
    other.update(taken(on_device));
  }
  CHECK(ema.average("weight").is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(ema.average("weight").scalar_type() == at::kFloat);
  CHECK(torch::equal(ema.average("weight"), other.average("weight")));
  conv->weight.set_data(torch::zeros({1, 3, 3, 3}));
  CHECK_THROWS_AS(ema.update(), st::StateError);
}

TEST_CASE("tied parameters are averaged once") {
  struct Tied : torch::nn::Module {
    Tied() {
      const auto layer = register_module("first", torch::nn::Linear(2, 2));
      register_module("second", layer);
    }
  };
  const auto net = std::make_shared<Tied>();
  const st::Ema ema(*net);
  CHECK(ema.names() == std::vector<std::string>{"first.weight", "first.bias"});
}

TEST_CASE("averages that are stopped and restored go on bit for bit") {
  const bool on_device = GENERATE(false, true);
  const st::EmaOptions options{.decay = 0.8, .warmup = true, .every = 2, .count_on_device = on_device};
  Model net, other;
  st::Ema whole(*net, options), second(*other, options);
  st::AveragedState saved;
  for (int64_t step = 0; step < 20; ++step) {
    net->move(step);
    other->move(step);
    whole.update(taken(on_device));
    if (step > 8) second.update(taken(on_device));
    if (step == 8) {
      saved = whole.state();
      second.update(taken(on_device));  // to be forgotten
      second.load_state(saved);
    }
  }
  CHECK(saved.steps == 9);
  CHECK(support::same_bits(all_averages(whole), all_averages(second)));
  CHECK(whole.steps() == second.steps());
  CHECK_FALSE(torch::equal(saved.averages.at("weight"), whole.average("weight")));  // a copy
}

TEST_CASE("averages that do not fit are refused, and nothing has changed") {
  Model net;
  st::Ema ema(*net);
  net->move(3);
  ema.update();
  const auto before = all_averages(ema);
  const auto refuses = [&](auto&& spoil, const char* part) {
    st::AveragedState state = ema.state();
    for (auto& [name, tensor] : state.averages) tensor = tensor + 1;
    spoil(state);
    CHECK_THROWS_MATCHES(ema.load_state(state), st::StateError, MessageMatches(ContainsSubstring(part)));
    CHECK(support::same_bits(before, all_averages(ema)));
    CHECK(ema.steps() == 1);
  };
  refuses([](auto& s) { s.type = "Swa"; }, "of Swa");
  refuses([](auto& s) { s.steps = -1; }, "-1");
  refuses([](auto& s) { s.averages.erase("bias"); }, "'bias' is missing");
  refuses([](auto& s) { s.averages["bias"] = at::Tensor(); }, "'bias' is missing");
  refuses([](auto& s) { s.averages["other"] = torch::zeros({}); }, "'other' does not exist");
  refuses([](auto& s) { s.averages["mean"] = torch::zeros({3}, at::kDouble); }, "'mean'");
  refuses([](auto& s) { s.averages["weight"] = torch::zeros({2, 3}); }, "'weight'");
}

TEST_CASE("a copy of a policy averages on its own") {
  const bool on_device = GENERATE(false, true);
  Model net;
  st::Ema first(*net, {.decay = 0.5, .count_on_device = on_device});
  net->move(1);
  first.update(taken(on_device));
  st::Ema second = first;
  net->move(2);
  second.update(taken(on_device));
  CHECK(first.steps() == 1);
  CHECK(second.steps() == 2);
  CHECK_FALSE(torch::equal(first.average("weight"), second.average("weight")));
  first.update(taken(on_device));
  CHECK(support::same_bits(all_averages(first), all_averages(second)));
  const st::Ema moved = std::move(second);
  CHECK(moved.steps() == 2);
}

TEST_CASE("attaching again keeps the averages of the same model, and refuses another one") {
  Model net, other;
  st::Swa swa(*net);
  net->move(4);
  swa.update();
  const auto before = all_averages(swa);
  swa.attach(*net, at::kCPU);
  CHECK(support::same_bits(before, all_averages(swa)));
  CHECK(swa.steps() == 1);
  CHECK_THROWS_MATCHES(swa.attach(*other, at::kCPU), st::ConfigError,
                       MessageMatches(ContainsSubstring("another model")));
  CHECK(support::same_bits(before, all_averages(swa)));
}

TEST_CASE("averages refuse what cannot work") {
  const auto says = [](const char* text) { return MessageMatches(ContainsSubstring(text)); };
  CHECK_THROWS_MATCHES(st::Ema({.decay = 1}), st::ConfigError, says("decay is 1"));
  CHECK_THROWS_MATCHES(st::Ema({.decay = NAN}), st::ConfigError, says("decay is nan"));
  CHECK_THROWS_MATCHES(st::Ema({.every = 0}), st::ConfigError, says("every is 0"));
  CHECK_THROWS_MATCHES(st::Swa({.start = 0}), st::ConfigError, says("start is 0"));
  CHECK_THROWS_MATCHES(st::Swa({.every = -1}), st::ConfigError, says("every is -1"));
  st::Ema nobodys;
  CHECK_THROWS_MATCHES(nobodys.update(), st::StateError, says("no model yet"));
  CHECK_THROWS_MATCHES(nobodys.scope(), st::StateError, says("no model yet"));
  CHECK_FALSE(nobodys.evaluation_scope().active());
  torch::nn::Module empty;
  CHECK_THROWS_MATCHES(st::Ema(empty), st::ConfigError, says("no parameters"));
  struct Complex : torch::nn::Module {
    Complex() { register_parameter("phase", torch::zeros({2}, at::kComplexFloat)); }
  } complex;
  CHECK_THROWS_MATCHES(st::Ema(complex), st::ConfigError, says("'phase' is complex"));
  Model net;
  CHECK_THROWS_MATCHES(st::Ema(*net).average("nothing"), st::StateError, says("'nothing'"));
}
