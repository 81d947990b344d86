// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/engine.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <set>
#include <utility>

#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "text.hpp"

namespace saturate::audit {
namespace {

using text::format;

constexpr int64_t kBatchRounds = 3;
constexpr double kBatchCurveShare = 0.25;  // of the budget, at most
constexpr int64_t kMemoryRounds = 3;
constexpr double kMemoryCurveShare = 0.15;
constexpr std::size_t kTimelineSamples = 400;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void require(bool holds, const std::string& message) {
  if (!holds) throw ConfigError("audit: " + message);
}

void check_options(const AuditOptions& o) {
  require(o.rounds >= o.rules.min_rounds,
          format("%lld rounds can keep nothing, the rules ask for at least %lld; raise rounds or lower "
                 "rules.min_rounds",
                 static_cast<long long>(o.rounds), static_cast<long long>(o.rules.min_rounds)));
  require(o.steps_per_round >= 0, "steps_per_round is " + std::to_string(o.steps_per_round) + "; 0 chooses by time");
  require(o.steps_per_round > 0 || o.seconds_per_round > 0, "seconds_per_round must be above 0");
  require(o.warmup_steps >= 1, "warmup_steps is " + std::to_string(o.warmup_steps) + "; at least 1 is needed");
  require(o.settle_steps >= 0, "settle_steps is " + std::to_string(o.settle_steps) + "; it cannot be negative");
  require(o.budget_seconds > 0, "budget_seconds is " + text::number(o.budget_seconds) + "; it must be above 0");
  require(o.slow_factor >= 1, "slow_factor is " + text::number(o.slow_factor) + "; it must be at least 1");
}

void check_workload(const Workload& workload, const std::vector<Tactic>& tactics) {
  require(!workload.name.empty(), "the workload has no name");
  require(static_cast<bool>(workload.make), "workload '" + workload.name + "' has no make; set Workload::make");
  require(std::all_of(workload.batch_sizes.begin(), workload.batch_sizes.end(), [](int64_t b) { return b > 0; }),
          "a batch size of the curve is not above 0");
  require(workload.batch_sizes.empty() || workload.make_with_batch_size,
          "batch_sizes are given without make_with_batch_size; set both or neither");
  std::set<std::string> ids = {"together", "baseline"};
  for (const Tactic& tactic : tactics) {
    require(!tactic.id.empty(), "a tactic has no id");
    require(ids.insert(tactic.id).second, "the tactic id '" + tactic.id + "' is taken; ids are unique");
    require(!tactic.loss_tolerance || *tactic.loss_tolerance >= 0,
            "tactic '" + tactic.id + "' has a loss tolerance below 0");
  }
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return text::first_line(e.what());
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

void append(RoundResult& all, const RoundResult& part) {
  all.seconds += part.seconds;
  all.steps += part.steps;
  all.samples += part.samples;
  all.loss_sum += part.loss_sum;
  all.loss_count += part.loss_count;
  all.data_wait_seconds += part.data_wait_seconds;
  all.step_seconds.insert(all.step_seconds.end(), part.step_seconds.begin(), part.step_seconds.end());
  all.peak_bytes = std::max(all.peak_bytes, part.peak_bytes);
}

RoundResult run_checked(Runner& runner, int64_t steps) {
  RoundResult result = runner.run(steps);
  if (!(result.seconds > 0 && std::isfinite(result.seconds)) || result.steps <= 0 || result.samples <= 0) {
    throw StateError("the runner was asked for " + std::to_string(steps) + " steps and reports " +
                     std::to_string(result.steps) + " steps, " + std::to_string(result.samples) + " samples and " +
                     text::number(result.seconds) + " s; each must be above 0");
  }
  return result;
}

std::unique_ptr<Runner> checked(std::unique_ptr<Runner> runner) {
  if (!runner) throw StateError("the workload made no runner (a null pointer)");
  return runner;
}

// Single steps, so that a slow candidate can be stopped; at least two, because the first pays one-time costs.
RoundResult warm_up(Runner& runner, int64_t steps, double limit_seconds, RoundResult* last) {
  RoundResult all;
  for (int64_t i = 0; i < steps && (i < 2 || all.seconds < limit_seconds); ++i) {
    *last = run_checked(runner, 1);
    append(all, *last);
  }
  return all;
}

// The process-wide switches of the tactics of one arm, on for a scope.
class Switches {
 public:
  explicit Switches(const std::vector<const Tactic*>& tactics) {
    try {
      for (const Tactic* tactic : tactics) {
        if (tactic->enter) tactic->enter();
        entered_.push_back(tactic);
      }
    } catch (...) {
      leave();
      throw;
    }
  }
  Switches(const Switches&) = delete;
  Switches& operator=(const Switches&) = delete;
  ~Switches() { leave(); }

 private:
  void leave() noexcept {
    for (; !entered_.empty(); entered_.pop_back()) {
      try {
        if (entered_.back()->leave) entered_.back()->leave();
      } catch (...) {
        log::warn("audit: leaving '" + entered_.back()->id + "' threw: " + message_of(std::current_exception()));
      }
    }
  }
  std::vector<const Tactic*> entered_;
};

class Session {
 public:
  Session(const Workload& workload, const std::vector<Tactic>& tactics, const AuditOptions& options)
      : workload_(workload), tactics_(tactics), options_(options), start_(now()) {}

  AuditReport run() {
    describe();
    record_baseline();
    measure_loader();
    measure_step_memory();
    measure_batch_curve();
    measure_memory_curve();
    for (std::size_t i = 0; i < tactics_.size(); ++i) try_alone(i);
    try_together();
    report_.recommendation = recommend(report_.tactics, report_.together, report_.memory_curve);
    report_.elapsed_seconds = now() - start_;
    say(report_.recommendation.text);
    return std::move(report_);
  }

 private:
  double now() const { return options_.clock ? options_.clock() : steady_seconds(); }
  double deadline() const { return start_ + options_.budget_seconds; }
  std::string budget_spent() const {
    return "the time budget of " + text::seconds(options_.budget_seconds) + " was spent";
  }

  void say(const std::string& line) const {
    if (options_.progress) {
      options_.progress(line);
    } else {
      log::info("audit: " + line);
    }
  }

  void describe() {
    report_.workload = workload_.name;
    report_.description = workload_.description;
    report_.date = options_.date;
    report_.batch_size = workload_.batch_size;
    report_.machine = read_machine();
    report_.budget_seconds = options_.budget_seconds;
    report_.settle_steps = options_.settle_steps;
  }

  void record_baseline() {
    say("warm-up: " + std::to_string(options_.warmup_steps) + " steps");
    const auto runner = checked(workload_.make({}));
    RoundResult last;
    report_.baseline.warmup = warm_up(*runner, options_.warmup_steps, std::numeric_limits<double>::infinity(), &last);
    steps_ = options_.steps_per_round;
    if (steps_ == 0) steps_ = std::max<int64_t>(1, std::llround(options_.seconds_per_round / last.seconds));
    report_.steps_per_round = steps_;
    for (int64_t i = 0; i < options_.rounds; ++i) report_.baseline.rounds.push_back(run_checked(*runner, steps_));
    learn_round_size();
    const Baseline& b = report_.baseline;
    say("baseline: " + text::thousands(b.samples_per_second()) + " samples/s, step " +
        text::seconds(b.step_seconds(0.5)) + " (95 % within " + text::seconds(b.step_seconds(0.95)) + "), " +
        text::percent(b.data_wait_share()) + " waiting for data, loss " + text::number(b.final_loss()) + " after " +
        text::thousands(static_cast<double>(b.samples())) + " samples");
  }

  void learn_round_size() {
    std::vector<double> seconds, samples;
    for (const RoundResult& round : report_.baseline.rounds) {
      seconds.push_back(round.seconds);
      samples.push_back(static_cast<double>(round.samples));
    }
    round_seconds_ = median(seconds);
    round_samples_ = median(samples);
  }

  void measure_loader() {
    if (!workload_.loader_ceiling) return;
    try {
      report_.loader_ceiling = workload_.loader_ceiling();
      say("loader alone: " + text::thousands(report_.loader_ceiling->samples_per_second) + " samples/s");
    } catch (...) {
      report_.loader_error = message_of(std::current_exception());
      say("loader alone: it threw: " + report_.loader_error);
    }
  }

  void measure_step_memory() {
    if (!workload_.step_memory) return;
    try {
      MemoryReport memory = workload_.step_memory();
      memory.timeline = memory.timeline.thinned(kTimelineSamples);
      report_.step_memory = std::move(memory);
    } catch (...) {
      report_.step_memory_error = message_of(std::current_exception());
      say("memory of one step: it threw: " + report_.step_memory_error);
    }
  }

  void measure_batch_curve() {
    const double until = std::min(deadline(), now() + kBatchCurveShare * options_.budget_seconds);
    for (const int64_t size : workload_.batch_sizes) {
      BatchPoint point;
      point.batch_size = size;
      if (workload_.lr_advice) point.lr_advice = workload_.lr_advice(size);
      try {
        if (now() < until) {
          measure_batch_size(point);
        } else {
          point.error = "not measured: the curve's share of the time budget was spent";
        }
      } catch (...) {
        point.rounds.clear();
        point.error = message_of(std::current_exception());
      }
      say("batch size " + std::to_string(size) + ": " +
          (point.error.empty() ? text::thousands(point.samples_per_second()) + " samples/s" : point.error));
      report_.batch_curve.push_back(std::move(point));
    }
  }

  void measure_batch_size(BatchPoint& point) {
    const auto runner = checked(workload_.make_with_batch_size(point.batch_size));
    RoundResult last;
    const RoundResult warm = warm_up(*runner, options_.warmup_steps, round_seconds_, &last);
    const int64_t steps = steps_for(warm, last, 0.5);
    for (int64_t i = 0; i < kBatchRounds; ++i) point.rounds.push_back(run_checked(*runner, steps));
  }

  void measure_memory_curve() {
    if (!workload_.memory_tactics) return;
    const std::vector<Tactic> ways = memory_tactics();
    if (!report_.memory_note.empty()) return say("memory against time: " + report_.memory_note);
    const double until = std::min(deadline(), now() + kMemoryCurveShare * options_.budget_seconds);
    for (const Tactic& way : ways) {
      report_.memory_curve.push_back(memory_point(way, until));
      say(to_string(report_.memory_curve.back()));
    }
  }

  std::vector<Tactic> memory_tactics() {
    std::string& note = report_.memory_note;
    try {
      std::vector<Tactic> ways = workload_.memory_tactics();
      if (ways.empty()) note = "not measured: the model marks no parts (saturate::call), so none can be recomputed";
      if (report_.baseline.peak_bytes() <= 0) note = "not measured: the runner reports no peak memory";
      return ways;
    } catch (...) {
      note = "it threw: " + message_of(std::current_exception());
      return {};
    }
  }

  MemoryPoint memory_point(const Tactic& way, double until) {
    MemoryPoint point{way.title.empty() ? way.id : way.title, way.how_to_apply, {}, {}};
    try {
      if (now() < until) {
        point.rounds = memory_rounds(way, until, point.error);
      } else {
        point.error = "not measured: the curve's share of the time budget was spent";
      }
    } catch (...) {
      point.error = message_of(std::current_exception());
    }
    return point;
  }

  // Both arms take the same steps, so that memory is compared over the same batches.
  std::vector<AbRound> memory_rounds(const Tactic& way, double until, std::string& error) {
    AbRounds raw;
    RoundResult last;
    const Arms arms = make_arms(raw, {&way}, last);
    const int64_t steps = std::max<int64_t>(1, std::min(steps_ / 2, steps_for(raw.candidate_warmup, last, 0.5)));
    for (int64_t i = 0; i < kMemoryRounds && (i == 0 || now() < until); ++i) {
      raw.rounds.push_back(one_round(arms, {&way}, i % 2 == 1, steps, steps));
    }
    const Rules rules = rules_for(way);
    const Verdict verdict = judge(raw, rules);
    const double apart = std::abs(verdict.candidate_loss - verdict.baseline_loss);
    if (!(apart <= rules.loss_tolerance * std::abs(verdict.baseline_loss))) {  // a NaN does not agree
      error = "it learns something else: loss " + text::number(verdict.candidate_loss) + " against " +
              text::number(verdict.baseline_loss) + " over the same samples";
    }
    return std::move(raw.rounds);
  }

  // As many steps as give the samples of `rounds` baseline rounds, fewer when they would take slow_factor times as
  // long.
  int64_t steps_for(const RoundResult& warm, const RoundResult& last, double rounds) const {
    const double samples_per_step = static_cast<double>(warm.samples) / static_cast<double>(warm.steps);
    const double seconds_per_sample = last.seconds / static_cast<double>(last.samples);
    const double limit = options_.slow_factor * round_seconds_ * rounds / seconds_per_sample;
    return std::max<int64_t>(1, std::llround(std::min(round_samples_ * rounds, limit) / samples_per_step));
  }

  Rules rules_for(const Tactic& tactic) const {
    Rules rules = options_.rules;
    rules.min_gain = options_.min_gain;
    rules.loss_tolerance =
        tactic.loss_tolerance.value_or(tactic.same_math ? options_.same_math_tolerance : options_.loss_tolerance);
    return rules;
  }

  void try_alone(std::size_t index) {
    const Tactic& tactic = tactics_[index];
    TacticResult result;
    result.id = tactic.id;
    result.title = tactic.title.empty() ? tactic.id : tactic.title;
    result.how_to_apply = tactic.how_to_apply;
    result.what = tactic.what;
    result.axis = tactic.axis;
    result.members = {tactic.id};
    result.rules = rules_for(tactic);
    // One share more than there are tactics left: for those that paid, together.
    const double shares = static_cast<double>(tactics_.size() - index + 1);
    compare(result, {&tactic}, now() + (deadline() - now()) / shares);
    report_.tactics.push_back(std::move(result));
  }

  // The tactics that paid, in the order given; of several on one axis the best.
  std::vector<std::size_t> winners() const {
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < report_.tactics.size(); ++i) {
      const TacticResult& mine = report_.tactics[i];
      const bool beaten = std::any_of(report_.tactics.begin(), report_.tactics.end(), [&](const TacticResult& other) {
        return !mine.axis.empty() && other.axis == mine.axis && other.verdict.kept() &&
               other.verdict.ratio > mine.verdict.ratio;
      });
      if (mine.verdict.kept() && !beaten) result.push_back(i);
    }
    return result;
  }

  void try_together() {
    const std::vector<std::size_t> chosen = winners();
    if (chosen.size() < 2) return;
    TacticResult result;
    std::vector<const Tactic*> members;
    std::vector<std::string> titles;
    result.rules = report_.tactics[chosen.front()].rules;
    for (const std::size_t i : chosen) {
      members.push_back(&tactics_[i]);
      result.members.push_back(tactics_[i].id);
      titles.push_back(report_.tactics[i].title);
      if (!result.how_to_apply.empty()) result.how_to_apply += '\n';
      result.how_to_apply += tactics_[i].how_to_apply;
      result.rules.loss_tolerance = std::max(result.rules.loss_tolerance, report_.tactics[i].rules.loss_tolerance);
    }
    result.id = "together";
    result.title = "All that paid, together";
    result.what = text::join(titles) + ", switched on at once.";
    compare(result, members, deadline());
    report_.together = std::move(result);
  }

  void compare(TacticResult& result, const std::vector<const Tactic*>& members, double share_end) {
    AbRounds& raw = result.raw;
    if (now() >= deadline()) {
      raw.skipped = budget_spent();
    } else {
      try {
        run_rounds(raw, members, result, share_end);
      } catch (...) {
        raw.error = message_of(std::current_exception());
      }
    }
    result.verdict = judge(raw, result.rules);
    say(result.id + ": " + result.verdict.reason);
  }

  void run_rounds(AbRounds& raw, const std::vector<const Tactic*>& members, const TacticResult& result,
                  double share_end) {
    RoundResult last;
    const Arms arms = make_arms(raw, members, last);
    for (int64_t i = 0; i < options_.rounds; ++i) {
      const double before = now();
      const int64_t steps = steps_for(raw.candidate_warmup, last, 1);
      raw.rounds.push_back(one_round(arms, members, i % 2 == 1, steps_, steps));
      last = raw.rounds.back().candidate.timed;
      if (i + 1 < options_.rounds && should_stop(raw, result, now() - before, share_end)) break;
    }
  }

  struct Arms {
    std::unique_ptr<Runner> baseline, candidate;
  };

  // Both warmed up. `last` becomes the candidate's last step.
  Arms make_arms(AbRounds& raw, const std::vector<const Tactic*>& members, RoundResult& last) {
    TacticSet set;
    for (const Tactic* tactic : members) set.add(tactic->id, tactic->value, tactic->axis);
    Arms arms;
    as_baseline([&] {
      arms.baseline = checked(workload_.make({}));
      raw.baseline_warmup =
          warm_up(*arms.baseline, options_.warmup_steps, std::numeric_limits<double>::infinity(), &last);
    });
    const Switches on(members);
    arms.candidate = checked(workload_.make(set));
    const double limit = options_.slow_factor * std::max(round_seconds_, raw.baseline_warmup.seconds);
    raw.candidate_warmup = warm_up(*arms.candidate, options_.warmup_steps, limit, &last);
    return arms;
  }

  AbRound one_round(const Arms& arms, const std::vector<const Tactic*>& members, bool candidate_first,
                    int64_t baseline_steps, int64_t candidate_steps) {
    AbRound round;
    round.candidate_first = candidate_first;
    const auto run_candidate = [&] {
      const Switches on(members);
      round.candidate = arm_round(*arms.candidate, candidate_steps);
    };
    if (candidate_first) run_candidate();
    as_baseline([&] { round.baseline = arm_round(*arms.baseline, baseline_steps); });
    if (!candidate_first) run_candidate();
    return round;
  }

  ArmRound arm_round(Runner& runner, int64_t steps) {
    ArmRound part;
    if (options_.settle_steps > 0) part.settle = run_checked(runner, options_.settle_steps);
    part.timed = run_checked(runner, steps);
    return part;
  }

  // Whose fault it was has to be in the message.
  template <class Function>
  void as_baseline(Function function) {
    try {
      function();
    } catch (...) {
      throw StateError("the baseline beside it failed: " + message_of(std::current_exception()));
    }
  }

  bool should_stop(AbRounds& raw, const TacticResult& result, double pair_seconds, double share_end) {
    const auto done = static_cast<int64_t>(raw.rounds.size());
    const std::string after = "stopped after " + std::to_string(done) + " rounds: ";
    if (is_hopeless(raw, result.rules)) {
      raw.note = after + "more could not save it";
    } else if (now() >= deadline()) {
      raw.note = after + budget_spent();
    } else if (done >= result.rules.min_rounds && now() + pair_seconds > share_end) {
      raw.note = after + "its share of the time budget was spent";
    }
    return !raw.note.empty();
  }

  const Workload& workload_;
  const std::vector<Tactic>& tactics_;
  const AuditOptions& options_;
  double start_;
  AuditReport report_;
  int64_t steps_ = 0;
  double round_seconds_ = 0;
  double round_samples_ = 0;
};

}  // namespace

Audit::Audit(Workload workload, std::vector<Tactic> tactics, AuditOptions options)
    : workload_(std::move(workload)), tactics_(std::move(tactics)), options_(std::move(options)) {
  check_workload(workload_, tactics_);
  check_options(options_);
  Rules rules = options_.rules;
  rules.min_gain = options_.min_gain;
  for (const double tolerance : {options_.same_math_tolerance, options_.loss_tolerance}) {
    rules.loss_tolerance = tolerance;
    judge({}, rules);  // throws for rules that cannot work, before anything is measured
  }
}

AuditReport Audit::run() { return Session(workload_, tactics_, options_).run(); }

}  // namespace saturate::audit
