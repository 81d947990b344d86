// SPDX-License-Identifier: Apache-2.0
// What the CUDA driver says about a device, loaded at run time: LibTorch's headers have no name for one without CUDA's.
#pragma once

#include <string>

namespace saturate::detail {

struct CudaDevice {
  std::string name;         // "NVIDIA H100 80GB HBM3"; empty: not known
  std::string pci_address;  // as sysfs spells it, "0000:3b:00.0"; empty: not known
};

/// `index` counts as LibTorch does (CUDA_VISIBLE_DEVICES). Never throws.
CudaDevice cuda_device(int index);

}  // namespace saturate::detail
