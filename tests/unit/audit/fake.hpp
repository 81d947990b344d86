// SPDX-License-Identifier: Apache-2.0
// Runners that compute nothing: planted speeds and losses on a clock of their own, so that the audit's verdicts are
// known before it runs.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "saturate/audit/engine.hpp"

namespace fake {

namespace audit = saturate::audit;

/// What a tactic does to the workload.
struct Effect {
  double speed = 1;               ///< factor on samples per second
  double loss_factor = 1;         ///< on the loss
  double memory = 1;              ///< on the peak
  int64_t nan_after = INT64_MAX;  ///< samples after which the loss is NaN
  std::string throws = {};        ///< message thrown by run()
  std::string throws_on_make = {};
};

struct World {
  double now = 0;
  double samples_per_second = 1000;
  double noise = 0.01;  ///< relative, alternating, so that intervals are no points
  int64_t batch = 10;
  std::map<std::string, Effect> effects;
  std::vector<std::string> calls;  ///< "<tactics>:<steps>" of every run, "make <tactics>", "enter x", "leave x"
};

class FakeRunner : public audit::Runner {
 public:
  FakeRunner(World& world, audit::TacticSet tactics, int64_t batch)
      : world_(world), tactics_(std::move(tactics)), batch_(batch) {}

  audit::RoundResult run(int64_t steps) override {
    world_.calls.push_back(tactics_.to_string() + ":" + std::to_string(steps));
    const Effect effect = combined();
    if (!effect.throws.empty()) throw std::runtime_error(effect.throws);
    audit::RoundResult r;
    r.steps = steps;
    r.samples = steps * batch_;
    const double wobble = 1 + world_.noise * static_cast<double>((world_.calls.size() * 7) % 5 - 2.0) / 2;
    r.seconds = static_cast<double>(r.samples) / (world_.samples_per_second * effect.speed) * wobble;
    r.step_seconds.assign(static_cast<std::size_t>(steps), r.seconds / static_cast<double>(steps));
    r.data_wait_seconds = 0.03 * r.seconds;
    r.peak_bytes = std::llround(effect.memory * (100 << 20));
    for (int64_t i = 0; i < r.samples; ++i, ++seen_) {
      r.loss_sum += effect.loss_factor * (0.5 + 1.8 * std::exp(-static_cast<double>(seen_) / 3000));
    }
    if (seen_ > effect.nan_after) r.loss_sum = std::nan("");
    r.loss_count = static_cast<double>(r.samples);
    world_.now += r.seconds;
    return r;
  }

 private:
  Effect combined() const {
    Effect all;
    for (const std::string& id : tactics_.ids()) {
      const Effect& e = world_.effects[id];
      all.speed *= e.speed;
      all.loss_factor *= e.loss_factor;
      all.memory *= e.memory;
      all.nan_after = std::min(all.nan_after, e.nan_after);
      if (!e.throws.empty()) all.throws = e.throws;
    }
    return all;
  }

  World& world_;
  audit::TacticSet tactics_;
  int64_t batch_;
  int64_t seen_ = 0;
};

inline audit::Workload workload(World& world) {
  audit::Workload w;
  w.name = "fake";
  w.description = "a workload with planted speeds";
  w.batch_size = world.batch;
  w.make = [&world](const audit::TacticSet& tactics) -> std::unique_ptr<audit::Runner> {
    world.calls.push_back("make " + tactics.to_string());
    for (const std::string& id : tactics.ids()) {
      if (!world.effects[id].throws_on_make.empty()) throw std::runtime_error(world.effects[id].throws_on_make);
    }
    return std::make_unique<FakeRunner>(world, tactics, world.batch);
  };
  return w;
}

inline audit::Tactic tactic(const std::string& id) { return {id, "Tactic " + id, "use(" + id + ")", "does " + id}; }

inline audit::AuditOptions options(World& world) {
  audit::AuditOptions o;
  o.clock = [&world] { return world.now; };
  o.progress = [](std::string_view) {};
  o.date = "2026-01-02";
  return o;
}

}  // namespace fake
