// SPDX-License-Identifier: Apache-2.0
#include "saturate/recompute/policy.hpp"

#include "saturate/error.hpp"
#include "saturate/loss.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/recompute/recompute.hpp"
#include "saturate/trainer.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

std::vector<std::string> forwards;  // names, in order

struct NotingImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    forwards.emplace_back(st::marks::current());
    return x.sin().exp();
  }
};
TORCH_MODULE(Noting);

// A block with a marked part inside.
struct BlockImpl : torch::nn::Module {
  BlockImpl() : inner(register_module("inner", Noting())) {}
  at::Tensor forward(const at::Tensor& x) {
    forwards.emplace_back(st::marks::current());
    return st::call(inner, x.cos());
  }
  Noting inner;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() : weight(register_parameter("weight", torch::ones({3}))), stem(register_module("stem", Noting())) {
    for (int i = 0; i < 4; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = st::call_each<BlockImpl>(blocks, st::call(stem, x * weight));
    forwards.emplace_back("|");
    return y;
  }
  at::Tensor weight;
  Noting stem;
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Net);

// Names of the parts that run in backward, without those inside of them, in order.
std::vector<std::string> run_again(st::Recompute policy) {
  Net net;
  forwards.clear();
  policy.attach(*net);
  at::Tensor loss;
  {
    const auto scope = policy.scope();
    loss = net->forward(torch::ones({3})).sum();
  }
  loss.backward();
  std::vector<std::string> names;
  bool backward = false;
  for (const std::string& name : forwards) {
    if (backward && !name.ends_with("inner")) names.push_back(name);
    backward = backward || name == "|";
  }
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("Recompute: which parts run again") {
  CHECK(run_again(st::Recompute::all()) == Names{"blocks.3", "blocks.2", "blocks.1", "blocks.0", "stem"});
  CHECK(run_again(st::Recompute::every(1)) == run_again(st::Recompute::all()));
  CHECK(run_again(st::Recompute::every(2)) == Names{"blocks.3", "blocks.1", "stem"});
  CHECK(run_again(st::Recompute::every(9)) == Names{"stem"});
  CHECK(run_again(st::Recompute::named({"blocks.*"})) == Names{"blocks.3", "blocks.2", "blocks.1", "blocks.0"});
  CHECK(run_again(st::Recompute::named({"blocks\\.[02]", "stem"})) == Names{"blocks.2", "blocks.0", "stem"});
  CHECK(st::detail::frames_alive() == 0);
}

TEST_CASE("Recompute: a part inside alone, under its own name") {
  Net net;
  auto policy = st::Recompute::named({"blocks\\.1\\.inner"});
  policy.attach(*net);
  forwards.clear();
  at::Tensor loss;
  {
    const auto scope = policy.scope();
    loss = net->forward(torch::ones({3})).sum();
  }
  loss.backward();
  CHECK(forwards.back() == "blocks.1.inner");
  CHECK(std::count(forwards.begin(), forwards.end(), "blocks.1") == 1);
}

TEST_CASE("Recompute: wrong settings") {
  Net net;
  CHECK_THROWS_AS(st::Recompute::every(0), st::ConfigError);
  CHECK_THROWS_AS(st::Recompute::named({}), st::ConfigError);
  CHECK_THROWS_MATCHES(st::Recompute::named({"("}), st::ConfigError,
                       MessageMatches(ContainsSubstring("not a regular expression")));
  CHECK_THROWS_AS(st::Recompute::all().scope(), st::StateError);
  CHECK_THROWS_MATCHES(st::Recompute::named({"stem", "layer.*"}).attach(*net), st::ConfigError,
                       MessageMatches(ContainsSubstring("'layer.*' matches no part") &&
                                      ContainsSubstring("stem, blocks, blocks.0, blocks.0.inner, blocks.1")));
  CHECK_THROWS_AS(
      st::Trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::MSE{}, st::Recompute::named({"layer.*"})),
      st::ConfigError);
}

TEST_CASE("Recompute: without marks it says so, once, and not in evaluation") {
  support::Conv net;  // marks nothing
  const support::LogCapture log;
  const std::vector<support::Batch> data = {{torch::randn({2, 2, 4, 4}), torch::randint(3, {2})}};
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Recompute::all());
  trainer.evaluate(data);
  CHECK(!log.contains("Recompute has no effect"));
  trainer.step(data[0]);
  CHECK(log.contains("Recompute has no effect"));
  trainer.step(data[0]);
  CHECK(log.lines.size() == 1);
}

TEST_CASE("Recompute: an explicit recompute is no block of the policy's too") {
  struct ExplicitImpl : torch::nn::Module {
    ExplicitImpl() : part(register_module("part", Noting())) {}
    at::Tensor forward(const at::Tensor& x) { return st::recompute(part, x); }
    Noting part;
  };
  const auto net = std::make_shared<ExplicitImpl>();
  auto policy = st::Recompute::all();
  policy.attach(*net);
  forwards.clear();
  const at::Tensor x = torch::ones({3}).requires_grad_();
  at::Tensor loss;
  {
    const auto scope = policy.scope();
    loss = net->forward(x).sum();
    CHECK(st::detail::frames_alive() == 1);
  }
  loss.backward();
  CHECK(forwards == Names{"part", "part"});
}

TEST_CASE("Recompute: an exception in forward leaves the pass usable") {
  Net net;
  auto policy = st::Recompute::all();
  policy.attach(*net);
  const support::LogCapture log;
  const auto forward = [&] {
    const auto scope = policy.scope();
    return net->forward(torch::ones({2}));
  };
  CHECK_THROWS(forward());
  CHECK(log.lines.empty());
  CHECK(st::marks::current().empty());
  CHECK(!st::detail::inside_block());
  CHECK(run_again(st::Recompute::every(2)).size() == 3);
}
