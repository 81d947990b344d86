// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/peaks.hpp"

#include "../audit/text.hpp"
#include "cuda_driver.hpp"
#include "peaks_cache.hpp"
#include "saturate/audit/machine.hpp"
#include "saturate/distributed/bandwidth_probe.hpp"
#include "saturate/error.hpp"
#include "saturate/observe/free_memory.hpp"
#include "saturate/observe/timing.hpp"
#include "saturate/precision/tf32_scope.hpp"
#include "triad_loops.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

namespace saturate {
namespace {

using audit::text::format;

struct PeakPrecision {
  const char* name;
  at::ScalarType dtype;
  bool cuda_only;
};
constexpr std::array<PeakPrecision, 5> peak_precisions = {{{"float64", at::kDouble, false},
                                                           {"float32", at::kFloat, false},
                                                           {"tf32", at::kFloat, true},
                                                           {"bfloat16", at::kBFloat16, false},
                                                           {"float16", at::kHalf, false}}};

const PeakPrecision* peak_precision(std::string_view name) {
  const auto* found =
      std::find_if(peak_precisions.begin(), peak_precisions.end(), [&](const auto& p) { return name == p.name; });
  return found == peak_precisions.end() ? nullptr : found;
}

std::vector<std::string> peak_precision_names(c10::Device device) {
  std::vector<std::string> names;
  for (const PeakPrecision& precision : peak_precisions) {
    if (!precision.cuda_only || device.is_cuda()) names.emplace_back(precision.name);
  }
  return names;
}

c10::Device indexed_peak_device(c10::Device device) {
  return device.is_cuda() && !device.has_index() ? c10::Device(device.type(), 0) : device;
}

// One quantity -------------------------------------------------------------------------------------------------------

/// One thing that can be run again and again, and what a run does (floating point operations, or bytes).
struct PeakRun {
  std::function<void()> run;
  double work = 0;
};

struct PeakCandidate {
  int64_t size = 0;
  PeakRun what;
  double rate = 0;  // best so far, work a second
};

/// On the clock of the device's stream, where it has one.
double seconds_of_run(c10::Device device, const std::function<void()>& run) {
  if (device.is_cpu()) {
    const Stopwatch watch;
    run();
    return watch.seconds();
  }
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  run();
  end.record(stream);
  end.synchronize();
  return 1e-3 * begin.elapsedTime(end);
}

/// One quantity: what it runs at each size, and those that may be the fastest.
struct PeakJob {
  std::string what;
  std::vector<int64_t> sizes;
  double growth = 1;  // a size takes so many times as long as the one before
  std::function<PeakRun(int64_t)> make;
  bool tf32 = false;
  std::vector<PeakCandidate> candidates = {};
  std::size_t next = 0;

  const PeakCandidate& best() const {
    return *std::max_element(candidates.begin(), candidates.end(),
                             [](const auto& a, const auto& b) { return a.rate < b.rate; });
  }
};

void time_candidate(c10::Device device, PeakCandidate& candidate) {
  const double seconds = std::max(seconds_of_run(device, candidate.what.run), 1e-9);
  candidate.rate = std::max(candidate.rate, candidate.what.work / seconds);
}

void time_again(c10::Device device, PeakJob& job) {
  const Tf32Scope tf32(job.tf32);
  time_candidate(device, job.candidates[job.next++ % job.candidates.size()]);
}

/// Tries sizes until the next one would use up the time. Those that come near the best stay: another program may have
/// been running during some of them.
void find_sizes(c10::Device device, PeakJob& job, double budget) {
  const Tf32Scope tf32(job.tf32);
  const Stopwatch watch;
  for (const int64_t size : job.sizes) {
    try {
      PeakCandidate candidate{size, job.make(size)};
      candidate.what.run();  // threads, pages, the library's own preparations
      for (int i = 0; i < 3; ++i) time_candidate(device, candidate);
      job.candidates.push_back(std::move(candidate));
    } catch (const c10::Error&) {
      if (job.candidates.empty()) throw;
      break;  // no room for this one
    }
    const double of_next = job.growth * job.candidates.back().what.work / job.candidates.back().rate;
    if (watch.seconds() + 4 * of_next > budget) break;
  }
  const double near = 0.7 * job.best().rate;
  std::erase_if(job.candidates, [&](const PeakCandidate& candidate) { return candidate.rate < near; });
}

// What is run -------------------------------------------------------------------------------------------------------

PeakRun gemm_run(c10::Device device, at::ScalarType dtype, int64_t n) {
  const auto options = at::TensorOptions(device).dtype(dtype);
  // Not zeros: a GPU multiplies those with less power, and so faster, than what a model holds.
  const at::Tensor a = at::randn({n, n}, at::TensorOptions(device)).to(dtype), b = a.clone();
  at::Tensor out = at::empty({n, n}, options);
  const double size = static_cast<double>(n);
  return {[a, b, out]() mutable { at::mm_out(out, a, b); }, 2 * size * size * size};
}

/// Threads that wait for the next run, so that starting them is not measured; each touches first what it then works on.
class TriadThreads {
 public:
  TriadThreads(int64_t elements, int threads) : done_(threads + 1), ready_(threads + 1) {
    for (at::Tensor* array : {&b_, &c_, &out_}) *array = at::empty({elements}, at::kFloat);
    for (int t = 0; t < threads; ++t) {
      // Whole cache lines, so that no two threads write to one.
      const int64_t begin = elements * t / threads / 16 * 16;
      const int64_t end = t + 1 == threads ? elements : elements * (t + 1) / threads / 16 * 16;
      threads_.emplace_back([this, begin, end] { work(begin, end); });
    }
    ready_.arrive_and_wait();  // for their pages
    done_.arrive_and_wait();
  }
  ~TriadThreads() {
    stop_ = true;
    ready_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }
  TriadThreads(const TriadThreads&) = delete;
  TriadThreads& operator=(const TriadThreads&) = delete;

  void run() {
    ready_.arrive_and_wait();
    done_.arrive_and_wait();
  }

 private:
  void work(int64_t begin, int64_t end) {
    const float *b = b_.const_data_ptr<float>() + begin, *c = c_.const_data_ptr<float>() + begin;
    float* out = out_.mutable_data_ptr<float>() + begin;
    std::fill(b_.mutable_data_ptr<float>() + begin, b_.mutable_data_ptr<float>() + end, 1.0f);
    std::fill(c_.mutable_data_ptr<float>() + begin, c_.mutable_data_ptr<float>() + end, 2.0f);
    std::fill(out, out + (end - begin), 0.0f);
    for (ready_.arrive_and_wait(); !stop_; ready_.arrive_and_wait()) {
      triad_loops::best().triad(end - begin, 3, b, c, out);
      done_.arrive_and_wait();
    }
  }

  at::Tensor b_, c_, out_;
  std::barrier<> done_, ready_;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

PeakRun triad_run(c10::Device device, int64_t bytes) {
  const int64_t n = bytes / 4;
  const double moved = 12 * static_cast<double>(n);
  if (device.is_cpu()) {
    const auto threads = std::make_shared<TriadThreads>(n, at::get_num_threads());
    return {[threads] { threads->run(); }, moved};
  }
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const at::Tensor b = at::full({n}, 1.0, options), c = at::full({n}, 2.0, options);
  at::Tensor out = at::empty({n}, options);
  return {[=]() mutable { at::add_out(out, b, c, 3); }, moved};
}

PeakRun transfer_run(c10::Device device, bool pinned, int64_t bytes) {
  const at::Tensor host = at::full({bytes}, 1, at::TensorOptions().dtype(at::kByte));
  const at::Tensor from = pinned ? host.pin_memory() : host;
  const at::Tensor to = at::empty({bytes}, at::TensorOptions(device).dtype(at::kByte));
  return {[=] { to.copy_(from, /*non_blocking=*/pinned); }, static_cast<double>(bytes)};
}

// Of the last level of CPU 0, and 32 MiB where the system does not tell.
int64_t largest_cache_bytes() {
  int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file(format("/sys/devices/system/cpu/cpu0/cache/index%d/size", index));
    int64_t size = 0;
    char unit = ' ';
    if (!(file >> size)) continue;
    file >> unit;
    largest = std::max(largest, size * (unit == 'K' ? 1 << 10 : unit == 'M' ? 1 << 20 : 1));
  }
  return largest > 0 ? largest : 32 << 20;
}

// Bytes of each array: the three together are at least four times the cache, as STREAM asks, unless memory is short.
std::vector<int64_t> triad_sizes(c10::Device device) {
  const int64_t cache = device.is_cpu() ? largest_cache_bytes() : int64_t{192} << 20;
  const int64_t first = std::max<int64_t>(64 << 20, 4 * cache / 3), most = free_memory_bytes(device) / 16;
  std::vector<int64_t> sizes;
  for (int64_t size = first; sizes.size() < 2; size *= 2) {
    if (size > most && !sizes.empty()) break;
    sizes.push_back(std::max<int64_t>(std::min(size, most), 1 << 20) / 64 * 64);
  }
  return sizes;
}

std::vector<int64_t> gemm_sizes(c10::Device device) {
  if (device.is_cpu()) return {256, 512, 1024, 2048, 4096};
  return {1024, 2048, 4096, 8192, 16384};
}

// Whole measurements ------------------------------------------------------------------------------------------------

std::vector<PeakJob> jobs_of(c10::Device device, const std::vector<std::string>& precisions) {
  std::vector<PeakJob> jobs;
  jobs.push_back({"memory", triad_sizes(device), 2, [=](int64_t n) { return triad_run(device, n); }});
  for (const bool pinned : {true, false}) {
    if (!device.is_cuda()) break;
    jobs.push_back({pinned ? "pinned" : "pageable", {16 << 20, 64 << 20, 256 << 20}, 4, [=](int64_t n) {
                      return transfer_run(device, pinned, n);
                    }});
  }
  for (const std::string& name : precisions) {
    const PeakPrecision& precision = *peak_precision(name);
    jobs.push_back({name, gemm_sizes(device), 8,
                    [device, dtype = precision.dtype](int64_t n) { return gemm_run(device, dtype, n); },
                    name == "tf32"});
  }
  return jobs;
}

// What this machine does not do, or has no room for, is left out with a note.
void drop_what_fails(std::vector<PeakJob>& jobs, std::vector<std::string>& notes, const auto& use) {
  std::erase_if(jobs, [&](PeakJob& job) {
    try {
      use(job);
      return false;
    } catch (const c10::Error& error) {
      notes.push_back(job.what + " was not measured: " + audit::text::first_line(error.what_without_backtrace()));
      return true;
    }
  });
}

void note_rate(Peaks& peaks, const PeakJob& job) {
  const PeakCandidate& best = job.best();
  if (job.what == "memory") {
    peaks.memory_bandwidth = best.rate;
  } else if (job.what == "pinned") {
    peaks.host_to_device_pinned = best.rate;
  } else if (job.what == "pageable") {
    peaks.host_to_device_pageable = best.rate;
  } else {
    peaks.gemm.push_back({job.what, best.rate, best.size});
  }
}

/// Half of the time finds sizes; in the other half all take turns, so that a moment in which another program was
/// running spoils no single number.
Peaks measure_now(c10::Device device, const std::vector<std::string>& precisions, double seconds) {
  const at::NoGradGuard no_grad;
  const c10::DeviceGuard guard(device);
  const Stopwatch watch;
  Peaks peaks;
  peaks.device = device.str();
  std::vector<PeakJob> jobs = jobs_of(device, precisions);
  const double share = seconds / 2 / static_cast<double>(jobs.size());
  drop_what_fails(jobs, peaks.notes, [&](PeakJob& job) { find_sizes(device, job, share); });
  do {
    drop_what_fails(jobs, peaks.notes, [&](PeakJob& job) { time_again(device, job); });
  } while (watch.seconds() < seconds && !jobs.empty());
  for (const PeakJob& job : jobs) note_rate(peaks, job);
  return peaks;
}

std::string machine_text(c10::Device device) {
  const audit::Machine machine = audit::read_machine();
  if (device.is_cuda()) {
    const std::string name = detail::cuda_device(indexed_peak_device(device).index()).name;
    return (name.empty() ? "unknown GPU" : name) + ", LibTorch " + machine.libtorch;
  }
  // Virtual machines call different CPUs the same; what they can do tells them apart.
  std::string text = machine.cpu;
  for (const std::string& isa : machine.isa) text += " " + isa;
  return text +
         format(", %lld cores, %lld threads, LibTorch ", static_cast<long long>(machine.logical_cores),
                static_cast<long long>(machine.threads)) +
         machine.libtorch;
}

std::string rate_text(double rate, double unit, const char* name) {
  return rate > 0 ? audit::text::number(rate / unit) + " " + name : "not measured";
}

bool holds_all(const Peaks& peaks, const std::vector<std::string>& precisions) {
  return std::all_of(precisions.begin(), precisions.end(), [&](const auto& name) { return peaks.flops(name); });
}

}  // namespace

void PeakOptions::validate() const {
  if (!device.is_cpu() && !device.is_cuda()) {
    throw ConfigError("PeakOptions: peaks of device " + device.str() + " cannot be measured; give the CPU or CUDA");
  }
  if (device.is_cuda() && !at::hasCUDA()) {
    throw ConfigError("PeakOptions: device " + device.str() + " is not there: LibTorch sees no GPU; give the CPU");
  }
  for (const std::string& name : precisions) {
    const PeakPrecision* known = peak_precision(name);
    if (known == nullptr || (known->cuda_only && !device.is_cuda())) {
      throw ConfigError("PeakOptions: no precision '" + name + "' on device " + device.str() + "; give one of " +
                        audit::text::join(peak_precision_names(device), " or "));
    }
  }
  if (!(seconds > 0) || !std::isfinite(seconds)) {
    throw ConfigError(format("PeakOptions: seconds is %g; give more than 0", seconds));
  }
}

std::optional<double> Peaks::flops(std::string_view precision) const {
  for (const GemmPeak& peak : gemm) {
    if (peak.precision == precision) return peak.flops;
  }
  return std::nullopt;
}

std::string Peaks::table() const {
  std::string text = "peaks of " + device + " (" + machine + (from_cache ? ", measured before)\n" : ")\n");
  for (const GemmPeak& peak : gemm) {
    text += format("  %-22s %s, n = %lld\n", ("matrix product " + peak.precision).c_str(),
                   rate_text(peak.flops, 1e9, "GFLOP/s").c_str(), static_cast<long long>(peak.size));
  }
  const auto line = [&](const char* name, double rate) {
    text += format("  %-22s %s\n", name, rate_text(rate, 1e9, "GB/s").c_str());
  };
  line("memory (triad)", memory_bandwidth);
  if (device != "cpu") {
    line("host, pinned", host_to_device_pinned);
    line("host, pageable", host_to_device_pageable);
  }
  if (ranks > 1) line(format("all-reduce, %d ranks", ranks).c_str(), all_reduce_bus_bandwidth);
  for (const std::string& note : notes) text += "  " + note + "\n";
  return text;
}

Peaks measure_peaks(const PeakOptions& options) {
  options.validate();
  const std::vector<std::string> precisions =
      options.precisions.empty() ? peak_precision_names(options.device) : options.precisions;
  const std::string machine = machine_text(options.device);
  std::string path, note;
  if (options.use_cache) {
    path = detail::peaks_file(options.cache_folder, machine);
    auto cached = detail::read_peaks(path, machine);
    // Asked for all, it takes what there is: a precision may be one that this machine cannot do.
    if (cached.peaks && (options.precisions.empty() || holds_all(*cached.peaks, precisions))) {
      cached.peaks->device = indexed_peak_device(options.device).str();
      return *std::move(cached.peaks);
    }
    note = cached.peaks ? path + " lacks a precision: measured anew" : cached.note;
  }
  Peaks peaks = measure_now(indexed_peak_device(options.device), precisions, options.seconds);
  peaks.machine = machine;
  if (!note.empty()) peaks.notes.push_back(note);
  try {
    if (options.use_cache) detail::write_peaks(path, peaks);
  } catch (const Error& error) {
    peaks.notes.push_back(std::string("not kept: ") + error.what());
  }
  return peaks;
}

Peaks measure_peaks(const distributed::ProcessGroup& group, const PeakOptions& options) {
  std::optional<Peaks> peaks;
  for (int turn = 0; turn < group.world_size(); ++turn) {
    std::string failed;
    if (turn == group.rank()) {
      try {
        peaks = measure_peaks(options);
      } catch (const std::exception& error) {
        failed = error.what();
      }
    }
    // Also what the others wait with.
    const std::string reason = group.gather_text(failed)[static_cast<std::size_t>(turn)];
    if (!reason.empty()) throw ConfigError(format("rank %d: ", turn) + reason);
  }
  return *std::move(peaks);
}

void add_all_reduce(Peaks& peaks, const distributed::ProcessGroup& group, const distributed::ProbeOptions& options) {
  const auto probe = distributed::probe_all_reduce(group, options);
  peaks.ranks = probe.ranks;
  peaks.all_reduce_bus_bandwidth = 0;
  for (const auto& size : probe.sizes) {
    peaks.all_reduce_bus_bandwidth = std::max(peaks.all_reduce_bus_bandwidth, size.bus_bandwidth);
  }
}

void add_all_reduce(Peaks& peaks, const distributed::ProcessGroup& group) { add_all_reduce(peaks, group, {}); }

}  // namespace saturate
