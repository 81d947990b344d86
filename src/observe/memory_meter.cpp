// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/memory_meter.hpp"

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Logging.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "saturate/error.hpp"
#include "saturate/host_memory.hpp"

namespace saturate {
namespace {

namespace profiler = torch::profiler::impl;

c10::Device with_index(c10::Device device) {
  return device.is_cpu() ? c10::Device(c10::kCPU) : c10::Device(device.type(), device.has_index() ? device.index() : 0);
}

// LibTorch casts whatever sits in the slot PROFILER_STATE to ProfilerStateBase without asking, so that is what this is:
// a profiler state that is disabled but for memory.
class Ledger final : public profiler::ProfilerStateBase {
 public:
  explicit Ledger(Ledger* outer, std::function<void(const MemoryEvent&)> listener = {})
      : ProfilerStateBase(profiler::ProfilerConfig(profiler::ProfilerState::Disabled)),
        outer_(outer),
        listener_(std::move(listener)) {}

  bool memoryProfilingEnabled() const override { return true; }
  profiler::ActiveProfilerType profilerType() override { return profiler::ActiveProfilerType::NONE; }

  void reportMemoryUsage(void* block, int64_t size, size_t allocated, size_t reserved, c10::Device device) override {
    {
      const std::lock_guard lock(mutex_);
      size > 0 ? allocate(block, size, with_index(device)) : release(block, with_index(device));
    }
    if (outer_ != nullptr) outer_->reportMemoryUsage(block, size, allocated, reserved, device);
  }

  MemoryCounts counts(c10::Device device) const {
    const std::lock_guard lock(mutex_);
    const auto found = devices_.find(key(with_index(device)));
    return found == devices_.end() ? MemoryCounts{} : found->second.counts;
  }

  void adopt(void* block, int64_t size, c10::Device device) {
    const std::lock_guard lock(mutex_);
    if (devices_[key(device)].alive.count(block) == 0) allocate(block, size, device, /*tell=*/false);
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    for (auto& entry : devices_) entry.second.counts.peak_bytes = entry.second.counts.bytes;
  }

 private:
  struct Account {
    MemoryCounts counts;
    std::unordered_map<void*, int64_t> alive;
  };

  static std::pair<int, int> key(c10::Device device) { return {static_cast<int>(device.type()), device.index()}; }

  void allocate(void* block, int64_t size, c10::Device device, bool tell = true) {
    auto& account = devices_[key(device)];
    auto& counts = account.counts;
    // An address that is handed out again was freed where this meter does not look.
    if (const auto stale = account.alive.find(block); stale != account.alive.end()) counts.bytes -= stale->second;
    account.alive[block] = size;
    counts.allocations += 1;
    counts.bytes += size;
    counts.peak_bytes = std::max(counts.peak_bytes, counts.bytes);
    counts.largest_block = std::max(counts.largest_block, size);
    if (listener_ && tell) listener_({block, size, device});
  }

  // The size that LibTorch reports for a free comes from a table of its own, which may hold an older block of the same
  // address: only what this meter saw allocated counts, with the size it saw.
  void release(void* block, c10::Device device) {
    auto& account = devices_[key(device)];
    const auto found = account.alive.find(block);
    if (found == account.alive.end()) return;
    auto& counts = account.counts;
    const int64_t size = found->second;
    account.alive.erase(found);
    counts.frees += 1;
    counts.bytes -= size;
    if (size <= host_memory::max_dynamic_threshold) {
      counts.largest_freed_small_block = std::max(counts.largest_freed_small_block, size);
    }
    if (listener_) listener_({block, -size, device});
  }

  mutable std::mutex mutex_;
  std::map<std::pair<int, int>, Account> devices_;
  Ledger* outer_;
  std::function<void(const MemoryEvent&)> listener_;
};

Ledger* running_ledger() {
  auto* current = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  if (current == nullptr) return nullptr;
  if (auto* ledger = dynamic_cast<Ledger*>(current)) return ledger;
  throw StateError(
      "MemoryMeter: LibTorch's profiler is running on this thread and holds the memory hook; end it first, or let it "
      "profile memory itself.");
}

// LibTorch logs a warning at the first free of a block that is older than the first meter, and then at each thousandth.
// The first one is brought about here, unheard, because it says nothing that a meter's user does not expect.
void quieten_first_warning() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto* allocator = c10::GetCPUAllocator();
    auto older = allocator->allocate(64);
    const int level = FLAGS_caffe2_log_level;
    FLAGS_caffe2_log_level = std::max(level, 2);  // errors
    {
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Ledger>(nullptr));
      older.clear();
    }
    FLAGS_caffe2_log_level = level;
  });
}

int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

c10::DeviceAllocator& allocator_of(c10::Device device) {
  auto* allocator = device.is_cpu() ? nullptr : dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr) {
    throw ConfigError("device_peak_bytes: the allocator of device " + device.str() +
                      " keeps no statistics; count the memory of the CPU with a MemoryMeter.");
  }
  return *allocator;
}

}  // namespace

struct MemoryMeter::Impl {
  explicit Impl(std::function<void(const MemoryEvent&)> listener)
      : ledger(std::make_shared<Ledger>(running_ledger(), std::move(listener))) {}

  std::shared_ptr<Ledger> ledger;
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, ledger};
};

MemoryMeter::MemoryMeter() : MemoryMeter(std::function<void(const MemoryEvent&)>()) {}
MemoryMeter::MemoryMeter(std::function<void(const MemoryEvent&)> listener) {
  running_ledger();  // throws before anything is set up
  quieten_first_warning();
  impl_ = std::make_unique<Impl>(std::move(listener));
}
MemoryMeter::~MemoryMeter() = default;

MemoryCounts MemoryMeter::counts(c10::Device device) const { return impl_->ledger->counts(device); }
void MemoryMeter::adopt(const void* block, int64_t bytes, c10::Device device) {
  impl_->ledger->adopt(const_cast<void*>(block), bytes, with_index(device));
}
void MemoryMeter::reset_peak() { impl_->ledger->reset_peak(); }

int64_t resident_peak_bytes() { return status_bytes("VmHWM"); }
int64_t resident_bytes() { return status_bytes("VmRSS"); }

bool reset_resident_peak() {
  std::ofstream clear("/proc/self/clear_refs");
  clear << '5' << std::flush;
  return clear.good();
}

int64_t device_peak_bytes(c10::Device device) {
  auto& allocator = allocator_of(device);
  if (!allocator.initialized()) return 0;
  const auto stats = allocator.getDeviceStats(with_index(device).index());
  return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}

void reset_device_peak(c10::Device device) {
  auto& allocator = allocator_of(device);
  if (allocator.initialized()) allocator.resetPeakStats(with_index(device).index());
}

}  // namespace saturate
