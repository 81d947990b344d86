// SPDX-License-Identifier: Apache-2.0
#include "saturate/recompute/compress_saved.hpp"

#include "saturate/error.hpp"
#include "saturate/loss.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/precision/precision.hpp"
#include "saturate/recompute/recompute.hpp"
#include "saturate/trainer.hpp"
#include "saved_models.hpp"
#include "src/recompute/saved_store.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace st = saturate;
namespace models = saved_models;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

st::CompressSaved attached(at::ScalarType dtype = at::kBFloat16, int64_t min_bytes = 1) {
  st::CompressSaved compress({.dtype = dtype, .min_bytes = min_bytes});
  compress.attach(torch::nn::Module());
  return compress;
}

struct Gradients {
  at::Tensor loss;
  std::vector<at::Tensor> of_parameters;
  st::SavedCounts counts;
};

// One step; dtype: how saved tensors are kept, if not as they are.
template <class Net, class Loss>
Gradients step(Net net, const at::Tensor& x, Loss loss_of, std::optional<at::ScalarType> dtype) {
  st::CompressSaved compress(dtype.value_or(at::kBFloat16));
  compress.attach(*net);
  Gradients result;
  torch::manual_seed(5);
  {
    std::optional<st::detail::SavedPass> scope;
    if (dtype) scope.emplace(compress.scope());
    result.loss = loss_of(net->forward(x));
  }
  result.loss.backward();
  for (const at::Tensor& parameter : net->parameters()) result.of_parameters.push_back(parameter.grad());
  result.counts = compress.counts();
  return result;
}

// A small CNN in training mode.
struct CnnImpl : torch::nn::Module {
  CnnImpl()
      : stem(register_module("stem", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(16))),
        second(register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).stride(2)))),
        norm2(register_module("norm2", torch::nn::BatchNorm2d(32))),
        head(register_module("head", torch::nn::Linear(32, 10))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = torch::relu(norm(stem(x)));
    return head(torch::relu(norm2(second(y))).mean({2, 3}));
  }
  torch::nn::Conv2d stem;
  torch::nn::BatchNorm2d norm;
  torch::nn::Conv2d second;
  torch::nn::BatchNorm2d norm2;
  torch::nn::Linear head;
};

}  // namespace

// docs/recompute.md states these errors.
TEST_CASE("CompressSaved: forward is exact, and the gradient's error is small and not 0") {
  const auto check = [](const char* name, auto make, const at::Tensor& x, auto loss) {
    const Gradients exact = step(make(), x, loss, std::nullopt);
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const Gradients rounded = step(make(), x, loss, dtype);
      CHECK(support::same_bits(rounded.loss, exact.loss));
      const double error = models::relative_l2(rounded.of_parameters, exact.of_parameters);
      UNSCOPED_INFO(name << " " << c10::toString(dtype) << ": relative error of the gradient " << error);
      CHECK(error > 0);
      CHECK(error < (dtype == at::kBFloat16 ? 5e-3 : 7e-4));
      CHECK(rounded.counts.moved_tensors > 5);
      CHECK(rounded.counts.peak_stored_bytes * 2 == rounded.counts.moved_bytes);
      CHECK(rounded.counts.stored_bytes == 0);
    }
  };
  torch::manual_seed(7);
  const at::Tensor target = torch::randint(10, {64});
  const at::Tensor tokens = torch::randn({4, 32, 64}), images = torch::randn({64, 1, 14, 14});
  const auto next = torch::randint(64, {4 * 32});
  check(
      "transformer", [] { return models::stack<models::Attention>(4, false, 64, 0.1); }, tokens,
      [&](const at::Tensor& y) { return torch::cross_entropy_loss(y.flatten(0, 1), next); });
  const auto cnn = [] {
    torch::manual_seed(3);
    return std::make_shared<CnnImpl>();
  };
  check("CNN", cnn, images, [&](const at::Tensor& y) { return torch::cross_entropy_loss(y, target); });
}

TEST_CASE("CompressSaved: a gradient is that of the rounded activation") {
  const auto compress = attached();
  const at::Tensor x = torch::randn({500}).requires_grad_();
  at::Tensor y;
  {
    const auto scope = compress.scope();
    y = x.exp();
  }
  y.sum().backward();
  CHECK(support::same_bits(x.grad(), y.detach().to(at::kBFloat16).to(at::kFloat)));
  CHECK(!x.grad().equal(y));
}

// What the documentation warns of.
TEST_CASE("CompressSaved: differences of large saved values are lost") {
  const at::Tensor x = (torch::linspace(-1, 1, 64 * 64).mul(50).sin().view({64, 64}) + 1000).requires_grad_();
  const at::Tensor weights = torch::linspace(-1, 1, 64 * 64).mul(70).cos().view({64, 64});
  const auto error_of = [&](auto loss_of) {
    const auto gradient = [&](bool compressed) {
      const auto compress = attached();
      at::Tensor loss;
      {
        std::optional<st::detail::SavedPass> scope;
        if (compressed) scope.emplace(compress.scope());
        loss = loss_of(x * 1);
      }
      return torch::autograd::grad({loss}, {x})[0];
    };
    return models::relative_l2({gradient(true)}, {gradient(false)});
  };
  const at::Tensor target = torch::full({64, 64}, 1000.0F);
  CHECK(error_of([&](const at::Tensor& y) { return (torch::layer_norm(y, {64}) * weights).sum(); }) > 0.1);
  CHECK(error_of([&](const at::Tensor& y) { return torch::mse_loss(y, target); }) > 0.1);
  CHECK(error_of([&](const at::Tensor& y) { return (y - target).pow(2).sum(); }) < 4e-3);  // saves the difference
}

TEST_CASE("CompressSaved: half the bytes are left of the activations") {
  const auto kept_after_forward = [](bool compressed) {
    auto net = models::stack<models::Attention>(6, false, 64, 0.0);
    st::CompressSaved compress;
    compress.attach(*net);
    const at::Tensor x = models::tokens(4, 64, 64);
    const st::MemoryMeter meter;
    std::optional<st::detail::SavedPass> scope;
    if (compressed) scope.emplace(compress.scope());
    const at::Tensor loss = net->forward(x).sum();
    scope.reset();
    return meter.counts().bytes;
  };
  const int64_t plain = kept_after_forward(false), rounded = kept_after_forward(true);
  UNSCOPED_INFO(plain << " " << rounded);
  CHECK(rounded < 0.55 * plain);
  CHECK(st::detail::parcels_alive() == 0);
}

TEST_CASE("CompressSaved: what is exact, and what is shared") {
  const auto compress = attached(at::kBFloat16, 400);
  const at::Tensor x = torch::randn({100}).requires_grad_(), mask = torch::randn({100});
  const at::Tensor wide = torch::randn({100}, at::kDouble).requires_grad_();
  const at::Tensor small = torch::randn({99}).requires_grad_();
  const at::Tensor index = torch::randperm(100);
  at::Tensor loss, y;
  {
    const auto scope = compress.scope();
    y = x * 1;
    loss = (wide * 1).exp().sum() + (small * 1).exp().sum() + (x * mask).sum() + x.index_select(0, index).sum();
    CHECK(compress.counts().moved_tensors == 0);
    loss = loss + (y * y).sum() + y.view({10, 10}).exp().sum();  // y, twice, and exp's output
    CHECK(compress.counts().moved_tensors == 2);
    CHECK(compress.counts().stored_bytes == 2 * 200);
  }
  loss.backward();
  CHECK(compress.counts().fetched == 2);
  const at::Tensor rounded = y.detach().to(at::kBFloat16).to(at::kFloat);
  const at::Tensor expected = mask + 1 + 2 * rounded + y.detach().exp().to(at::kBFloat16).to(at::kFloat);
  CHECK(support::relative_error({x.grad()}, {expected}) < 1e-6);
  CHECK(support::same_bits(wide.grad(), wide.detach().exp()));
  CHECK(support::same_bits(small.grad(), small.detach().exp()));
}

TEST_CASE("CompressSaved: strided activations come back as they lay") {
  const auto compress = attached();
  const at::Tensor x = torch::randn({2, 3, 4, 5}).requires_grad_();
  const auto gradient = [&](bool compressed) {
    std::optional<st::detail::SavedPass> scope;
    if (compressed) scope.emplace(compress.scope());
    const at::Tensor y = (x * 1).contiguous(at::MemoryFormat::ChannelsLast);
    const auto parts = y.transpose(1, 2).chunk(2, 3);
    const at::Tensor loss = (parts[0].slice(3, 1, 3).sin().slice(0, 1) * parts[1].narrow(0, 0, 1)).sum() +
                            y.select(0, 1).expand({3, 3, 4, 5}).exp().sum();
    return torch::autograd::grad({loss}, {x})[0];
  };
  const double error = support::relative_error({gradient(true)}, {gradient(false)});
  CHECK(error > 0);
  CHECK(error < 8e-3);
}

TEST_CASE("CompressSaved: float16 is finer, and infinite above 65504") {
  const at::Tensor x = torch::tensor({100000.0F, 3.0F}).requires_grad_();
  for (const auto& [dtype, finite] : {std::pair(at::kBFloat16, true), std::pair(at::kHalf, false)}) {
    const auto compress = attached(dtype);
    at::Tensor loss;
    {
      const auto scope = compress.scope();
      loss = (x * 1).pow(2).sum();
    }
    const at::Tensor gradient = torch::autograd::grad({loss}, {x})[0];
    CHECK(gradient.isfinite().all().item<bool>() == finite);
    CHECK(gradient[1].item<double>() == 6);
  }
}

TEST_CASE("CompressSaved: a change in place, a kept graph, second derivatives, a dropped graph") {
  const auto compress = attached();
  const at::Tensor x = torch::randn({300}).requires_grad_();
  at::Tensor y, loss;
  const auto forward = [&] {
    const auto scope = compress.scope();
    y = x.exp();
    loss = y.pow(3).sum();
  };
  forward();
  const auto gradient = [&](bool keep) { return torch::autograd::grad({loss}, {x}, {}, keep)[0]; };
  const at::Tensor first = gradient(true);
  CHECK(support::same_bits(first, gradient(true)));
  CHECK(support::same_bits(first, gradient(false)));
  forward();
  y.detach().add_(1);
  CHECK_THROWS_MATCHES(loss.backward(), st::StateError,
                       MessageMatches(ContainsSubstring("CompressSaved") && ContainsSubstring("changed in place")));
  forward();
  const at::Tensor once = torch::autograd::grad({loss}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
  const at::Tensor twice = torch::autograd::grad({once.sum()}, {x})[0];
  CHECK(support::relative_error({twice}, {9 * (3 * x).exp().detach()}) < 2e-2);
  loss = y = at::Tensor();
  CHECK(st::detail::parcels_alive() == 0);
}

TEST_CASE("CompressSaved: the inputs of recomputed blocks are rounded, and what is recomputed follows from them") {
  const auto gradients = [](bool recomputed) {
    auto net = models::stack<models::Attention>(3, false, 64, 0.1);
    st::CompressSaved compress;
    compress.attach(*net);
    torch::manual_seed(1);
    at::Tensor x = models::tokens(2, 16, 64), loss;
    {
      std::optional<st::detail::SavedPass> scope;
      if (recomputed) scope.emplace(compress.scope());
      for (auto& block : net->blocks) x = recomputed ? st::recompute(block, x) : block->forward(x);
      loss = x.sum();
    }
    loss.backward();
    // The first block's input takes no gradient, and stays exact.
    if (recomputed) CHECK(compress.counts().moved_tensors == 2);
    std::vector<at::Tensor> result;
    for (const at::Tensor& parameter : net->parameters()) result.push_back(parameter.grad());
    return result;
  };
  const double error = models::relative_l2(gradients(true), gradients(false));
  CHECK(error > 0);
  CHECK(error < 1e-2);
}

TEST_CASE("CompressSaved in a Trainer: losses follow the exact ones, and the first is equal") {
  const auto train = [](auto... policies) {
    auto net = models::stack<models::LinearBlock>(3);
    const auto loss = [](const at::Tensor& y, const at::Tensor& target) { return (y - target).pow(2).sum(); };
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.01}), loss, st::Accumulate{2}, policies...);
    std::vector<at::Tensor> losses;
    for (int i = 0; i < 20; ++i) {
      const std::vector<support::Batch> window = {{models::rows(), models::rows()},
                                                  {models::rows().neg(), models::rows()}};
      losses.push_back(trainer.step(window).loss_sum);
    }
    return losses;
  };
  const auto exact = train(), rounded = train(st::CompressSaved{at::kBFloat16});
  CHECK(support::same_bits(exact[0], rounded[0]));
  CHECK(!support::same_bits(exact, rounded));
  CHECK(support::relative_error(rounded, exact) < 1e-2);
  CHECK(exact[19].item<double>() < exact[0].item<double>());
}

TEST_CASE("CompressSaved: wrong settings, and a warning where it has no effect") {
  CHECK_THROWS_AS(st::CompressSaved{at::kFloat}, st::ConfigError);
  CHECK_THROWS_AS(st::CompressSaved({.min_bytes = -1}), st::ConfigError);
  CHECK_THROWS_AS(st::CompressSaved().scope(), st::StateError);
  const support::LogCapture log;
  auto net = support::seeded(1, at::kDouble);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::CompressSaved{});
  const auto batch = support::classes(512, 2, at::kDouble);
  trainer.step(batch);
  trainer.step(batch);
  REQUIRE(log.lines.size() == 1);
  CHECK(log.contains("CompressSaved has no effect"));
}
