// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/sync_every.hpp"
#include "distributed_support.hpp"
#include "saturate/distributed/average_over_ranks.hpp"
#include "saturate/distributed/ddp.hpp"
#include "saturate/distributed/sharded_optimizer.hpp"
#include "saturate/distributed/sync_batch_norm.hpp"
#include "saturate/error.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/master_weights.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"

#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>

namespace st = saturate;
using support::Batch;
using support::Mlp;
using support::RankChecks;
using support::dist::ProcessGroup;

namespace {

// Sizes differ from rank to rank, and some targets are padding.
Batch batch_of(int rank, int64_t window, at::ScalarType dtype = at::kDouble) {
  return support::classes(3 + (2 * rank + window) % 4, 100 * window + rank, dtype, /*ignore_every=*/3);
}
int64_t targets_of(const Batch& batch) { return (batch.second >= 0).sum().item<int64_t>(); }

using BatchAt = std::function<std::optional<Batch>(int rank, int64_t window)>;

void average_by_hand(const std::vector<std::vector<at::Tensor>>& of_ranks, const std::vector<double>& shares) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < of_ranks[0].size(); ++i) {
    at::Tensor mean = at::zeros_like(of_ranks[0][i]);
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) mean += of_ranks[rank][i] * shares[rank];
    for (const auto& tensors : of_ranks) tensors[i].copy_(mean);
  }
}

/// All ranks in this process, averaged by hand every `every` windows and at the end. @return rank 0's parameters.
template <class Optimizer, class... Policies>
std::vector<at::Tensor> by_hand(int ranks, int64_t windows, int64_t every, bool equal, at::ScalarType dtype,
                                const BatchAt& batch_at, Optimizer optimizer, Policies... policies) {
  const auto make = [&](Mlp& net) {
    return std::make_unique<decltype(st::Trainer(net, optimizer(net), st::CrossEntropy{}, policies...))>(
        net, optimizer(net), st::CrossEntropy{}, policies...);
  };
  std::vector<Mlp> nets;
  for (int rank = 0; rank < ranks; ++rank) nets.push_back(support::seeded<Mlp>(3, dtype));
  std::vector<decltype(make(nets[0]))> trainers;
  std::vector<std::vector<at::Tensor>> parameters;
  for (Mlp& net : nets) {
    trainers.push_back(make(net));
    parameters.push_back(net->parameters());
  }
  std::vector<double> targets(nets.size(), 0);
  for (int64_t window = 0; window < windows; ++window) {
    for (std::size_t rank = 0; rank < nets.size(); ++rank) {
      const auto batch = batch_at(static_cast<int>(rank), window);
      if (batch && trainers[rank]->step(*batch).taken()) targets[rank] += static_cast<double>(targets_of(*batch));
    }
    if ((window + 1) % every != 0 && window + 1 != windows) continue;
    double total = 0;
    for (const double one : targets) total += one;
    std::vector<double> shares;
    for (const double one : targets) shares.push_back(equal ? 1.0 / ranks : one / total);
    average_by_hand(parameters, shares);
    std::fill(targets.begin(), targets.end(), 0);
  }
  return support::clones(nets[0]->parameters());
}

std::vector<Batch> epoch_of(int rank, int64_t windows, const BatchAt& batch_at) {
  std::vector<Batch> batches;
  for (int64_t window = 0; window < windows; ++window) {
    if (const auto batch = batch_at(rank, window)) batches.push_back(*batch);
  }
  return batches;
}

st::optim::SGD sgd(Mlp& net) { return st::optim::SGD(net->parameters(), {.lr = 0.1}); }
st::optim::AdamW adam(Mlp& net) { return st::optim::AdamW(net->parameters(), {.lr = 0.01}); }

std::string said(double error) { return ": relative error " + std::to_string(error); }

const support::RankEntry one("SyncEvery, 1", [](const ProcessGroup& group, RankChecks& check) {
  const auto train = [&](auto policy, const BatchAt& batch_at) {
    Mlp net = support::seeded<Mlp>(group.rank() + 3, at::kDouble);  // rank 0's weights count
    st::Trainer trainer(net, sgd(net), st::CrossEntropy{}, policy);
    for (int64_t window = 0; window < 4; ++window) trainer.step(*batch_at(group.rank(), window));
    check(support::same_on_all_ranks(group, net->parameters()), "ranks have different parameters");
    return support::clones(net->parameters());
  };
  const BatchAt uneven = [](int rank, int64_t window) { return batch_of(rank, window); };
  const BatchAt even = [](int rank, int64_t window) { return support::classes(4, 100 * window + rank, at::kDouble); };
  double error =
      support::relative_error(train(st::SyncEvery(group, {.windows = 1}), uneven), train(st::Ddp(group), uneven));
  check(error < 1e-10, "targets" + said(error));
  error = support::relative_error(
      train(st::SyncEvery(group, {.windows = 1, .share = st::RankShare::equal, .chunk_bytes = 64}), even),
      train(st::Ddp(group), even));
  check(error < 1e-10, "equal" + said(error));
  if (group.world_size() == 1) return;
  error = support::relative_error(train(st::SyncEvery(group, {.windows = 2}), uneven), train(st::Ddp(group), uneven));
  check(error > 1e-6, "the comparison does not notice another average" + said(error));
});

const support::RankEntry every_3("SyncEvery, 3", [](const ProcessGroup& group, RankChecks& check) {
  const BatchAt batch_at = [](int rank, int64_t window) { return batch_of(rank, window); };
  for (const bool equal : {false, true}) {
    Mlp net = support::seeded<Mlp>(3, at::kDouble);
    st::Trainer trainer(
        net, adam(net), st::CrossEntropy{}, st::ClipGradNorm{0.5},
        st::SyncEvery(group, {.windows = 3, .share = equal ? st::RankShare::equal : st::RankShare::targets}));
    const auto result = trainer.fit(epoch_of(group.rank(), 7, batch_at));
    check(result.steps == 7, "steps: " + std::to_string(result.steps));
    const int64_t averages = trainer.template policy<st::SyncEvery>().averages();
    check(averages == 3, "averages: " + std::to_string(averages));
    const double error = support::relative_error(
        net->parameters(),
        by_hand(group.world_size(), 7, 3, equal, at::kDouble, batch_at, adam, st::ClipGradNorm{0.5}));
    check(error < 1e-10, (equal ? "equal" : "targets") + said(error));
    check(support::same_on_all_ranks(group, net->parameters()), "ranks end with different parameters");
  }
});

const support::RankEntry refused("SyncEvery, refused", [](const ProcessGroup& group, RankChecks& check) {
  const BatchAt batch_at = [](int rank, int64_t window) {
    Batch batch = batch_of(rank, window, at::kFloat);
    if (rank == 1 && window == 1) batch.first[0] = std::numeric_limits<float>::infinity();
    return batch;
  };
  Mlp net = support::seeded<Mlp>(3);
  st::Trainer trainer(net, sgd(net), st::CrossEntropy{}, st::SyncEvery(group, {.windows = 3}),
                      st::Fp16({.init_scale = 2}));
  for (int64_t window = 0; window < 3; ++window) {
    const bool taken = trainer.step(*batch_at(group.rank(), window)).taken();
    check(taken == !(group.rank() == 1 && window == 1), "window " + std::to_string(window) + ": taken or not");
  }
  const double error = support::relative_error(net->parameters(), by_hand(group.world_size(), 3, 3, false, at::kFloat,
                                                                          batch_at, sgd, st::Fp16({.init_scale = 2})));
  check(error < 1e-6, "a window without a step counts" + said(error));
  const double scale = trainer.policy<st::Fp16>().scaler().scale_on(c10::Device(c10::kCPU)).item<double>();
  check(scale == (group.rank() == 1 ? 1.0 : 2.0), "the scale is " + std::to_string(scale));
});

const support::RankEntry uneven("SyncEvery, uneven", [](const ProcessGroup& group, RankChecks& check) {
  const BatchAt batch_at = [](int rank, int64_t window) {
    return rank == 1 && window >= 3 ? std::nullopt : std::optional<Batch>(batch_of(rank, window));
  };
  Mlp net = support::seeded<Mlp>(3, at::kDouble);
  const auto mine = epoch_of(group.rank(), 5, batch_at);
  {
    st::Trainer trainer(net, sgd(net), st::CrossEntropy{}, st::ClipGradNorm{0.5},
                        st::SyncEvery(group, {.windows = 2, .uneven = st::UnevenInputs::join}));
    const auto result = trainer.fit(mine);
    check(result.windows == 5, "windows: " + std::to_string(result.windows));
    const double error = support::relative_error(
        net->parameters(), by_hand(group.world_size(), 5, 2, false, at::kDouble, batch_at, sgd, st::ClipGradNorm{0.5}));
    check(error < 1e-10, "join" + said(error));
    check(support::same_on_all_ranks(group, net->parameters()), "ranks end with different parameters");
  }
  st::Trainer trainer(net, sgd(net), st::CrossEntropy{}, st::SyncEvery(group));
  try {
    trainer.fit(mine);
    check(false, "no error");
  } catch (const st::ConfigError& error) {
    check(std::string(error.what()).find("rank 1 has 3 windows an epoch, rank 0 has 5") != std::string::npos,
          error.what());
  }
});

struct StopOnRank1 {
  int rank;
  void on_step(const st::StepEvent& event) const {
    if (rank == 1 && event.state.window == 4) event.state.stop = true;
  }
};

const support::RankEntry stop("SyncEvery, stop", [](const ProcessGroup& group, RankChecks& check) {
  Mlp net = support::seeded<Mlp>(3);
  st::Trainer trainer(net, sgd(net), st::CrossEntropy{}, st::SyncEvery(group, {.windows = 3}),
                      StopOnRank1{group.rank()});
  const std::vector<Batch> batches(20, batch_of(group.rank(), 1, at::kFloat));
  const auto first = trainer.fit(batches);
  check(first.stopped && first.windows == 6, "stopped after " + std::to_string(first.windows) + " windows, not 6");
  check(support::same_on_all_ranks(group, net->parameters()), "ranks stop with different parameters");
  const auto second = trainer.fit(batches);
  check(!second.stopped && second.windows == 20, "the next fit: " + std::to_string(second.windows) + " windows");
});

const support::RankEntry evaluation("SyncEvery, evaluation", [](const ProcessGroup& group, RankChecks& check) {
  const BatchAt batch_at = [](int rank, int64_t window) { return batch_of(rank, window); };
  const auto validation = [](int rank) { return std::vector<Batch>{batch_of(rank, 50), batch_of(rank, 51)}; };
  Mlp net = support::seeded<Mlp>(3, at::kDouble);
  st::Trainer trainer(net, sgd(net), st::CrossEntropy{}, st::SyncEvery(group, {.windows = 100}));
  for (int64_t window = 0; window < 3; ++window) trainer.step(*batch_at(group.rank(), window));
  const auto own = support::clones(net->parameters());
  check(!support::same_on_all_ranks(group, own), "ranks have the same weights before an average");
  const auto metrics = trainer.evaluate(validation(group.rank()));
  check(support::same_bits(support::clones(net->parameters()), own), "the evaluation has changed the rank's weights");

  Mlp mean = support::seeded<Mlp>(3, at::kDouble);
  average_by_hand({mean->parameters(), by_hand(group.world_size(), 3, 3, false, at::kDouble, batch_at, sgd)}, {0, 1});
  st::Trainer alone(mean, sgd(mean), st::CrossEntropy{});
  std::vector<Batch> all;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    for (const Batch& batch : validation(rank)) all.push_back(batch);
  }
  const auto wanted = alone.evaluate(all);
  for (const auto& [name, value] : wanted) {
    check(std::abs(metrics.at(name) - value) < 1e-10,
          name + " is " + std::to_string(metrics.at(name)) + ", not " + std::to_string(value));
  }
  // And training counts its own targets again.
  trainer.step(*batch_at(group.rank(), 3));
  trainer.policy<st::SyncEvery>().average();
  const double error =
      support::relative_error(net->parameters(), by_hand(group.world_size(), 4, 4, false, at::kDouble, batch_at, sgd));
  check(error < 1e-10, "after the evaluation" + said(error));
});

struct NormedImpl : torch::nn::Module {
  NormedImpl()
      : norm(register_module("norm", st::distributed::SyncBatchNorm(6))),
        head(register_module("head", torch::nn::Linear(6, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return head(norm(x)); }
  st::distributed::SyncBatchNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(Normed);

const support::RankEntry together("SyncEvery, what works together only", [](const ProcessGroup& group,
                                                                            RankChecks& check) {
  const auto refused = [&](const std::string& what, auto run) {
    try {
      run();
      check(false, "no error: " + what);
    } catch (const st::ConfigError& error) {
      check(std::string(error.what()).find(what) != std::string::npos, error.what());
    }
  };
  refused("SyncBatchNorm", [&] {
    Normed net;
    st::distributed::convert_sync_batch_norm(*net, group);
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::SyncEvery(group));
  });
  refused("ShardedOptimizer", [&] {
    Mlp net = support::seeded<Mlp>(3);
    st::distributed::ShardedOptimizer optimizer(group, net->parameters(), [](std::vector<at::Tensor> params) {
      return st::optim::SGD(std::move(params), {.lr = 0.1});
    });
    st::Trainer trainer(net, std::move(optimizer), st::CrossEntropy{}, st::SyncEvery(group));
  });
});

const support::RankEntry state("SyncEvery, state", [](const ProcessGroup& group, RankChecks& check) {
  const auto moments = [&](const std::vector<std::string>& names) {
    Mlp net = support::seeded<Mlp>(3);
    st::Trainer trainer(net, adam(net), st::CrossEntropy{},
                        st::SyncEvery(group, {.windows = 2, .optimizer_state = names}));
    for (int64_t window = 0; window < 2; ++window) trainer.step(batch_of(group.rank(), window, at::kFloat));
    std::vector<std::vector<at::Tensor>> result(2);
    for (const auto& [name, tensors] : trainer.optimizer().state().parameters) {
      result[0].push_back(tensors.at("exp_avg"));
      result[1].push_back(tensors.at("exp_avg_sq"));
    }
    return result;
  };
  const auto own = moments({});
  check(!support::same_on_all_ranks(group, own[0]), "moments are averaged without being asked for");
  const auto shared = moments({"exp_avg"});
  check(support::same_on_all_ranks(group, shared[0]), "exp_avg differs");
  check(!support::same_on_all_ranks(group, shared[1]), "exp_avg_sq is averaged without being asked for");

  // In half precision the masters are averaged, and their rounding is what the model has.
  Mlp net = support::seeded<Mlp>(3, at::kBFloat16);
  const auto train = [&](Mlp& model, auto... policies) {
    st::Trainer trainer(
        model,
        st::optim::MasterWeights(model->parameters(),
                                 [](auto params) { return st::optim::SGD(std::move(params), {.lr = 0.1}); }),
        st::CrossEntropy{}, policies...);
    std::vector<at::Tensor> masters;
    for (int64_t window = 0; window < 4; ++window) {
      trainer.step(batch_of(group.rank(), window, at::kBFloat16));
      if (window == 1) {
        for (const auto& item : trainer.optimizer().state().parameters) {
          masters.push_back(item.second.at("master").clone());
        }
      }
    }
    for (const auto& item : trainer.optimizer().state().parameters) masters.push_back(item.second.at("master"));
    return masters;
  };
  const auto masters = train(net, st::SyncEvery(group, {.windows = 2, .share = st::RankShare::equal}));
  check(support::same_on_all_ranks(group, masters), "masters differ");
  check(support::same_on_all_ranks(group, net->parameters()), "parameters in half precision differ");
  Mlp lone = support::seeded<Mlp>(3, at::kBFloat16);
  const auto alone = train(lone);
  for (std::size_t i = 0; i < masters.size() / 2; ++i) {  // up to the first average
    const at::Tensor mean = group.all_gather(alone[i]).mean(0);
    check(support::relative_error({masters[i]}, {mean}) < 1e-6, "a master is not the mean of masters");
    check(!support::same_bits(masters[i].to(at::kBFloat16).to(at::kFloat), masters[i]), "masters were rounded");
  }
});

const support::RankEntry errors("SyncEvery, errors", [](const ProcessGroup& group, RankChecks& check) {
  const auto message_of = [&](const std::function<void()>& run) {
    try {
      run();
    } catch (const st::StateError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  Mlp other = support::seeded<Mlp>(3, at::kFloat, 6, group.rank() == 1 ? 5 : 4);
  std::string message = message_of([&] { st::SyncEvery(group).attach(*other, c10::Device(c10::kCPU)); });
  check(message.find("second.weight [5, 8]") != std::string::npos, message);

  // By hand; and rank 1 has missed a window.
  Mlp net = support::seeded<Mlp>(group.rank());
  st::SyncEvery policy(group, {.windows = 4});
  policy.attach(*net, c10::Device(c10::kCPU));
  const auto before = support::clones(net->parameters());
  check(support::same_on_all_ranks(group, before), "rank 0's weights were not broadcast");
  for (int64_t window = 0; window < (group.rank() == 1 ? 2 : 3); ++window) policy.after_step();
  message = message_of([&] { policy.average(); });
  check(message.find("rank 1 has trained 2 windows, rank 0 has 3") != std::string::npos, message);
  check(support::same_bits(support::clones(net->parameters()), before), "the error has changed weights");
});

const support::RankEntry average("average over ranks", [](const ProcessGroup& group, RankChecks& check) {
  const auto tensors_of = [](int rank) {
    torch::manual_seed(rank);
    std::vector<at::Tensor> tensors{torch::randn({3, 4, 2, 5}).contiguous(at::MemoryFormat::ChannelsLast),
                                    torch::randn({5, 3}, at::kDouble),
                                    torch::randn({2, 7}).t(),
                                    torch::randn({0, 3}),
                                    torch::randn({}),
                                    torch::randn({6}, at::kBFloat16),
                                    torch::randn({3}, at::kComplexFloat),
                                    torch::randn({4, 9}).slice(1, 1, 7, 2)};
    return tensors;
  };
  for (const int64_t chunk_bytes : {int64_t{1}, int64_t{100}, int64_t{1} << 20}) {
    for (const bool equal : {true, false}) {
      const int ranks = group.world_size();
      auto share = [&](int rank) { return equal ? 1.0 / ranks : 2.0 * (rank + 1) / (ranks * (ranks + 1)); };
      auto mine = tensors_of(group.rank());
      if (group.rank() == 1) mine[0] = mine[0].contiguous();  // memory formats may differ
      const auto strides = mine[0].strides().vec();
      support::dist::AverageOptions options{.chunk_bytes = chunk_bytes};
      if (!equal) options.share = torch::tensor(share(group.rank()), at::kDouble);
      support::dist::average_over_ranks(mine, group, options);
      check(mine[0].strides() == at::IntArrayRef(strides), "strides have changed");
      for (std::size_t i = 0; i < mine.size(); ++i) {
        at::Tensor wanted;
        for (int rank = 0; rank < ranks; ++rank) {
          const at::Tensor one = tensors_of(rank)[i];
          const at::Tensor part = (one.is_complex() ? one : one.to(at::kDouble)) * share(rank);
          wanted = wanted.defined() ? wanted + part : part;
        }
        const double tolerance = mine[i].scalar_type() == at::kBFloat16 ? 4e-3 : 1e-6;
        const at::Tensor error = (mine[i] - wanted).abs() / wanted.abs().clamp_min(0.1);
        check(mine[i].numel() == 0 || error.max().item<double>() < tolerance, "tensor " + std::to_string(i));
      }
      mine[6] = at::view_as_real(mine[6]);  // Gloo gathers no complex numbers
      check(support::same_on_all_ranks(group, mine), "not the same bits on all ranks");
    }
  }
});

}  // namespace

TEST_CASE("SyncEvery: every window, without momentum, is Ddp", "[multi]") {
  const int ranks = GENERATE(1, 2, 3, 4);
  support::check_ranks(ranks, "SyncEvery, 1");
}

TEST_CASE("SyncEvery: ranks train alone, and are averaged every 3 windows and at the end", "[multi]") {
  const int ranks = GENERATE(2, 3);
  support::check_ranks(ranks, "SyncEvery, 3");
}

TEST_CASE("SyncEvery: a step that is refused on one rank stays there, and does not count", "[multi]") {
  support::check_ranks(3, "SyncEvery, refused");
}

TEST_CASE("SyncEvery: ranks with different numbers of windows join, or are refused", "[multi]") {
  support::check_ranks(2, "SyncEvery, uneven");
}

TEST_CASE("SyncEvery: ranks stop together, after an average", "[multi]") { support::check_ranks(3, "SyncEvery, stop"); }

TEST_CASE("SyncEvery: an evaluation is of the averaged weights, and changes none", "[multi]") {
  support::check_ranks(3, "SyncEvery, evaluation");
}

TEST_CASE("SyncEvery: SyncBatchNorm and ShardedOptimizer are refused", "[multi]") {
  support::check_ranks(2, "SyncEvery, what works together only");
}

TEST_CASE("SyncEvery: optimizer state by name, and masters of half precision", "[multi]") {
  support::check_ranks(2, "SyncEvery, state");
}

TEST_CASE("SyncEvery: another model, or a window missed, is an error on every rank", "[multi]") {
  support::check_ranks(3, "SyncEvery, errors");
}

TEST_CASE("average_over_ranks: any layout, dtype and chunk size", "[multi]") {
  const int ranks = GENERATE(1, 3);
  support::check_ranks(ranks, "average over ranks");
}

TEST_CASE("SyncEvery: settings that cannot work") {
  const ProcessGroup alone;
  CHECK_THROWS_AS(st::SyncEvery(alone, {.windows = 0}).validate(), st::ConfigError);
  CHECK_THROWS_AS(st::SyncEvery(alone, {.chunk_bytes = 0}).validate(), st::ConfigError);
  CHECK_THROWS_AS(st::SyncEvery(alone, {.optimizer_state = {""}}).validate(), st::ConfigError);
  CHECK_NOTHROW(st::SyncEvery(alone).validate());
}
