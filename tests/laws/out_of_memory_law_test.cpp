// SPDX-License-Identifier: Apache-2.0
// Out of memory on one rank, in any micro-batch: every rank starts the window again with half the micro-batch, as if it
// had always had that size; nobody waits for anybody.
#include "distributed_support.hpp"
#include "saturate/distributed/ddp.hpp"
#include "saturate/distributed/power_sgd.hpp"
#include "saturate/error.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"

#include <c10/util/Exception.h>
#include <limits>
#include <memory>

namespace st = saturate;
using support::Batch;
using support::RankChecks;
using support::dist::ProcessGroup;

namespace {

constexpr int64_t windows = 4;
constexpr int64_t samples = 8;  // of a micro-batch, before it is halved

/// Has no room for more than half a micro-batch in one place of one window: in the forward, or in the backward after
/// the last layer's reduction has begun. Leaves traces: statistics and random draws.
struct TightImpl : torch::nn::Module {
  TightImpl()
      : first(register_module("first", torch::nn::Linear(6, 12))),
        norm(register_module("norm", torch::nn::BatchNorm1d(12))),
        middle(register_module("middle", torch::nn::Linear(12, 12))),
        last(register_module("last", torch::nn::Linear(12, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    const bool tight = micro_batch++ == fails_in && x.size(0) > samples / 2;
    at::Tensor y = torch::tanh(middle(torch::dropout(norm(first(x)), 0.25, is_training())));
    if (tight && !in_backward) run_out();
    if (tight) y.register_hook([](const at::Tensor&) { run_out(); });
    return last(y);
  }
  static void run_out() { TORCH_CHECK_WITH(OutOfMemoryError, false, "Tried to allocate too much"); }

  int64_t micro_batch = 0, fails_in = -1;  // of this window
  bool in_backward = false;
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear middle, last;
};
TORCH_MODULE(Tight);

struct Case {
  int64_t window = 0, micro_batch = 0;  // that does not fit, of two
  int victim = 0;
  bool in_backward = false;
};

struct Trained {
  std::vector<at::Tensor> bits;
  double loss = 0;
};

/// @param fails it runs out of memory there; else micro-batches are halved by hand from that window on.
template <class Loss>
Trained train(const ProcessGroup& group, const Case& at, bool fails, const st::DdpOptions& options, Loss loss) {
  Tight net = support::seeded<Tight>(3);
  // Not Adam: a bias before BatchNorm has a gradient of rounding errors only, which Adam makes large.
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.2, .momentum = 0.9}), loss,
                      st::Ddp(group, options), st::TrainerOptions{.on_oom = st::OnOom::halve_microbatch});
  std::vector<std::vector<Batch>> data;
  for (int64_t window = 0; window < windows; ++window) {
    data.emplace_back();
    for (int64_t i = 0; i < 2; ++i) {
      const Batch batch = support::classes(samples, 100 * window + 10 * i + group.rank(), at::kFloat, 3);
      if (fails || window < at.window) {
        data.back().push_back(batch);
      } else {
        for (const Batch& half : support::split(batch, {samples / 2, samples / 2})) data.back().push_back(half);
      }
    }
  }
  torch::manual_seed(9 + group.rank());
  Trained trained;
  for (int64_t window = 0; window < windows; ++window) {
    net->micro_batch = 0;
    net->fails_in = fails && window == at.window && group.rank() == at.victim ? at.micro_batch : -1;
    net->in_backward = at.in_backward;
    trained.loss += trainer.step(data[static_cast<std::size_t>(window)]).loss();
  }
  trained.bits = support::clones(net->parameters());
  for (const at::Tensor& buffer : net->buffers()) trained.bits.push_back(buffer.clone());
  trained.bits.push_back(at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).get_state());
  return trained;
}

std::string name_of(const Case& at, const std::string& what) {
  return what + ": window " + std::to_string(at.window) + ", micro-batch " + std::to_string(at.micro_batch) +
         ", rank " + std::to_string(at.victim) + (at.in_backward ? ", backward" : ", forward");
}

template <class MakeOptions, class Loss = st::CrossEntropy>
void check_all(const ProcessGroup& group, RankChecks& check, const std::string& what, MakeOptions make_options,
               const std::vector<int64_t>& in_windows, int first_victim, double tolerance = 0, Loss loss = {}) {
  for (const int64_t window : in_windows) {
    for (const int64_t micro_batch : {0, 1}) {
      for (int victim = first_victim; victim < group.world_size(); ++victim) {
        for (const bool in_backward : {false, true}) {
          const Case at{window, micro_batch, victim, in_backward};
          const Trained ours = train(group, at, true, make_options(), loss);
          const Trained halved = train(group, at, false, make_options(), loss);
          const bool same = tolerance == 0
                                ? support::same_bits(ours.bits, halved.bits) && ours.loss == halved.loss
                                : support::relative_error({ours.bits.begin(), ours.bits.begin() + 8},
                                                          {halved.bits.begin(), halved.bits.begin() + 8}) < tolerance;
          check(same, name_of(at, what) + ": not as with half the micro-batch from the start, relative error " +
                          std::to_string(support::relative_error({ours.bits.begin(), ours.bits.begin() + 8},
                                                                 {halved.bits.begin(), halved.bits.begin() + 8})));
          check(support::same_on_all_ranks(group, {ours.bits.begin(), ours.bits.begin() + 8}),
                name_of(at, what) + ": ranks have different parameters");
        }
      }
    }
  }
}

// The layers are in buckets of their own, so a backward that fails has sent some.
st::DdpOptions small_buckets() { return {.bucket_bytes = 256, .first_bucket_bytes = 64}; }

const support::RankEntry plain("memory", [](const ProcessGroup& group, RankChecks& check) {
  const auto graph = [](bool unused, bool fixed) {
    st::DdpOptions options = small_buckets();
    options.find_unused_parameters = unused;
    options.static_graph = fixed;
    return options;
  };
  check_all(group, check, "plain", small_buckets, {0, 2}, 0);
  check_all(
      group, check, "find unused", [&] { return graph(true, false); }, {0, 2}, 1);
  check_all(
      group, check, "static graph", [&] { return graph(false, true); }, {0, 2}, 1);
  // Counts its targets by the forward pass: one more thing that ranks agree on after the last micro-batch.
  const auto sum_and_count = [](const at::Tensor& output, const at::Tensor& target) {
    const auto options = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum);
    return st::SumCount{torch::nn::functional::cross_entropy(output, target, options),
                        st::Count(target.ne(-100).sum())};
  };
  check_all(group, check, "sum and count", small_buckets, {2}, 1, 0, sum_and_count);
});

const support::RankEntry feedback("memory, residuals", [](const ProcessGroup& group, RankChecks& check) {
  // What the abandoned attempt has left in the residuals would count twice. Not in the first window: an abandoned one
  // counts towards start_step.
  const auto options = [] {
    st::DdpOptions options = small_buckets();
    options.hook = std::make_shared<support::dist::PowerSgd>(
        support::dist::PowerSgdOptions{.rank = 1, .start_step = 1, .min_compression_rate = 1});
    return options;
  };
  check_all(group, check, "power_sgd", options, {2}, 0, 1e-4);
});

const support::RankEntry joined("memory, joined", [](const ProcessGroup& group, RankChecks& check) {
  // Rank 1 has no data for the last windows, in which rank 0 runs out of memory.
  const auto fit = [&](bool fails) {
    Tight net = support::seeded<Tight>(3);
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                        st::Ddp(group, small_buckets(), st::UnevenInputs::join),
                        st::TrainerOptions{.on_oom = st::OnOom::halve_microbatch}, st::Accumulate{fails ? 1 : 2});
    std::vector<Batch> batches;
    for (int64_t i = 0; i < (group.rank() == 0 ? 3 : 1); ++i) {
      const Batch batch = support::classes(samples, 10 * i + group.rank());
      const auto halves = support::split(batch, {samples / 2, samples / 2});
      if (fails) batches.push_back(batch);
      if (!fails) batches.insert(batches.end(), halves.begin(), halves.end());
    }
    net->norm->eval();  // statistics of other micro-batches before the failure are not the point here
    net->fails_in = fails && group.rank() == 0 ? 1 : -1;
    trainer.fit(batches);
    return support::clones(net->parameters());
  };
  const auto ours = fit(true);
  check(support::same_on_all_ranks(group, ours), "ranks have different parameters");
  for (const at::Tensor& tensor : ours) check(tensor.isfinite().all().item<bool>(), "not finite");
});

const support::RankEntry too_small("memory, one sample", [](const ProcessGroup& group, RankChecks& check) {
  // The rank that does not fit has more than one sample; the other has one, which cannot be halved and need not.
  Tight net = support::seeded<Tight>(3);
  net->norm->eval();
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                      st::Ddp(group, small_buckets()), st::TrainerOptions{.on_oom = st::OnOom::halve_microbatch});
  net->norm->eval();
  net->fails_in = group.rank() == 1 ? 0 : -1;
  const st::StepResult result = trainer.step(support::classes(group.rank() == 1 ? samples : 1, 1));
  check(result.taken(), "the step was not taken");
  check(support::same_on_all_ranks(group, net->parameters()), "ranks have different parameters");
});

}  // namespace

TEST_CASE("out of memory on one rank: all start the window again, wherever it was", "[law][multi]") {
  support::check_ranks(2, "memory", {.timeout = std::chrono::minutes(4)});
}

TEST_CASE("out of memory on one rank of three", "[law][multi]") {
  support::check_ranks(3, "memory, residuals", {.timeout = std::chrono::minutes(4)});
}

TEST_CASE("out of memory on one rank: another has no data, or one sample", "[law][multi]") {
  support::check_ranks(2, "memory, joined", {.timeout = std::chrono::minutes(1)});
  support::check_ranks(2, "memory, one sample", {.timeout = std::chrono::minutes(1)});
}
