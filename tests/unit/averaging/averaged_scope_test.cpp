// SPDX-License-Identifier: Apache-2.0
// The scope that puts averages into the model always swaps back; update_batch_norm inside it.
#include "averaging_model.hpp"
#include "saturate/averaging/ema.hpp"
#include "saturate/averaging/swa.hpp"
#include "saturate/averaging/update_batch_norm.hpp"
#include "saturate/error.hpp"
#include "saturate/precision/autocast_scope.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <stdexcept>

namespace st = saturate;
using averaging::Model;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

std::vector<const void*> addresses(const std::vector<at::Tensor>& tensors) {
  std::vector<const void*> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.const_data_ptr());
  return result;
}

struct NormedImpl : torch::nn::Module {
  NormedImpl()
      : linear(register_module("linear", torch::nn::Linear(6, 5))),
        norm(register_module("norm", torch::nn::BatchNorm1d(5))),
        dropout(register_module("dropout", torch::nn::Dropout(0.5))) {}
  at::Tensor forward(const at::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Normed);

}  // namespace

TEST_CASE("in a scope the model holds the averages, and afterwards its own weights, bit for bit") {
  const bool on_device = GENERATE(false, true);
  const auto dtype = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  Model net(dtype);
  st::Ema ema(*net, {.decay = 0.5, .count_on_device = on_device});
  for (int64_t step = 0; step < 5; ++step) {
    net->move(step);
    ema.update(torch::zeros({}));
  }
  net->weight.mutable_grad() = torch::ones_like(net->weight);
  const auto own = support::clones(net->tensors());
  const auto where = addresses(net->tensors());
  const at::Tensor handle = net->weight;
  const auto check_averages = [&] {
    CHECK(net->weight.scalar_type() == dtype);
    CHECK(handle.is_same(net->weight));
    CHECK(torch::equal(handle.detach(), ema.average("weight").to(dtype)));
    CHECK(torch::equal(net->mean, ema.average("mean").to(dtype)));
    CHECK(net->weight.requires_grad());
    CHECK(net->weight.grad().sum().item<double>() == 6);
  };
  {
    const auto scope = ema.scope();
    CHECK(scope.active());
    check_averages();
  }
  CHECK(support::same_bits(own, support::clones(net->tensors())));
  CHECK(addresses(net->tensors()) == where);
  try {
    const auto scope = ema.scope();
    check_averages();
    throw std::runtime_error("inside");
  } catch (const std::runtime_error&) {
  }
  CHECK(support::same_bits(own, support::clones(net->tensors())));
  CHECK(addresses(net->tensors()) == where);
}

TEST_CASE("scopes do not nest, and nothing is updated or loaded inside one") {
  Model net;
  st::Ema ema(*net);
  net->move(1);
  ema.update();
  const auto own = support::clones(net->tensors());
  {
    const auto scope = ema.scope();
    const auto says = [](const char* text) { return MessageMatches(ContainsSubstring(text)); };
    CHECK_THROWS_MATCHES(ema.scope(), st::StateError, says("do not nest"));
    CHECK_THROWS_MATCHES(ema.update(), st::StateError, says("leave the scope"));
    CHECK_THROWS_MATCHES(ema.load_state(ema.state()), st::StateError, says("leave the scope"));
    CHECK_THROWS_MATCHES(ema.attach(*net, at::kCPU), st::StateError, says("leave the scope"));
    CHECK(torch::equal(net->weight.detach(), ema.average("weight")));
  }
  CHECK(support::same_bits(own, support::clones(net->tensors())));
  ema.update();  // and it goes on
  CHECK(ema.steps() == 2);
}

TEST_CASE("a scope outlives the policy, and a policy may move while it is open") {
  Model net;
  auto ema = std::make_unique<st::Ema>(*net);
  net->move(1);
  ema->update();
  const auto own = support::clones(net->tensors());
  {
    const auto scope = ema->scope();
    const st::Ema moved = std::move(*ema);
    ema.reset();
  }
  CHECK(support::same_bits(own, support::clones(net->tensors())));
}

TEST_CASE("before the first update a scope changes nothing") {
  Model net;
  st::Swa swa(*net, {.start = 3});
  net->move(1);
  swa.update();
  CHECK(swa.updates() == 0);
  const auto scope = swa.scope();
  CHECK_FALSE(scope.active());
  CHECK_FALSE(torch::equal(net->weight.detach(), swa.average("weight")));
  net->move(2);
  swa.update();
  net->move(3);
  swa.update();
  CHECK(swa.updates() == 1);
  CHECK(torch::equal(net->weight.detach(), swa.average("weight")));
  CHECK(swa.evaluation_scope().active());
  st::Swa silent(*net, {.evaluate = false});
  silent.update();
  CHECK_FALSE(silent.evaluation_scope().active());
  CHECK(silent.scope().active());
}

TEST_CASE("a graph made before a scope is still good after it") {
  support::Mlp net = support::seeded(1), twin = support::seeded(1);
  st::Ema ema(*net, {.decay = 0});
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& p : net->parameters()) p.mul_(2);
  }
  ema.update();
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& p : net->parameters()) p.div_(2);
  }
  const auto batch = support::classes(5, 2);
  const auto loss = torch::cross_entropy_loss(net->forward(batch.first), batch.second);
  {
    const auto scope = ema.scope();
    const torch::NoGradGuard no_grad;
    CHECK_FALSE(torch::allclose(torch::cross_entropy_loss(net->forward(batch.first), batch.second), loss));
  }
  loss.backward();
  torch::cross_entropy_loss(twin->forward(batch.first), batch.second).backward();
  for (std::size_t i = 0; i < 4; ++i) CHECK(torch::equal(net->parameters()[i].grad(), twin->parameters()[i].grad()));
}

TEST_CASE("low-precision copies of the weights are not carried over into a scope") {
  support::Mlp net = support::seeded(1);
  st::Ema ema(*net, {.decay = 0});
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& p : net->parameters()) p.mul_(2);
    ema.update();
    for (at::Tensor& p : net->parameters()) p.div_(2);
  }
  const at::Tensor x = torch::randn({3, 6});
  const st::AutocastScope autocast(at::kCPU, at::kBFloat16);
  const at::Tensor before = net->forward(x).detach().clone();
  at::Tensor inside;
  {
    const auto scope = ema.scope();
    inside = net->forward(x).detach().clone();
  }
  CHECK_FALSE(torch::allclose(before, inside));
  CHECK(torch::equal(before, net->forward(x).detach()));
}

TEST_CASE("update_batch_norm gives the mean over all batches, and restores modes and momenta") {
  Normed net = support::seeded<Normed>(1);
  net->eval();
  net->norm->train();
  std::vector<support::Batch> batches;
  std::vector<at::Tensor> means, variances;
  for (int64_t i = 0; i < 4; ++i) {
    batches.push_back(support::classes(16, 10 + i));
    const at::Tensor hidden = net->linear(batches.back().first).detach();
    means.push_back(hidden.mean(0));
    variances.push_back(hidden.var(0));
  }
  const at::Tensor weight = net->linear->weight.detach().clone();
  st::update_batch_norm(net, batches);
  CHECK(torch::allclose(net->norm->running_mean, torch::stack(means).mean(0), 1e-5, 1e-6));
  CHECK(torch::allclose(net->norm->running_var, torch::stack(variances).mean(0), 1e-5, 1e-6));
  CHECK(net->norm->num_batches_tracked.item<int64_t>() == 4);
  CHECK(net->norm->options.momentum() == 0.1);
  CHECK_FALSE(net->is_training());
  CHECK_FALSE(net->dropout->is_training());
  CHECK(net->norm->is_training());
  CHECK_FALSE(net->linear->weight.grad().defined());
  CHECK(torch::equal(weight, net->linear->weight));
}

TEST_CASE("update_batch_norm that fails leaves the statistics as they were") {
  struct Failing {
    std::vector<support::Batch> batches{support::classes(8, 1),
                                        support::Batch(torch::zeros({2, 3}), torch::zeros({2}))};
    auto begin() const { return batches.begin(); }
    auto end() const { return batches.end(); }
  };
  Normed net = support::seeded<Normed>(1);
  net->forward(torch::randn({8, 6}));
  const auto before = support::clones(net->buffers());
  CHECK_THROWS(st::update_batch_norm(net, Failing{}));
  CHECK(support::same_bits(before, support::clones(net->buffers())));
  CHECK_THROWS_AS(st::update_batch_norm(net, std::vector<support::Batch>{}), st::DataError);
  CHECK(support::same_bits(before, support::clones(net->buffers())));
  CHECK(net->norm->options.momentum() == 0.1);
  support::Mlp without = support::seeded(1);
  st::update_batch_norm(without, std::vector<support::Batch>{});  // nothing to do
}

TEST_CASE("statistics computed in a scope stay with the averages") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  Normed net = support::seeded<Normed>(1);
  net->to(dtype);
  st::Swa swa(*net, {.buffers = GENERATE(st::AverageBuffers::copy, st::AverageBuffers::average)});
  swa.update();
  const auto own = support::clones(net->buffers());
  std::vector<support::Batch> batches{support::classes(16, 1)};
  batches[0].first = (batches[0].first + 3).to(dtype);
  {
    const auto scope = swa.scope();
    st::update_batch_norm(net, batches);
  }
  CHECK(support::same_bits(own, support::clones(net->buffers())));
  CHECK_FALSE(torch::allclose(swa.average("norm.running_mean").to(at::kFloat), own[0].to(at::kFloat)));
  {
    const auto scope = swa.scope();
    const at::Tensor mean = net->linear(batches[0].first).detach().to(at::kFloat).mean(0);
    CHECK(torch::allclose(net->norm->running_mean.to(at::kFloat), mean, 2e-2, 2e-2));
  }
}
