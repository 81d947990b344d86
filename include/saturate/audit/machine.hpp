// SPDX-License-Identifier: Apache-2.0
// The machine that a measurement was made on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace saturate::audit {

struct Machine {
  std::string cpu;               ///< model name; "unknown" where the system does not tell
  int64_t logical_cores = 0;     ///< cores that this process may use
  std::vector<std::string> isa;  ///< of avx2, avx512f, avx512_bf16, avx512_vnni, amx_bf16, ...: those the CPU has
  int64_t memory_bytes = 0;      ///< physical memory; 0: unknown
  std::string kernel;            ///< "Linux 6.1.0-18-amd64"
  std::string libtorch;          ///< "2.11.0"
  int64_t threads = 0;           ///< LibTorch's intra-op threads
  std::string accelerator;       ///< filled in by the caller; empty: none
  bool operator==(const Machine&) const = default;
};

/// Reads this machine. `proc` is where cpuinfo and meminfo lie; what is missing there stays unknown.
Machine read_machine(const std::string& proc = "/proc");

}  // namespace saturate::audit
