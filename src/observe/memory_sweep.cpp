// SPDX-License-Identifier: Apache-2.0
#include "memory_sweep.hpp"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace saturate::detail {
namespace {

using What = MemoryStep::What;

constexpr std::size_t before = 0, forward = 1, backward = 2, update = 3;  // of MemoryRecord::phases

// A part's name begins with those of the parts it lies in. Without the root, which is everything.
bool lies_in(const std::string& part, const std::string& whole) {
  if (part == whole) return true;
  return !whole.empty() && part.size() > whole.size() && part.compare(0, whole.size(), whole) == 0 &&
         part[whole.size()] == '.';
}

class Sweep {
 public:
  Sweep(const MemoryRecord& record, MemoryReport& report)
      : record_(record),
        report_(report),
        blocks_(record.blocks.size()),
        now_(record.devices.size()),
        modules_(record.marks.size()),
        wholes_(record.marks.size()) {
    for (std::size_t part = 0; part < wholes_.size(); ++part) {
      for (std::size_t whole = 0; whole < wholes_.size(); ++whole) {
        if (lies_in(record.marks[part], record.marks[whole])) wholes_[part].push_back(whole);
      }
    }
  }

  void run() {
    begin();
    const auto last = std::find_if(record_.steps.rbegin(), record_.steps.rend(), [](auto& s) { return s.backward; });
    const auto updates_from = static_cast<std::size_t>(record_.steps.rend() - last);
    for (std::size_t i = 0; i < record_.steps.size(); ++i) {
      const bool updates = updates_from > 0 && i >= updates_from;
      take(record_.steps[i], phase_of(record_.steps[i], updates));
    }
    end();
  }

 private:
  struct Life {
    bool alive = false;
    int64_t saved = 0;      // how many times
    std::size_t owner = 0;  // the mark that saved it first
  };
  struct Module {
    int64_t held = 0, own_held = 0;
    ModuleMemory memory;
    std::size_t order = 0;  // from 1 on; 0: not run
  };
  struct Visit {
    std::size_t mark;
    int64_t start, peak;
  };

  static std::size_t phase_of(const MemoryStep& step, bool updates) {
    return step.phase.value_or(step.backward ? backward : updates ? update : forward);
  }

  MemoryKind kind_of(std::size_t block) const {
    if (record_.blocks[block].role) return *record_.blocks[block].role;
    return blocks_[block].saved > 0 ? MemoryKind::activations : MemoryKind::workspace;
  }

  bool is_activation(std::size_t block) const {
    return blocks_[block].alive && kind_of(block) == MemoryKind::activations;
  }

  void begin() {
    for (const c10::Device device : record_.devices) report_.devices.emplace_back().device = device.str();
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      if (!record_.blocks[block].older) continue;
      blocks_[block].alive = true;
      now_[record_.blocks[block].device][kind_of(block)] += record_.blocks[block].bytes;
    }
    report_.timeline.phases = record_.phases;
    report_.timeline.marks = record_.marks;
    report_.timeline.seconds = record_.seconds;
    for (std::size_t device = 0; device < now_.size(); ++device) {
      DeviceMemory& memory = report_.devices[device];
      report_.timeline.devices.push_back(memory.device);
      memory.before = memory.peak = memory.at_peak = now_[device];
      add_sample(0.0, device, before, 0);
    }
    add_to_phase(before, 0.0);
  }

  void take(const MemoryStep& step, std::size_t phase) {
    if (step.what == What::enter) {
      visits_.push_back({step.mark, now_[0].total(), now_[0].total()});
      note_order(step.mark);
      return;
    }
    if (step.what == What::leave) return leave();
    change(step);
    const std::size_t device = record_.blocks[step.block].device;
    note_peak(device);
    if (step.what != What::allocate && step.what != What::free) return;
    if (step.what == What::allocate) ++report_.devices[device].allocations;
    add_sample(step.seconds, device, phase, step.mark);
    if (device == 0) add_to_phase(phase, step.seconds);
  }

  // Takes the block out of the sums, changes it, and puts it back.
  void change(const MemoryStep& step) {
    Life& life = blocks_[step.block];
    const MemoryBlock& block = record_.blocks[step.block];
    const bool was_activation = is_activation(step.block);
    if (life.alive) now_[block.device][kind_of(step.block)] -= block.bytes;
    switch (step.what) {
      case What::allocate: life.alive = true; break;
      case What::free: life.alive = false; break;
      case What::save:
        if (life.saved++ == 0) life.owner = step.mark;
        break;
      case What::let_go: --life.saved; break;
      default: break;
    }
    if (life.alive) now_[block.device][kind_of(step.block)] += block.bytes;
    if (block.device != 0 || was_activation == is_activation(step.block)) return;
    hold(life.owner, was_activation ? -block.bytes : block.bytes);
  }

  void hold(std::size_t owner, int64_t bytes) {
    for (const std::size_t whole : wholes_[owner]) {
      Module& module = modules_[whole];
      module.held += bytes;
      module.memory.activations = std::max(module.memory.activations, module.held);
    }
    Module& module = modules_[owner];
    module.own_held += bytes;
    module.memory.own_activations = std::max(module.memory.own_activations, module.own_held);
    note_order(owner);
  }

  void note_order(std::size_t mark) {
    if (modules_[mark].order == 0) modules_[mark].order = ++modules_run_;
  }

  void leave() {
    if (visits_.empty()) return;
    const Visit visit = visits_.back();
    visits_.pop_back();
    int64_t& peak = modules_[visit.mark].memory.forward_peak;
    peak = std::max(peak, visit.peak - visit.start);
  }

  void note_peak(std::size_t device) {
    DeviceMemory& memory = report_.devices[device];
    const MemoryByKind& now = now_[device];
    for (std::size_t k = 0; k < memory_kinds; ++k) memory.peak.bytes[k] = std::max(memory.peak.bytes[k], now.bytes[k]);
    if (now.total() > memory.at_peak.total()) memory.at_peak = now;
    if (device != 0) return;
    for (Visit& visit : visits_) visit.peak = std::max(visit.peak, now.total());
  }

  void add_sample(double seconds, std::size_t device, std::size_t phase, std::size_t mark) {
    report_.timeline.samples.push_back(
        {seconds, static_cast<int64_t>(device), static_cast<int64_t>(phase), static_cast<int64_t>(mark), now_[device]});
  }

  void add_to_phase(std::size_t number, double seconds) {
    const std::string& name = record_.phases[number];
    auto phase = std::find_if(report_.phases.begin(), report_.phases.end(), [&](auto& p) { return p.name == name; });
    if (phase == report_.phases.end()) phase = report_.phases.insert(phase, PhaseMemory{name, 0, 0, {}});
    // What passes before the first allocation is not "before".
    PhaseMemory& passed = current_ == 0 ? *phase : report_.phases[current_];
    passed.seconds += seconds - since_;
    since_ = seconds;
    current_ = static_cast<std::size_t>(phase - report_.phases.begin());
    phase->peak_bytes = std::max(phase->peak_bytes, now_[0].total());
    phase->at_end = now_[0];
  }

  void end() {
    report_.phases[current_].seconds += record_.seconds - since_;
    report_.phases[current_].at_end = now_[0];
    for (std::size_t device = 0; device < now_.size(); ++device) report_.devices[device].after = now_[device];
    std::vector<std::size_t> run;
    for (std::size_t mark = 0; mark < modules_.size(); ++mark) {
      if (modules_[mark].order > 0) run.push_back(mark);
    }
    std::sort(run.begin(), run.end(), [&](auto a, auto b) { return modules_[a].order < modules_[b].order; });
    for (const std::size_t mark : run) {
      report_.modules.push_back(std::move(modules_[mark].memory));
      report_.modules.back().name = record_.marks[mark];
    }
  }

  const MemoryRecord& record_;
  MemoryReport& report_;
  std::vector<Life> blocks_;
  std::vector<MemoryByKind> now_;  // by device
  std::vector<Module> modules_;    // by mark
  std::vector<std::vector<std::size_t>> wholes_;
  std::vector<Visit> visits_;
  std::size_t modules_run_ = 0;
  std::size_t current_ = 0;  // index into the report's phases
  double since_ = 0;
};

}  // namespace

void sweep(const MemoryRecord& record, MemoryReport& report) { Sweep(record, report).run(); }

}  // namespace saturate::detail
