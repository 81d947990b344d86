// SPDX-License-Identifier: Apache-2.0
// MasterWeights and StochasticRounding: small steps add up, gradients are summed in float32, and what is kept is
// followed.
#include "../../../src/optim/rounding.hpp"
#include "optim_support.hpp"
#include "saturate/accumulation/accumulate.hpp"
#include "saturate/clip/clip_grad_norm.hpp"
#include "saturate/error.hpp"
#include "saturate/loss.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/master_weights.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/optim/stochastic_rounding.hpp"
#include "saturate/trainer.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <limits>

namespace st = saturate;
using namespace optim_test;
using namespace st::optim;

namespace {

auto sgd(double lr) {
  return [lr](auto params) { return SGD(std::move(params), {.lr = lr}); };
}

at::Tensor half(std::vector<float> values, at::ScalarType dtype = at::kBFloat16) {
  return torch::tensor(values).to(dtype).requires_grad_(true);
}

// 100 steps of -1e-3.
template <class O>
void hundred_steps(O& optimizer, at::Tensor weight) {
  for (int i = 0; i < 100; ++i) {
    weight.mutable_grad() = torch::full_like(weight, 1.0).detach();
    optimizer.step();
    optimizer.zero_grad();
  }
}

}  // namespace

TEST_CASE("100 steps of -0.001 from 1: 0.9 with master weights, 1 without") {
  at::Tensor weight = half({1}), plain = half({1}), sixteen = half({1}, at::kHalf);
  MasterWeights optimizer({weight}, sgd(1e-3));
  hundred_steps(optimizer, weight);
  CHECK(std::abs(weight[0].item<double>() - 0.9) < 0.004);
  SGD alone({plain}, {.lr = 1e-3});
  hundred_steps(alone, plain);
  CHECK(plain[0].item<double>() == 1.0);
  MasterWeights of_fp16({sixteen}, sgd(1e-3));
  hundred_steps(of_fp16, sixteen);
  CHECK(std::abs(sixteen[0].item<double>() - 0.9) < 0.0005);
}

TEST_CASE("100 steps of -0.001 from 1: 0.9 on average with stochastic rounding, not one value for all") {
  at::Tensor weight = torch::ones({20000}, at::kBFloat16).requires_grad_(true);
  StochasticRounding optimizer({weight}, sgd(1e-3));
  hundred_steps(optimizer, weight);
  const at::Tensor result = weight.detach().to(at::kDouble);
  CHECK(std::abs(result.mean().item<double>() - 0.9) < 0.001);  // 8 deviations of the mean
  CHECK(result.std().item<double>() > 0.005);
  CHECK(result.std().item<double>() < 0.03);
}

TEST_CASE("1 added 1000 times in half precision is 1000") {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    at::Tensor weight = half({0}, dtype);
    MasterWeights optimizer({weight}, sgd(1));
    for (int i = 0; i < 1000; ++i) {
      weight.sum().backward();
      optimizer.gather_gradients();
      CHECK_FALSE(weight.grad().defined());
    }
    const auto gradients = optimizer.gradients();
    CHECK(gradients[0].scalar_type() == at::kFloat);
    CHECK(gradients[0][0].item<double>() == 1000);
    optimizer.step();
    CHECK(weight[0].item<double>() == -1000);
  }
  at::Tensor plain = half({0});
  for (int i = 0; i < 1000; ++i) plain.sum().backward();
  CHECK(plain.grad()[0].item<double>() == 256);  // what is avoided
}

TEST_CASE("float32 parameters of the same model pass through, and all is as one optimizer over floats would do") {
  auto params = oracle_parameters(at::kFloat);
  std::vector<at::Tensor> mixed{params[0].detach().clone().requires_grad_(true),
                                params[1].detach().to(at::kBFloat16).requires_grad_(true)};
  std::vector<at::Tensor> wide{params[0], mixed[1].detach().to(at::kFloat).requires_grad_(true)};
  MasterWeights optimizer(std::vector<ParamGroup>{{.params = {mixed[0]}, .lr = 0.02}, {.params = {mixed[1]}}},
                          [](auto groups) { return AdamW(std::move(groups), {.lr = 0.01}); });
  AdamW reference(std::vector<ParamGroup>{{.params = {wide[0]}, .lr = 0.02}, {.params = {wide[1]}}}, {.lr = 0.01});
  CHECK(optimizer.parameters()[0].is_same(mixed[0]));
  CHECK(optimizer.parameters()[1].is_same(mixed[1]));
  CHECK(optimizer.groups() == std::vector<std::size_t>{0, 1});
  CHECK(optimizer.lr(0) == 0.02);
  for (int step = 0; step < 10; ++step) {
    set_oracle_gradients(mixed, step);
    for (std::size_t i = 0; i < 2; ++i) {
      wide[i].mutable_grad() = mixed[i].grad().defined() ? mixed[i].grad().to(at::kFloat) : at::Tensor();
    }
    optimizer.step();
    optimizer.zero_grad();
    reference.step();
  }
  CHECK(support::same_bits(mixed[0].detach(), wide[0].detach()));
  CHECK(support::same_bits(mixed[1].detach(), wide[1].detach().to(at::kBFloat16)));
  const auto entry = optimizer.state().parameters.at("parameter.1");
  CHECK(support::same_bits(entry.at("master"), wide[1].detach()));
  CHECK(entry.at("exp_avg").scalar_type() == at::kFloat);
  CHECK_FALSE(optimizer.state().parameters.at("parameter.0").contains("master"));
}

TEST_CASE("gradients can be scaled and clipped in place before the step") {
  at::Tensor weight = half({1, 1});
  MasterWeights optimizer({weight}, sgd(1));
  (weight * torch::tensor({3.0f, 4.0f}).to(at::kBFloat16)).sum().backward();
  for (const at::Tensor& gradient : optimizer.gradients()) gradient.mul_(0.125);
  optimizer.step();
  CHECK(weight[0].item<double>() == 1 - 0.375);
  CHECK(weight[1].item<double>() == 0.5);
}

TEST_CASE("masters follow parameters that somebody else writes, and survive a swap out and back") {
  at::Tensor weight = half({1, 1});
  MasterWeights optimizer({weight}, sgd(1e-3));
  const auto step = [&] {
    weight.mutable_grad() = torch::ones({2}, at::kBFloat16);
    optimizer.step();
    optimizer.zero_grad();
  };
  step();
  {
    const torch::NoGradGuard guard;
    const at::Tensor kept = weight.detach().clone();
    weight.fill_(5);
    weight.copy_(kept);
  }
  step();
  CHECK(std::abs(optimizer.state().parameters.at("parameter.0").at("master")[0].item<double>() - 0.998) < 1e-6);
  {
    const torch::NoGradGuard guard;
    weight[0] = 3;  // a loaded model
  }
  step();
  const auto master = optimizer.state().parameters.at("parameter.0").at("master");
  CHECK(std::abs(master[0].item<double>() - 2.999) < 1e-6);
  CHECK(std::abs(master[1].item<double>() - 0.997) < 1e-6);
  // Changed memory format, as ChannelsLast does after the optimizer was made.
  at::Tensor filter = torch::randn({2, 3, 2, 2}).to(at::kBFloat16).requires_grad_(true);
  MasterWeights other({filter}, sgd(0.5));
  const at::Tensor before = filter.detach().to(at::kFloat);
  filter.set_data(filter.contiguous(at::MemoryFormat::ChannelsLast));
  const at::Tensor grad = torch::randn({2, 3, 2, 2}).to(at::kBFloat16);
  filter.mutable_grad() = grad.contiguous(at::MemoryFormat::ChannelsLast);
  other.step();
  CHECK(torch::equal(filter.detach(), (before - 0.5 * grad.to(at::kFloat)).to(at::kBFloat16)));
}

TEST_CASE("load_state makes the parameters their loaded masters") {
  at::Tensor weight = half({1}), other = half({7});
  MasterWeights optimizer({weight}, sgd(1e-3)), second({other}, sgd(1e-3));
  hundred_steps(optimizer, weight);
  second.load_state(copied(optimizer.state()));
  CHECK(support::same_bits(weight.detach(), other.detach()));
  auto saved = copied(optimizer.state());
  saved.parameters.at("parameter.0").erase("master");
  CHECK_THROWS_MATCHES(second.load_state(saved), st::StateError, says("'master' of 'parameter.0' is missing"));
  saved.parameters.at("parameter.0")["master"] = torch::zeros({3});
  CHECK_THROWS_MATCHES(second.load_state(saved), st::StateError, says("'master' of 'parameter.0' is Float"));
}

TEST_CASE("stochastic rounding keeps no float32 copy, and no hand on LibTorch's random numbers") {
  at::Tensor weight = torch::ones({1 << 16}, at::kBFloat16).requires_grad_(true);
  std::vector<at::Tensor> inside;
  StochasticRounding optimizer({weight}, [&](auto params) {
    inside = params;
    return SGD(std::move(params), {.lr = 1e-3});
  });
  CHECK(inside[0].storage().nbytes() == 4);
  torch::manual_seed(3);
  const at::Tensor expected = torch::rand({3});
  torch::manual_seed(3);
  hundred_steps(optimizer, weight);
  CHECK(inside[0].storage().nbytes() == 4);
  CHECK(torch::equal(torch::rand({3}), expected));
  CHECK(optimizer.state().groups[0].at("rounding_draws") == 100);
}

TEST_CASE("stochastic rounding: another seed, parameter or step, other numbers; the same ones again from the state") {
  const auto trained = [](uint64_t seed, const char* name) {
    at::Tensor weight = torch::ones({1000}, at::kBFloat16).requires_grad_(true);
    StochasticRounding optimizer({weight}, sgd(1e-3), {.seed = seed});
    optimizer.name_parameters({{name, weight}});
    hundred_steps(optimizer, weight);
    return weight.detach();
  };
  CHECK(support::same_bits(trained(1, "a"), trained(1, "a")));
  CHECK_FALSE(support::same_bits(trained(1, "a"), trained(2, "a")));
  CHECK_FALSE(support::same_bits(trained(1, "a"), trained(1, "b")));
}

TEST_CASE("rounding at random: unbiased, exact where it can be, finite values stay finite, by loop and by operators") {
  const float largest = 3.3895313892515355e38f;  // bfloat16's
  const float inf = std::numeric_limits<float>::infinity();
  const auto round = [](const at::Tensor& wide, bool by_loop) {
    const at::Tensor narrow = torch::empty_like(wide, at::kBFloat16);
    if (by_loop) {
      round_at_random(narrow, wide, 5);
    } else {
      at::Generator generator = at::detail::createCPUGenerator(5);
      round_at_random(narrow, wide, generator);
    }
    return narrow.to(at::kDouble);
  };
  for (const bool by_loop : {true, false}) {
    INFO((by_loop ? "loop" : "operators"));
    for (const double share : {0.125, 0.5, 0.9}) {
      for (const double sign : {1.0, -1.0}) {
        const double value = sign * (1 + share / 128);
        const at::Tensor rounded = round(torch::full({100000}, value), by_loop);
        CHECK(std::abs(rounded.mean().item<double>() - value) < 6.0 / 128 / 2 / std::sqrt(100000.0));
        CHECK(((rounded == sign) + (rounded == sign * (1 + 1.0 / 128))).all().item<bool>());
      }
    }
    const at::Tensor exact = torch::randn({1000}).to(at::kBFloat16);
    CHECK(torch::equal(round(exact.to(at::kFloat), by_loop), exact.to(at::kDouble)));
    const at::Tensor special = round(torch::tensor({inf, -inf, std::nanf(""), 0.0f, -0.0f}), by_loop);
    CHECK(special[0].item<double>() == inf);
    CHECK(special[1].item<double>() == -inf);
    CHECK(special[2].isnan().item<bool>());
    CHECK(special[3].item<double>() == 0);
    CHECK(std::signbit(special[4].item<double>()));
    const at::Tensor near = round(torch::full({1000}, std::numeric_limits<float>::max()), by_loop);
    CHECK((near == static_cast<double>(largest)).all().item<bool>());
    const at::Tensor tiny = round(torch::full({1000}, 1e-41f), by_loop);  // subnormal
    CHECK(tiny.abs().max().item<double>() < 1e-40);
  }
}

TEST_CASE("the Trainer hands gradients over after every micro-batch: a window is a loop by hand's, in float32") {
  const auto batches = support::split(support::classes(12, 3, at::kBFloat16), {3, 5, 4});
  auto net = support::seeded(1, at::kBFloat16), twin = support::seeded(1, at::kBFloat16);
  const auto make = [](auto params) { return AdamW(std::move(params), {.lr = 0.01}); };
  st::Trainer trainer(net, MasterWeights(net->parameters(), make), st::CrossEntropy{.ignore_index = std::nullopt},
                      st::Accumulate{3}, st::TrainerOptions{.device = torch::kCPU});
  MasterWeights optimizer(twin->parameters(), make);
  for (int step = 0; step < 3; ++step) {
    trainer.step(batches);
    for (const auto& [x, y] : batches) {
      const auto sum = torch::cross_entropy_loss(twin->forward(x), y, {}, at::Reduction::Sum);
      sum.backward(torch::full({}, 1.0 / 12, at::kBFloat16));
      optimizer.gather_gradients();
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  CHECK(support::same_bits(support::clones(net->parameters()), support::clones(twin->parameters())));
  CHECK(trainer.optimizer().state().parameters.at("first.weight").contains("master"));
  CHECK_FALSE(trainer.optimizer()
                  .state()
                  .parameters.at("first.weight")
                  .at("master")
                  .equal(net->first->weight.detach().to(at::kFloat)));

  auto spoiled = batches;
  spoiled[1].first = spoiled[1].first.clone();
  spoiled[1].first[0][0] = NAN;
  const auto before = support::clones(net->parameters());
  st::Trainer clipping(net, MasterWeights(net->parameters(), make), st::CrossEntropy{}, st::ClipGradNorm{1.0},
                       st::Accumulate{3}, st::TrainerOptions{.device = torch::kCPU});
  CHECK_FALSE(clipping.step(spoiled).taken());
  CHECK(support::same_bits(before, support::clones(net->parameters())));
  CHECK(clipping.step(batches).taken());
  CHECK_FALSE(support::same_bits(before, support::clones(net->parameters())));
}

TEST_CASE("wide optimizers refuse what cannot work") {
  const at::Tensor weight = half({1}), sixteen = half({1}, at::kHalf),
                   single = torch::ones({1}, torch::requires_grad());
  CHECK_THROWS_MATCHES(StochasticRounding({weight, sixteen}, sgd(1)), st::ConfigError, says("FP16"));
  CHECK_THROWS_MATCHES(StochasticRounding({weight}, sgd(1), {.seed = uint64_t{1} << 53}), st::ConfigError,
                       says("below 2^53"));
  CHECK_THROWS_MATCHES(MasterWeights({at::Tensor()}, sgd(1)), st::ConfigError, says("undefined"));
  CHECK_THROWS_MATCHES(MasterWeights({weight * 2}, sgd(1)), st::ConfigError, says("not a leaf"));
  CHECK_THROWS_MATCHES(MasterWeights({weight}, [&](auto) { return SGD({single}); }), st::ConfigError,
                       says("exactly the parameters"));
  CHECK_THROWS_MATCHES(MasterWeights({weight, single}, [&](auto params) { return SGD({params[0]}); }), st::ConfigError,
                       says("exactly the parameters"));
  CHECK_THROWS_MATCHES(MasterWeights({weight}, sgd(-1)), st::ConfigError, says("lr is -1"));
  support::LogCapture log;
  MasterWeights idle({single}, sgd(1));
  CHECK(log.contains("MasterWeights has no effect"));
}
