// SPDX-License-Identifier: Apache-2.0
// Optimizer state spread over ranks: the same bits as without, a fraction of the memory, any number of ranks to go on.
#include "saturate/distributed/sharded_optimizer.hpp"
#include "distributed_support.hpp"
#include "saturate/clip/clip_grad_norm.hpp"
#include "saturate/distributed/ddp.hpp"
#include "saturate/error.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/lamb.hpp"
#include "saturate/optim/lars.hpp"
#include "saturate/optim/master_weights.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/optim/stochastic_rounding.hpp"
#include "saturate/precision/precision.hpp"
#include "saturate/schedule/one_cycle_lr.hpp"
#include "saturate/trainer.hpp"

#include <torch/serialize.h>
#include <catch2/generators/catch_generators.hpp>

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>

namespace st = saturate;
using st::distributed::owners_by_size;
using st::distributed::ShardedOptimizer;
using st::optim::OptimizerState;
using st::optim::ParamGroup;
using support::Batch;
using support::Mlp;
using support::RankChecks;
using support::dist::ProcessGroup;

namespace {

using Params = std::vector<at::Tensor>;
using Groups = std::vector<ParamGroup>;
using Any = std::unique_ptr<st::optim::Optimizer>;

constexpr auto adamw = [](auto params) {
  return st::optim::AdamW(std::move(params), {.lr = 0.05, .weight_decay = 0.1});
};
constexpr auto sgd = [](auto params) { return st::optim::SGD(std::move(params), {.lr = 0.1, .momentum = 0.9}); };
constexpr auto lamb = [](auto params) { return st::optim::LAMB(std::move(params), {.lr = 0.05}); };
constexpr auto lars = [](auto params) { return st::optim::LARS(std::move(params), {.lr = 0.5}); };
constexpr auto master = [](auto params) { return st::optim::MasterWeights(std::move(params), adamw); };
constexpr auto rounding = [](auto params) { return st::optim::StochasticRounding(std::move(params), adamw); };

/// `shards` null: the inner optimizer over everything.
template <class What, class Make>
Any made(const ProcessGroup* shards, What params, const Make& make) {
  using Inner = decltype(make(What()));
  if (shards == nullptr) return std::make_unique<Inner>(make(std::move(params)));
  return std::make_unique<ShardedOptimizer>(*shards, std::move(params), make);
}

bool same_state(const OptimizerState& a, const OptimizerState& b) {
  if (a.type != b.type || a.groups != b.groups || a.parameters.size() != b.parameters.size()) return false;
  for (const auto& [name, entry] : a.parameters) {
    const auto other = b.parameters.find(name);
    if (other == b.parameters.end() || other->second.size() != entry.size()) return false;
    for (const auto& [key, tensor] : entry) {
      if (!other->second.contains(key) || !support::same_bits(tensor, other->second.at(key))) return false;
    }
  }
  return true;
}

OptimizerState copied(const OptimizerState& state) {
  OptimizerState copy = state;
  for (auto& [name, entry] : copy.parameters) {
    for (auto& [key, tensor] : entry) tensor = tensor.clone();
  }
  return copy;
}

int64_t bytes_of(const OptimizerState& state) {
  int64_t bytes = 0;
  for (const auto& [name, entry] : state.parameters) {
    for (const auto& [key, tensor] : entry) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

// Under Ddp and a Trainer -------------------------------------------------------------------------------------------

st::DdpOptions small_buckets() { return {.bucket_bytes = 256, .first_bucket_bytes = 64}; }

std::vector<Batch> window_of(int rank, int64_t window) {
  std::vector<Batch> result;
  for (int64_t i = 0; i < 2; ++i) {
    result.push_back(support::classes(2 + (rank + i + window) % 4, 1000 * window + 10 * i + rank, at::kFloat, 3));
  }
  return result;
}

struct Outcome {
  Params parameters;  // after each step, before the next forward
  std::vector<bool> taken;
  OptimizerState state;
};

/// @param train makes a Trainer of a model and an optimizer. @param inf_at the window in which the last rank has an
/// inf.
template <class Make, class Train>
Outcome run(const ProcessGroup& group, bool sharded, const Make& make, const Train& train, int64_t inf_at) {
  Mlp net = support::seeded<Mlp>(3);
  auto trainer = train(net, made(sharded ? &group : nullptr, net->parameters(), make));
  Outcome outcome;
  for (int64_t window = 0; window < 5; ++window) {
    auto batches = window_of(group.rank(), window);
    if (window == inf_at && group.rank() == group.world_size() - 1) {
      batches[0].first[0] = std::numeric_limits<float>::infinity();
    }
    outcome.taken.push_back(trainer.step(batches).taken());
    const Params now = support::clones(net->parameters());
    outcome.parameters.insert(outcome.parameters.end(), now.begin(), now.end());
  }
  outcome.state = copied(trainer.optimizer().state());
  return outcome;
}

template <class Make, class Train>
void compare(const ProcessGroup& group, RankChecks& check, const std::string& what, const Make& make,
             const Train& train, int64_t inf_at = -1) {
  const Outcome ours = run(group, true, make, train, inf_at), whole = run(group, false, make, train, inf_at);
  check(support::same_bits(ours.parameters, whole.parameters), what + ": other parameters than without sharding");
  check(support::same_on_all_ranks(group, ours.parameters), what + ": ranks have different parameters");
  check(ours.taken == whole.taken, what + ": other steps were skipped");
  check(same_state(ours.state, whole.state), what + ": other state than without sharding");
  if (inf_at >= 0) check(!ours.taken[static_cast<std::size_t>(inf_at)], what + ": the inf was not skipped");
}

const support::RankEntry same_bits("sharded: same bits", [](const ProcessGroup& group, RankChecks& check) {
  const auto with = [&](auto... make_policies) {
    return [&group, make_policies...](Mlp net, Any optimizer) {
      return st::Trainer(std::move(net), std::move(optimizer), st::CrossEntropy{}, st::Ddp(group, small_buckets()),
                         st::Accumulate{2}, make_policies()...);
    };
  };
  const auto schedule = [] { return st::WarmupCosine{.warmup = 2, .total = 5}; };
  const auto cycle = [] { return st::OneCycleLr{.total = 5}; };
  const auto clip = [] { return st::ClipGradNorm{0.1}; };
  const auto fp16 = [] { return st::Fp16({.init_scale = 64}); };
  compare(group, check, "AdamW", adamw, with());
  compare(group, check, "SGD", sgd, with());
  compare(group, check, "LAMB", lamb, with());
  compare(group, check, "AdamW, schedule, clip", adamw, with(schedule, clip));
  compare(group, check, "SGD, one cycle with momentum", sgd, with(cycle));
  compare(group, check, "AdamW, Fp16 with an inf", adamw, with(fp16, clip), 2);
  compare(group, check, "SGD, Fp16 with an inf at first", sgd, with(fp16), 0);
});

// A loop by hand, with gradients that are whole on every rank and need no reduction ----------------------------------

void give_gradients(const Params& params, int64_t step) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!params[i].requires_grad()) continue;
    torch::manual_seed(100 * step + static_cast<int64_t>(i));
    params[i].mutable_grad() = at::randn(params[i].sizes()).to(params[i].scalar_type());
  }
}

Params tensors(const std::vector<std::vector<int64_t>>& shapes, at::ScalarType dtype = at::kFloat) {
  Params params;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    torch::manual_seed(static_cast<int64_t>(i));
    params.push_back(at::randn(shapes[i]).to(dtype).requires_grad_(true));
  }
  return params;
}

const std::vector<std::vector<int64_t>> mixed = {{3, 5}, {5}, {40, 3}, {}, {0, 4}, {7, 2, 3}, {1}};

/// Steps `optimizer` from step `begin` to before `end`.
void steps(st::optim::Optimizer& optimizer, const Params& params, int64_t begin, int64_t end,
           st::optim::StepArgs args = {}) {
  for (int64_t step = begin; step < end; ++step) {
    give_gradients(params, step);
    optimizer.gather_gradients();
    optimizer.step(args);
    optimizer.zero_grad();
  }
}

template <class Make>
void by_hand(const ProcessGroup& group, RankChecks& check, const std::string& what, const Make& make,
             const std::vector<std::vector<int64_t>>& shapes, at::ScalarType dtype = at::kFloat) {
  const Params ours = tensors(shapes, dtype), whole = tensors(shapes, dtype);
  const Any a = made(&group, ours, make), b = made(nullptr, whole, make);
  steps(*a, ours, 0, 4);
  steps(*b, whole, 0, 4);
  check(support::same_bits(ours, whole), what + ": other parameters than without sharding");
  check(!support::same_bits(ours, tensors(shapes, dtype)), what + ": nothing was trained");
  check(same_state(a->state(), b->state()), what + ": other state than without sharding");
  give_gradients(ours, 9);
  give_gradients(whole, 9);
  a->gather_gradients();
  b->gather_gradients();
  const Params x = a->gradients(), y = b->gradients();
  check(support::same_bits(x, y), what + ": other gradients to clip");
}

const support::RankEntry methods("sharded: methods", [](const ProcessGroup& group, RankChecks& check) {
  by_hand(group, check, "LARS", lars, mixed);
  by_hand(group, check, "LAMB", lamb, mixed);
  by_hand(group, check, "AdamW, few", adamw, {{4, 3}, {3}});  // more ranks than parameters, from three ranks on
  by_hand(group, check, "AdamW, one", adamw, {{4, 3}});
  by_hand(group, check, "SGD, float64", sgd, mixed, at::kDouble);
  by_hand(group, check, "MasterWeights", master, mixed, at::kBFloat16);
  by_hand(group, check, "MasterWeights, one", master, {{4, 3}}, at::kBFloat16);
  by_hand(group, check, "StochasticRounding", rounding, mixed, at::kBFloat16);
  // Elements lie in a message as they do in the parameter.
  const auto strided = [] {
    Params params = tensors({{2, 3, 4, 4}, {6, 5}});
    const at::NoGradGuard no_grad;
    params[0] = params[0].detach().contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(true);
    params[1] = params[1].detach().t().requires_grad_(true);
    return params;
  };
  const Params ours = strided(), whole = strided();
  const Any a = made(&group, ours, adamw), b = made(nullptr, whole, adamw);
  steps(*a, ours, 0, 3);
  steps(*b, whole, 0, 3);
  check(support::same_bits(ours, whole), "channels_last and transposed");
});

const support::RankEntry groups("sharded: groups", [](const ProcessGroup& group, RankChecks& check) {
  const auto grouped = [](const Params& params) {
    return Groups{{.params = {params[0], params[2], params[5]}, .lr = 0.1, .weight_decay = 0.2},
                  {.params = {params[1], params[3], params[4], params[6]}, .lr = 0.01, .weight_decay = 0.0}};
  };
  const Params ours = tensors(mixed), whole = tensors(mixed);
  const Any a = made(&group, grouped(ours), adamw), b = made(nullptr, grouped(whole), adamw);
  check(a->groups() == b->groups(), "other groups");
  check(a->lr(1) == 0.01, "the learning rate of group 1 is " + std::to_string(a->lr(1)));
  a->set_lr(0.02, 1);
  b->set_lr(0.02, 1);
  st::optim::StepArgs args;
  args.group_lr_factors = {0.5, 2.0};
  args.momentum = 0.8;
  steps(*a, ours, 0, 3, args);
  steps(*b, whole, 0, 3, args);
  check(support::same_bits(ours, whole), "groups: other parameters");
  check(same_state(a->state(), b->state()), "groups: other state");
});

const support::RankEntry frozen("sharded: frozen", [](const ProcessGroup& group, RankChecks& check) {
  const Params ours = tensors(mixed), whole = tensors(mixed);
  const auto freeze = [&](std::size_t i, bool trained) {
    ours[i].requires_grad_(trained);
    whole[i].requires_grad_(trained);
  };
  freeze(2, false);  // the largest
  const Any a = made(&group, ours, adamw), b = made(nullptr, whole, adamw);
  steps(*a, ours, 0, 2);
  steps(*b, whole, 0, 2);
  check(support::same_bits(ours[2], tensors(mixed)[2]), "a frozen parameter has moved");
  freeze(2, true);
  freeze(0, false);
  steps(*a, ours, 2, 4);
  steps(*b, whole, 2, 4);
  check(support::same_bits(ours, whole), "frozen and released parameters");
  check(same_state(a->state(), b->state()), "frozen and released parameters: state");
  check(!support::same_bits(ours[2], tensors(mixed)[2]), "a released parameter has not moved");
});

const support::RankEntry refused("sharded: refused", [](const ProcessGroup& group, RankChecks& check) {
  const Params params = tensors(mixed);
  const Any optimizer = made(&group, params, adamw);
  steps(*optimizer, params, 0, 2);
  const Params before = support::clones(params);
  const OptimizerState state = copied(optimizer->state());
  for (const at::Tensor& param : params)
    param.mutable_grad() = at::full_like(param, std::numeric_limits<float>::infinity());
  st::optim::StepArgs args;
  args.found_inf = at::ones({});
  optimizer->step(args);
  check(support::same_bits(params, before), "a refused step changed parameters");
  check(same_state(state, optimizer->state()), "a refused step changed state");
  optimizer->zero_grad();
  steps(*optimizer, params, 2, 3);
  check(!support::same_bits(params, before), "the next step was not taken");
});

// Between start_step() and wait() -------------------------------------------------------------------------------------

const support::RankEntry under_way("sharded: under way", [](const ProcessGroup& group, RankChecks& check) {
  const Params params = tensors(mixed), whole = tensors(mixed);
  ShardedOptimizer optimizer(group, params, adamw);
  const Any reference = made(nullptr, whole, adamw);
  const auto owners = optimizer.owners();
  for (int64_t step = 0; step < 4; ++step) {
    const Params before = support::clones(params);
    give_gradients(params, step);
    optimizer.start_step({});
    optimizer.zero_grad();  // needs no parameter
    for (std::size_t i = 0; i < params.size(); ++i) {
      const bool moved = !support::same_bits(params[i], before[i]);
      const bool own = owners[i] == group.rank() && params[i].numel() > 0;
      check(moved == own, "before wait, parameter " + std::to_string(i) + (moved ? " has moved" : " has not moved"));
    }
    steps(*reference, whole, step, step + 1);
    if (step == 0) optimizer.wait();
    if (step == 1) optimizer.parameters();  // what reads parameters waits, and so does the next step
    if (step == 2) optimizer.state();
    if (step != 3) check(support::same_bits(params, whole), "after waiting, in step " + std::to_string(step));
  }
  give_gradients(params, 4);
  optimizer.start_step({});
  optimizer.wait();
  optimizer.wait();  // nothing under way
  optimizer.zero_grad();
  steps(*reference, whole, 4, 5);
  check(support::same_bits(params, whole), "two steps on end");
});

// Memory ------------------------------------------------------------------------------------------------------------

const support::RankEntry memory("sharded: memory", [](const ProcessGroup& group, RankChecks& check) {
  const auto share = [&](const auto& make, at::ScalarType dtype) {
    std::vector<std::vector<int64_t>> shapes;
    for (int i = 0; i < 12; ++i) shapes.insert(shapes.end(), {{64, 32 + i}, {64}});
    const Params ours = tensors(shapes, dtype), whole = tensors(shapes, dtype);
    ShardedOptimizer optimizer(group, ours, make);
    const Any reference = made(nullptr, whole, make);
    const auto planned = optimizer.state_bytes();
    steps(optimizer, ours, 0, 1);
    steps(*reference, whole, 0, 1);
    const auto now = optimizer.state_bytes();
    check(now.to_come == 0 && now.now == planned.now + planned.to_come,
          "the first step made other state than foretold");
    const double counted =
        static_cast<double>(bytes_of(optimizer.local_state())) / static_cast<double>(bytes_of(reference->state()));
    const double told = static_cast<double>(now.now) / static_cast<double>(reference->state_bytes().now);
    check(std::abs(counted - told) < 0.01, "counted " + std::to_string(counted) + ", told " + std::to_string(told));
    return counted;
  };
  const double ranks = group.world_size();
  for (const double found : {share(adamw, at::kFloat), share(master, at::kBFloat16)}) {
    check(found > 0.9 / ranks && found < 1.2 / ranks, "this rank's share is " + std::to_string(found));
    if (group.rank() == 0) std::cout << "state of one of " << ranks << " ranks: " << found << " of all" << std::endl;
    if (group.world_size() == 4) check(found <= 0.30, "this rank's share of 4 is " + std::to_string(found));
  }
});

// Saved by some ranks, loaded by others -------------------------------------------------------------------------------

void save(const std::string& path, const Params& params, const OptimizerState& state) {
  torch::serialize::OutputArchive archive;
  for (std::size_t i = 0; i < params.size(); ++i) archive.write("p" + std::to_string(i), params[i].detach());
  int64_t number = 0;
  for (const auto& [name, entry] : state.parameters) {
    for (const auto& [key, tensor] : entry) archive.write("s" + std::to_string(number++), tensor.detach());
  }
  archive.save_to(path);
}

/// `like` has the names: what is in the file lies in their order.
OptimizerState load(const std::string& path, const Params& params, OptimizerState like) {
  torch::serialize::InputArchive archive;
  archive.load_from(path);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < params.size(); ++i) {
    at::Tensor value;
    archive.read("p" + std::to_string(i), value);
    params[i].detach().copy_(value);
  }
  int64_t number = 0;
  for (auto& [name, entry] : like.parameters) {
    for (auto& [key, tensor] : entry) {
      at::Tensor value;
      archive.read("s" + std::to_string(number++), value);
      tensor = value;
    }
  }
  return like;
}

std::string file() { return std::getenv("SHARDED_FILE"); }

template <class Make>
void save_after_three(const ProcessGroup& group, const Make& make, at::ScalarType dtype, const std::string& path) {
  const Params params = tensors(mixed, dtype);
  ShardedOptimizer optimizer(group, params, make);
  steps(optimizer, params, 0, 3);
  const OptimizerState state = optimizer.state();
  if (group.rank() == 0) save(path, params, state);
}

template <class Make>
void go_on(const ProcessGroup& group, RankChecks& check, const Make& make, at::ScalarType dtype,
           const std::string& path) {
  const Params whole = tensors(mixed, dtype), params = tensors(mixed, dtype);
  const Any unbroken = made(nullptr, whole, make);
  steps(*unbroken, whole, 0, 6);
  const Params shape = tensors(mixed, dtype);
  const Any stepped = made(nullptr, shape, make);
  steps(*stepped, shape, 0, 1);
  ShardedOptimizer optimizer(group, params, make);
  const OptimizerState saved = load(path, params, stepped->state());
  optimizer.load_state(saved);
  check(same_state(optimizer.state(), saved), "what was loaded is not what was saved");
  steps(optimizer, params, 3, 6);
  check(support::same_bits(params, whole), "the resumed run differs from the unbroken one");
  check(same_state(optimizer.state(), unbroken->state()), "the resumed run's state differs");
}

const support::RankEntry saver("sharded: save", [](const ProcessGroup& group, RankChecks&) {
  save_after_three(group, adamw, at::kFloat, file() + ".adamw");
  save_after_three(group, master, at::kBFloat16, file() + ".master");
});
const support::RankEntry loader("sharded: load", [](const ProcessGroup& group, RankChecks& check) {
  go_on(group, check, adamw, at::kFloat, file() + ".adamw");
  go_on(group, check, master, at::kBFloat16, file() + ".master");
});

const support::RankEntry masters("sharded: loaded masters", [](const ProcessGroup& group, RankChecks& check) {
  const Params first = tensors(mixed, at::kBFloat16), second = tensors(mixed, at::kBFloat16);
  ShardedOptimizer trained(group, first, master), fresh(group, second, master);
  steps(trained, first, 0, 3);
  fresh.load_state(trained.state());  // without the model's weights, which follow from the master copies
  check(support::same_bits(first, second), "parameters of other ranks do not follow loaded master weights");
});

// Errors, on every rank -----------------------------------------------------------------------------------------------

template <class E, class Work>
void check_error(RankChecks& check, const std::string& what, const std::string& text, const Work& work) {
  try {
    work();
    check(false, what + ": no error");
  } catch (const E& error) {
    check(std::string(error.what()).find(text) != std::string::npos, what + ": " + error.what());
  }
}

/// A stand-in for a method with a norm over all parameters.
struct OverAll : st::optim::Optimizer {
  static constexpr bool needs_all_parameters = true;
};
static_assert(st::distributed::NeedsAllParameters<OverAll>);
static_assert(!st::distributed::NeedsAllParameters<st::optim::LAMB>);

const support::RankEntry errors("sharded: errors", [](const ProcessGroup& group, RankChecks& check) {
  const bool last = group.rank() == group.world_size() - 1;
  const Params params = tensors(mixed);
  check_error<st::ConfigError>(check, "a negative rate on one rank", "lr", [&] {
    ShardedOptimizer(group, params,
                     [&](Params own) { return st::optim::AdamW(std::move(own), {.lr = last ? -1.0 : 1.0}); });
  });
  check_error<st::ConfigError>(check, "another rate on one rank", "the optimizer of rank", [&] {
    ShardedOptimizer(group, params,
                     [&](Params own) { return st::optim::AdamW(std::move(own), {.lr = last ? 0.5 : 1.0}); });
  });
  check_error<st::StateError>(check, "another shape on one rank", "parameter 1 [6] Float of group 0", [&] {
    ShardedOptimizer(group, tensors({{3, 5}, {last ? 6 : 5}}), adamw);
  });
  check_error<st::ConfigError>(check, "none on one rank", "no parameters",
                               [&] { ShardedOptimizer(group, last ? Params() : params, adamw); });
  check_error<st::ConfigError>(check, "twice", "in group 0 and in group 1", [&] {
    ShardedOptimizer(group, Groups{{.params = params}, {.params = {params[3]}}}, adamw);
  });
  check_error<st::ConfigError>(check, "other parameters", "exactly the parameters", [&] {
    ShardedOptimizer(group, params, [&](Params) { return adamw(tensors({{2}, {3}})); });
  });
  check_error<st::ConfigError>(check, "LBFGS", "LBFGS", [&] {
    ShardedOptimizer(group, params, [](Params own) -> std::unique_ptr<torch::optim::Optimizer> {
      return std::make_unique<torch::optim::LBFGS>(own);
    });
  });
  ShardedOptimizer optimizer(group, params, adamw);
  const Params before = support::clones(params);
  // The gradient of one parameter, which one rank owns, cannot be used: none may go on and wait for its owner.
  give_gradients(params, 0);
  params[0].mutable_grad() = params[0].grad().to_sparse();
  check_error<st::ConfigError>(check, "a sparse gradient", "'parameter.0' is sparse", [&] { optimizer.step(); });
  check(support::same_bits(params, before), "a step that failed changed parameters");
  optimizer.zero_grad();
  steps(optimizer, params, 0, 2);
  const OptimizerState state = copied(optimizer.state());
  const auto refuse = [&](const std::string& what, const std::string& text, const auto& spoil) {
    OptimizerState saved = copied(state);
    for (auto& [name, entry] : saved.parameters) {
      for (auto& [key, tensor] : entry) tensor.add_(1);
    }
    spoil(saved);
    check_error<st::StateError>(check, what, text, [&] { optimizer.load_state(saved); });
    check(same_state(state, optimizer.state()), what + ": something was loaded");
  };
  refuse("another shape of one", "'exp_avg' of 'parameter.2'",
         [](OptimizerState& s) { s.parameters["parameter.2"]["exp_avg"] = at::zeros({3}); });
  refuse("another type", "SGD", [](OptimizerState& s) { s.type = "SGD"; });
  refuse("one is missing", "'parameter.5' is missing", [](OptimizerState& s) { s.parameters.erase("parameter.5"); });
  refuse("one too many", "'parameter.77' does not exist", [](OptimizerState& s) { s.parameters["parameter.77"]; });
  refuse("missing on one rank", "is missing", [&](OptimizerState& s) {
    if (last) s.parameters.erase("parameter.5");
  });
  check(std::count(optimizer.owners().begin(), optimizer.owners().end(), group.rank()) > 0, "owns nothing");
});

}  // namespace

TEST_CASE("owners_by_size: balanced, the same whatever was done before, trained parameters first") {
  Params params = tensors({{10}, {40}, {20}, {10}, {30}, {10}, {0}});
  CHECK(owners_by_size(params, 1) == std::vector<int>(7, 0));
  CHECK(owners_by_size(params, 2) == std::vector<int>{0, 0, 1, 0, 1, 1, 0});
  CHECK(owners_by_size(params, 9) == std::vector<int>{3, 0, 2, 4, 1, 5, 6});
  params[1].requires_grad_(false);
  const std::vector<int> owners = owners_by_size(params, 2);
  int64_t loads[2] = {0, 0};
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].requires_grad()) loads[owners[i]] += params[i].numel();
  }
  CHECK(loads[0] == 40);
  CHECK(loads[1] == 40);
}

TEST_CASE("ShardedOptimizer: the same bits as without sharding", "[multi]") {
  const int ranks = GENERATE(1, 2, 3, 4);
  support::check_ranks(ranks, "sharded: same bits");
}

TEST_CASE("ShardedOptimizer: every method, few parameters, half precision, any layout", "[multi]") {
  const int ranks = GENERATE(1, 2, 3, 4);
  support::check_ranks(ranks, "sharded: methods");
}

TEST_CASE("ShardedOptimizer: groups", "[multi]") {
  const int ranks = GENERATE(1, 2, 3, 4);
  support::check_ranks(ranks, "sharded: groups");
}

TEST_CASE("ShardedOptimizer: frozen parameters", "[multi]") {
  const int ranks = GENERATE(2, 4);
  support::check_ranks(ranks, "sharded: frozen");
}

TEST_CASE("law 2 with sharded state: a refused step changes nothing", "[law][multi]") {
  const int ranks = GENERATE(1, 3);
  support::check_ranks(ranks, "sharded: refused");
}

TEST_CASE("ShardedOptimizer: parameters come while something else is done", "[multi]") {
  const int ranks = GENERATE(1, 2, 4);
  support::check_ranks(ranks, "sharded: under way");
}

TEST_CASE("ShardedOptimizer: a rank holds its share of the state", "[multi]") {
  const int ranks = GENERATE(1, 2, 4);
  support::check_ranks(ranks, "sharded: memory");
}

TEST_CASE("ShardedOptimizer: saved by four ranks, loaded by others", "[law][multi]") {
  const std::string path = "/tmp/sharded_optimizer_test." + std::to_string(::getpid());
  const support::dist::SpawnOptions options{.environment = {{"SHARDED_FILE", path}}};
  support::check_ranks(4, "sharded: save", options);
  for (const int ranks : {1, 2, 3, 4}) support::check_ranks(ranks, "sharded: load", options);
  for (const char* kind : {".adamw", ".master"}) std::remove((path + kind).c_str());
}

TEST_CASE("ShardedOptimizer: parameters follow loaded master weights on every rank", "[multi]") {
  support::check_ranks(3, "sharded: loaded masters");
}

TEST_CASE("ShardedOptimizer: what is wrong on one rank is an error on every rank", "[multi]") {
  const int ranks = GENERATE(2, 3);
  support::check_ranks(ranks, "sharded: errors");
}
