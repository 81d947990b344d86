// SPDX-License-Identifier: Apache-2.0
// What every optimizer keeps to, whatever its formula: one list of checks over all of them, in float32 (a fused kernel
// or the loops on the CPU), in bfloat16 (at::_foreach_*), and behind MasterWeights and StochasticRounding.
#include "optim_support.hpp"
#include "saturate/error.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/observe/op_counter.hpp"
#include "saturate/optim/adagrad.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/lamb.hpp"
#include "saturate/optim/lars.hpp"
#include "saturate/optim/lion.hpp"
#include "saturate/optim/master_weights.hpp"
#include "saturate/optim/rmsprop.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/optim/stochastic_rounding.hpp"
#include "saturate/optim/torch_optimizer.hpp"

#include <functional>
#include <memory>

namespace st = saturate;
using namespace optim_test;
using namespace st::optim;

namespace {

using Params = std::vector<at::Tensor>;

struct Candidate {
  std::string name;
  at::ScalarType dtype;
  std::function<std::unique_ptr<Optimizer>(Params)> make;
};

template <class O, class Options>
void add(std::vector<Candidate>& list, const char* name, Options options) {
  const auto plain = [options](Params params) { return std::make_unique<O>(std::move(params), options); };
  const auto make = [options](auto params) { return O(std::move(params), options); };
  list.push_back({std::string(name), at::kFloat, plain});
  list.push_back({std::string(name) + " in double", at::kDouble, plain});
  list.push_back({std::string(name) + " in bfloat16", at::kBFloat16, plain});
  list.push_back({std::string(name) + " with master weights", at::kBFloat16,
                  [make](Params params) { return std::make_unique<MasterWeights>(std::move(params), make); }});
  list.push_back({std::string(name) + " with master weights of FP16", at::kHalf,
                  [make](Params params) { return std::make_unique<MasterWeights>(std::move(params), make); }});
  list.push_back({std::string(name) + " with stochastic rounding", at::kBFloat16,
                  [make](Params params) { return std::make_unique<StochasticRounding>(std::move(params), make); }});
}

// Rates are powers of 2, so that a factor of 0.5 in float32 is exact.
std::vector<Candidate> candidates() {
  std::vector<Candidate> list;
  add<AdamW>(list, "AdamW", AdamWOptions{.lr = 0.125, .amsgrad = true});
  add<Adam>(list, "Adam", AdamOptions{.lr = 0.125, .weight_decay = 0.1, .maximize = true});
  add<SGD>(list, "SGD", SGDOptions{.lr = 0.125});
  add<SGD>(list, "SGD with momentum", SGDOptions{.lr = 0.125, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1});
  add<Adagrad>(list, "Adagrad", AdagradOptions{.lr = 0.125, .lr_decay = 0.1, .initial_accumulator_value = 0.25});
  add<RMSprop>(list, "RMSprop", RMSpropOptions{.lr = 0.125});
  add<RMSprop>(list, "RMSprop, centered", RMSpropOptions{.lr = 0.125, .momentum = 0.9, .centered = true});
  add<Lion>(list, "Lion", LionOptions{.lr = 0.125, .weight_decay = 0.1});
  add<LAMB>(list, "LAMB", LAMBOptions{.lr = 0.125});
  add<LARS>(list, "LARS", LARSOptions{.lr = 0.125, .trust_coefficient = 0.125});
  add<LARS>(list, "LARS without momentum",
            LARSOptions{.lr = 0.125, .momentum = 0, .weight_decay = 0, .trust_coefficient = 0.125});
  return list;
}

template <class Check>
void for_all(Check&& check) {
  for (const Candidate& candidate : candidates()) {
    INFO(candidate.name);
    check(candidate);
  }
}

bool same_state(const OptimizerState& a, const OptimizerState& b) {
  if (a.type != b.type || a.groups != b.groups || a.parameters.size() != b.parameters.size()) return false;
  for (const auto& [name, entry] : a.parameters) {
    const auto& other = b.parameters.at(name);
    if (entry.size() != other.size()) return false;
    for (const auto& [key, tensor] : entry) {
      if (!support::same_bits(tensor, other.at(key))) return false;
    }
  }
  return true;
}

void poison(const Params& params) {
  for (at::Tensor param : params) param.mutable_grad() = torch::full_like(param, NAN).detach();
  at::Tensor first = params[0];
  first.mutable_grad().fill_(INFINITY);
}

const StepArgs refused{.found_inf = torch::ones({})};
const StepArgs taken{.found_inf = torch::zeros({})};

}  // namespace

TEST_CASE("a refused step changes nothing, bit for bit (law 2)") {
  for_all([](const Candidate& candidate) {
    Params params = oracle_parameters(candidate.dtype);
    const auto optimizer = candidate.make(params);
    run(params, *optimizer, 0, 5, taken);
    const Params before = support::clones(params);
    const OptimizerState state = copied(optimizer->state());
    for (int i = 0; i < 2; ++i) {
      poison(params);
      optimizer->step(refused);
      optimizer->zero_grad();
    }
    CHECK(support::same_bits(before, support::clones(params)));
    CHECK(same_state(state, optimizer->state()));
  });
}

TEST_CASE("a refused first step leaves an optimizer as if it were new (law 2)") {
  for_all([](const Candidate& candidate) {
    Params params = oracle_parameters(candidate.dtype), fresh = oracle_parameters(candidate.dtype);
    const auto optimizer = candidate.make(params), other = candidate.make(fresh);
    poison(params);
    optimizer->step(refused);
    optimizer->zero_grad();
    CHECK(support::same_bits(support::clones(params), support::clones(fresh)));
    run(params, *optimizer, 0, 12);
    run(fresh, *other, 0, 12);
    CHECK(support::same_bits(support::clones(params), support::clones(fresh)));
    CHECK(same_state(optimizer->state(), other->state()));
  });
}

TEST_CASE("a step that may be refused and is not equals one that may not be") {
  for_all([](const Candidate& candidate) {
    Params params = oracle_parameters(candidate.dtype), others = oracle_parameters(candidate.dtype);
    const auto optimizer = candidate.make(params), other = candidate.make(others);
    run(params, *optimizer, 0, 8, taken);
    run(others, *other, 0, 8);
    CHECK(support::same_bits(support::clones(params), support::clones(others)));
    CHECK_FALSE(support::same_bits(support::clones(params), support::clones(oracle_parameters(candidate.dtype))));
  });
}

TEST_CASE("large tensors beside small ones: a refused step changes neither (law 2)") {
  for_all([](const Candidate& candidate) {
    torch::manual_seed(2);
    Params params{torch::randn({40000}).to(candidate.dtype).requires_grad_(true),
                  torch::randn({5}).to(candidate.dtype).requires_grad_(true)};
    const Params start = support::clones(params);
    const auto optimizer = candidate.make(params);
    poison(params);
    optimizer->step(refused);
    optimizer->zero_grad();
    CHECK(support::same_bits(start, support::clones(params)));
    for (at::Tensor& param : params) param.mutable_grad() = torch::ones_like(param).detach();
    optimizer->step(taken);
    optimizer->zero_grad();
    for (std::size_t i = 0; i < 2; ++i) CHECK_FALSE(support::same_bits(start[i], params[i].detach()));
    const Params before = support::clones(params);
    const OptimizerState state = copied(optimizer->state());
    poison(params);
    optimizer->step(refused);
    CHECK(support::same_bits(before, support::clones(params)));
    CHECK(same_state(state, optimizer->state()));
  });
}

// Kernels take whole vectors and the rest by different code.
TEST_CASE("every element of a large tensor is treated alike") {
  for_all([](const Candidate& candidate) {
    if (candidate.name.ends_with("rounding")) return;  // at random
    at::Tensor param = torch::full({1003}, 0.7, candidate.dtype).requires_grad_(true);
    const at::Tensor before = param.detach().clone();
    const auto optimizer = candidate.make({param});
    for (int step = 0; step < 4; ++step) {
      param.mutable_grad() = torch::full({1003}, 0.5 * (step + 1), candidate.dtype);
      optimizer->step();
      optimizer->zero_grad();
    }
    const double tolerance = candidate.dtype == at::kBFloat16 || candidate.dtype == at::kHalf ? 0.01 : 1e-6;
    CHECK((param - param[0]).abs().max().item<double>() < tolerance);
    CHECK((param != before).all().item<bool>());
  });
}

TEST_CASE("state goes by name, and a run continued from it is the same bit for bit") {
  for_all([](const Candidate& candidate) {
    Params params = oracle_parameters(candidate.dtype);
    const auto first = candidate.make(params);
    first->name_parameters({{"w", params[0]}, {"b", params[1]}});
    run(params, *first, 0, 8);
    first->set_lr(0.0625);
    Params copies = support::clones(params);
    for (auto& copy : copies) copy.requires_grad_(true);
    Params other_order{copies[1], copies[0]};
    const auto second = candidate.make(other_order);
    second->name_parameters({{"w", copies[0]}, {"b", copies[1]}});
    const Params weights = support::clones(copies);
    run(copies, *second, 0, 2);  // state that has to go
    for (std::size_t i = 0; i < 2; ++i) copies[i].data().copy_(weights[i]);
    second->load_state(copied(first->state()));
    CHECK(second->lr() == 0.0625);
    CHECK(same_state(first->state(), second->state()));
    run(params, *first, 8, 16);
    run(copies, *second, 8, 16);
    CHECK(support::same_bits(support::clones(params), support::clones(copies)));
  });
}

TEST_CASE("state that does not fit is refused by every optimizer, and nothing has changed") {
  for_all([](const Candidate& candidate) {
    Params params = oracle_parameters(candidate.dtype);
    const auto optimizer = candidate.make(params);
    run(params, *optimizer, 0, 5);
    const OptimizerState before = copied(optimizer->state());
    const Params weights = support::clones(params);
    const auto refuses = [&](auto&& spoil) {
      OptimizerState saved = copied(before);
      for (auto& [name, entry] : saved.parameters) {
        for (auto& [key, tensor] : entry) tensor.fill_(0.5);
      }
      spoil(saved);
      CHECK_THROWS_AS(optimizer->load_state(saved), st::StateError);
      CHECK(same_state(before, optimizer->state()));
      CHECK(support::same_bits(weights, support::clones(params)));
    };
    refuses([](OptimizerState& s) { s.type = "none"; });
    refuses([](OptimizerState& s) { s.groups.clear(); });
    refuses([](OptimizerState& s) { s.groups[0].erase("lr"); });
    refuses([](OptimizerState& s) { s.groups[0]["lr"] = -1; });
    refuses([](OptimizerState& s) { s.groups[0]["temperature"] = 1; });
    refuses([](OptimizerState& s) { s.parameters.erase("parameter.1"); });
    refuses([](OptimizerState& s) { s.parameters["parameter.2"]; });
    if (before.parameters.at("parameter.0").size() > 2) {  // else nothing tells it from one before its first step
      refuses([](OptimizerState& s) { s.parameters["parameter.0"].erase("step"); });
    }
    refuses([](OptimizerState& s) { s.parameters["parameter.0"]["other"] = torch::zeros({19}); });
  });
}

TEST_CASE("tied parameters are stepped on once") {
  for_all([](const Candidate& candidate) {
    const at::Tensor tied = torch::ones({4}, candidate.dtype).requires_grad_(true);
    const at::Tensor single = torch::ones({4}, candidate.dtype).requires_grad_(true);
    const auto optimizer = candidate.make({tied, tied}), other = candidate.make({single});
    CHECK(optimizer->parameters().size() == 1);
    for (at::Tensor param : {tied, single}) param.mutable_grad() = torch::full({4}, 0.5, candidate.dtype);
    optimizer->step();
    other->step();
    CHECK(support::same_bits(tied.detach(), single.detach()));
  });
}

TEST_CASE("no value is read on the host (law 6)") {
  for_all([](const Candidate& candidate) {
    Params params = oracle_parameters(candidate.dtype);
    const auto optimizer = candidate.make(params);
    st::OpCounter counter;
    for (const bool poisoned : {true, false, true, false}) {
      set_oracle_gradients(params, 4);
      if (poisoned) poison(params);
      optimizer->gather_gradients();
      optimizer->step(
          {.lr_factor_tensor = torch::full({}, 0.5), .found_inf = poisoned ? torch::ones({}) : torch::zeros({})});
      optimizer->zero_grad();
    }
    CHECK(counter.host_reads_by_name() == std::map<std::string, int64_t>{});
    CHECK(optimizer->refuses_on_device());
  });
}

TEST_CASE("zero_grad takes gradients away, or makes them zero") {
  for_all([](const Candidate& candidate) {
    Params params = oracle_parameters(candidate.dtype);
    const auto optimizer = candidate.make(params);
    for (at::Tensor& param : params) (param * param).sum().backward();
    optimizer->gather_gradients();
    for (const at::Tensor& grad : optimizer->gradients()) CHECK(grad.defined());
    optimizer->zero_grad(/*set_to_none=*/false);
    for (const at::Tensor& grad : optimizer->gradients()) CHECK(grad.abs().max().item<double>() == 0);
    optimizer->zero_grad();
    for (const at::Tensor& grad : optimizer->gradients()) CHECK_FALSE(grad.defined());
    for (const at::Tensor& param : params) CHECK_FALSE(param.grad().defined());
    const Params before = support::clones(params);
    optimizer->step();  // no gradient, no step
    CHECK(support::same_bits(before, support::clones(params)));
  });
}

TEST_CASE("state bytes to come are those that the first step allocates") {
  const auto check = [](const std::string& name, const std::function<std::unique_ptr<Optimizer>(Params)>& make,
                        at::ScalarType dtype) {
    CAPTURE(name);
    Params params;
    for (const int64_t size : {5, 1000, 100'000}) params.push_back(torch::ones({size}, dtype).requires_grad_());
    params.push_back(torch::ones({300}, dtype));  // frozen: no state is to come
    const auto optimizer = make(params);
    for (std::size_t i = 0; i + 1 < params.size(); ++i) params[i].mutable_grad() = torch::ones_like(params[i]).detach();
    const StateBytes before = optimizer->state_bytes();
    st::MemoryMeter meter;
    optimizer->step();
    optimizer->zero_grad();
    const StateBytes after = optimizer->state_bytes();
    const int64_t allocated = meter.counts().bytes;
    CHECK(after.now == before.now + before.to_come);
    CHECK(after.to_come == 0);
    // Step numbers aside, and a float that stands for the copies that stochastic rounding keeps no memory of.
    CHECK(std::abs(allocated - before.to_come) <= 64);
  };
  for (const Candidate& candidate : candidates()) check(candidate.name, candidate.make, candidate.dtype);
  const auto wrapped = [](auto optimizer) {
    return std::unique_ptr<Optimizer>(std::make_unique<TorchOptimizer>(std::move(optimizer)));
  };
  check(
      "torch::optim::AdamW", [&](Params params) { return wrapped(std::make_shared<torch::optim::AdamW>(params)); },
      at::kFloat);
  check(
      "torch::optim::SGD", [&](Params params) { return wrapped(std::make_shared<torch::optim::SGD>(params, 0.1)); },
      at::kFloat);
}

TEST_CASE("the schedule's factor as a number, as a tensor and as a learning rate are one") {
  for_all([](const Candidate& candidate) {
    Params a = oracle_parameters(candidate.dtype), b = oracle_parameters(candidate.dtype),
           c = oracle_parameters(candidate.dtype);
    const auto by_number = candidate.make(a), by_tensor = candidate.make(b), by_rate = candidate.make(c);
    by_rate->set_lr(0.0625);
    run(a, *by_number, 0, 6, {.lr_factor = 0.5});
    run(b, *by_tensor, 0, 6, {.lr_factor = 3.0, .lr_factor_tensor = torch::full({}, 0.5)});
    run(c, *by_rate, 0, 6);
    CHECK(support::same_bits(support::clones(a), support::clones(b)));
    CHECK(support::same_bits(support::clones(a), support::clones(c)));
    CHECK_FALSE(support::same_bits(support::clones(a), support::clones(oracle_parameters(candidate.dtype))));
  });
}

TEST_CASE("a failed step leaves an optimizer as it was") {
  for_all([](const Candidate& candidate) {
    Params params = oracle_parameters(candidate.dtype);
    const auto optimizer = candidate.make(params);
    run(params, *optimizer, 0, 5);
    const Params before = support::clones(params);
    const OptimizerState state = copied(optimizer->state());
    set_oracle_gradients(params, 4);
    params[1].mutable_grad() = torch::zeros({2, 3}, candidate.dtype).to_sparse();
    CHECK_THROWS_AS(optimizer->step(), st::ConfigError);
    CHECK(support::same_bits(before, support::clones(params)));
    CHECK(same_state(state, optimizer->state()));
    optimizer->zero_grad();
    run(params, *optimizer, 5, 6);
  });
}
