// SPDX-License-Identifier: Apache-2.0
#include "cuda_driver.hpp"

#include "../distributed/nvml.hpp"

#include <dlfcn.h>

namespace saturate::detail {
namespace {

template <class Function>
bool find_in_driver(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

CudaDevice cuda_device(int index) {
  // Stays loaded: LibTorch has it open for as long as it uses the device.
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  int (*start)(unsigned int) = nullptr;
  int (*device_at)(int*, int) = nullptr;
  int (*name_of)(char*, int, int) = nullptr;
  int (*address_of)(char*, int, int) = nullptr;
  const bool whole = find_in_driver(library, start, "cuInit") && find_in_driver(library, device_at, "cuDeviceGet") &&
                     find_in_driver(library, name_of, "cuDeviceGetName") &&
                     find_in_driver(library, address_of, "cuDeviceGetPCIBusId");
  int device = 0;
  if (!whole || start(0) != 0 || device_at(&device, index) != 0) return {};
  CudaDevice known;
  char text[256] = "";
  if (name_of(text, sizeof text, device) == 0) known.name = text;
  if (address_of(text, sizeof text, device) == 0) known.pci_address = distributed::detail::sysfs_address(text);
  return known;
}

}  // namespace saturate::detail
