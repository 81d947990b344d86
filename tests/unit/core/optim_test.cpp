// SPDX-License-Identifier: Apache-2.0
// Optimizers and schedules against what Python torch gives (tests/oracle), state by name, and bad input.
#include "saturate/error.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/optim/torch_optimizer.hpp"
#include "saturate/schedule/schedule.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

std::map<std::string, std::vector<double>> oracle() {
  std::ifstream file(SATURATE_SOURCE_DIR "/tests/oracle/oracle.txt");
  std::map<std::string, std::vector<double>> cases;
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string name;
    words >> name;
    for (double value; words >> value;) cases[name].push_back(value);
  }
  REQUIRE(cases.size() == 12);
  return cases;
}

std::vector<at::Tensor> oracle_parameters() {
  std::vector<at::Tensor> params{torch::empty({4}, at::kDouble), torch::empty({3}, at::kDouble)};
  for (int i = 0; i < 4; ++i) params[0][i] = std::sin(1.0 + i);
  for (int i = 0; i < 3; ++i) params[1][i] = std::cos(2.0 + i);
  for (at::Tensor& param : params) param.requires_grad_(true);
  return params;
}

// The same run as make_oracle.py's.
void run_oracle(std::vector<at::Tensor>& params, st::optim::Optimizer& optimizer, int from = 0, int to = 50) {
  for (int step = from; step < to; ++step) {
    for (int p = 0; p < 2; ++p) {
      const bool idle = p == 1 && (step < 2 || step % 3 == 0);
      at::Tensor grad = torch::empty_like(params[p]).detach();
      for (int64_t i = 0; i < grad.numel(); ++i) {
        grad[i] = std::cos(static_cast<double>(i + 1) * (step + 1) + p) * (1 + 0.1 * step);
      }
      params[p].mutable_grad() = idle ? at::Tensor() : grad;
    }
    optimizer.step();
  }
}

double distance(const std::vector<at::Tensor>& params, const std::vector<double>& expected) {
  const at::Tensor got = torch::cat(params).detach();
  const at::Tensor want = torch::tensor(expected, at::kDouble);
  return ((got - want).abs() / want.abs()).max().item<double>();
}

template <class Optimizer, class Options>
double error(const char* name, const Options& options) {
  auto params = oracle_parameters();
  Optimizer optimizer(params, options);
  run_oracle(params, optimizer);
  return distance(params, oracle().at(name));
}

using st::optim::AdamW;
using st::optim::AdamWOptions;
using st::optim::SGD;
using st::optim::SGDOptions;

}  // namespace

TEST_CASE("AdamW gives Python's values over 50 steps, with a parameter that is idle now and then") {
  CHECK(error<AdamW>("adamw", AdamWOptions{.lr = 0.01}) < 1e-9);
  CHECK(error<AdamW>("adamw_options",
                     AdamWOptions{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1}) < 1e-9);
  CHECK(error<AdamW>("adamw_amsgrad", AdamWOptions{.lr = 0.01, .amsgrad = true}) < 1e-9);
  CHECK(error<AdamW>("adamw_maximize", AdamWOptions{.lr = 0.01, .maximize = true}) < 1e-9);
  auto params = oracle_parameters();
  AdamW groups(std::vector<st::optim::ParamGroup>{{{params[0]}, 0.05, {}}, {{params[1]}, {}, 0.0}},
               {.lr = 0.01, .weight_decay = 0.2});
  run_oracle(params, groups);
  CHECK(distance(params, oracle().at("adamw_groups")) < 1e-9);
}

TEST_CASE("SGD gives Python's values over 50 steps") {
  CHECK(error<SGD>("sgd", SGDOptions{.lr = 0.01}) < 1e-9);
  CHECK(error<SGD>("sgd_momentum", SGDOptions{.lr = 0.01, .momentum = 0.9}) < 1e-9);
  CHECK(error<SGD>("sgd_nesterov", SGDOptions{.lr = 0.01, .momentum = 0.9, .nesterov = true}) < 1e-9);
  CHECK(error<SGD>("sgd_dampening", SGDOptions{.lr = 0.01, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1}) <
        1e-9);
  CHECK(error<SGD>("sgd_maximize",
                   SGDOptions{.lr = 0.01, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1, .maximize = true}) <
        1e-9);
}

TEST_CASE("WarmupCosine gives Python's LinearLR and CosineAnnealingLR in sequence") {
  const auto compare = [](const st::WarmupCosine& schedule, const std::vector<double>& expected) {
    for (std::size_t step = 0; step < expected.size(); ++step) {
      CHECK(std::abs(schedule.factor(static_cast<int64_t>(step)) - expected[step]) < 1e-12);
    }
  };
  compare({.warmup = 5, .total = 40}, oracle().at("warmup_cosine"));
  compare({.warmup = 10, .total = 50, .final_factor = 0.1}, oracle().at("warmup_cosine_final"));
  CHECK(st::WarmupCosine{.warmup = 5, .total = 40, .final_factor = 0.25}.factor(1000) == 0.25);
  CHECK(st::WarmupCosine{.warmup = 0, .total = 10}.factor(0) == 1.0);
  CHECK_THROWS_AS((st::WarmupCosine{.warmup = 10, .total = 10}.validate()), st::ConfigError);
}

TEST_CASE("optimizer state goes by name, and a run continued from it is the same bit for bit") {
  auto params = oracle_parameters();
  AdamW first(params, {.lr = 0.01, .amsgrad = true});
  first.name_parameters({{"w", params[0]}, {"b", params[1]}});
  run_oracle(params, first, 0, 20);
  first.set_lr(0.005);
  const st::optim::OptimizerState saved = first.state();
  CHECK(saved.parameters.at("w").at("step").item<double>() == 20);
  CHECK(saved.parameters.at("b").at("step").item<double>() == 12);

  auto copies = support::clones(params);
  for (auto& copy : copies) copy.requires_grad_(true);
  st::optim::OptimizerState deep = saved;
  for (auto& [name, entry] : deep.parameters) {
    for (auto& [key, tensor] : entry) tensor = tensor.clone();
  }
  AdamW second({copies[1], copies[0]}, {.lr = 0.9, .amsgrad = true});  // another order: names decide
  second.name_parameters({{"w", copies[0]}, {"b", copies[1]}});
  std::vector<at::Tensor> stale{copies[0]};
  copies[0].mutable_grad() = torch::zeros_like(copies[0]);
  second.step();  // stale state, to be cleared
  second.load_state(deep);
  for (int i = 0; i < 2; ++i) copies[i].data().copy_(params[i]);
  CHECK(second.lr() == 0.005);
  run_oracle(params, first, 20, 50);
  run_oracle(copies, second, 20, 50);
  CHECK(support::same_bits(support::clones(params), support::clones(copies)));
}

TEST_CASE("state that does not fit is refused, and nothing has changed") {
  auto params = oracle_parameters();
  AdamW optimizer(params, {.lr = 0.01});
  run_oracle(params, optimizer, 0, 3);
  const auto before = optimizer.state();
  const auto refused = [&](auto&& spoil, const char* message) {
    auto saved = optimizer.state();
    spoil(saved);
    CHECK_THROWS_MATCHES(optimizer.load_state(saved), st::StateError, MessageMatches(ContainsSubstring(message)));
    CHECK(support::same_bits(optimizer.state().parameters.at("parameter.0").at("exp_avg"),
                             before.parameters.at("parameter.0").at("exp_avg")));
  };
  refused([](auto& s) { s.type = "SGD"; }, "of SGD");
  refused([](auto& s) { s.parameters.erase("parameter.1"); }, "'parameter.1' is missing");
  refused([](auto& s) { s.parameters["other"]; }, "'other' does not exist here");
  refused([](auto& s) { s.parameters["parameter.0"]["exp_avg"] = torch::zeros({5}, at::kDouble); }, "exp_avg");
  refused([](auto& s) { s.parameters["parameter.0"]["exp_avg"] = torch::zeros({4}); }, "exp_avg");
  refused([](auto& s) { s.parameters["parameter.0"].erase("step"); }, "'step'");
  refused([](auto& s) { s.groups.clear(); }, "groups");
  refused([](auto& s) { s.groups[0].erase("lr"); }, "'lr' is missing");
}

TEST_CASE("tied parameters are updated once") {
  auto tied = torch::ones({2}, torch::requires_grad());
  SGD optimizer({tied, tied}, {.lr = 1.0});
  CHECK(optimizer.parameters().size() == 1);
  tied.mutable_grad() = torch::ones({2});
  optimizer.step();
  CHECK(tied[0].item<double>() == 0.0);
}

TEST_CASE("a refused step costs an optimizer nothing, its first too") {
  auto params = oracle_parameters();
  SGD optimizer(params, {.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
  for (auto& param : params) param.mutable_grad() = torch::full_like(param, INFINITY).detach();
  const auto before = support::clones(params);
  optimizer.step({.found_inf = torch::ones({})});
  CHECK(support::same_bits(before, support::clones(params)));
  CHECK(optimizer.state().parameters.at("parameter.0").at("momentum_buffer").isfinite().all().item<bool>());
  run_oracle(params, optimizer);
  auto fresh = oracle_parameters();
  SGD other(fresh, {.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
  run_oracle(fresh, other);
  CHECK(support::same_bits(support::clones(params), support::clones(fresh)));
}

TEST_CASE("moments follow a parameter that changes its memory format") {
  auto weight = torch::randn({4, 3, 2, 2}).requires_grad_(true);
  auto twin = weight.detach().clone().requires_grad_(true);
  AdamW optimizer({weight}, {.lr = 0.1}), reference({twin}, {.lr = 0.1});
  for (int step = 0; step < 4; ++step) {
    const auto grad = torch::randn({4, 3, 2, 2});
    weight.mutable_grad() = grad.clone();
    twin.mutable_grad() = grad.clone();
    optimizer.step();
    reference.step();
    if (step == 1) weight.set_data(weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  CHECK(weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(torch::equal(weight, twin));
}

TEST_CASE("optimizers refuse what cannot work, before anything changes") {
  const auto param = torch::ones({2}, torch::requires_grad());
  const auto says = [](const char* text) { return MessageMatches(ContainsSubstring(text)); };
  CHECK_THROWS_MATCHES(AdamW(std::vector<at::Tensor>{}), st::ConfigError, says("no parameters"));
  CHECK_THROWS_MATCHES(AdamW({param}, {.lr = -1}), st::ConfigError, says("lr is -1"));
  CHECK_THROWS_MATCHES(AdamW({param}, {.lr = NAN}), st::ConfigError, says("lr is nan"));
  CHECK_THROWS_MATCHES(AdamW({param}, {.beta2 = 1.0}), st::ConfigError, says("beta2 is 1"));
  CHECK_THROWS_MATCHES(SGD({param}, {.nesterov = true}), st::ConfigError, says("nesterov needs momentum"));
  CHECK_THROWS_MATCHES(AdamW({at::Tensor()}), st::ConfigError, says("undefined"));
  CHECK_THROWS_MATCHES(AdamW({torch::ones({2}, at::kLong)}), st::ConfigError, says("dtype Long"));
  CHECK_THROWS_MATCHES(AdamW({param * 2}), st::ConfigError, says("not a leaf"));
  CHECK_THROWS_MATCHES(AdamW(std::vector<st::optim::ParamGroup>{{{param}, {}, {}}, {{param}, {}, {}}}), st::ConfigError,
                       says("in group 0 and in group 1"));
  SGD optimizer({param}, {.lr = 0.1});
  CHECK_THROWS_MATCHES(optimizer.lr(1), st::ConfigError, says("no group 1"));
  const auto table = torch::ones({3, 2}, torch::requires_grad());
  SGD embedding({param, table}, {.lr = 0.1});
  param.mutable_grad() = torch::ones({2});
  torch::embedding(table, torch::tensor({1}), -1, false, /*sparse=*/true).sum().backward();
  CHECK_THROWS_MATCHES(embedding.step(), st::ConfigError, says("is sparse"));
  CHECK(param[0].item<double>() == 1.0);
}
