// SPDX-License-Identifier: Apache-2.0
// What recompute saves and costs: recompute step | budget | allocations, a round each. peers/recompute.py is
// the twin of `step`.
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <regex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "models.hpp"
#include "rounds.hpp"
#include "saturate/averaging/ema.hpp"
#include "saturate/clip/skip_spikes.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/recompute/policy.hpp"
#include "saturate/schedule/warmup.hpp"
#include "saturate/trainer.hpp"

namespace {

namespace st = saturate;

constexpr bench::GptShape transformer{.width = 256, .depth = 24, .heads = 4, .context = 256};
using Batch = std::pair<at::Tensor, at::Tensor>;

Batch make_batch(int64_t samples, int64_t length) {
  torch::manual_seed(1);
  const at::Tensor ids = torch::randint(256, {samples, length + 1}, torch::kInt64);
  return {ids.slice(1, 0, length).contiguous(), ids.slice(1, 1).contiguous()};
}

// All sides train one model with one optimizer: steps differ in their policy alone.
template <class... Policies>
auto make_trainer(const bench::Gpt& net, st::optim::AdamW& optimizer, Policies... policies) {
  return st::Trainer(net, std::ref(optimizer), st::CrossEntropy{.ignore_index = std::nullopt},
                     st::TrainerOptions{.device = c10::Device(c10::kCPU)}, std::move(policies)...);
}

struct Model {
  explicit Model(bench::GptShape shape) : net(seeded(shape)), optimizer(net->parameters(), {.lr = 1e-4}) {}
  static bench::Gpt seeded(bench::GptShape shape) {
    torch::manual_seed(0);
    return bench::Gpt(shape);
  }
  bench::Gpt net;
  st::optim::AdamW optimizer;
};

// Tensor memory beyond what was there before the step: parameters, optimizer state and the batch. Gradients are part of
// it; each step allocates them.
template <class Step>
int64_t peak_bytes_of(Step&& step) {
  const st::MemoryMeter meter;
  step();
  return meter.counts().peak_bytes;
}

std::string count(int64_t value) { return ", \"count\": " + std::to_string(value); }

std::string setting(const Batch& batch) {
  return "24-block transformer, d 256, " + std::to_string(batch.first.size(1)) + " tokens, batch " +
         std::to_string(batch.first.size(0)) + ", float32, fused AdamW, " + std::to_string(at::get_num_threads()) +
         " threads, LibTorch " TORCH_VERSION;
}

// --- step
// -------------------------------------------------------------------------------------------------------------

void step() {
  Model model(transformer);
  const Batch batch = make_batch(8, 256);
  auto plain = make_trainer(model.net, model.optimizer);
  auto all = make_trainer(model.net, model.optimizer, st::Recompute::all());
  struct Side {
    std::string name;
    std::function<double()> run;
    int64_t peak = 0;
  };
  std::vector<Side> sides{{"plain", [&] { return plain.step(batch).loss(); }},
                          {"all", [&] { return all.step(batch).loss(); }}};
  const double loss = sides[0].run();  // makes the optimizer's state
  for (Side& side : sides) side.peak = peak_bytes_of(side.run);

  char first_loss[32];
  std::snprintf(first_loss, sizeof first_loss, ", first loss %.5f", loss);
  bench::print_info("plain", "Trainer without recompute, " + setting(batch) + first_loss);
  bench::print_info("all", "Recompute::all(), " + setting(batch));
  bench::serve_rounds([&](int64_t n) {
    for (std::size_t i = 0; i < sides.size(); ++i) {
      Side& side = sides[(i + n) % sides.size()];
      bench::print_sample(side.name, bench::seconds_of(side.run), 1, count(side.peak));
    }
  });
}

// --- budget
// -----------------------------------------------------------------------------------------------------------

constexpr double shares[] = {0.05, 0.25, 0.5, 0.75, 0.95};  // of what lies between the peaks of all() and plain
constexpr int64_t every[] = {1, 2, 3, 4, 6, 8, 12, 24};

class Budgets {
 public:
  Budgets() {
    run(st::NoRecompute{})();  // makes the optimizer's state
    const int64_t plain = peak_bytes_of(run(st::NoRecompute{}));
    for (const int64_t n : every) rivals_.push_back(side(st::Recompute::every(n)));
    for (const double share : shares) {
      const int64_t least = rivals_[0].peak;
      plans_.push_back(planned(least + static_cast<int64_t>(share * static_cast<double>(plain - least))));
    }
  }

  void print_infos() const {
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      const auto& plan = plans_[i];
      bench::print_info("budget" + std::to_string(i), mib(plan.budget) + " budget, " + mib(plan.side.peak) + " used, " +
                                                          std::to_string(plan.recomputed) + " parts recomputed, " +
                                                          setting(batch_));
      for (std::size_t k = 0; k < rivals_.size(); ++k) {
        const std::string name = "Recompute::every(" + std::to_string(every[k]) + "), " + mib(rivals_[k].peak);
        bench::print_info(rival_name(i, k), name);
      }
    }
    bench::print_info("budget_peaks", "highest peak of 5 windows after a plan has settled");
    bench::print_info("budget_spare", "parts whose plan without them still fits, each tried by Recompute::named");
  }

  // Every plan beside every rival that fits into its budget; the others are named so that no row finds them.
  void take_round(int64_t n) {
    std::vector<Side*> sides;
    for (Plan& plan : plans_) sides.push_back(&plan.side);
    for (Side& rival : rivals_) sides.push_back(&rival);
    for (std::size_t i = 0; i < sides.size(); ++i) {
      Side& one = *sides[(i + static_cast<std::size_t>(n) * 5) % sides.size()];
      one.run();  // a plan stays for a whole training: its step finds what its own step has left of the heap
      one.seconds = bench::seconds_of(one.run);
    }
    double worst = 0, setting_up = 0;
    int64_t spare = 0;
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      const Plan& plan = plans_[i];
      bench::print_sample("budget" + std::to_string(i), plan.side.seconds, 1);
      for (std::size_t k = 0; k < rivals_.size(); ++k) bench::print_sample(rival_name(i, k), rivals_[k].seconds, 1);
      worst = std::max(worst, static_cast<double>(plan.side.peak) / static_cast<double>(plan.budget));
      spare += plan.spare;
      setting_up += plan.settling;
    }
    bench::print_sample("budget_peaks", setting_up, 1, ", \"count\": " + std::to_string(worst));
    bench::print_sample("budget_spare", setting_up, 1, count(spare));
  }

 private:
  struct Side {
    std::function<void()> run;
    int64_t peak = 0;
    double seconds = 0;
  };
  struct Plan {
    Side side;
    int64_t budget = 0, recomputed = 0, spare = 0;
    double settling = 0;  // seconds
  };

  static std::string mib(int64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
    return text;
  }
  std::string rival_name(std::size_t plan, std::size_t rival) const {
    const bool fits = rivals_[rival].peak <= plans_[plan].budget;
    return (fits ? "every" : "misfit") + std::to_string(plan) + "/" + std::to_string(every[rival]);
  }

  template <class Policy>
  auto trainer(Policy policy) {
    using Made = decltype(make_trainer(model_.net, model_.optimizer, policy));
    return std::make_shared<Made>(make_trainer(model_.net, model_.optimizer, std::move(policy)));
  }
  template <class Policy>
  std::function<void()> run(Policy policy) {
    return [this, made = trainer(std::move(policy))] { made->step(batch_).loss(); };
  }
  Side side(st::Recompute policy) {
    Side result{run(std::move(policy))};
    result.peak = peak_bytes_of(result.run);
    return result;
  }

  Plan planned(int64_t bytes) {
    Plan result;
    result.budget = bytes;
    auto made = trainer(st::Recompute::budget(bytes));
    auto& policy = made->template policy<st::Recompute>();
    result.settling = bench::seconds_of([&] {
      int64_t steps = 0;
      do made->step(batch_);
      while (!policy.plan().settled && ++steps < 200);
      if (!policy.plan().settled) throw std::runtime_error("a plan does not settle within 200 windows");
    });
    result.side.run = [this, made] { made->step(batch_).loss(); };
    for (int i = 0; i < 5; ++i) result.side.peak = std::max(result.side.peak, peak_bytes_of(result.side.run));
    const st::MemoryPlan plan = policy.plan();
    for (const auto& row : plan.rows) {
      if (!row.recomputed) continue;
      ++result.recomputed;
      result.spare += peak_without(plan, row.part) <= bytes;
    }
    return result;
  }

  // Peak when of the plan's recomputed parts one is kept.
  int64_t peak_without(const st::MemoryPlan& plan, const std::string& part) {
    std::vector<std::string> others;
    for (const auto& row : plan.rows) {
      if (row.recomputed && row.part != part) others.push_back(std::regex_replace(row.part, std::regex("\\."), "\\."));
    }
    if (others.empty()) return peak_bytes_of(run(st::NoRecompute{}));
    return side(st::Recompute::named(others)).peak;
  }

  Model model_{transformer};
  Batch batch_ = make_batch(2, 256);
  std::vector<Side> rivals_;
  std::vector<Plan> plans_;
};

void budget() {
  Budgets budgets;
  budgets.print_infos();
  bench::serve_rounds([&](int64_t n) { budgets.take_round(n); });
}

// --- allocations
// ------------------------------------------------------------------------------------------------------

using Step = std::function<void()>;

// Bytes of each tensor block that a step allocates, sorted.
std::vector<int64_t> blocks_of(const Step& step) {
  for (int i = 0; i < 3; ++i) step();  // state, slots and caches are there from here on
  std::vector<int64_t> sizes;
  {
    const st::MemoryMeter meter([&](const st::MemoryEvent& event) {
      if (event.bytes > 0) sizes.push_back(event.bytes);
    });
    step();
  }
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

struct ByHand {
  Model model{bench::GptShape{}};

  void operator()(const std::vector<Batch>& window) {
    const double targets = static_cast<double>(window.size()) * static_cast<double>(window[0].second.numel());
    if (!root.defined()) root = torch::scalar_tensor(1 / targets);
    at::Tensor total;
    for (const Batch& batch : window) {
      const at::Tensor sum =
          at::cross_entropy_loss(model.net->forward(batch.first), batch.second, {}, at::Reduction::Sum, -100, 0.0);
      torch::autograd::backward({sum}, {root});
      total = total.defined() ? total + sum.tensor_data() : sum.tensor_data();
    }
    model.optimizer.step();
    model.optimizer.zero_grad();
  }
  at::Tensor root;
};

struct PolicySide {
  std::string name;
  Step step;
  const std::vector<int64_t>* without;  // the blocks of the same step without the policy
};

template <class... Policies>
Step with_policies(const std::vector<Batch>& window, Policies... policies) {
  auto model = std::make_shared<Model>(bench::GptShape{});
  auto trainer = std::make_shared<decltype(make_trainer(model->net, model->optimizer, policies...))>(
      make_trainer(model->net, model->optimizer, std::move(policies)...));
  return [model, trainer, window] { trainer->step(window); };
}

void allocations() {
  const std::vector<Batch> one{make_batch(4, 64)}, two{make_batch(4, 64), make_batch(4, 64)};
  ByHand by_hand, by_hand_twice;
  const auto hand = blocks_of([&] { by_hand(one); });
  const auto hand_twice = blocks_of([&] { by_hand_twice(two); });
  const auto trainer = blocks_of(with_policies(one));
  const auto narrow = blocks_of(with_policies(one, st::Bf16{}));

  const std::vector<PolicySide> policies{
      {"accumulate", with_policies(two, st::Accumulate{2}), &hand_twice},
      {"clip", with_policies(one, st::ClipGradNorm{1.0}), &hand},
      {"skip_spikes", with_policies(one, st::SkipSpikes{st::SpikeOptions{}, st::ClipGradNorm{1.0}}), &hand},
      {"warmup_cosine", with_policies(one, st::WarmupCosine{.warmup = 10, .total = 1000}), &hand},
      {"ema", with_policies(one, st::Ema({.decay = 0.999})), &hand},
      {"scaler", with_policies(one, st::Fp16{}), &narrow}};
  std::string text;
  int64_t largest = 0;
  for (const PolicySide& side : policies) {
    const auto blocks = blocks_of(side.step);
    std::vector<int64_t> extra;
    std::set_difference(blocks.begin(), blocks.end(), side.without->begin(), side.without->end(),
                        std::back_inserter(extra));
    const int64_t most = extra.empty() ? 0 : extra.back();
    largest = std::max(largest, most);
    text += (text.empty() ? "" : ", ") + side.name + " " + std::to_string(extra.size()) + " (up to " +
            std::to_string(most) + " B)";
  }
  const auto recomputed = blocks_of(with_policies(one, st::Recompute::all()));

  bench::print_info("trainer", "allocations of one step of a Trainer without policies");
  bench::print_info("hand", "allocations of the same sum and count by hand");
  bench::print_info("policies", text + "; Recompute::all() " + std::to_string(recomputed.size() - trainer.size()) +
                                    ", its second forward among them");
  bench::serve_rounds([&](int64_t) {
    const double seconds = bench::seconds_of([&] { by_hand(one); });
    bench::print_sample("trainer", seconds, 1, count(static_cast<int64_t>(trainer.size())));
    bench::print_sample("hand", seconds, 1, count(static_cast<int64_t>(hand.size())));
    bench::print_sample("policies", seconds, 1, count(largest));
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "step") {
    step();
  } else if (what == "budget") {
    budget();
  } else if (what == "allocations") {
    allocations();
  } else {
    std::fputs("recompute: give step, budget or allocations\n", stderr);
    return 2;
  }
  return 0;
}
