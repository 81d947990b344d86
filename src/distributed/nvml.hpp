// SPDX-License-Identifier: Apache-2.0
// NVML, NVIDIA's management library, loaded at run time.
#pragma once

#include <string>
#include <vector>

namespace saturate::distributed::detail {

struct NvmlGpu {
  std::string name;
  std::string pci_address;  // as sysfs spells it
  std::vector<std::string> nvlink_peers;
};

struct NvmlAnswer {
  std::string about;  // "driver 580.65", or why there is none
  std::vector<NvmlGpu> gpus;
};

/// Never throws.
NvmlAnswer ask_nvml(const std::string& library);

/// "00000000:3B:00.0", as NVML says it, becomes "0000:3b:00.0".
std::string sysfs_address(std::string nvml_address);

}  // namespace saturate::distributed::detail
