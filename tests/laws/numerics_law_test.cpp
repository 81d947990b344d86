// SPDX-License-Identifier: Apache-2.0
// Laws 1, 2, 6 and 8 over precision x accumulation x clipping x schedule x averaging: every pair of settings here, the
// whole matrix under the tag [full].
#include "saturate/audit/runtime_policies.hpp"
#include "saturate/observe/op_counter.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"
#include "support.hpp"

#include <ATen/autocast_mode.h>
#include <catch2/catch_test_macros.hpp>

#include <array>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <tuple>

namespace st = saturate;
using st::audit::Precision;
using support::Batch;
using support::Mlp;

namespace {

struct Combination {
  Precision precision = Precision::fp32;
  std::vector<int64_t> split{12};  // sizes of a window's micro-batches: 1, 3, 4, and a ragged window
  st::audit::ClipSettings clip;
  std::optional<st::WarmupCosine> schedule;
  std::optional<st::EmaOptions> ema;
  bool on_device = false;
};

constexpr std::array<int, 6> sizes{3, 4, 4, 2, 2, 2};
using Index = std::array<int, 6>;

Combination combination(const Index& index) {
  static const std::array<Precision, 3> precisions{Precision::fp32, Precision::bf16, Precision::fp16};
  static const std::array<std::vector<int64_t>, 4> splits{{{12}, {4, 4, 4}, {3, 3, 3, 3}, {5, 5, 2}}};
  Combination result;
  result.precision = precisions[index[0]];
  result.split = splits[index[1]];
  // Wide bounds beside tight ones: an inf must be seen where nothing is clipped as well.
  if (index[2] == 1) result.clip.max_norm = 0.5;
  if (index[2] == 2) result.clip.max_value = 0.05;
  if (index[2] == 3) {
    result.clip.max_norm = 100.0;
    result.clip.skip_spikes = true;
    result.clip.spikes = {.z_score = 50, .window = 10, .warmup = 5};
  }
  if (index[3] == 1) result.schedule = st::WarmupCosine{.warmup = 3, .total = 20};
  if (index[4] == 1) result.ema = st::EmaOptions{.decay = 0.9, .count_on_device = index[5] == 1};
  result.on_device = index[5] == 1;
  return result;
}

std::vector<Index> whole_matrix() {
  std::vector<Index> all{{}};
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    std::vector<Index> next;
    for (const Index& index : all) {
      for (int value = 0; value < sizes[axis]; ++value) {
        next.push_back(index);
        next.back()[axis] = value;
      }
    }
    all = std::move(next);
  }
  return all;
}

// Greedy: again and again the combination that shows the most pairs not seen before.
std::vector<Index> pairwise() {
  const std::vector<Index> all = whole_matrix();
  std::set<std::array<int, 4>> unseen;
  const auto pairs = [](const Index& index) {
    std::vector<std::array<int, 4>> result;
    for (int a = 0; a < 6; ++a) {
      for (int b = a + 1; b < 6; ++b) result.push_back({a, index[a], b, index[b]});
    }
    return result;
  };
  for (const Index& index : all) {
    for (const auto& pair : pairs(index)) unseen.insert(pair);
  }
  std::vector<Index> chosen;
  while (!unseen.empty()) {
    const Index* best = nullptr;
    std::size_t most = 0;
    for (const Index& index : all) {
      std::size_t fresh = 0;
      for (const auto& pair : pairs(index)) fresh += unseen.count(pair);
      if (fresh > most) most = fresh, best = &index;
    }
    for (const auto& pair : pairs(*best)) unseen.erase(pair);
    chosen.push_back(*best);
  }
  return chosen;
}

// float32 models: autocast casts from there. Small scale: float16 gradients of this model stay far from overflow.
struct Run {
  explicit Run(const Combination& c)
      : net(support::seeded<Mlp>(1)),
        trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.05}), Loss{},
                st::audit::RuntimePrecision(c.precision, {.init_scale = 1024}),
                st::Accumulate{static_cast<int64_t>(c.split.size())}, st::audit::RuntimeClip(c.clip),
                st::audit::RuntimeSchedule{c.schedule}, st::audit::RuntimeAverage(c.ema),
                st::TrainerOptions{.count_on_device = c.on_device}) {}

  struct Loss : st::CrossEntropy {
    at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const {
      if (armed) throw std::runtime_error("thrown in the loss");
      return CrossEntropy::operator()(output, target);
    }
    static inline bool armed = false;
  };

  std::vector<at::Tensor> everything() {
    std::vector<at::Tensor> result = support::clones(net->parameters());
    for (const auto& [name, entry] : trainer.optimizer().state().parameters) {
      for (const auto& [key, tensor] : entry) result.push_back(tensor.detach().clone());
    }
    auto& ema = trainer.policy<st::audit::RuntimeAverage>().ema();
    if (ema) {
      for (const std::string& name : ema->names()) result.push_back(ema->average(name).clone());
      result.push_back(torch::tensor(ema->updates()));
    }
    return result;
  }

  Mlp net;
  st::Trainer<Mlp, Loss, st::audit::RuntimePrecision, st::Accumulate, st::audit::RuntimeClip,
              st::audit::RuntimeSchedule, st::audit::RuntimeAverage, st::TrainerOptions>
      trainer;
};

Batch whole_batch(int64_t seed) { return support::classes(12, seed, at::kFloat, /*ignore_every=*/5); }

std::vector<Batch> window(const Combination& c, int64_t seed) { return support::split(whole_batch(seed), c.split); }

// Law 2, and what "a window with nothing to learn from" leaves alone.
void check_refused_windows(const Combination& c) {
  for (std::size_t position = 0; position <= c.split.size(); ++position) {
    CAPTURE(position);
    Run met(c), never(c);
    std::vector<Batch> bad = window(c, 50);
    if (position < c.split.size()) {
      bad[position].first = bad[position].first.clone();
      bad[position].first[0][0] = std::numeric_limits<float>::infinity();
      // The sample that holds it must count: an ignored one is no part of the loss.
      bad[position].second = bad[position].second.clone();
      bad[position].second[0] = 1;
      const bool looks = c.precision == Precision::fp16 || c.clip.max_norm || c.clip.max_value;
      if (!looks) continue;  // nobody was asked to look
    } else {
      for (Batch& batch : bad) batch.second = torch::full_like(batch.second, -100);
    }
    CHECK_FALSE(met.trainer.step(bad).taken());
    for (int64_t i = 0; i < 2; ++i) {
      met.trainer.step(window(c, i));
      never.trainer.step(window(c, i));
    }
    const auto before = met.everything();
    const double lr = met.trainer.learning_rate();
    CHECK_FALSE(met.trainer.step(bad).taken());
    CHECK(support::same_bits(before, met.everything()));
    CHECK(met.trainer.state().step == 2);
    CHECK(met.trainer.learning_rate() == lr);
    met.trainer.step(window(c, 2));
    never.trainer.step(window(c, 2));
    const auto ours = met.everything(), theirs = never.everything();
    if (c.precision != Precision::fp16 || position == c.split.size()) {
      CHECK(support::same_bits(ours, theirs));
    } else {
      // The scale has been backed off, by a power of two: equal but where float16 gradients lose bits at its lower end.
      for (std::size_t i = 0; i < ours.size(); ++i) CHECK(at::allclose(ours[i], theirs[i], 1e-2, 1e-3));
    }
  }
}

// A micro-batch whose targets are all ignored adds nothing, wherever it stands.
void check_ignored_micro_batches(const Combination& c) {
  Run plain(c);
  plain.trainer.step(window(c, 7));
  for (std::size_t position = 0; position < c.split.size(); ++position) {
    CAPTURE(position);
    Run other(c);
    std::vector<Batch> with = window(c, 7);
    Batch masked = support::classes(3, 8);
    masked.second.fill_(-100);
    with.insert(with.begin() + static_cast<std::ptrdiff_t>(position), masked);
    const auto result = other.trainer.step(with);
    CHECK(result.taken());
    CHECK(std::isfinite(result.loss()));
    // Adam's first step divides a gradient by its own size: where it is near 0, rounding decides; so compare gently.
    const auto ours = other.everything(), theirs = plain.everything();
    for (std::size_t i = 0; i < ours.size(); ++i) CHECK(at::allclose(ours[i], theirs[i], 1e-4, 1e-4));
  }
}

void check_host_reads(const Combination& c) {
  Run run(c);
  run.trainer.step(window(c, 1));
  const st::OpCounter counter;
  for (int64_t i = 0; i < 3; ++i) run.trainer.step(window(c, i));
  std::vector<Batch> bad = window(c, 50);
  bad[0].first[0][0] = std::numeric_limits<float>::quiet_NaN();
  run.trainer.step(bad);
  const auto reads = counter.host_reads();
  CHECK(reads == 0);
}

void check_thread_state(const Combination& c) {
  Run run(c);
  const auto state = [] {
    at::autocast::increment_nesting();
    return std::tuple(at::autocast::is_autocast_enabled(at::kCPU), at::autocast::get_autocast_dtype(at::kCPU),
                      at::autocast::is_autocast_cache_enabled(), at::autocast::decrement_nesting(),
                      at::GradMode::is_enabled());
  };
  const auto before = state();
  run.trainer.step(window(c, 1));
  CHECK(state() == before);
  const auto contents = run.everything();
  Run::Loss::armed = true;
  CHECK_THROWS_AS(run.trainer.step(window(c, 2)), std::runtime_error);
  CHECK_THROWS_AS(run.trainer.evaluate(window(c, 2)), std::runtime_error);
  Run::Loss::armed = false;
  CHECK(state() == before);
  CHECK(support::same_bits(contents, run.everything()));  // averages out of the model again, gradients gone
}

void check(const std::vector<Index>& indices) {
  for (const Index& index : indices) {
    CAPTURE(index);
    const Combination c = combination(index);
    check_refused_windows(c);
    check_ignored_micro_batches(c);
    check_host_reads(c);
    check_thread_state(c);
  }
}

// --- Law 1 under the precisions -------------------------------------------------------------------------------------

std::vector<at::Tensor> gradient(Precision precision, const std::vector<Batch>& window) {
  Mlp net = support::seeded<Mlp>(1);
  std::vector<at::Tensor> seen;
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                      st::audit::RuntimePrecision(precision, {.init_scale = 1024}), support::SpyGradients{&seen},
                      st::Accumulate{static_cast<int64_t>(window.size())});
  trainer.step(window);
  return seen;
}

// Any way to cut 12 samples into parts is a set of cuts among 11 places.
std::vector<int64_t> parts_of(unsigned cuts) {
  std::vector<int64_t> parts{1};
  for (unsigned place = 0; place < 11; ++place) {
    if ((cuts >> place) & 1U) {
      parts.push_back(1);
    } else {
      ++parts.back();
    }
  }
  return parts;
}

double worst_split(Precision precision, int rounds) {
  const Batch batch = whole_batch(3);
  const auto whole = gradient(precision, {batch});
  std::mt19937 random(11);
  double worst = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto parts = gradient(precision, support::split(batch, parts_of(random() % 2048)));
    worst = std::max(worst, support::relative_error(parts, whole));
  }
  return worst;
}

}  // namespace

TEST_CASE("law 1: any split of a batch gives one gradient, under every precision", "[law]") {
  CHECK(worst_split(Precision::fp32, 40) < 1e-5);
  CHECK(worst_split(Precision::bf16, 40) < 2e-2);  // each part's weight gradient is rounded to 2^-9 of itself
  CHECK(worst_split(Precision::fp16, 40) < 3e-3);  // 2^-11
}

TEST_CASE("laws 2, 6 and 8: every pair of precision, accumulation, clipping, schedule and averaging", "[law]") {
  const auto chosen = pairwise();
  CHECK(chosen.size() >= 16);  // 4 x 4 pairs alone
  CHECK(chosen.size() < 40);
  check(chosen);
}

TEST_CASE("laws 2, 6 and 8: the whole matrix", "[law][.full]") { check(whole_matrix()); }
