// SPDX-License-Identifier: Apache-2.0
// What the GPUs of this machine are doing right now, as nvidia-smi says it:
//
//   st::GpuStates now = st::read_gpu_states();
//   std::cout << now.table();                    // or why there is nothing to say: no driver here
//
// NVML is loaded when it is asked, so programs run without a driver.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace saturate {

/// Nothing stands for what the device or this driver does not tell.
struct GpuState {
  std::string name;         ///< "NVIDIA H100 80GB HBM3"
  std::string pci_address;  ///< as sysfs spells it: "0000:3b:00.0"
  /// Share of the last sampling period (1/6 s to 1 s) in which any kernel ran, 0 to 1: not how much of the device.
  std::optional<double> busy;
  std::optional<double> memory_busy;  ///< share of that period in which device memory was read or written
  std::optional<int64_t> memory_used_bytes, memory_total_bytes;
  std::optional<int64_t> sm_clock_mhz, max_sm_clock_mhz;
  std::optional<int64_t> memory_clock_mhz, max_memory_clock_mhz;
  std::optional<int64_t> temperature_celsius;
  std::optional<double> power_watts, power_limit_watts;
  /// Why clocks are lower than they could be: "power cap", "thermal slowdown (hardware)", ...; empty when they are not.
  /// Idling is left out.
  std::vector<std::string> throttle_reasons;
  bool idle = false;                ///< clocks are low because nothing runs
  std::vector<std::string> errors;  ///< what could not be read though it is supported: "temperature: GPU is lost"
};

struct GpuStates {
  std::string about;  ///< "driver 580.65", or why there is none: "no libnvidia-ml.so.1: it is not there"
  bool available = false;
  std::vector<GpuState> gpus;  ///< in NVML's order: by PCI address, whatever CUDA_VISIBLE_DEVICES says

  /// The GPU of LibTorch's device `index`, matched by PCI address; nullptr: not known.
  const GpuState* cuda(int index) const;
  std::string table() const;
};

/// Keeps NVML open, for whoever reads often (loading it takes milliseconds). Never throws.
class GpuMonitor {
 public:
  /// @param library empty: $SATURATE_NVML, else "libnvidia-ml.so.1".
  explicit GpuMonitor(const std::string& library = {});
  ~GpuMonitor();
  GpuMonitor(GpuMonitor&&) noexcept;
  GpuMonitor& operator=(GpuMonitor&&) noexcept;

  GpuStates read() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

/// Once.
GpuStates read_gpu_states(const std::string& library = {});

}  // namespace saturate
