// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/machine.hpp"

#include <ATen/Parallel.h>
#include <sched.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

namespace saturate::audit {
namespace {

// The value behind "key : value" of the first line that starts with the key.
std::string field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const auto colon = line.find(':');
    const auto start = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    if (start == std::string::npos) continue;
    return line.substr(start, line.find_last_not_of(" \t") + 1 - start);
  }
  return {};
}

// Those that decide how fast LibTorch's CPU kernels are, as the kernel spells them (arm: asimd, bf16, sve).
std::vector<std::string> training_isa(const std::string& flags) {
  static const std::vector<std::string> wanted = {"avx2",        "fma",         "f16c",     "avx512f",  "avx512_bf16",
                                                  "avx512_vnni", "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16",
                                                  "amx_int8",    "asimd",       "sve",      "bf16"};
  std::istringstream words(flags);
  const std::vector<std::string> has{std::istream_iterator<std::string>(words), {}};
  std::vector<std::string> result;
  std::copy_if(wanted.begin(), wanted.end(), std::back_inserter(result),
               [&](const std::string& flag) { return std::find(has.begin(), has.end(), flag) != has.end(); });
  return result;
}

int64_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int64_t>(std::thread::hardware_concurrency());
}

std::string kernel_release() {
  utsname name{};
  if (uname(&name) != 0) return "unknown";
  return std::string(name.sysname) + " " + name.release;
}

}  // namespace

Machine read_machine(const std::string& proc) {
  Machine machine;
  machine.cpu = field(proc + "/cpuinfo", "model name");
  if (machine.cpu.empty()) machine.cpu = "unknown";
  std::string flags = field(proc + "/cpuinfo", "flags");
  if (flags.empty()) flags = field(proc + "/cpuinfo", "Features");
  machine.isa = training_isa(flags);
  machine.logical_cores = usable_cores();
  std::istringstream(field(proc + "/meminfo", "MemTotal")) >> machine.memory_bytes;
  machine.memory_bytes *= 1024;
  machine.kernel = kernel_release();
  machine.libtorch = TORCH_VERSION;
  machine.threads = at::get_num_threads();
  return machine;
}

}  // namespace saturate::audit
