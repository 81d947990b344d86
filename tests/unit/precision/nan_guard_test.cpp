// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/nan_guard.hpp"

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

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using st::NanReport;

namespace {

struct Plant {
  int layer = -1;  // none
  bool backward = false;
};

// Gives its input, and in backward the gradient's logarithm of a negative number.
struct BadBackward : torch::autograd::Function<BadBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {torch::log(-1 - gradients[0].abs())};
  }
};

struct LayerImpl : torch::nn::Module {
  LayerImpl() : linear(register_module("linear", torch::nn::Linear(6, 6))) {}
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = torch::tanh(saturate::call(linear, x));
    if (!planted) return y;
    if (backward) return BadBackward::apply(y);
    return torch::sqrt(y - 2);
  }
  torch::nn::Linear linear;
  bool planted = false, backward = false;
};
TORCH_MODULE(Layer);

// Twelve layers with dropout and BatchNorm between them: what running again must not change.
struct DeepImpl : torch::nn::Module {
  DeepImpl()
      : layers(register_module("layers", torch::nn::ModuleList())),
        norm(register_module("norm", torch::nn::BatchNorm1d(6))),
        dropout(register_module("dropout", torch::nn::Dropout(0.2))),
        head(register_module("head", torch::nn::Linear(6, 4))) {
    for (int i = 0; i < 12; ++i) layers->push_back(Layer());
  }
  at::Tensor forward(at::Tensor x) {
    for (int i = 0; i < 12; ++i) x = saturate::call(layers->ptr<LayerImpl>(i), x);
    return saturate::call(head, dropout(saturate::call(norm, x)));
  }
  void plant(const Plant& plant) {
    for (int i = 0; i < 12; ++i) {
      auto layer = layers->ptr<LayerImpl>(i);
      layer->planted = i == plant.layer;
      layer->backward = plant.backward;
    }
  }
  torch::nn::ModuleList layers;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout dropout;
  torch::nn::Linear head;
};
TORCH_MODULE(Deep);

std::vector<at::Tensor> everything(Deep& net) {
  auto result = support::clones(net->parameters());
  for (const auto& buffer : net->buffers()) result.push_back(buffer.clone());
  return result;
}

// Overflows float16: inputs up to 200 squared.
struct SquaresImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x * x * 1e-6; }
};
TORCH_MODULE(Squares);
struct OverflowingImpl : torch::nn::Module {
  OverflowingImpl()
      : first(register_module("first", torch::nn::Linear(6, 4))), squares(register_module("squares", Squares())) {}
  at::Tensor forward(const at::Tensor& x) { return saturate::call(squares, saturate::call(first, x)); }
  torch::nn::Linear first;
  Squares squares;
};
TORCH_MODULE(Overflowing);

}  // namespace

TEST_CASE("a NaN planted in the forward or the backward of each of twelve layers is found by name") {
  support::LogCapture log;
  for (int layer = 0; layer < 12; ++layer) {
    for (const bool backward : {false, true}) {
      CAPTURE(layer, backward);
      Deep net = support::seeded<Deep>(1);
      st::NanGuard guard;
      st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, std::ref(guard),
                          st::Accumulate{2});
      const auto window = support::split(support::classes(12, 1), {6, 6});
      CHECK(trainer.step(window).taken());
      CHECK(guard.reports().empty());
      net->plant({layer, backward});
      const auto before = support::clones(net->parameters());
      CHECK_FALSE(trainer.step(window).taken());
      REQUIRE(guard.reports().size() == 1);
      const NanReport& report = guard.reports()[0];
      CHECK(report.cause == NanReport::Cause::arithmetic);
      CHECK(report.module == "layers." + std::to_string(layer));
      CHECK(report.backward == backward);
      CHECK(report.op == (backward ? "aten::log" : "aten::sqrt"));
      CHECK(report.node.empty() != backward);
      CHECK(report.window == 1);
      CHECK(report.dtype == "Float");
      CHECK(report.input_max <= -1.0);
      CHECK_FALSE(report.parameters.empty());
      const bool head_hit =
          std::find(report.parameters.begin(), report.parameters.end(), "head.weight") != report.parameters.end();
      CHECK(head_hit != backward);  // behind the planted layer, gradients are finite
      CHECK(support::same_bits(before, support::clones(net->parameters())));
      CHECK(log.contains("layers." + std::to_string(layer) + ": aten::"));
    }
  }
}

TEST_CASE("running a window again changes nothing: buffers, random stream, gradients") {
  support::LogCapture log;
  const auto run = [](bool guarded) {
    Deep net = support::seeded<Deep>(1);
    st::optim::SGD optimizer(net->parameters(), {.lr = 0.1});
    st::NanGuard guard({.max_reports = guarded ? 3 : 0});
    st::Trainer trainer(net, std::ref(optimizer), st::CrossEntropy{}, std::ref(guard));
    const auto batch = support::classes(12, 1);
    torch::manual_seed(5);
    trainer.step(batch);
    net->plant({4, true});
    trainer.step(batch);
    for (const auto& parameter : net->parameters()) CHECK_FALSE(parameter.grad().defined());
    net->plant({});
    trainer.step(batch);
    auto result = everything(net);
    result.push_back(torch::rand({4}));
    CHECK(guard.reports().size() == (guarded ? 1 : 0));
    return result;
  };
  CHECK(support::same_bits(run(true), run(false)));
}

TEST_CASE("a bad batch is told apart from bad arithmetic, and bad weights from both") {
  support::LogCapture log;
  Deep net = support::seeded<Deep>(1);
  st::NanGuard guard;
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, std::ref(guard));
  auto batch = support::classes(12, 1);
  batch.first[7][2] = NAN;
  CHECK_FALSE(trainer.step(batch).taken());
  REQUIRE(guard.reports().size() == 1);
  CHECK(guard.reports()[0].cause == NanReport::Cause::data);
  CHECK(guard.reports()[0].detail == "input 0 (samples 7)");
  {
    const torch::NoGradGuard no_grad;
    net->head->weight[0][0] = NAN;
  }
  CHECK_FALSE(trainer.step(support::classes(12, 2)).taken());
  REQUIRE(guard.reports().size() == 2);
  CHECK(guard.reports()[1].cause == NanReport::Cause::weights);
  CHECK(guard.reports()[1].detail == "head.weight");
}

TEST_CASE("an infinity written on purpose, as in a mask, is not taken for the origin") {
  struct MaskedImpl : torch::nn::Module {
    MaskedImpl() : linear(register_module("linear", torch::nn::Linear(6, 4))) {}
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor scores = saturate::call(linear, x);
      const at::Tensor mask = torch::full({4, 4}, -std::numeric_limits<float>::infinity()).triu(1)[1];
      const at::Tensor attention = torch::softmax((scores + mask).masked_fill(scores > 1e9, -INFINITY), 1);
      return armed ? torch::log(attention - 2) : attention;
    }
    torch::nn::Linear linear;
    bool armed = false;
  };
  TORCH_MODULE(Masked);
  support::LogCapture log;
  Masked net = support::seeded<Masked>(1);
  st::NanGuard guard;
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, std::ref(guard));
  CHECK(trainer.step(support::classes(8, 1)).taken());
  net->armed = true;
  trainer.step(support::classes(8, 1));
  REQUIRE(guard.reports().size() == 1);
  CHECK(guard.reports()[0].op == "aten::log");
}

TEST_CASE("an overflow in float16 is advised, and made an FP32 island where asked") {
  support::LogCapture log;
  Overflowing net = support::seeded<Overflowing>(1);
  st::NanGuard guard({.apply = true});
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{}, st::Fp16{},
                      std::ref(guard));
  auto batch = support::classes(8, 1);
  batch.first = batch.first * 2000;
  CHECK_FALSE(trainer.step(batch).taken());
  REQUIRE(guard.reports().size() == 1);
  const NanReport& report = guard.reports()[0];
  CHECK(report.module == "squares");
  CHECK(report.dtype == "Half");
  CHECK(report.applied);
  CHECK(report.input_max > 256);
  CHECK_THAT(report.advice, ContainsSubstring("keep_fp32(\"squares\")"));
  bool taken = false;  // once the scale has found its level
  for (int i = 0; i < 20 && !taken; ++i) taken = trainer.step(batch).taken();
  CHECK(taken);
  CHECK(guard.reports().size() == 1);
}

TEST_CASE("ordinary overflows of scaled gradients are the scaler's business, endless ones are not") {
  support::LogCapture log;
  support::Mlp net = support::seeded(1);
  st::NanGuard guard({.overflow_patience = 4});
  struct Steep {  // finite, with an infinite gradient: 1e38 * 65536
    at::Tensor operator()(const at::Tensor& output, const at::Tensor&) const {
      return (output.to(at::kFloat) * 1e36).sum() * 1e-3;
    }
  };
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.0}), Steep{}, st::Fp16{}, std::ref(guard));
  const auto batch = support::classes(8, 1);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(trainer.step(batch).taken());
  CHECK(guard.reports().empty());
  CHECK_FALSE(trainer.step(batch).taken());
  REQUIRE(guard.reports().size() == 1);
  CHECK(guard.reports()[0].backward);
}

TEST_CASE("raised where asked, with the report's text; settings that cannot work are refused") {
  support::LogCapture log;
  Deep net = support::seeded<Deep>(1);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                      st::NanGuard({.raise = true}));
  net->plant({3, false});
  CHECK_THROWS_MATCHES(trainer.step(support::classes(8, 1)), st::NonFiniteError,
                       MessageMatches(ContainsSubstring("layers.3: aten::sqrt (forward)")));
  CHECK_THROWS_AS(st::NanGuard({.every = 0}), st::ConfigError);
  CHECK_THROWS_AS(st::NanGuard({.overflow_patience = 0}), st::ConfigError);
}

TEST_CASE("a watched step reads nothing on the host of a CPU run") {
  support::Mlp net = support::seeded(1);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::NanGuard());
  const auto batch = support::classes(8, 1);
  trainer.step(batch);
  const st::OpCounter counter;
  for (int i = 0; i < 3; ++i) trainer.step(batch);
  CHECK(counter.host_reads() == 0);
}
