// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/gpu_state.hpp"

#include "../audit/text.hpp"
#include "../distributed/nvml.hpp"
#include "../distributed/nvml_library.hpp"
#include "cuda_driver.hpp"

#include <array>
#include <cstdlib>
#include <utility>

namespace saturate {

using distributed::detail::nvml_success;
using distributed::detail::NvmlDevice;

namespace {

// nvml.h's declarations, of what is used here.
struct NvmlUtilization {
  unsigned int gpu, memory;  // percent
};
struct NvmlMemory {
  unsigned long long total, free, used;
};
constexpr int nvml_not_supported = 3;
constexpr unsigned int nvml_clock_sm = 1, nvml_clock_memory = 2, nvml_temperature_gpu = 0;
constexpr unsigned long long nvml_idle = 0x1;

struct ThrottleReason {
  unsigned long long bit;
  const char* name;
};
// nvmlClocksEventReason...; older headers say ThrottleReason.
constexpr std::array<ThrottleReason, 8> throttle_bits = {{{0x2, "clocks set by an administrator"},
                                                          {0x4, "power cap"},
                                                          {0x8, "slowdown (hardware)"},
                                                          {0x10, "sync boost with other GPUs"},
                                                          {0x20, "thermal slowdown (driver)"},
                                                          {0x40, "thermal slowdown (hardware)"},
                                                          {0x80, "power brake (hardware)"},
                                                          {0x100, "display clocks"}}};

std::string nvml_library_name(const std::string& library) {
  if (!library.empty()) return library;
  const char* set = std::getenv("SATURATE_NVML");
  return set != nullptr && *set != '\0' ? set : "libnvidia-ml.so.1";
}

}  // namespace

/// Functions that a driver lacks are null, and what they would say is left out.
struct GpuMonitor::Library {
  std::string file;
  distributed::detail::NvmlLibrary nvml;
  int (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*clock)(NvmlDevice, unsigned int, unsigned int*) = nullptr;
  int (*max_clock)(NvmlDevice, unsigned int, unsigned int*) = nullptr;
  int (*reasons)(NvmlDevice, unsigned long long*) = nullptr;
  int (*temperature)(NvmlDevice, unsigned int, unsigned int*) = nullptr;
  int (*power)(NvmlDevice, unsigned int*) = nullptr;
  int (*power_limit)(NvmlDevice, unsigned int*) = nullptr;
  const char* (*error_text)(int) = nullptr;

  explicit Library(std::string name) : file(std::move(name)), nvml(file) {
    if (!nvml.ready()) return;
    nvml.find(utilization, "nvmlDeviceGetUtilizationRates");
    nvml.find(memory, "nvmlDeviceGetMemoryInfo");
    nvml.find(clock, "nvmlDeviceGetClockInfo");
    nvml.find(max_clock, "nvmlDeviceGetMaxClockInfo");
    const bool newer = nvml.find(reasons, "nvmlDeviceGetCurrentClocksEventReasons");
    if (!newer) nvml.find(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    nvml.find(temperature, "nvmlDeviceGetTemperature");
    nvml.find(power, "nvmlDeviceGetPowerUsage");
    nvml.find(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    nvml.find(error_text, "nvmlErrorString");
  }

  std::string describe(int error) const {
    const char* text = error_text == nullptr ? nullptr : error_text(error);
    return text == nullptr ? "error " + std::to_string(error) : text;
  }

  /// Whether the call filled its last argument; an error other than "not supported" is told.
  template <class... Parameters, class... Arguments>
  bool ask(GpuState& state, const char* what, int (*function)(Parameters...), Arguments... arguments) const {
    if (function == nullptr) return false;
    const int error = function(arguments...);
    if (error == nvml_success) return true;
    if (error != nvml_not_supported) state.errors.push_back(std::string(what) + ": " + describe(error));
    return false;
  }

  void read_use(NvmlDevice device, GpuState& state) const {
    NvmlUtilization use{};
    if (ask(state, "utilization", utilization, device, &use)) {
      state.busy = use.gpu / 100.0;
      state.memory_busy = use.memory / 100.0;
    }
    NvmlMemory bytes{};
    if (ask(state, "memory", memory, device, &bytes)) {
      state.memory_used_bytes = static_cast<int64_t>(bytes.used);
      state.memory_total_bytes = static_cast<int64_t>(bytes.total);
    }
  }

  void read_clocks(NvmlDevice device, GpuState& state) const {
    unsigned int mhz = 0;
    if (ask(state, "SM clock", clock, device, nvml_clock_sm, &mhz)) state.sm_clock_mhz = mhz;
    if (ask(state, "highest SM clock", max_clock, device, nvml_clock_sm, &mhz)) state.max_sm_clock_mhz = mhz;
    if (ask(state, "memory clock", clock, device, nvml_clock_memory, &mhz)) state.memory_clock_mhz = mhz;
    if (ask(state, "highest memory clock", max_clock, device, nvml_clock_memory, &mhz)) {
      state.max_memory_clock_mhz = mhz;
    }
    unsigned long long bits = 0;
    if (!ask(state, "throttle reasons", reasons, device, &bits)) return;
    state.idle = (bits & nvml_idle) != 0;
    for (const ThrottleReason& reason : throttle_bits) {
      if ((bits & reason.bit) != 0) state.throttle_reasons.emplace_back(reason.name);
    }
  }

  void read_heat(NvmlDevice device, GpuState& state) const {
    unsigned int value = 0;
    if (ask(state, "temperature", temperature, device, nvml_temperature_gpu, &value)) state.temperature_celsius = value;
    if (ask(state, "power", power, device, &value)) state.power_watts = value / 1e3;
    if (ask(state, "power limit", power_limit, device, &value)) state.power_limit_watts = value / 1e3;
  }

  GpuState read(unsigned int index) const {
    GpuState state;
    state.name = "GPU";
    NvmlDevice device = nullptr;
    if (!ask(state, "device", nvml.device_at, index, &device)) return state;
    char text[96] = "";
    if (ask(state, "name", nvml.name_of, device, +text, static_cast<unsigned int>(sizeof text))) state.name = text;
    distributed::detail::NvmlPci pci{};
    if (ask(state, "PCI address", nvml.pci_of, device, &pci)) {
      state.pci_address = distributed::detail::sysfs_address(pci.bus_id);
    }
    read_use(device, state);
    read_clocks(device, state);
    read_heat(device, state);
    return state;
  }
};

GpuMonitor::GpuMonitor(const std::string& library) : library_(std::make_unique<Library>(nvml_library_name(library))) {}
GpuMonitor::~GpuMonitor() = default;
GpuMonitor::GpuMonitor(GpuMonitor&&) noexcept = default;
GpuMonitor& GpuMonitor::operator=(GpuMonitor&&) noexcept = default;

GpuStates GpuMonitor::read() const {
  GpuStates states;
  const auto& nvml = library_->nvml;
  if (!nvml.ready()) {
    states.about = "no " + library_->file + ": " + nvml.why_not();
    return states;
  }
  char version[96] = "unknown";
  nvml.driver_version(version, sizeof version);
  states.about = std::string("driver ") + version;
  unsigned int gpus = 0;
  const int error = nvml.count(&gpus);
  if (error != nvml_success) {
    states.about += ", whose GPUs cannot be counted: " + library_->describe(error);
    return states;
  }
  states.available = true;
  for (unsigned int i = 0; i < gpus; ++i) states.gpus.push_back(library_->read(i));
  return states;
}

GpuStates read_gpu_states(const std::string& library) { return GpuMonitor(library).read(); }

const GpuState* GpuStates::cuda(int index) const {
  if (gpus.empty()) return nullptr;
  const std::string address = detail::cuda_device(index).pci_address;
  for (const GpuState& gpu : gpus) {
    if (!address.empty() && gpu.pci_address == address) return &gpu;
  }
  return nullptr;
}

std::string GpuStates::table() const {
  using audit::text::format;
  if (!available) return about + "\n";
  const auto of = [](const auto& value, const auto& limit, double unit, const char* name) {
    const std::string now = value ? audit::text::number(static_cast<double>(*value) / unit) : "?";
    return limit ? now + " of " + audit::text::number(static_cast<double>(*limit) / unit) + " " + name
                 : now + " " + name;
  };
  std::string text = about + "\n";
  for (const GpuState& gpu : gpus) {
    text += gpu.name + " " + gpu.pci_address + "\n";
    text += "  busy " + (gpu.busy ? audit::text::percent(*gpu.busy) : "?") + ", memory " +
            of(gpu.memory_used_bytes, gpu.memory_total_bytes, 1 << 30, "GiB") + ", clock " +
            of(gpu.sm_clock_mhz, gpu.max_sm_clock_mhz, 1, "MHz") + ", " +
            (gpu.temperature_celsius ? format("%lld", static_cast<long long>(*gpu.temperature_celsius)) : "?") +
            " °C, " + of(gpu.power_watts, gpu.power_limit_watts, 1, "W") + (gpu.idle ? ", idle" : "") + "\n";
    if (!gpu.throttle_reasons.empty()) text += "  slowed by: " + audit::text::join(gpu.throttle_reasons) + "\n";
    for (const std::string& error : gpu.errors) text += "  " + error + "\n";
  }
  return text;
}

}  // namespace saturate
