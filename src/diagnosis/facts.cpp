// SPDX-License-Identifier: Apache-2.0
#include "saturate/diagnosis/facts.hpp"

#include "saturate/error.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

namespace saturate {
namespace {

std::string number_text(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// 12.3 G: three digits, in steps of a thousand.
std::string scaled_text(double value, std::string_view unit) {
  static constexpr const char* prefixes[] = {"", "k", "M", "G", "T", "P"};
  std::size_t step = 0;
  for (; std::abs(value) >= 999.5 && step + 1 < std::size(prefixes); ++step) value /= 1000;
  return number_text(value < 9.995 && step > 0 ? "%.2f" : "%.3g", value) + " " + prefixes[step] + std::string(unit);
}

std::string seconds_text(double value) {
  if (value >= 1) return number_text("%.3g s", value);
  return value >= 1e-3 ? number_text("%.3g ms", value * 1e3) : number_text("%.3g us", value * 1e6);
}

}  // namespace

std::span<const FactInfo> all_facts() {
  using enum FactUnit;
  static constexpr auto table = std::to_array<FactInfo>({
      {"steps", &Facts::steps, count, "steps that were looked at", "trace"},
      {"step_seconds", &Facts::step_seconds, seconds, "a step, on average", "trace"},
      {"samples_per_step", &Facts::samples_per_step, count, "samples a step", "caller"},
      {"training", &Facts::training, yes_or_no, "steps have a backward pass", "trace"},
      {"devices", &Facts::devices, count, "GPUs of this process; 0: it computes on the CPU", "trace"},
      {"busy_share", &Facts::busy_share, share,
       "some kernel or copy runs; on the CPU: the thread that trains is in operators", "trace"},
      {"kernels_per_step", &Facts::kernels_per_step, count, "kernels a step", "trace"},
      {"small_kernel_share", &Facts::small_kernel_share, share, "kernels below 10 us, of all kernels", "trace"},
      {"launch_bound_share", &Facts::launch_bound_share, share,
       "the device has nothing to do, and the host is getting the next work under way", "trace"},
      {"late_launch_share", &Facts::late_launch_share, share,
       "kernels launched when their stream had nothing more to do, of all kernels", "trace"},
      {"own_code_share", &Facts::own_code_share, share,
       "the device (or, on the CPU, LibTorch) has nothing to do, and the host is in code that no event shows", "trace"},
      {"host_syncs_per_step", &Facts::host_syncs_per_step, count,
       "waits for the device and values read on the host, a step; copies of pageable memory apart", "trace"},
      {"sync_stall_share", &Facts::sync_stall_share, share,
       "the device has nothing to do because the host waited for it before going on", "trace"},
      {"pageable_copy_share", &Facts::pageable_copy_share, share,
       "copies between the device and pageable host memory, while no kernel runs", "trace"},
      {"driver_allocations_per_step", &Facts::driver_allocations_per_step, count, "cudaMalloc and cudaFree, a step",
       "trace"},
      {"driver_allocation_share", &Facts::driver_allocation_share, share, "the host is in cudaMalloc or cudaFree",
       "trace"},
      {"allocator_retries", &Facts::allocator_retries, count,
       "times a step that the device was full and the allocator emptied its cache", "memory report"},
      {"data_wait_share", &Facts::data_wait_share, share, "the step waits for the next batch", "trace"},
      {"loader_ceiling_ratio", &Facts::loader_ceiling_ratio, ratio,
       "batches a second of the loader alone, over steps a second without a loader", "loader ceiling"},
      {"flops_per_second", &Facts::flops_per_second, flops_per_second,
       "floating point operations of the step, a second", "trace"},
      {"compute_share", &Facts::compute_share, share_of_peak,
       "of the measured peak of matrix products in this precision", "measured peaks"},
      {"bandwidth_share", &Facts::bandwidth_share, share_of_peak, "of the measured memory bandwidth", "measured peaks"},
      {"fp32_gemm_share", &Facts::fp32_gemm_share, share, "matrix products and convolutions in full float32", "trace"},
      {"low_precision_speedup", &Facts::low_precision_speedup, ratio,
       "peak of the fastest of TF32, bfloat16, float16, over float32's", "measured peaks"},
      {"layout_conversion_share", &Facts::layout_conversion_share, share,
       "copies between NCHW and NHWC, and others that only change strides", "trace"},
      {"dtype_conversion_share", &Facts::dtype_conversion_share, share, "copies that only change the dtype", "trace"},
      {"optimizer_share", &Facts::optimizer_share, share, "the optimizer's step", "trace"},
      {"optimizer_ops_per_parameter", &Facts::optimizer_ops_per_parameter, count,
       "kernels (on the CPU: operators) of the optimizer, a parameter", "trace"},
      {"memory_peak_bytes", &Facts::memory_peak_bytes, bytes, "most memory in use", "memory report"},
      {"memory_peak_share", &Facts::memory_peak_share, share, "of the memory that there is", "memory report"},
      {"sixteen_bit", &Facts::sixteen_bit, yes_or_no, "autocast to float16 or bfloat16", "caller"},
      {"nonfinite_share", &Facts::nonfinite_share, share,
       "windows whose loss or gradients are NaN or inf, of all windows", "caller"},
      {"ranks", &Facts::ranks, count, "processes that train together", "trace"},
      {"exposed_communication_share", &Facts::exposed_communication_share, share,
       "communication that nothing else hides, and that is no waiting for a slower rank", "trace"},
      {"communication_overlap_share", &Facts::communication_overlap_share, share,
       "communication that computing hides, of all communication", "trace"},
      {"communication_bytes", &Facts::communication_bytes, bytes, "sent by a rank, a step", "trace"},
      {"collectives_per_step", &Facts::collectives_per_step, count, "collectives a step", "trace"},
      {"bytes_per_collective", &Facts::bytes_per_collective, bytes, "on average", "trace"},
      {"bus_bandwidth_share", &Facts::bus_bandwidth_share, share_of_peak,
       "bus bandwidth that is reached, of the measured one", "all-reduce probe"},
      {"scaling_efficiency", &Facts::scaling_efficiency, share_of_peak,
       "throughput of all ranks, over ranks times that of one alone", "caller"},
      {"straggler_share", &Facts::straggler_share, share, "the others wait for the slowest rank",
       "traces of all ranks"},
      {"cores", &Facts::cores, count, "that the process may use", "machine"},
      {"intra_op_threads", &Facts::intra_op_threads, count, "at::get_num_threads()", "caller"},
      {"threads_per_core", &Facts::threads_per_core, ratio, "intra-op threads of all processes of the machine, a core",
       "caller"},
      {"runnable_per_core", &Facts::runnable_per_core, ratio, "threads that want to run at once, on average, a core",
       "trace"},
      {"involuntary_switches_per_second", &Facts::involuntary_switches_per_second, per_second,
       "times a second that the kernel took a core away", "getrusage"},
      {"small_op_share", &Facts::small_op_share, share, "on the CPU: operators of less than 10 us of their own",
       "trace"},
  });
  static_assert(sizeof(Facts) == table.size() * sizeof(std::optional<double>) + sizeof(Facts::remarks) +
                                     2 * sizeof(std::string) + sizeof(Facts::sources),
                "every number of Facts has a row");
  return table;
}

const FactInfo& fact_info(FactMember member) {
  for (const FactInfo& info : all_facts()) {
    if (info.member == member) return info;
  }
  throw ConfigError("fact_info: no such number in Facts");
}

void Facts::validate() const {
  for (const FactInfo& info : all_facts()) {
    const std::optional<double>& value = this->*info.member;
    if (!value) continue;
    if (!std::isfinite(*value) || *value < 0) {
      throw ConfigError("Facts: " + std::string(info.name) + " is " + number_text("%g", *value) +
                        "; leave out what is not known");
    }
    const double most = info.unit == FactUnit::share || info.unit == FactUnit::yes_or_no ? 1
                        : info.unit == FactUnit::share_of_peak                           ? 2
                                                                                         : *value;
    if (*value > most) {
      throw ConfigError("Facts: " + std::string(info.name) + " is " + number_text("%g", *value) +
                        "; give a share from 0 to 1, not percent");
    }
  }
}

void Facts::take(const Facts& other) {
  for (const FactInfo& info : all_facts()) {
    if (other.*info.member) this->*info.member = other.*info.member;
  }
  for (const auto& [name, remark] : other.remarks) remarks[name] = remark;
  if (!other.device.empty()) device = other.device;
  if (!other.precision.empty()) precision = other.precision;
  sources.insert(sources.end(), other.sources.begin(), other.sources.end());
}

std::string in_words(double value, FactUnit unit) {
  using enum FactUnit;
  switch (unit) {
    case count: return number_text("%.4g", value);
    case share:
    case share_of_peak: return number_text("%.3g %%", 100 * value);
    case ratio: return number_text("%.3g x", value);
    case seconds: return seconds_text(value);
    case bytes: return scaled_text(value, "B");
    case per_second: return number_text("%.3g a second", value);
    case flops_per_second: return scaled_text(value, "FLOP/s");
    case yes_or_no: return value > 0.5 ? "yes" : "no";
  }
  return number_text("%g", value);
}

}  // namespace saturate
