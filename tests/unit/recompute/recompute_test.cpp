// SPDX-License-Identifier: Apache-2.0
#include "saturate/recompute/recompute.hpp"

#include "saturate/error.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "src/recompute/first_forward.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <ATen/autocast_mode.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

at::Tensor random_state() { return at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).get_state(); }
at::Tensor doubles(at::IntArrayRef sizes) { return torch::randn(sizes, at::kDouble); }

// Everything that a forward pass may leave behind on this thread.
struct ThreadState {
  at::Tensor random = random_state();
  bool autocast = at::autocast::is_autocast_enabled(c10::kCPU);
  at::ScalarType dtype = at::autocast::get_autocast_dtype(c10::kCPU);
  bool cache = at::autocast::is_autocast_cache_enabled();
  bool grad_mode = at::GradMode::is_enabled();
  bool inside = st::detail::inside_block();
  bool packing = st::torch_seam::current_packer() != nullptr;
  std::string mark = std::string(st::marks::current());
  int nesting = nesting_now();
  bool operator==(const ThreadState& other) const {
    return torch::equal(random, other.random) && autocast == other.autocast && dtype == other.dtype &&
           cache == other.cache && grad_mode == other.grad_mode && inside == other.inside && packing == other.packing &&
           mark == other.mark && nesting == other.nesting;
  }

 private:
  static int nesting_now() {
    const int up = at::autocast::increment_nesting();
    at::autocast::decrement_nesting();
    return up;
  }
};

// Gradients of sum(weights * output) by central differences, against autograd's.
double numeric_error(const std::function<at::Tensor(at::Tensor)>& f, const at::Tensor& point) {
  const at::Tensor x = point.detach().clone().requires_grad_();
  const at::Tensor weights = torch::linspace(-1, 2, f(x).numel(), at::kDouble).view_as(f(x));
  const at::Tensor exact = torch::autograd::grad({(f(x) * weights).sum()}, {x})[0].flatten();
  const at::NoGradGuard no_grad;
  double worst = 0;
  for (int64_t i = 0; i < point.numel(); ++i) {
    const double step = 1e-5;
    const auto value = [&](double delta) {
      at::Tensor moved = point.detach().clone();
      moved.view(-1)[i] += delta;
      return (f(moved) * weights).sum().item<double>();
    };
    const double numeric = (value(step) - value(-step)) / (2 * step);
    worst = std::max(worst, std::abs(numeric - exact[i].item<double>()));
  }
  return worst;
}

struct ByFunction {
  ByFunction() { st::detail::recompute_by_function(true); }
  ~ByFunction() { st::detail::recompute_by_function(false); }
};

struct Pair {
  at::Tensor left, right;
  int factor = 1;
};
template <class Visitor>
void for_each_tensor(Pair& pair, Visitor&& visit) {
  visit(pair.left);
  visit(pair.right);
}
template <class Visitor>
void for_each_tensor(const Pair& pair, Visitor&& visit) {
  visit(pair.left);
  visit(pair.right);
}

struct MlpBlockImpl : torch::nn::Module {
  explicit MlpBlockImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::gelu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(MlpBlock);

}  // namespace

TEST_CASE("recompute: nothing happens where no gradient is wanted") {
  int runs = 0;
  const auto block = [&](at::Tensor x) {
    ++runs;
    return x.sin().exp();
  };
  const at::Tensor x = torch::randn({3}).requires_grad_();
  {
    const at::NoGradGuard no_grad;
    CHECK(!st::recompute(block, x).requires_grad());
  }
  torch::nn::Linear linear(3, 3);
  for (at::Tensor& parameter : linear->parameters()) parameter.requires_grad_(false);
  CHECK(!st::recompute(linear, x.detach()).requires_grad());
  CHECK(st::recompute([](at::Tensor y) { return y * 2; }, x).grad_fn() != nullptr);
  CHECK(st::detail::frames_alive() == 0);  // 2 * y saves nothing
  const at::Tensor y = st::recompute(block, x);
  CHECK(st::detail::frames_alive() == 1);
  y.sum().backward();
  CHECK(runs == 3);
  CHECK(st::detail::frames_alive() == 0);
}

TEST_CASE("recompute: gradients agree with finite differences, and so do second ones") {
  torch::manual_seed(1);
  const at::Tensor weight = doubles({4, 4}).requires_grad_();
  const auto block = [&](at::Tensor x) {
    return st::recompute([&](at::Tensor y) { return torch::tanh(y.matmul(weight)).exp() * y.sin(); }, x);
  };
  CHECK(numeric_error(block, doubles({3, 4})) < 1e-8);
  const auto gradient = [&](at::Tensor x) {
    if (!x.requires_grad()) x.requires_grad_();
    const at::AutoGradMode grad_mode(true);
    return torch::autograd::grad({block(x).pow(2).sum()}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
  };
  CHECK(numeric_error(gradient, doubles({3, 4})) < 1e-7);
  CHECK(numeric_error(
            [&](at::Tensor x) { return st::recompute([&](at::Tensor y) { return block(block(y).cos()) + y; }, x); },
            doubles({2, 4})) < 1e-8);
  CHECK(st::detail::frames_alive() == 0);
}

TEST_CASE("recompute: the second derivative of (2x)^2 is 8") {
  const at::Tensor x = torch::ones({1}, at::kDouble).requires_grad_();
  const at::Tensor y = st::recompute([](at::Tensor z) { return (2 * z).pow(2); }, x);
  const at::Tensor first = torch::autograd::grad({y}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
  const at::Tensor second = torch::autograd::grad({first}, {x})[0];
  CHECK(first.item<double>() == 8);
  CHECK(second.item<double>() == 8);
}

TEST_CASE("recompute: a graph that is kept gives the same gradients again, without keeping activations") {
  int runs = 0;
  const at::Tensor x = torch::randn({1000}).requires_grad_();
  const auto block = [&](at::Tensor y) {
    ++runs;
    return y.sin().exp().tanh().cos();
  };
  const at::Tensor loss = st::recompute(block, x).sum();
  const auto gradient = [&](bool keep) { return torch::autograd::grad({loss}, {x}, {}, keep)[0]; };
  const at::Tensor first = gradient(true);
  st::MemoryMeter meter;
  const at::Tensor second = gradient(true);
  CHECK(meter.counts().bytes < 2 * 4096);  // the gradient alone
  const at::Tensor third = gradient(false);
  CHECK(torch::equal(first, second));
  CHECK(torch::equal(first, third));
  CHECK(torch::equal(first, torch::autograd::grad({block(x).sum()}, {x})[0]));
  CHECK(runs == 5);
  CHECK(st::detail::frames_alive() == 0);
}

TEST_CASE("recompute: structs, tuples, vectors, optionals and views of arrays pass") {
  const at::Tensor x = torch::randn({4}).requires_grad_(), y = torch::randn({4}).requires_grad_();
  const auto block = [](Pair pair, std::vector<at::Tensor> list, std::optional<at::Tensor> none, const char* text) {
    CHECK(std::string(text) == "text");
    CHECK(!none);
    return Pair{pair.left.sin() * list[0], list[1].exp() * pair.right, pair.factor + 1};
  };
  const Pair in{x, y, 2};
  const std::vector<at::Tensor> list = {y, x};
  const auto of_views = [](at::TensorList tensors, at::IntArrayRef sizes) {
    return (tensors[0] * tensors[1]).exp().expand(sizes).clone();
  };
  const auto twice = torch::autograd::grad({of_views({x, y}, {2, 4}).sum()}, {x, y});
  at::Tensor from_views;
  {
    const std::vector<at::Tensor> tensors = {x, y};
    const std::vector<int64_t> sizes = {2, 4};
    from_views = st::recompute(of_views, at::TensorList(tensors), at::IntArrayRef(sizes));
  }
  const auto again = torch::autograd::grad({from_views.sum()}, {x, y});
  CHECK(torch::equal(twice[0], again[0]));
  CHECK(torch::equal(twice[1], again[1]));
  const auto gradients = [&](const Pair& out) { return torch::autograd::grad({(out.left * out.right).sum()}, {x, y}); };
  const Pair out = st::recompute(block, in, list, std::optional<at::Tensor>(), "text");
  CHECK(out.factor == 3);
  const auto plain = gradients(block(in, list, std::nullopt, "text"));
  const auto recomputed = gradients(out);
  CHECK(torch::equal(plain[0], recomputed[0]));
  CHECK(torch::equal(plain[1], recomputed[1]));
}

TEST_CASE("recompute: only the needed part runs again") {
  int late = 0, early = 0;
  const at::Tensor x = torch::randn({4}).requires_grad_();
  const auto block = [&](at::Tensor y) {
    ++early;
    at::Tensor saved = y.sin().exp();
    at::Tensor sum = saved * 2 + 1;  // saves nothing
    ++late;
    return sum;
  };
  st::recompute(block, x).sum().backward();
  CHECK(early == 2);
  CHECK(late == 1);
}

TEST_CASE("recompute: a forward that differentiates inside") {
  const at::Tensor weight = doubles({3}).requires_grad_();
  // Forces are the gradient of an energy, as in models of molecules.
  const auto forces = [&](at::Tensor positions) {
    if (!positions.requires_grad()) positions = positions.detach().requires_grad_();
    const at::Tensor energy = (positions.sin() * weight).exp().sum();
    return torch::autograd::grad({energy}, {positions}, {}, std::nullopt, /*create_graph=*/true)[0];
  };
  const at::Tensor x = doubles({3});
  const auto run = [&](bool again) {
    const at::Tensor out = again ? st::recompute(forces, x) : forces(x);
    return torch::autograd::grad({out.pow(2).sum()}, {weight})[0];
  };
  CHECK(torch::equal(run(false), run(true)));
  CHECK(st::detail::frames_alive() == 0);
}

TEST_CASE("recompute: what was changed in place is an error, not a wrong gradient") {
  const auto block = [](at::Tensor x) { return x.sin().exp(); };
  SECTION("an input, since forward") {
    const at::Tensor x = torch::randn({2, 3}).requires_grad_(), input = x * 1;
    const at::Tensor y = st::recompute(block, input);
    input.add_(1);
    REQUIRE_THROWS_MATCHES(y.sum().backward(), st::StateError,
                           MessageMatches(ContainsSubstring("tensor 0 of the block's inputs") &&
                                          ContainsSubstring("[2, 3] Float on cpu, version 0, now 1")));
  }
  SECTION("an input, by the block itself") {
    const at::Tensor input = torch::randn({2, 3}).requires_grad_() * 1;
    REQUIRE_THROWS_MATCHES(st::recompute([](at::Tensor x) { return x.relu_().exp(); }, input), st::StateError,
                           MessageMatches(ContainsSubstring("changes tensor 0 of its inputs in place")));
  }
  SECTION("a parameter, since forward") {
    support::Mlp net;
    const at::Tensor y = st::recompute(net, torch::randn({2, 6}));
    {
      const at::NoGradGuard no_grad;
      net->first->bias.add_(1);
    }
    REQUIRE_THROWS_MATCHES(y.sum().backward(), st::StateError,
                           MessageMatches(ContainsSubstring("parameter 'first.bias'")));
  }
  SECTION("a parameter of a callable, saved or not") {
    torch::nn::Linear linear(3, 3);
    for (at::Tensor& parameter : linear->parameters()) {
      const at::Tensor x = torch::randn({2, 3}).requires_grad_();
      const at::Tensor y = st::recompute([&](at::Tensor z) { return linear(z).exp(); }, x);
      {
        const at::NoGradGuard no_grad;
        parameter.zero_();
      }
      REQUIRE_THROWS_MATCHES(y.sum().backward(), st::StateError,
                             MessageMatches(ContainsSubstring("parameter of the block was changed in place")));
    }
  }
  SECTION("a saved tensor, inside: as in a plain run") {
    const auto wrong = [](at::Tensor x) {
      at::Tensor y = x.exp();
      const at::Tensor z = y.sin();
      y.add_(1);
      return z * y.cos();
    };
    const at::Tensor x = torch::randn({3}).requires_grad_();
    CHECK_THROWS(wrong(x).sum().backward());
    CHECK_THROWS_AS(st::recompute(wrong, x).sum().backward(), st::StateError);
  }
  SECTION("the output, since forward: nothing of it is needed") {
    const at::Tensor x = torch::randn({3}).requires_grad_();
    at::Tensor y = st::recompute(block, x);
    y.mul_(2);
    y.sum().backward();
    CHECK(torch::allclose(x.grad(), 2 * x.cos() * x.sin().exp()));
  }
  CHECK(st::detail::frames_alive() == 0);
}

TEST_CASE("recompute: a forward that is not deterministic is an error") {
  const at::Tensor x = torch::randn({4}).requires_grad_();
  int calls = 0;
  const auto fails = [&](auto block, const char* expected) {
    calls = 0;
    const at::Tensor y = st::recompute(block, x);
    const ThreadState before;
    CHECK_THROWS_MATCHES(y.sum().backward(), st::StateError, MessageMatches(ContainsSubstring(expected)));
    CHECK(before == ThreadState());
  };
  fails(
      [&](at::Tensor y) {
        return (calls++ == 0 ? y * 1 : torch::cat({y, y})).exp().sin();
      },
      "saved tensor 0 of the block is [4] Float on cpu in the first forward and [8] Float on cpu in the second");
  fails([&](at::Tensor y) { return (calls++ == 0 ? y.exp() : y.to(at::kDouble).exp()).sin(); },
        "[4] Float on cpu in the first forward and [4] Double on cpu");
  fails([&](at::Tensor y) { return calls++ == 0 ? y.exp().sin().exp() : y.exp(); },
        "the second forward saved 1 tensors for backward, the first 3");
}

TEST_CASE("recompute: an exception in the second forward leaves nothing behind") {
  torch::nn::BatchNorm1d norm(3);
  support::seeded(1);
  int calls = 0;
  const auto block = [&](at::Tensor x) {
    const st::AutocastScope autocast(c10::kCPU, at::kBFloat16);
    const at::Tensor y = torch::dropout(norm(x), 0.5, true).exp();
    if (calls++ > 0) throw std::runtime_error("no");
    return y.sin();
  };
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({5, 3}).requires_grad_();
  const at::Tensor y = st::recompute(st::with_modules(block, norm), x);
  const at::Tensor mean = norm->running_mean.clone(), count = norm->num_batches_tracked.clone();
  const ThreadState before;
  CHECK_THROWS_WITH(y.sum().backward(), "no");
  CHECK(before == ThreadState());
  CHECK(torch::equal(mean, norm->running_mean));
  CHECK(torch::equal(count, norm->num_batches_tracked));
  CHECK_THROWS_WITH(st::recompute(block, x), "no");
  CHECK(before.inside == st::detail::inside_block());
  CHECK(st::torch_seam::current_packer() == nullptr);
}

TEST_CASE("recompute: statistics of a norm that it has not been told of are an error") {
  torch::nn::BatchNorm1d norm(3);
  const at::Tensor x = torch::randn({5, 3}).requires_grad_();
  const auto block = [&](at::Tensor y) { return norm(y).exp(); };
  CHECK_THROWS_MATCHES(st::recompute(block, x), st::StateError, MessageMatches(ContainsSubstring("with_modules")));
  st::recompute(st::with_modules(block, norm), x).sum().backward();
  CHECK(norm->num_batches_tracked.item<int64_t>() == 2);  // the refused one counts
  norm->eval();
  st::recompute(block, x).sum().backward();
  CHECK(norm->num_batches_tracked.item<int64_t>() == 2);
}

TEST_CASE("recompute: autocast of the forward, though backward runs outside or in another") {
  torch::nn::Linear linear(4, 4);
  const at::Tensor x = torch::randn({2, 4}).requires_grad_();
  std::vector<at::ScalarType> dtypes;
  const auto block = [&](at::Tensor y) {
    const at::Tensor low = linear(y);
    const st::AutocastScope off(c10::kCPU, at::kBFloat16, /*enabled=*/false);
    const at::Tensor high = linear(low.to(at::kFloat));
    dtypes.insert(dtypes.end(), {low.scalar_type(), high.scalar_type()});
    return high.exp();
  };
  at::Tensor y;
  {
    const st::AutocastScope autocast(c10::kCPU, at::kBFloat16);
    y = st::recompute(block, x).sum();
  }
  {
    const st::AutocastScope other(c10::kCPU, at::kHalf);
    y.backward();
    CHECK(at::autocast::get_autocast_dtype(c10::kCPU) == at::kHalf);
  }
  CHECK(dtypes == std::vector<at::ScalarType>{at::kBFloat16, at::kFloat, at::kBFloat16, at::kFloat});
}

TEST_CASE("recompute: backward on another thread sees the forward's state") {
  std::vector<std::string> seen;
  torch::nn::Linear linear(3, 3);
  struct NetImpl : torch::nn::Module {
    explicit NetImpl(torch::nn::Linear l) : linear(register_module("linear", l)) {}
    torch::nn::Linear linear;
  };
  NetImpl net(linear);
  const at::Tensor x = torch::randn({2, 3}).requires_grad_();
  at::Tensor y;
  torch::manual_seed(9);
  {
    const st::marks::Scope scope(st::marks::bind(net));
    const st::AutocastScope autocast(c10::kCPU, at::kBFloat16);
    const auto noting = [&](at::Tensor z) {
      seen.push_back(std::string(st::marks::current()) + (at::GradMode::is_enabled() ? " grad" : "") +
                     (at::autocast::is_autocast_enabled(c10::kCPU) ? " autocast" : ""));
      return torch::dropout(z, 0.5, true).to(at::kFloat).exp();
    };
    const st::marks::Part part(*st::marks::detail::active, *linear);
    y = st::recompute(noting, x);
  }
  const at::Tensor state = random_state();
  std::thread([&] {
    const at::NoGradGuard no_grad;
    y.backward(torch::ones_like(y));
  }).join();
  CHECK(seen == std::vector<std::string>{"linear grad autocast", "linear grad autocast"});
  CHECK(torch::equal(state, random_state()));
  CHECK(torch::equal(x.grad() != 0, y.detach() != 1));
}

TEST_CASE("recompute: the peak of activations falls, and memory stays flat over 500 steps") {
  constexpr int64_t blocks = 8, width = 32, rows = 64;
  torch::manual_seed(1);
  torch::nn::ModuleList list;
  for (int64_t i = 0; i < blocks; ++i) list->push_back(MlpBlock(width));
  const at::Tensor x = torch::randn({rows, width});
  const auto step = [&](bool again) {
    at::Tensor y = x;
    for (const auto& block : *list) {
      auto& mlp = *block->as<MlpBlockImpl>();
      y = again ? st::recompute(mlp, y) : mlp.forward(y);
    }
    y.pow(2).sum().backward();
  };
  const auto peak = [&](bool again) {
    step(again);  // gradients are there from now on
    const st::MemoryMeter meter;
    step(again);
    return meter.counts().peak_bytes;
  };
  const int64_t plain = peak(false), recomputed = peak(true);
  // A block keeps its input and two activations four times as wide; recomputed, its input, and one block the rest.
  CHECK(recomputed < plain / 2);
  const st::MemoryMeter meter;
  step(true);
  const int64_t after_one = meter.counts().bytes;
  for (int i = 0; i < 500; ++i) step(true);
  CHECK(meter.counts().bytes == after_one);
  CHECK(st::detail::frames_alive() == 0);
}

TEST_CASE("recompute: a graph that is thrown away frees its frames") {
  const at::Tensor x = torch::randn({4}).requires_grad_();
  at::Tensor y = st::recompute([](at::Tensor z) { return z.exp().sin(); }, x);
  CHECK(st::detail::frames_alive() == 1);
  y.reset();
  CHECK(st::detail::frames_alive() == 0);
}

TEST_CASE("recompute: nested blocks keep no activation of the outer one") {
  const at::Tensor x = torch::randn({10000}).requires_grad_();
  const auto inner = [](at::Tensor z) { return z.exp().sin().tanh(); };
  const auto outer = [&](at::Tensor z) {
    for (int i = 0; i < 8; ++i) z = st::recompute(inner, z);
    return z;
  };
  const st::MemoryMeter meter;
  const at::Tensor y = st::recompute(outer, x);
  CHECK(meter.counts().bytes < 2 * 40000);  // y alone
  y.sum().backward();
  CHECK(torch::allclose(x.grad(), torch::autograd::grad({outer(x).sum()}, {x})[0]));
  CHECK(st::detail::frames_alive() == 0);
}

TEST_CASE("recompute: gradients arrive once per parameter") {
  torch::nn::Linear linear(4, 4);
  int arrived = 0;
  linear->weight.register_hook([&](at::Tensor) { ++arrived; });
  const auto block = [&](at::Tensor x) { return linear(linear(x).exp()); };
  st::recompute(st::with_modules(block, linear), torch::randn({2, 4})).sum().backward();
  CHECK(arrived == 1);
}

TEST_CASE("recompute by function: where hooks cannot be had") {
  const ByFunction by_function;
  torch::manual_seed(1);
  torch::nn::Linear linear(4, 4), tied = linear;
  torch::nn::BatchNorm1d norm(4);
  linear->to(at::kDouble);
  norm->to(at::kDouble);
  const at::Tensor x = doubles({3, 4}).requires_grad_();
  const auto block = [&](at::Tensor y, std::optional<at::Tensor> none, double factor) {
    const at::Tensor z = torch::dropout(norm(linear(y)), 0.5, true) * factor;
    return std::tuple(tied(z).tanh(), z.argmax(1), none);
  };
  const auto run = [&](bool again) {
    torch::manual_seed(2);
    norm->reset_running_stats();
    linear->zero_grad();
    x.mutable_grad().reset();
    auto [y, index, none] = again ? st::recompute(st::with_modules(block, *linear, *norm), x, std::nullopt, 2.0)
                                  : block(x, std::nullopt, 2.0);
    CHECK(!index.requires_grad());
    y.pow(2).sum().backward({}, /*retain_graph=*/true);
    y.sum().backward();
    return std::vector<at::Tensor>{y.detach(),     x.grad().clone(),           linear->weight.grad().clone(),
                                   random_state(), norm->running_mean.clone(), norm->num_batches_tracked.clone(),
                                   index,          linear->bias.grad().clone()};
  };
  const auto plain = run(false), again = run(true);
  for (std::size_t i = 0; i < plain.size(); ++i)
    CHECK(torch::allclose(plain[i].to(at::kDouble), again[i].to(at::kDouble), 1e-12));
  CHECK(numeric_error([](at::Tensor y) { return st::recompute([](at::Tensor z) { return z.sin().exp(); }, y); },
                      doubles({4})) < 1e-8);
  const at::Tensor y = st::recompute([](at::Tensor z) { return (2 * z).pow(2); }, x);
  CHECK_THROWS_MATCHES(torch::autograd::grad({y.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true), st::StateError,
                       MessageMatches(ContainsSubstring("cannot be differentiated twice")));
}
