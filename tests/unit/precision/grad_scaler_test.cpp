// SPDX-License-Identifier: Apache-2.0
#include "saturate/precision/grad_scaler.hpp"

#include "oracle.hpp"
#include "saturate/clip/clip_grad_norm.hpp"
#include "saturate/error.hpp"
#include "saturate/observe/op_counter.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <limits>
#include <set>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using st::GradScaler;
using st::GradScalerOptions;

namespace {

at::Tensor weight_of_step(int step, const std::set<int>& bad) {
  at::Tensor weight = torch::empty({3});
  for (int i = 0; i < 3; ++i) weight[i] = std::cos(step + i);
  if (bad.contains(step)) {
    weight[step % 3] = step % 2 == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  return weight;
}

// The run of make_precision.py.
template <class Optimizer>
double distance(const char* name, const GradScalerOptions& options, const std::set<int>& bad, Optimizer make) {
  at::Tensor parameter = torch::tensor({1.0F, -2.0F, 0.5F}).requires_grad_(true);
  auto optimizer = make(parameter);
  GradScaler scaler(options);
  const auto expected = support::oracle("precision.txt").at(name);
  double worst = 0;
  for (int step = 0; step < 50; ++step) {
    optimizer.zero_grad();
    scaler.scale((parameter * weight_of_step(step, bad)).sum()).backward();
    scaler.unscale_(optimizer);
    scaler.step(optimizer);
    scaler.update();
    const st::GradScalerState state = scaler.state();
    const std::vector<double> got{state.scale, static_cast<double>(state.growth_tracker), parameter[0].item<double>(),
                                  parameter[1].item<double>(), parameter[2].item<double>()};
    for (std::size_t i = 0; i < 5; ++i) {
      const double want = expected.at(5 * static_cast<std::size_t>(step) + i);
      worst = std::max(worst, std::abs(got[i] - want) / std::max(1.0, std::abs(want)));
    }
  }
  return worst;
}

const auto ours = [](at::Tensor& parameter) { return st::optim::SGD({parameter}, {.lr = 0.1, .momentum = 0.9}); };
const auto libtorch = [](at::Tensor& parameter) {
  return torch::optim::SGD(std::vector<at::Tensor>{parameter}, torch::optim::SGDOptions(0.1).momentum(0.9));
};

struct OneParameter {
  at::Tensor parameter = torch::tensor({3.0F, 4.0F}).requires_grad_(true);
  st::optim::SGD optimizer{{parameter}, {.lr = 1.0}};
  void backward(GradScaler& scaler, float factor = 1) {
    optimizer.zero_grad();
    scaler.scale((parameter.square() / 2 * factor).sum()).backward();
  }
};

}  // namespace

TEST_CASE("GradScaler follows Python's over 50 steps: scale, tracker, parameters") {
  const GradScalerOptions first{.init_scale = 1024, .growth_interval = 5};
  const GradScalerOptions second{.init_scale = 64, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3};
  CHECK(distance("scaler", first, {0, 1, 2, 17, 30, 31}, ours) < 1e-6);
  CHECK(distance("scaler", first, {0, 1, 2, 17, 30, 31}, libtorch) < 1e-6);
  CHECK(distance("scaler_options", second, {3, 9, 10}, ours) < 1e-6);
  CHECK(distance("scaler_never", {}, {}, ours) < 1e-6);
}

TEST_CASE("the scale has a floor, and the weights stay finite after 166 overflows in a row") {
  OneParameter one;
  GradScaler scaler;
  for (int i = 0; i < 166; ++i) {
    one.backward(scaler, std::numeric_limits<float>::infinity());
    scaler.step(one.optimizer);
    scaler.update();
  }
  CHECK(scaler.get_scale() == 1.0);
  CHECK(one.parameter[0].item<float>() == 3.0F);
  one.backward(scaler);
  scaler.step(one.optimizer);
  scaler.update();
  CHECK(one.parameter.isfinite().all().item<bool>());
  CHECK(one.parameter[0].item<float>() == 0.0F);  // 3 - 1.0 * 3
}

TEST_CASE("gradients are unscaled before they are clipped, once") {
  OneParameter one;
  GradScaler scaler({.init_scale = 1024});
  one.backward(scaler);
  CHECK(one.parameter.grad()[0].item<float>() == 3 * 1024.0F);
  scaler.unscale_(one.optimizer);
  std::vector<at::Tensor> gradients = one.optimizer.gradients();
  const st::ClipResult clipped = st::ClipGradNorm{1.0}.clip(gradients);
  CHECK(std::abs(clipped.norm.item<double>() - 5) < 1e-6);
  CHECK(std::abs(gradients[0][0].item<double>() - 0.6) < 1e-5);
  CHECK(std::abs(gradients[0][1].item<double>() - 0.8) < 1e-5);
  scaler.step(one.optimizer);  // does not unscale again
  CHECK(std::abs(one.parameter[0].item<double>() - 2.4) < 1e-5);
}

TEST_CASE("the stages of PyTorch's scaler: what is out of turn is an error that says so") {
  const auto says = [](const char* text) { return MessageMatches(ContainsSubstring(text)); };
  OneParameter one;
  GradScaler scaler;
  CHECK_THROWS_MATCHES(scaler.step(one.optimizer), st::StateError, says("before anything was scaled"));
  CHECK_THROWS_MATCHES(scaler.unscale_(one.optimizer), st::StateError, says("before anything was scaled"));
  CHECK_THROWS_MATCHES(scaler.update(), st::StateError, says("without a step()"));
  one.backward(scaler);
  scaler.unscale_(one.optimizer);
  CHECK_THROWS_MATCHES(scaler.unscale_(one.optimizer), st::StateError, says("twice"));
  CHECK(one.parameter.grad()[0].item<float>() == 3.0F);
  scaler.step(one.optimizer);
  CHECK_THROWS_MATCHES(scaler.unscale_(one.optimizer), st::StateError, says("after step()"));
  CHECK_THROWS_MATCHES(scaler.step(one.optimizer), st::StateError, says("twice"));
  scaler.update();
  CHECK_THROWS_MATCHES(scaler.update(), st::StateError, says("without a step()"));
  one.optimizer.zero_grad();
  CHECK_THROWS_MATCHES(scaler.step(one.optimizer), st::StateError, says("has a gradient"));
  one.backward(scaler);
  scaler.step(one.optimizer);
  scaler.update();
}

TEST_CASE("two optimizers have stages of their own; one inf backs off for both, and only its own step is skipped") {
  OneParameter bad, good;
  GradScaler scaler({.init_scale = 8});
  bad.backward(scaler, std::numeric_limits<float>::infinity());
  good.backward(scaler);
  scaler.unscale_(good.optimizer);
  scaler.step(bad.optimizer);
  scaler.step(good.optimizer);
  scaler.update();
  CHECK(scaler.get_scale() == 4);
  CHECK(bad.parameter[0].item<float>() == 3.0F);
  CHECK(good.parameter[0].item<float>() == 0.0F);
}

TEST_CASE("gradients of several dtypes are unscaled together, float16 ones are refused untouched") {
  GradScaler scaler({.init_scale = 4});
  scaler.scale_on(c10::kCPU);
  const std::vector<at::Tensor> mixed{torch::full({2}, 8.0), torch::full({2}, 8.0, at::kDouble),
                                      torch::full({2}, 8.0, at::kBFloat16), torch::empty({0})};
  CHECK(scaler.unscale(mixed).item<float>() == 0);
  for (int i = 0; i < 3; ++i) CHECK(mixed[i][0].item<double>() == 2.0);
  mixed[1][1] = std::numeric_limits<double>::infinity();
  CHECK(scaler.unscale(mixed).item<float>() == 1);
  const at::Tensor half = torch::full({2}, 8.0, at::kHalf);
  CHECK_THROWS_MATCHES(scaler.unscale({mixed[0], half}), st::ConfigError,
                       MessageMatches(ContainsSubstring("MasterWeights")));
}

TEST_CASE("state saved and loaded is the same, and one that cannot work changes nothing") {
  OneParameter one;
  GradScaler scaler({.init_scale = 1024, .growth_interval = 3});
  one.backward(scaler);
  scaler.step(one.optimizer);
  scaler.update();
  const st::GradScalerState saved = scaler.state();
  CHECK(saved.scale == 1024);
  CHECK(saved.growth_tracker == 1);

  for (const bool used_before : {false, true}) {
    GradScaler other({.init_scale = 2});
    OneParameter two;
    if (used_before) {
      two.backward(other);
      other.step(two.optimizer);
      other.update();
    }
    other.load_state(saved);
    CHECK(other.state().scale == 1024);
    CHECK(other.state().growth_tracker == 1);
    CHECK(other.state().growth_interval == 3);
    for (int i = 0; i < 2; ++i) {
      two.backward(other);
      other.step(two.optimizer);
      other.update();
    }
    CHECK(other.state().scale == 2048);  // the third step without inf
    st::GradScalerState broken = saved;
    broken.scale = 0;
    CHECK_THROWS_AS(other.load_state(broken), st::StateError);
    broken = saved;
    broken.growth_tracker = -1;
    CHECK_THROWS_AS(other.load_state(broken), st::StateError);
    CHECK(other.state().scale == 2048);
  }
}

TEST_CASE("scaler settings that cannot work are refused") {
  const auto refused = [](const GradScalerOptions& options, const char* text) {
    CHECK_THROWS_MATCHES(GradScaler(options), st::ConfigError, MessageMatches(ContainsSubstring(text)));
  };
  refused({.init_scale = 0}, "init_scale is 0");
  refused({.init_scale = NAN}, "init_scale is nan");
  refused({.growth_factor = 1}, "growth_factor is 1");
  refused({.backoff_factor = 1}, "backoff_factor is 1");
  refused({.growth_interval = 0}, "growth_interval is 0");
  refused({.min_scale = 0}, "min_scale is 0");
  refused({.init_scale = 1, .min_scale = 2}, "below min_scale 2");
  GradScaler scaler;
  CHECK_THROWS_MATCHES(scaler.update(0.5), st::ConfigError, MessageMatches(ContainsSubstring("new scale is 0.5")));
  scaler.update(2.0);
  CHECK(scaler.get_scale() == 2);
}

TEST_CASE("a step with the scaler reads nothing on the host") {
  OneParameter one;
  GradScaler scaler;
  one.backward(scaler);
  scaler.step(one.optimizer);
  scaler.update();
  const st::OpCounter counter;
  one.backward(scaler);
  scaler.unscale_(one.optimizer);
  scaler.step(one.optimizer);
  scaler.update();
  CHECK(counter.host_reads() == 0);
  scaler.get_scale();
  CHECK(counter.host_reads() == 1);
}

TEST_CASE("Fp16 in the Trainer: one scale a window, backed off on inf, left alone by a window without targets") {
  support::Mlp net = support::seeded(1);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                      st::Fp16({.init_scale = 256, .growth_interval = 2}), st::Accumulate{2});
  GradScaler& scaler = trainer.policy<st::Fp16>().scaler();
  const auto window = [](int64_t seed) { return support::split(support::classes(8, seed), {3, 5}); };
  trainer.step(window(1));
  CHECK(scaler.state().growth_tracker == 1);
  trainer.step(window(2));
  CHECK(scaler.state().scale == 512);
  CHECK(scaler.state().growth_tracker == 0);
  trainer.step(window(3));
  auto ignored = window(4);
  for (auto& batch : ignored) batch.second.fill_(-100);
  CHECK_FALSE(trainer.step(ignored).taken());
  CHECK(scaler.state().scale == 512);
  CHECK(scaler.state().growth_tracker == 1);
  auto bad = window(5);
  bad[1].first[0][0] = std::numeric_limits<float>::infinity();
  CHECK_FALSE(trainer.step(bad).taken());
  CHECK(scaler.state().scale == 256);
  CHECK(scaler.state().growth_tracker == 0);
  CHECK(trainer.state().step == 3);
}
