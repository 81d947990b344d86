// SPDX-License-Identifier: Apache-2.0
// A memory report as text.
#include "../audit/text.hpp"
#include "saturate/observe/memory_report.hpp"

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

namespace saturate {
namespace {

namespace text = audit::text;

std::string size(int64_t bytes) { return bytes == 0 ? "0" : text::bytes(bytes); }

// Characters, not bytes.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// First column to the left, the others to the right.
class Table {
 public:
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  void print(std::ostream& out) const {
    std::vector<std::size_t> widths(rows_.front().size());
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
    }
    for (const auto& row : rows_) {
      std::string line = "  " + row[0] + std::string(widths[0] - width(row[0]), ' ');
      for (std::size_t i = 1; i < row.size(); ++i) line += std::string(widths[i] - width(row[i]) + 2, ' ') + row[i];
      out << line.substr(0, line.find_last_not_of(' ') + 1) << '\n';
    }
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

void print_kinds(std::ostream& out, const DeviceMemory& memory) {
  Table table;
  table.row({"", "before", "at the peak", "its own peak", "after"});
  const auto row = [&](const char* name, int64_t before, int64_t at_peak, int64_t peak, int64_t after) {
    table.row({name, size(before), size(at_peak), size(peak), size(after)});
  };
  for (std::size_t k = 0; k < memory_kinds; ++k) {
    row(to_string(static_cast<MemoryKind>(k)), memory.before.bytes[k], memory.at_peak.bytes[k], memory.peak.bytes[k],
        memory.after.bytes[k]);
  }
  row("total", memory.before.total(), memory.at_peak.total(), memory.at_peak.total(), memory.after.total());
  table.print(out);
}

void print_allocator(std::ostream& out, const AllocatorState& state) {
  out << "  allocator: " << size(state.reserved_bytes) << " reserved, " << size(state.unused_bytes())
      << " of it not in use (" << size(state.inactive_split_bytes) << " in fragments); " << state.retries
      << " retries, out of memory " << state.out_of_memory << " times\n";
}

void print_device(std::ostream& out, const DeviceMemory& memory) {
  out << memory.device << ": " << size(memory.peak_bytes()) << " at the peak, " << memory.allocations
      << " allocations\n";
  print_kinds(out, memory);
  if (memory.allocator) print_allocator(out, *memory.allocator);
}

void print_phases(std::ostream& out, const std::vector<PhaseMemory>& phases) {
  Table table;
  table.row({"phase", "time", "peak", "at its end"});
  for (const PhaseMemory& phase : phases) {
    const bool timed = phase.seconds > 0;
    table.row(
        {phase.name, timed ? text::seconds(phase.seconds) : "", size(phase.peak_bytes), size(phase.at_end.total())});
  }
  table.print(out);
}

void print_modules(std::ostream& out, const std::vector<ModuleMemory>& modules) {
  Table table;
  table.row({"part", "activations", "without its parts", "peak of its forward"});
  for (const ModuleMemory& module : modules) {
    table.row({module.name.empty() ? "(no mark)" : module.name, size(module.activations), size(module.own_activations),
               module.name.empty() ? "" : size(module.forward_peak)});
  }
  table.print(out);
}

}  // namespace

void MemoryReport::print(std::ostream& out) const {
  out << "Memory of one step, " << text::seconds(timeline.seconds) << "\n\n";
  for (const DeviceMemory& memory : devices) {
    print_device(out, memory);
    out << '\n';
  }
  print_phases(out, phases);
  if (!modules.empty()) {
    out << '\n';
    print_modules(out, modules);
  }
  out << "\n  process: " << size(resident_bytes) << " resident, " << size(resident_peak_bytes) << " at most so far";
  if (slot_bytes > 0) out << "; a loader's batch slots: " << size(slot_bytes) << " of host memory";
  out << '\n';
  if (!saved_tensors_known) out << "  Activations are part of workspace: Python's autograd engine runs.\n";
  if (!optimizer_state_known) out << "  The optimizer does not name its state.\n";
}

}  // namespace saturate
