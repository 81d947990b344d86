// SPDX-License-Identifier: Apache-2.0
// Laws 1 and 2 over ranks: the gradient of all ranks' samples, whatever each has; a step that is skipped on one rank is
// skipped on all. Law 9 is in fault_law_test.cpp.
#include "distributed_support.hpp"
#include "saturate/distributed/compress.hpp"
#include "saturate/distributed/ddp.hpp"
#include "saturate/distributed/sync_batch_norm.hpp"
#include "saturate/error.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/master_weights.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/recompute/policy.hpp"
#include "saturate/trainer.hpp"

#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <memory>

namespace st = saturate;
using support::Batch;
using support::Mlp;
using support::RankChecks;
using support::dist::ProcessGroup;

namespace {

// Rank r's micro-batches of a window: sizes differ from rank to rank and window to window, some targets are padding.
std::vector<Batch> window_of(int rank, int64_t micro_batches, int64_t window, at::ScalarType dtype) {
  std::vector<Batch> result;
  for (int64_t i = 0; i < micro_batches; ++i) {
    const int64_t samples = 2 + (rank + i + window) % 4;
    result.push_back(support::classes(samples, 1000 * window + 10 * i + rank, dtype, /*ignore_every=*/3));
  }
  return result;
}

// Small enough for several buckets.
st::DdpOptions small_buckets() { return {.bucket_bytes = 256, .first_bucket_bytes = 64}; }

struct Trained {
  std::vector<at::Tensor> parameters, gradients, losses;
};

template <class... Policies>
Trained train(const std::function<std::vector<Batch>(int64_t)>& window, int64_t windows, at::ScalarType dtype,
              Policies... policies) {
  Mlp net = support::seeded<Mlp>(3, dtype);
  Trained trained;
  std::vector<at::Tensor> seen;
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.01}), st::CrossEntropy{},
                      support::SpyGradients{&seen}, policies...);
  for (int64_t i = 0; i < windows; ++i) {
    trained.losses.push_back(at::full({}, trainer.step(window(i)).loss(), at::kDouble));
    trained.gradients.insert(trained.gradients.end(), seen.begin(), seen.end());
  }
  trained.parameters = support::clones(net->parameters());
  return trained;
}

template <class... Policies>
void compare(const ProcessGroup& group, RankChecks& check, const std::string& what, double tolerance,
             at::ScalarType dtype, int64_t micro_batches, const st::DdpOptions& options, Policies... policies) {
  const auto mine = [&](int64_t window) { return window_of(group.rank(), micro_batches, window, dtype); };
  const auto all = [&](int64_t window) {
    std::vector<Batch> batches;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      const auto part = window_of(rank, micro_batches, window, dtype);
      batches.insert(batches.end(), part.begin(), part.end());
    }
    return batches;
  };
  const Trained ours = train(mine, 3, dtype, st::Ddp(group, options), policies...);
  const Trained whole = train(all, 3, dtype, policies...);
  const double gradients = support::relative_error(ours.gradients, whole.gradients);
  const double losses = support::relative_error(ours.losses, whole.losses);
  check(gradients < tolerance, what + ": relative error of gradients " + std::to_string(gradients));
  check(losses < tolerance, what + ": relative error of losses " + std::to_string(losses));
  check(support::same_on_all_ranks(group, ours.parameters), what + ": ranks have different parameters");
}

const support::RankEntry law_1("law 1", [](const ProcessGroup& group, RankChecks& check) {
  const auto graph = [](bool unused, bool fixed) {
    st::DdpOptions options = small_buckets();
    options.find_unused_parameters = unused;
    options.static_graph = fixed;
    return options;
  };
  for (const int64_t k : {1, 3, 4}) {
    const std::string at = ", " + std::to_string(k) + " micro-batches";
    compare(group, check, "plain" + at, 1e-10, at::kDouble, k, small_buckets());
    compare(group, check, "one bucket" + at, 1e-10, at::kDouble, k, {});
    compare(group, check, "find unused" + at, 1e-10, at::kDouble, k, graph(true, false));
    compare(group, check, "static graph" + at, 1e-10, at::kDouble, k, graph(false, true));
    st::DdpOptions copies = small_buckets();
    copies.gradient_as_bucket_view = false;
    compare(group, check, "copies" + at, 1e-10, at::kDouble, k, copies);
    compare(group, check, "recompute" + at, 1e-10, at::kDouble, k, small_buckets(), st::Recompute::all());
    compare(group, check, "float32" + at, 1e-5, at::kFloat, k, small_buckets());
    compare(group, check, "Bf16" + at, 1e-5, at::kFloat, k, small_buckets(), st::Bf16());
    compare(group, check, "Fp16" + at, 1e-5, at::kFloat, k, small_buckets(), st::Fp16({.init_scale = 64}),
            st::Recompute::all());
    st::DdpOptions compressed = small_buckets();
    compressed.hook = std::make_shared<support::dist::Fp16Compress>();
    compare(group, check, "fp16 compression" + at, 5e-3, at::kFloat, k, compressed);
    compressed.hook = std::make_shared<support::dist::Bf16Compress>();
    compare(group, check, "bf16 compression" + at, 5e-2, at::kFloat, k, compressed);
  }
});

// Gradients that the optimizer moves away are reduced first: those of every micro-batch, and of a rank without data.
const support::RankEntry master_weights("master weights", [](const ProcessGroup& group, RankChecks& check) {
  const auto optimizer = [](Mlp& net) {
    return st::optim::MasterWeights(net->parameters(),
                                    [](auto params) { return st::optim::SGD(std::move(params), {.lr = 0.1}); });
  };
  for (const bool fixed : {false, true}) {
    st::DdpOptions options = small_buckets();
    options.static_graph = fixed;
    Mlp ours = support::seeded<Mlp>(3, at::kBFloat16), whole = support::seeded<Mlp>(3, at::kBFloat16);
    std::vector<at::Tensor> seen, expected;
    st::Trainer trainer(ours, optimizer(ours), st::CrossEntropy{}, st::Accumulate{3}, support::SpyGradients{&seen},
                        st::Ddp(group, options, st::UnevenInputs::join));
    st::Trainer alone(whole, optimizer(whole), st::CrossEntropy{}, support::SpyGradients{&expected});
    for (int64_t window = 0; window < 3; ++window) {
      std::vector<Batch> mine, all;
      for (int rank = 0; rank < group.world_size(); ++rank) {
        if (window == 2 && rank == 1) continue;  // has no more
        const auto part = window_of(rank, 3, window, at::kBFloat16);
        if (rank == group.rank()) mine = part;
        all.insert(all.end(), part.begin(), part.end());
      }
      trainer.fit(mine);
      alone.step(all);
      const double error = support::relative_error(seen, expected);
      check(error < 0.03,
            "window " + std::to_string(window) + ": relative error of gradients " + std::to_string(error));
    }
    check(support::same_on_all_ranks(group, ours->parameters()), "ranks have different parameters");
  }
});

// As one would write it at first: each rank's mean, averaged.
struct MeanOfMeans {
  using axis = st::axis::distributed;
  std::shared_ptr<support::dist::DistributedDataParallel> ddp;
  ProcessGroup group;
  explicit MeanOfMeans(ProcessGroup group) : group(std::move(group)) {}
  void attach(torch::nn::Module& module, c10::Device) {
    ddp = std::make_shared<support::dist::DistributedDataParallel>(module, group);
  }
  auto micro_step(bool last) { return ddp->micro_step(last); }
  void finish() { ddp->finish(); }
  void agree(at::Tensor&) {}
  void reduce_count(double&, at::Tensor&) {}
};

const support::RankEntry broken("law 1, broken", [](const ProcessGroup& group, RankChecks& check) {
  const auto mine = [&](int64_t window) { return window_of(group.rank(), 1, window, at::kDouble); };
  const auto all = [&](int64_t window) {
    auto batches = window_of(0, 1, window, at::kDouble);
    batches.push_back(window_of(1, 1, window, at::kDouble)[0]);
    return batches;
  };
  const Trained ours = train(mine, 1, at::kDouble, MeanOfMeans(group));
  const Trained whole = train(all, 1, at::kDouble);
  check(support::relative_error(ours.gradients, whole.gradients) > 1e-3, "the law's test does not notice");
});

const support::RankEntry once_a_bucket("once a bucket", [](const ProcessGroup& group, RankChecks& check) {
  Mlp net = support::seeded<Mlp>(3);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                      st::Ddp(group, small_buckets()));
  auto& ddp = trainer.policy<st::Ddp>().ddp();
  trainer.step(window_of(group.rank(), 3, 0, at::kFloat));
  check(ddp.reductions() == 1, "the first window: " + std::to_string(ddp.reductions()) + " reductions of one bucket");
  for (int64_t window = 1; window < 4; ++window) {
    const int64_t before = ddp.reductions();
    trainer.step(window_of(group.rank(), window, window, at::kFloat));
    check(ddp.bucket_bytes().size() > 1, "buckets were not made anew");
    check(ddp.reductions() - before == static_cast<int64_t>(ddp.bucket_bytes().size()), "not once a bucket and window");
  }
});

const support::RankEntry law_2("law 2", [](const ProcessGroup& group, RankChecks& check) {
  Mlp net = support::seeded<Mlp>(3);
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                      st::Ddp(group, small_buckets()), st::Fp16({.init_scale = 2}));
  auto window = window_of(group.rank(), 2, 0, at::kFloat);
  trainer.step(window);
  const auto before = support::clones(net->parameters());
  if (group.rank() == group.world_size() - 1) window[0].first[0] = std::numeric_limits<float>::infinity();
  const bool taken = trainer.step(window).taken();
  check(!taken, "an inf on one rank was not skipped");
  check(support::same_bits(support::clones(net->parameters()), before), "a skipped step changed parameters");
  const double scale = trainer.policy<st::Fp16>().scaler().scale_on(c10::Device(c10::kCPU)).item<double>();
  check(scale == 1.0, "the scale is " + std::to_string(scale) + ", not 1");
  check(trainer.state().step == 1, "a skipped step was counted");
  check(trainer.step(window_of(group.rank(), 2, 1, at::kFloat)).taken(), "the next step was not taken");
  check(support::same_on_all_ranks(group, net->parameters()), "ranks have different parameters");
});

const support::RankEntry long_run("200 steps", [](const ProcessGroup& group, RankChecks& check) {
  Mlp net = support::seeded<Mlp>(group.rank() + 1);  // rank 0's weights count
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.01}), st::CrossEntropy{},
                      st::Ddp(group, small_buckets()), st::ClipGradNorm{1.0});
  check(support::same_bits(support::clones(net->parameters()), support::clones(support::seeded<Mlp>(1)->parameters())),
        "the weights are not rank 0's");
  for (int64_t window = 0; window < 200; ++window) trainer.step(window_of(group.rank(), 1, window, at::kFloat));
  check(support::same_on_all_ranks(group, net->parameters()), "ranks have different parameters");
});

// One part is used in the first micro-batch only, one on rank 0 only, one nowhere.
struct PartlyUsedImpl : torch::nn::Module {
  PartlyUsedImpl()
      : a(register_module("a", torch::nn::Linear(6, 4))),
        b(register_module("b", torch::nn::Linear(6, 4))),
        c(register_module("c", torch::nn::Linear(6, 4))),
        nowhere(register_module("nowhere", torch::nn::Linear(6, 4))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& use) {
    at::Tensor y = at::zeros({x.size(0), 4}, x.options());
    if (use[0].item<bool>()) y = y + a(x);
    if (use[1].item<bool>()) y = y + b(x);
    if (use[2].item<bool>()) y = y + c(x);
    return y;
  }
  torch::nn::Linear a, b, c, nowhere;
};
TORCH_MODULE(PartlyUsed);
struct Using {
  at::Tensor x, use, y;
};
auto inputs(const Using& batch) { return std::tie(batch.x, batch.use); }
const at::Tensor& target(const Using& batch) { return batch.y; }

std::vector<Using> partly_used(int rank) {
  const Batch one = support::classes(4, rank, at::kDouble), two = support::classes(4, 10 + rank, at::kDouble);
  const bool first = rank == 0;
  return {{one.first, torch::tensor({true, false, false}), one.second},
          {two.first, torch::tensor({false, true, first}), two.second}};
}

const support::RankEntry unused("unused", [](const ProcessGroup& group, RankChecks& check) {
  const auto train_on = [](const std::vector<Using>& window, auto... policies) {
    PartlyUsed net = support::seeded<PartlyUsed>(3, at::kDouble);
    // A zero gradient in place of none would move the weights: by momentum and decay.
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}),
                        st::CrossEntropy{}, policies...);
    for (int i = 0; i < 3; ++i) trainer.step(window);
    return support::clones(net->parameters());
  };
  std::vector<Using> all;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const auto part = partly_used(rank);
    all.insert(all.end(), part.begin(), part.end());
  }
  st::DdpOptions options = small_buckets();
  options.find_unused_parameters = true;
  const auto ours = train_on(partly_used(group.rank()), st::Ddp(group, options));
  check(support::relative_error(ours, train_on(all)) < 1e-10, "parameters that are partly used");
  check(support::same_on_all_ranks(group, ours), "ranks have different parameters");
  // Without being told, it is an error, and names one.
  try {
    train_on(partly_used(group.rank()), st::Ddp(group, small_buckets()));
    check(false, "no error without find_unused_parameters");
  } catch (const st::StateError& error) {
    check(std::string(error.what()).find("nowhere") != std::string::npos, std::string("not named: ") + error.what());
  }
});

// One weight in two places: it is in one bucket once, and gets both gradients.
struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : first(register_module("first", torch::nn::Linear(6, 6))),
        second(register_module("second", torch::nn::Linear(6, 4))) {
    again = register_module("again", first);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(again(torch::tanh(first(x))))); }
  torch::nn::Linear first, again{nullptr}, second;
};
TORCH_MODULE(Tied);

const support::RankEntry tied("tied", [](const ProcessGroup& group, RankChecks& check) {
  Tied ours = support::seeded<Tied>(3, at::kDouble), whole = support::seeded<Tied>(3, at::kDouble);
  const auto optimizer = [](Tied& net) { return st::optim::AdamW(net->parameters(), {.lr = 0.01}); };
  st::Trainer trainer(ours, optimizer(ours), st::CrossEntropy{}, st::Ddp(group, small_buckets()));
  st::Trainer alone(whole, optimizer(whole), st::CrossEntropy{});
  for (int64_t window = 0; window < 3; ++window) {
    std::vector<Batch> all;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      const auto part = window_of(rank, 2, window, at::kDouble);
      all.insert(all.end(), part.begin(), part.end());
    }
    trainer.step(window_of(group.rank(), 2, window, at::kDouble));
    alone.step(all);
  }
  check(support::relative_error(ours->parameters(), whole->parameters()) < 1e-10, "tied parameters");
  check(support::same_on_all_ranks(group, ours->parameters()), "ranks have different parameters");
});

const support::RankEntry mismatch("mismatch", [](const ProcessGroup& group, RankChecks& check) {
  const int64_t outputs = group.rank() == group.world_size() - 1 ? 5 : 4;
  Mlp net = support::seeded<Mlp>(3, at::kFloat, 6, outputs);
  try {
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Ddp(group));
    check(false, "no error");
  } catch (const st::StateError& error) {
    check(std::string(error.what()).find("second.weight [5, 8]") != std::string::npos, error.what());
  }
});

// Rank r has counts[r] windows of an epoch.
void train_uneven(const ProcessGroup& group, RankChecks& check, const std::vector<int64_t>& counts, int64_t k,
                  const std::string& what, const st::DdpOptions& options) {
  const auto windows_of = [&](int rank) {
    std::vector<Batch> batches;
    for (int64_t window = 0; window < counts[static_cast<std::size_t>(rank)]; ++window) {
      const auto part = window_of(rank, k, window, at::kDouble);
      batches.insert(batches.end(), part.begin(), part.end());
    }
    return batches;
  };
  const auto optimizer = [](Mlp& net) { return st::optim::AdamW(net->parameters(), {.lr = 0.01}); };
  Mlp ours = support::seeded<Mlp>(3, at::kDouble), whole = support::seeded<Mlp>(3, at::kDouble);
  st::Trainer trainer(ours, optimizer(ours), st::CrossEntropy{}, st::Accumulate{k}, st::ClipGradNorm{0.5},
                      st::Ddp(group, options, st::UnevenInputs::join));
  const auto mine = windows_of(group.rank());
  const st::FitResult result = trainer.fit(mine, {.epochs = 2, .log_every = 2});
  st::Trainer alone(whole, optimizer(whole), st::CrossEntropy{}, st::ClipGradNorm{0.5});
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  for (int64_t step = 0; step < 2 * longest; ++step) {
    std::vector<Batch> all;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      if (step % longest >= counts[static_cast<std::size_t>(rank)]) continue;
      const auto part = window_of(rank, k, step % longest, at::kDouble);
      all.insert(all.end(), part.begin(), part.end());
    }
    alone.step(all);
  }
  check(result.steps == 2 * longest, what + ": " + std::to_string(result.steps) + " steps");
  check(support::relative_error(ours->parameters(), whole->parameters()) < 1e-10, what + ": other parameters");
  check(support::same_on_all_ranks(group, ours->parameters()), what + ": ranks have different parameters");
}

const support::RankEntry uneven("uneven", [](const ProcessGroup& group, RankChecks& check) {
  train_uneven(group, check, {5, 4}, 1, "5 and 4", small_buckets());
  train_uneven(group, check, {0, 3}, 1, "0 and 3", small_buckets());
  train_uneven(group, check, {3, 0}, 2, "3 and 0, accumulating", small_buckets());
  st::DdpOptions options = small_buckets();
  options.find_unused_parameters = true;
  train_uneven(group, check, {2, 3}, 1, "find unused", options);
  options = small_buckets();
  options.static_graph = true;
  train_uneven(group, check, {1, 3}, 2, "static graph", options);
  // Without join it is an error on every rank, before anything is trained.
  Mlp net = support::seeded<Mlp>(3);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Ddp(group));
  try {
    trainer.fit(std::vector<Batch>(static_cast<std::size_t>(4 + group.rank()), support::classes(4, 1)));
    check(false, "no error");
  } catch (const st::ConfigError& error) {
    check(std::string(error.what()).find("rank 1 has 5 windows an epoch, rank 0 has 4") != std::string::npos,
          error.what());
  }
});

struct StopOnRank {
  int rank;
  int64_t after;
  void on_step(const st::StepEvent& event) const {
    if (rank == 1 && event.state.window == after) event.state.stop = true;
  }
};

struct StopAfterEpoch {
  int rank;
  void on_epoch_end(const st::EpochEnd& event) const {
    if (rank == 1 && event.state.epoch == 2) event.state.stop = true;
  }
};

// Batches that can be walked through, and whose number nobody knows before.
class UnknownLength {
 public:
  explicit UnknownLength(std::vector<Batch> batches) : batches_(std::move(batches)) {}
  struct Iterator {
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    const std::vector<Batch>* batches;
    std::size_t next = 0;
    const Batch& operator*() const { return (*batches)[next]; }
    Iterator& operator++() { return ++next, *this; }
    void operator++(int) { ++next; }
    bool operator==(std::default_sentinel_t) const { return next == batches->size(); }
  };
  Iterator begin() const { return {&batches_}; }
  std::default_sentinel_t end() const { return {}; }

 private:
  std::vector<Batch> batches_;
};

/// Refused on this rank, at once and by name.
template <class Run>
void check_refused(RankChecks& check, const std::string& words, const Run& run) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    run();
    check(false, "no error: " + words);
  } catch (const st::Error& error) {
    check(dynamic_cast<const st::ConfigError*>(&error) != nullptr, std::string("another error: ") + error.what());
    check(std::string(error.what()).find(words) != std::string::npos, error.what());
  }
  check(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30), "late: " + words);
}

const support::RankEntry unknown_length("unknown length", [](const ProcessGroup& group, RankChecks& check) {
  const auto train = [&](int64_t count) {
    std::vector<Batch> batches;
    for (int64_t window = 0; window < count; ++window)
      batches.push_back(window_of(group.rank(), 1, window, at::kDouble)[0]);
    Mlp net = support::seeded<Mlp>(3, at::kDouble);
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                        st::Ddp(group, small_buckets()));
    const UnknownLength loader(batches);
    const st::FitResult result = trainer.fit(loader, {.epochs = 2, .log_every = 100});
    check(support::same_on_all_ranks(group, net->parameters()), "unknown length: ranks have different parameters");
    return result.steps;
  };
  check(train(3) == 6, "unknown length, as many on all: other steps");
  check_refused(check, "others at the end of the data", [&] { train(group.rank() == 0 ? 3 : 2); });
});

const support::RankEntry unknown_batches("unknown length, SyncBatchNorm", [](const ProcessGroup& group,
                                                                             RankChecks& check) {
  torch::nn::Sequential net(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4));
  support::dist::convert_sync_batch_norm(*net, group);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Accumulate{2},
                      st::Ddp(group));
  const UnknownLength even(std::vector<Batch>(4, support::classes(4, 1)));
  check(trainer.fit(even).windows == 2, "as many batches on all: other windows");
  // As many windows, and ranks meet in every forward.
  const UnknownLength uneven(std::vector<Batch>(static_cast<std::size_t>(3 + group.rank()), support::classes(4, 1)));
  check_refused(check, "before a window of 2 batches", [&] { trainer.fit(uneven); });
});

// Nothing says beforehand how many there are.
const support::RankEntry by_hand("by hand", [](const ProcessGroup& group, RankChecks& check) {
  const std::vector<Batch> batches(2, support::classes(4, group.rank()));
  const auto train = [&](auto then_on_rank_1) {
    Mlp net = support::seeded<Mlp>(3);
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Ddp(group));
    for (int64_t window = 0; window < 2; ++window) trainer.step(batches[0]);
    check(trainer.evaluate(batches).contains("loss"), "by hand: no loss");
    const auto before = support::clones(net->parameters());
    try {
      if (group.rank() == 1) then_on_rank_1(trainer);
      if (group.rank() != 1) trainer.step(batches[0]);
    } catch (...) {
      check(support::same_bits(support::clones(net->parameters()), before), "by hand: refused, and parameters changed");
      throw;
    }
  };
  check_refused(check, "some ranks are before a window, others before an evaluation",
                [&] { train([&](auto& trainer) { trainer.evaluate(batches); }); });
  check_refused(check, "some ranks are before a window, others before fit",
                [&] { train([&](auto& trainer) { trainer.fit(batches); }); });
  check_refused(check, "some ranks are before a window, others at the end of the data",
                [&] { train([&](auto& trainer) { trainer.step(std::vector<Batch>()); }); });
});

// What a rank does by itself leaves nothing behind for the others, nor for its own next step.
const support::RankEntry probes("probes", [](const ProcessGroup& group, RankChecks& check) {
  const auto train = [&](bool probe, bool fails) {
    Mlp net = support::seeded<Mlp>(3, at::kDouble);
    const auto loss = [&](const at::Tensor& output, const at::Tensor& target) {
      if (fails && output.size(0) < 2) throw std::runtime_error("out of memory: of the test");
      return st::CrossEntropy{}(output, target);
    };
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), loss, st::Ddp(group, small_buckets()));
    double sum = 0;
    for (int64_t window = 0; window < 3; ++window) {
      const auto batches = window_of(group.rank(), 1, window, at::kDouble);
      if (probe && (!fails || group.rank() == 0)) {
        try {
          trainer.fits(batches[0], {.limit_bytes = int64_t{1} << 40, .probe_sizes = {1, 2}});
          check(!fails, "the failing probe has not failed");
        } catch (const std::runtime_error&) {
          check(fails, "a probe failed");
        }
      }
      sum += trainer.step(batches).loss_sum.template item<double>();
    }
    auto result = support::clones(net->parameters());
    result.push_back(torch::scalar_tensor(sum, at::kDouble));
    return result;
  };
  const auto plain = train(false, false);
  check(support::same_bits(train(true, false), plain), "probes change the steps or their losses");
  check(support::same_bits(train(true, true), plain), "a failed probe on one rank changes the steps or their losses");
});

// Ranks that probe do not meet in SyncBatchNorm, even where the others do not probe.
const support::RankEntry probes_apart("probes, SyncBatchNorm", [](const ProcessGroup& group, RankChecks& check) {
  const auto train = [&](bool probe) {
    torch::manual_seed(3);
    torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 4));
    support::dist::convert_sync_batch_norm(*net, group);
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                        st::Ddp(group, small_buckets()));
    for (int64_t window = 0; window < 3; ++window) {
      const Batch batch = support::classes(8, 10 * window + group.rank());
      if (probe && group.rank() == 0) trainer.fits(batch, {.limit_bytes = int64_t{1} << 40, .probe_sizes = {1, 4}});
      trainer.step(batch);
    }
    auto result = support::clones(net->parameters());
    for (const at::Tensor& buffer : net->buffers()) result.push_back(buffer.clone());
    return result;
  };
  const auto plain = train(false);
  check(support::same_bits(train(true), plain), "SyncBatchNorm: a probe on one rank changes the steps");
  check(support::same_on_all_ranks(group, plain), "SyncBatchNorm: ranks differ");
});

const support::RankEntry stop("stop", [](const ProcessGroup& group, RankChecks& check) {
  Mlp net = support::seeded<Mlp>(3);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Ddp(group),
                      StopOnRank{group.rank(), 3});
  const std::vector<Batch> batches(10, support::classes(4, 1));
  const st::FitResult first = trainer.fit(batches);
  check(first.stopped && first.windows == 4, "stopped after " + std::to_string(first.windows) + " windows, not 4");
  const st::FitResult second = trainer.fit(batches);
  check(!second.stopped && second.windows == 10, "the next fit ran " + std::to_string(second.windows) + " windows");
  st::Trainer other(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Ddp(group),
                    StopAfterEpoch{group.rank()});
  const st::FitResult third = other.fit(batches, {.epochs = 4});
  check(third.stopped && third.windows == 20, "stopped after " + std::to_string(third.windows) + " windows, not 20");
});

const support::RankEntry ragged("ragged, SyncBatchNorm", [](const ProcessGroup& group, RankChecks& check) {
  torch::nn::Sequential net(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4));
  support::dist::convert_sync_batch_norm(*net, group);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Accumulate{3},
                      st::Ddp(group));
  try {  // two windows each, but ranks meet in every forward
    trainer.fit(std::vector<Batch>(static_cast<std::size_t>(4 + group.rank()), support::classes(4, 1)));
    check(false, "no error");
  } catch (const st::ConfigError& error) {
    check(std::string(error.what()).find("rank 1 has 5 batches an epoch, rank 0 has 4") != std::string::npos,
          error.what());
  }
});

}  // namespace

TEST_CASE("law 1 over ranks: the gradient of all samples", "[law][multi]") {
  const int ranks = GENERATE(1, 2, 3, 4);
  support::check_ranks(ranks, "law 1");
}

TEST_CASE("law 1 over ranks: gradients that an optimizer keeps in float32", "[law][multi]") {
  support::check_ranks(2, "master weights");
}

TEST_CASE("law 1's test notices a mean of means", "[law][multi]") { support::check_ranks(2, "law 1, broken"); }

TEST_CASE("Ddp: one reduction a bucket and window", "[multi]") { support::check_ranks(2, "once a bucket"); }

TEST_CASE("law 2 over ranks: an inf on one rank skips the step on all", "[law][multi]") {
  const int ranks = GENERATE(2, 3);
  support::check_ranks(ranks, "law 2");
}

TEST_CASE("Ddp: ranks have the same bits after 200 steps", "[multi]") { support::check_ranks(3, "200 steps"); }

TEST_CASE("Ddp: parameters that get no gradient everywhere", "[multi]") { support::check_ranks(2, "unused"); }

TEST_CASE("Ddp: tied parameters", "[multi]") { support::check_ranks(2, "tied"); }

TEST_CASE("Ddp: another model on one rank is an error on every rank", "[multi]") {
  support::check_ranks(3, "mismatch");
}

TEST_CASE("Ddp: ranks with different numbers of windows join, or are refused", "[multi]") {
  support::check_ranks(2, "uneven");
}

TEST_CASE("Ddp: ranks whose loaders know no length notice that one has fewer windows", "[multi]") {
  support::check_ranks(2, "unknown length");
  support::check_ranks(2, "unknown length, SyncBatchNorm");
}

TEST_CASE("Ddp: windows by hand of which one rank has fewer are an error on every rank", "[multi]") {
  support::check_ranks(3, "by hand");
}

TEST_CASE("Ddp: a probe of memory is nobody else's, also when it fails", "[multi]") {
  support::check_ranks(2, "probes");
  support::check_ranks(2, "probes, SyncBatchNorm");
}

TEST_CASE("Ddp: with SyncBatchNorm ranks have as many batches", "[multi]") {
  support::check_ranks(2, "ragged, SyncBatchNorm");
}

TEST_CASE("Ddp: ranks stop together", "[multi]") { support::check_ranks(3, "stop"); }
