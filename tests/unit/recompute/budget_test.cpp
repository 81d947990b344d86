// SPDX-License-Identifier: Apache-2.0
#include "saturate/accumulation/accumulate.hpp"
#include "saturate/error.hpp"
#include "saturate/loss.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/recompute/policy.hpp"
#include "saturate/recompute/recompute.hpp"
#include "saturate/trainer.hpp"
#include "src/recompute/budget_model.hpp"
#include "src/recompute/budget_planner.hpp"
#include "src/recompute/first_forward.hpp"
#include "support.hpp"

#include <torch/csrc/autograd/profiler_legacy.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

// Time as the tests have it: a part's forward takes what the part says.
double now = 0;
double test_clock() { return now; }

struct FeedForwardImpl : torch::nn::Module {
  FeedForwardImpl(int64_t width, int64_t hidden, double seconds, double drop = 0)
      : seconds(seconds),
        drop(drop),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, hidden))),
        down(register_module("down", torch::nn::Linear(hidden, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    now += seconds;
    const at::Tensor y = st::call(down, torch::gelu(st::call(up, st::call(norm, x))));  // parts inside parts
    return x + torch::dropout(y, drop, is_training());
  }
  double seconds, drop;
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(FeedForward);

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))),
        feed(register_module("feed", FeedForward(width, 4 * width, 1, 0.1))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(norm(x)).chunk(3, -1);
    const at::Tensor weights = torch::softmax(torch::matmul(parts[0], parts[1].transpose(-1, -2)), -1);
    return feed(x + out(torch::matmul(torch::dropout(weights, 0.1, is_training()), parts[2])));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear qkv, out;
  FeedForward feed;
};
TORCH_MODULE(Attention);

struct ConvNormImpl : torch::nn::Module {
  explicit ConvNormImpl(int64_t channels)
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, channels, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(channels))) {}
  at::Tensor forward(const at::Tensor& x) {
    now += 1;
    return torch::dropout(torch::relu(norm(conv(x))), 0.1, is_training());
  }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
};
TORCH_MODULE(ConvNorm);

// Marked parts "blocks.0", "blocks.1", ... in a row, and a head that is not marked.
struct NetImpl : torch::nn::Module {
  template <class Block>
  void add(Block block) {
    auto module = block.ptr();
    run.push_back([module](const at::Tensor& x) { return st::call(*module, x); });
    blocks->push_back(module);
  }
  void again(std::size_t block) { run.push_back(run[block]); }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = input;
    for (std::size_t i = 0; i < run.size(); ++i) {
      if (i != skipped) x = run[i](x);
    }
    return head.is_empty() ? x : head(x);
  }
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  torch::nn::Linear head{nullptr};
  std::vector<std::function<at::Tensor(const at::Tensor&)>> run;
  std::size_t skipped = 1000;
};
TORCH_MODULE(Net);

struct Case {
  Net net;
  at::Tensor x;
};

Case transformer() {
  torch::manual_seed(1);
  Case made;
  for (int i = 0; i < 6; ++i) made.net->add(Attention(32));
  made.net->head = made.net->register_module("head", torch::nn::Linear(32, 8));
  made.x = torch::randn({4, 24, 32});
  return made;
}

// Bytes and times in no relation to each other.
Case uneven() {
  torch::manual_seed(2);
  Case made;
  const std::vector<int64_t> hidden = {64, 512, 16, 1024, 32, 256, 640, 8};
  const std::vector<double> seconds = {3, 5, 4, 6, 0.5, 7, 2, 1};
  for (std::size_t i = 0; i < hidden.size(); ++i) made.net->add(FeedForward(16, hidden[i], seconds[i]));
  made.net->head = made.net->register_module("head", torch::nn::Linear(16, 8));
  made.x = torch::randn({96, 16});
  return made;
}

// The same part runs as the first, the third and the fifth.
Case tied() {
  torch::manual_seed(3);
  Case made;
  made.net->add(FeedForward(16, 128, 2));
  made.net->add(FeedForward(16, 320, 1));
  made.net->again(0);
  made.net->add(FeedForward(16, 64, 1));
  made.net->again(0);
  made.net->add(FeedForward(16, 256, 3));
  made.x = torch::randn({64, 16});
  return made;
}

// One window of a hand-written loop.
void window(st::Recompute& policy, Net& net, const at::Tensor& x, int micro_batches = 1) {
  const auto whole = policy.window_scope();
  for (int i = 0; i < micro_batches; ++i) {
    at::Tensor loss;
    {
      const auto scope = policy.scope();
      loss = net->forward(x).pow(2).mean();
    }
    loss.backward();
  }
  policy.after_backward();
}

// What a window holds at once, with a meter of the test's own. No policy: the plain run.
int64_t peak(Net& net, const at::Tensor& x, std::optional<st::Recompute> policy, int micro_batches = 1) {
  if (policy) policy->attach(*net);
  int64_t highest = 0;
  for (int round = 0; round < 2; ++round) {
    net->zero_grad(/*set_to_none=*/true);
    const st::MemoryMeter meter;
    for (int i = 0; i < micro_batches; ++i) {
      at::Tensor loss;
      if (policy) {
        const auto scope = policy->scope();
        loss = net->forward(x).pow(2).mean();
      } else {
        loss = net->forward(x).pow(2).mean();
      }
      loss.backward();
    }
    highest = meter.counts().peak_bytes;
  }
  net->zero_grad(true);
  return highest;
}

std::optional<st::Recompute> named(const std::vector<std::string>& parts) {
  if (parts.empty()) return std::nullopt;
  return st::Recompute::named(parts);  // a dot matches itself
}

std::vector<std::string> recomputed_parts(const st::MemoryPlan& plan) {
  std::vector<std::string> parts;
  for (const auto& row : plan.rows) {
    if (row.recomputed) parts.push_back(row.part);
  }
  return parts;
}

double recomputed_ms(const st::MemoryPlan& plan, const std::function<bool(std::size_t, const std::string&)>& which) {
  double sum = 0;
  for (std::size_t i = 0; i < plan.rows.size(); ++i) {
    if (which(i, plan.rows[i].part)) sum += plan.rows[i].forward_ms;
  }
  return sum;
}

struct Settling {
  int windows = 0, over_budget = 0;
};

Settling settle(st::Recompute& policy, Net& net, const at::Tensor& x, int micro_batches = 1) {
  Settling settling;
  do {
    REQUIRE(++settling.windows < 60);
    net->zero_grad(true);
    const st::MemoryMeter meter;
    window(policy, net, x, micro_batches);
    settling.over_budget += meter.counts().peak_bytes > policy.plan().budget ? 1 : 0;
  } while (!policy.plan().settled);
  net->zero_grad(true);
  return settling;
}

// All that a settled plan promises, by measuring.
void check_plan(Net& net, const at::Tensor& x, const st::MemoryPlan& plan, int micro_batches = 1, bool ties = false) {
  const auto parts = recomputed_parts(plan);
  CAPTURE(plan.budget, parts);
  CHECK(plan.settled);
  CHECK(plan.measured_peak <= plan.budget);
  CHECK(peak(net, x, named(parts), micro_batches) <= plan.budget);
  for (const std::string& part : parts) {
    auto fewer = parts;
    fewer.erase(std::find(fewer.begin(), fewer.end(), part));
    INFO("keeping " << part);
    CHECK(peak(net, x, named(fewer), micro_batches) > plan.budget);
  }
  if (ties) return;  // every(n) counts visits, not parts
  const double ours = recomputed_ms(plan, [&](std::size_t i, const std::string&) { return plan.rows[i].recomputed; });
  for (std::size_t n = 1; n <= plan.rows.size(); ++n) {
    if (peak(net, x, st::Recompute::every(static_cast<int64_t>(n)), micro_batches) > plan.budget) continue;
    INFO("every " << n);
    CHECK(ours <= recomputed_ms(plan, [&](std::size_t i, const std::string&) { return i % n == 0; }) + 1e-9);
  }
}

void check_five_budgets(Case made, int micro_batches = 1, bool ties = false) {
  const int64_t all = peak(made.net, made.x, st::Recompute::all(), micro_batches);
  const int64_t plain = peak(made.net, made.x, std::nullopt, micro_batches);
  REQUIRE(all < plain);
  for (const double share : {0.03, 0.3, 0.55, 0.8, 1.0}) {
    const auto budget = all + static_cast<int64_t>(share * static_cast<double>(plain - all));
    auto policy = st::Recompute::budget(budget, test_clock);
    policy.attach(*made.net);
    const Settling settling = settle(policy, made.net, made.x, micro_batches);
    std::ostringstream table;
    policy.plan().print(table);
    INFO("share " << share << '\n' << table.str());
    CHECK(settling.windows <= 6);
    CHECK(settling.over_budget <= 1);  // a trial
    check_plan(made.net, made.x, policy.plan(), micro_batches, ties);
    CHECK(policy.plan().predicted_peak <= policy.plan().measured_peak * 1.1);
    CHECK(policy.plan().predicted_peak >= policy.plan().measured_peak * 0.9);
    if (share == 1.0) CHECK(recomputed_parts(policy.plan()).empty());
  }
}

}  // namespace

TEST_CASE("Recompute::budget: five budgets, a transformer") { check_five_budgets(transformer()); }
TEST_CASE("Recompute::budget: five budgets, parts of very different sizes") { check_five_budgets(uneven()); }
TEST_CASE("Recompute::budget: five budgets, several forwards a window") { check_five_budgets(uneven(), 2); }
TEST_CASE("Recompute::budget: five budgets, a part that runs three times") { check_five_budgets(tied(), 1, true); }

// The dynamic program ------------------------------------------------------------------------------------------------

namespace {

using st::detail::BudgetModel;
using st::detail::Kept;

int64_t number(std::mt19937& random, int64_t from, int64_t to) {
  return from + static_cast<int64_t>(random() % static_cast<uint64_t>(to - from + 1));
}

st::detail::VisitModel random_visit(std::mt19937& random, std::size_t part) {
  st::detail::VisitModel visit;
  visit.part = part;
  visit.bytes = number(random, 0, 40);
  for (const auto peak :
       {&st::detail::VisitModel::forward, &st::detail::VisitModel::kept_forward, &st::detail::VisitModel::after,
        &st::detail::VisitModel::replay, &st::detail::VisitModel::backward}) {
    visit.*peak = number(random, 0, 60);
  }
  visit.replayed = true;
  return visit;
}

Kept subset(std::size_t parts, unsigned bits) {
  Kept kept(parts);
  for (std::size_t part = 0; part < parts; ++part) kept[part] = (bits >> part & 1U) != 0;
  return kept;
}

// Most time that any choice saves within the budget; -1: nothing fits.
double best_of_all(const BudgetModel& model, int64_t budget) {
  double best = -1;
  for (unsigned bits = 0; bits < 1U << model.parts(); ++bits) {
    const Kept kept = subset(model.parts(), bits);
    if (model.peak(kept) <= budget) best = std::max(best, model.saved(kept));
  }
  return best;
}

}  // namespace

TEST_CASE("Recompute::budget: the dynamic program finds what trying all choices finds") {
  std::mt19937 random(7);
  int limited = 0;
  for (int instance = 0; instance < 150; ++instance) {
    const std::size_t parts = instance < 140 ? 1 + random() % 8 : 12;
    st::detail::PassModel pass{number(random, 0, 40), {}};
    std::vector<double> seconds;
    for (std::size_t part = 0; part < parts; ++part) {
      pass.visits.push_back(random_visit(random, part));
      seconds.push_back(static_cast<double>(number(random, 1, 30)));
    }
    BudgetModel model;
    model.set({pass}, seconds);
    const int64_t none = model.peak(Kept(parts, false)), all = model.peak(Kept(parts, true));
    const int64_t budget = number(random, none, std::max(none, all));
    CAPTURE(instance, parts, budget);
    const Kept kept = model.solve(budget);
    CHECK(model.peak(kept) <= budget);
    CHECK(model.saved(kept) == best_of_all(model, budget));
    limited += std::count(kept.begin(), kept.end(), false) > 0 ? 1 : 0;
    const Kept nothing = model.solve(none - 1);
    CHECK(std::count(nothing.begin(), nothing.end(), true) == 0);
  }
  CHECK(limited > 50);
}

TEST_CASE("Recompute::budget: parts that run twice, and passes that differ, stay within the budget") {
  std::mt19937 random(8);
  for (int instance = 0; instance < 100; ++instance) {
    const std::size_t parts = 6;
    std::vector<st::detail::PassModel> passes(2);
    for (auto& pass : passes) {
      for (int visit = 0; visit < 8; ++visit) pass.visits.push_back(random_visit(random, random() % parts));
    }
    BudgetModel model;
    model.set(passes, std::vector<double>(parts, 1.0));
    const int64_t none = model.peak(Kept(parts, false));
    Kept kept = model.solve(none + 30);
    CHECK(model.peak(kept) <= none + 30);
    for (std::size_t part = 0; part < parts; ++part) {
      if (kept[part] || !model.may_keep(part)) continue;
      kept[part] = true;
      CHECK(model.peak(kept) > none + 30);
      kept[part] = false;
    }
  }
}

TEST_CASE("Recompute::budget: many parts of many sizes are thinned out, and still planned within the budget") {
  std::mt19937 random(9);
  st::detail::PassModel pass;
  std::vector<double> seconds;
  for (std::size_t part = 0; part < 60; ++part) {
    pass.visits.push_back(random_visit(random, part));
    pass.visits.back().bytes = number(random, 1, 1 << 30);
    seconds.push_back(static_cast<double>(random()));
  }
  BudgetModel model;
  model.set({pass}, seconds);
  const int64_t budget = int64_t{12} << 30;
  const Kept kept = model.solve(budget);
  CHECK(model.peak(kept) <= budget);
  // Within a percent of what parts that can be divided would save.
  std::vector<std::size_t> order(60);
  for (std::size_t part = 0; part < 60; ++part) order[part] = part;
  const auto worth = [&](std::size_t p) { return seconds[p] / static_cast<double>(pass.visits[p].bytes); };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return worth(a) > worth(b); });
  double room = static_cast<double>(budget), bound = 0;
  for (const std::size_t part : order) {
    const double share = std::min(1.0, room / static_cast<double>(pass.visits[part].bytes));
    room -= share * static_cast<double>(pass.visits[part].bytes);
    bound += share * seconds[part];
  }
  CHECK(model.saved(kept) > 0.99 * bound);
}

TEST_CASE("MemoryPlan: the table") {
  st::MemoryPlan plan{{{"stem", 1.25, 2048, 4096, true}, {"encoder.0", 20, 100, 5 << 20, false}}, 6 << 20, 5 << 20};
  plan.recomputed_share = 0.0588;
  std::ostringstream out;
  plan.print(out);
  CHECK(out.str() ==
        "memory plan (not settled yet): budget 6.0 MiB, predicted 5.0 MiB, measured nothing yet; 6 % of forward is "
        "recomputed\n"
        "part       forward ms  recomputed        kept  plan\n"
        "stem            1.250     2.0 KiB     4.0 KiB  recompute\n"
        "encoder.0      20.000       100 B     5.0 MiB  keep\n");
}

// The planner, with windows that are made up --------------------------------------------------------------------------

namespace {

// A row of parts that tell `told` times what they would hold, and at least `certain` times.
struct Made {
  std::vector<int64_t> bytes;
  double told, certain;

  st::detail::WindowRecord window(const Kept& kept) const {
    const auto keeps = [&](std::size_t part) { return part < kept.size() && kept[part]; };
    using Kind = st::detail::MemoryEvent::Kind;
    st::detail::WindowRecord record;
    int64_t held = 0;
    const auto note = [&](Kind kind, std::size_t visit, int64_t level, int64_t peak) {
      record.events.push_back({kind, visit, level, peak});
      record.peak = std::max(record.peak, peak);
    };
    for (std::size_t part = 0; part < bytes.size(); ++part) {
      const auto share = [&](double of) { return static_cast<int64_t>(of * static_cast<double>(bytes[part])); };
      record.visits.push_back({part, 1.0, share(told), share(certain), 1});
      note(Kind::enter, part, held, held);
      if (keeps(part)) held += bytes[part];
      held += 1;
      note(Kind::leave, part, held, held);
    }
    for (std::size_t part = bytes.size(); part-- > 0;) {
      if (keeps(part)) {
        held -= bytes[part];
      } else {
        note(Kind::replay, part, held, held);
        note(Kind::replay_saved, part, held + bytes[part], held + bytes[part]);
        note(Kind::replayed, part, held + bytes[part], held + bytes[part]);
      }
      held -= 1;
    }
    note(Kind::end, 0, held, held);
    return record;
  }
};

}  // namespace

TEST_CASE("Recompute::budget: parts that tell too little or too much are found out by measuring") {
  std::mt19937 random(10);
  for (const auto& [told, certain] : {std::pair(1.0, 1.0), std::pair(0.6, 0.5), std::pair(1.7, 0.4)}) {
    for (int instance = 0; instance < 30; ++instance) {
      Made made{{}, told, certain};
      int64_t all = 0, largest = 0;
      for (int part = 0; part < 9; ++part) {
        made.bytes.push_back(number(random, 1000, 9000));
        all += made.bytes.back();
        largest = std::max(largest, made.bytes.back());
      }
      const int64_t budget = largest + 20 + number(random, 0, all);
      st::detail::BudgetPlanner planner(budget);
      const auto kept = [&](std::size_t more = 9) {
        Kept parts(9);
        for (std::size_t part = 0; part < 9; ++part) parts[part] = planner.keeps(part) || part == more;
        return parts;
      };
      int windows = 1;
      while (!planner.add(made.window(kept()))) REQUIRE(++windows < 40);
      CAPTURE(told, instance, budget, windows);
      CHECK(made.window(kept()).peak <= budget);
      if (told == 1.0) CHECK(windows <= 5);
      for (std::size_t part = 0; part < 9; ++part) {
        if (!planner.keeps(part)) CHECK(made.window(kept(part)).peak > budget);
      }
    }
  }
}

// In training --------------------------------------------------------------------------------------------------------

namespace {

struct TrainingNetImpl : torch::nn::Module {
  TrainingNetImpl() {
    for (int i = 0; i < 4; ++i) blocks->push_back(ConvNorm(6));
    register_module("blocks", blocks);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) {
    return st::call(head, st::call_each<ConvNormImpl>(blocks, x).mean({2, 3}));
  }
  torch::nn::ModuleList blocks;
  torch::nn::Linear head = torch::nn::Linear(6, 4);
};
TORCH_MODULE(TrainingNet);

support::Batch images(int64_t n, int64_t seed) {
  torch::manual_seed(seed);
  return {torch::randn({n, 6, 8, 8}), torch::randint(4, {n})};
}

struct Trained {
  std::vector<at::Tensor> values;  // loss, parameters, buffers and the random stream after every window
  std::vector<std::size_t> recomputed;
  bool settled = false;
  std::vector<st::ParetoPoint> curve;
};

template <class Policy>
Trained train(Policy recompute, int windows) {
  auto net = support::seeded<TrainingNet>(5);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1, .momentum = 0.9}), st::CrossEntropy{},
                      st::Accumulate{2}, recompute);
  Trained trained;
  torch::manual_seed(6);
  for (int i = 0; i < windows; ++i) {
    const std::vector<support::Batch> window = {images(8, i), images(8, i + 100)};
    trained.values.push_back(trainer.step(window).loss_sum);
    for (const auto& parameter : net->parameters()) trained.values.push_back(parameter.detach().clone());
    for (const auto& buffer : net->buffers()) trained.values.push_back(buffer.clone());
    trained.values.push_back(at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).get_state());
    if constexpr (std::is_same_v<Policy, st::Recompute>) {
      const auto& plan = trainer.template policy<st::Recompute>().plan();
      trained.recomputed.push_back(recomputed_parts(plan).size());
      trained.settled = plan.settled;
      trained.curve = trainer.template policy<st::Recompute>().pareto();
    }
  }
  return trained;
}

}  // namespace

TEST_CASE("Recompute::budget: law 3 holds while the plan changes, with dropout and BatchNorm") {
  const Trained plain = train(st::NoRecompute{}, 8);
  const Trained free = train(st::Recompute::budget(int64_t{1} << 30, test_clock), 8);
  REQUIRE(free.curve.size() > 2);
  const Trained planned = train(st::Recompute::budget(free.curve[1].peak_bytes, test_clock), 8);
  CHECK(support::same_bits(plain.values, free.values));
  CHECK(support::same_bits(plain.values, planned.values));
  CHECK(planned.settled);
  CHECK(planned.recomputed.front() == 5);
  CHECK(planned.recomputed.back() > 0);
  CHECK(planned.recomputed.back() < 5);
}

TEST_CASE("Recompute::budget: what not even all() fits is an error before any update") {
  auto net = support::seeded<TrainingNet>(5);
  const auto before = support::clones(net->parameters());
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                      st::Recompute::budget(100 << 10, test_clock));
  CHECK_THROWS_MATCHES(trainer.step(images(48, 1)), st::ConfigError,
                       MessageMatches(ContainsSubstring("with every marked part recomputed") &&
                                      ContainsSubstring("budget of 100.0 KiB (102400 bytes)") &&
                                      ContainsSubstring("smaller micro-batch")));
  CHECK(support::same_bits(before, net->parameters()));
  CHECK(!net->head->weight.grad().defined());
  CHECK(trainer.state().step == 0);
  trainer.step(images(2, 1));  // a smaller one
  CHECK(trainer.state().step == 1);
  CHECK_THROWS_AS(st::Recompute::budget(0), st::ConfigError);
}

TEST_CASE("Recompute::budget: windows that grow or shrink are planned for anew, with one warning") {
  Case made = uneven();
  const at::Tensor small = made.x, large = torch::randn({160, 16}), tiny = torch::randn({16, 16});
  const int64_t budget = peak(made.net, large, st::Recompute::all()) + 200000;
  auto policy = st::Recompute::budget(budget, test_clock);
  policy.attach(*made.net);
  const support::LogCapture log;
  settle(policy, made.net, small);
  const auto for_small = recomputed_parts(policy.plan());
  CHECK(!log.contains("grown"));

  made.net->zero_grad(true);
  window(policy, made.net, large);
  CHECK(!policy.plan().settled);
  CHECK(log.contains("windows have grown"));
  settle(policy, made.net, large);
  check_plan(made.net, large, policy.plan());
  CHECK(recomputed_parts(policy.plan()).size() > for_small.size());

  for (int i = 0; i < 9; ++i) {
    window(policy, made.net, tiny);
    CHECK(policy.plan().settled);
  }
  window(policy, made.net, tiny);
  CHECK(!policy.plan().settled);
  settle(policy, made.net, tiny);
  CHECK(recomputed_parts(policy.plan()).empty());
  CHECK(std::count_if(log.lines.begin(), log.lines.end(),
                      [](const std::string& line) { return line.find("windows have") != std::string::npos; }) == 1);
}

TEST_CASE("Recompute::budget: windows that outgrow even all() are warned about, not ended") {
  Case made = uneven();
  auto policy = st::Recompute::budget(peak(made.net, made.x, st::Recompute::all()) + 1000, test_clock);
  policy.attach(*made.net);
  settle(policy, made.net, made.x);
  const support::LogCapture log;
  const at::Tensor huge = torch::randn({400, 16});
  for (int i = 0; i < 5; ++i) window(policy, made.net, huge);
  CHECK(policy.plan().settled);
  CHECK(recomputed_parts(policy.plan()).size() == 8);
  CHECK(policy.plan().measured_peak > policy.plan().budget);
  CHECK(std::count_if(log.lines.begin(), log.lines.end(), [](const std::string& line) {
          return line.find("windows have grown") != std::string::npos;
        }) == 2);
  CHECK(log.contains("everything stays recomputed"));
}

TEST_CASE("Recompute::budget: parts that are left out of some windows") {
  Case made = uneven();
  const int64_t all = peak(made.net, made.x, st::Recompute::all());
  const int64_t plain = peak(made.net, made.x, std::nullopt);
  auto policy = st::Recompute::budget((all + plain) / 2, test_clock);
  policy.attach(*made.net);
  for (std::size_t i = 0; i < 36; ++i) {
    made.net->skipped = i % 3;
    made.net->zero_grad(true);
    window(policy, made.net, made.x);
  }
  made.net->zero_grad(true);
  REQUIRE(policy.plan().settled);
  CHECK(policy.plan().rows.size() == 8);
  CHECK(policy.plan().measured_peak <= policy.plan().budget);
  CHECK(recomputed_parts(policy.plan()).size() < 8);
}

TEST_CASE("Recompute::budget: forwards outside of windows hold the plan") {
  Case made = uneven();
  auto policy = st::Recompute::budget(int64_t{1} << 30, test_clock);
  policy.attach(*made.net);
  const support::LogCapture log;
  CHECK_THROWS_AS(policy.after_backward(), st::StateError);
  CHECK(policy.plan().rows.empty());
  CHECK(policy.pareto().empty());
  {
    const at::NoGradGuard evaluation;
    const auto scope = policy.scope();
    made.net->forward(made.x);
  }
  CHECK(log.lines.empty());
  for (int i = 0; i < 2; ++i) {
    at::Tensor loss;
    {
      const auto scope = policy.scope();
      loss = made.net->forward(made.x).sum();
    }
    CHECK(st::detail::frames_alive() == 8);
    loss.backward();
  }
  CHECK(log.lines.size() == 1);
  CHECK(log.contains("window_scope()"));
  for (int i = 0; i < 2; ++i) {
    const auto whole = policy.window_scope();
    const auto scope = policy.scope();
    made.net->forward(made.x).sum().backward();
  }
  CHECK(log.lines.size() == 2);
  CHECK(log.contains("after_backward()"));
  settle(policy, made.net, made.x);
  CHECK(recomputed_parts(policy.plan()).empty());
  CHECK_THROWS_AS(st::Recompute::all().plan(), st::StateError);
}

TEST_CASE("Recompute::budget: an exception in forward is no window") {
  Case made = uneven();
  auto policy = st::Recompute::budget(int64_t{1} << 30, test_clock);
  policy.attach(*made.net);
  const support::LogCapture log;
  CHECK_THROWS(window(policy, made.net, torch::randn({4, 15})));
  CHECK(policy.plan().rows.empty());
  CHECK(log.lines.empty());
  CHECK(st::detail::take_next_listener() == nullptr);
  CHECK(settle(policy, made.net, made.x).windows == 4);
}

TEST_CASE("Recompute::budget: while LibTorch's profiler runs, nothing is measured") {
  using namespace torch::autograd::profiler;
  Case made = uneven();
  auto policy = st::Recompute::budget(int64_t{1} << 30, test_clock);
  policy.attach(*made.net);
  const support::LogCapture log;
  enableProfilerLegacy(ProfilerConfig(ProfilerState::CPU));
  for (int i = 0; i < 4; ++i) window(policy, made.net, made.x);
  disableProfilerLegacy();
  CHECK(log.lines.size() == 1);
  CHECK(log.contains("profiler"));
  CHECK(!policy.plan().settled);
  settle(policy, made.net, made.x);
}

TEST_CASE("Recompute::budget: without saved-tensor hooks everything is recomputed") {
  struct ByFunction {
    ByFunction() { st::detail::recompute_by_function(true); }
    ~ByFunction() { st::detail::recompute_by_function(false); }
  } by_function;
  Case made = uneven();
  auto policy = st::Recompute::budget(int64_t{1} << 30, test_clock);
  const support::LogCapture log;
  policy.attach(*made.net);
  CHECK(log.contains("another autograd engine"));
  settle(policy, made.net, made.x);
  CHECK(recomputed_parts(policy.plan()).size() == 8);
}

namespace {

struct ExplicitImpl : torch::nn::Module {
  ExplicitImpl() : inner(register_module("inner", FeedForward(16, 300, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return st::recompute(inner, x.sin()).cos(); }
  FeedForward inner;
};
TORCH_MODULE(Explicit);

}  // namespace

TEST_CASE("Recompute::budget: frozen parts cost nothing, and an explicit block stays one inside a part that is kept") {
  Case made = uneven();
  for (at::Tensor& parameter : made.net->blocks[0]->parameters()) parameter.requires_grad_(false);
  torch::manual_seed(4);
  made.net->add(Explicit());
  check_five_budgets(made);
}

TEST_CASE("Recompute::budget: the curve of memory and time is what the plans then measure") {
  Case made = uneven();
  const int64_t plain = peak(made.net, made.x, std::nullopt);
  auto policy = st::Recompute::budget(plain, test_clock);
  policy.attach(*made.net);
  settle(policy, made.net, made.x);
  const auto curve = policy.pareto();
  REQUIRE(curve.size() > 4);
  for (std::size_t i = 1; i < curve.size(); ++i) {
    CHECK(curve[i].peak_bytes > curve[i - 1].peak_bytes);
    CHECK(curve[i].extra_ms < curve[i - 1].extra_ms);
  }
  CHECK(curve.back().extra_ms == 0);
  CHECK(curve.back().recomputed_parts == 0);
  for (const auto& point : {curve[0], curve[2], curve[4]}) {
    auto there = st::Recompute::budget(point.peak_bytes, test_clock);
    there.attach(*made.net);
    settle(there, made.net, made.x);
    CHECK(there.plan().measured_peak == point.peak_bytes);
    CHECK(there.plan().recomputed_share * 28.5e3 <= point.extra_ms + 1e-6);
  }
}
