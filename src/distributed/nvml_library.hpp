// SPDX-License-Identifier: Apache-2.0
// NVML, opened while an object lives. nvml.h belongs to the CUDA toolkit, which a machine that only trains need not
// have; so whoever uses functions declares them and finds them by name.
#pragma once

#include <string>

namespace saturate::distributed::detail {

using NvmlDevice = void*;

struct NvmlPci {  // nvmlPciInfo_t
  char bus_id_legacy[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

inline constexpr int nvml_success = 0;

class NvmlLibrary {
 public:
  explicit NvmlLibrary(const std::string& name);
  ~NvmlLibrary();
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  bool ready() const { return initialized_; }
  /// "it is not there"; "functions are missing in it"; "it does not start: error 9".
  std::string why_not() const { return handle_ == nullptr ? "it is not there" : why_; }

  /// False, and a null pointer: this library has no such function.
  template <class Function>
  bool find(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(address_of(symbol));
    return function != nullptr;
  }

  // Those that every driver has.
  int (*driver_version)(char*, unsigned int) = nullptr;
  int (*count)(unsigned int*) = nullptr;
  int (*device_at)(unsigned int, NvmlDevice*) = nullptr;
  int (*name_of)(NvmlDevice, char*, unsigned int) = nullptr;
  int (*pci_of)(NvmlDevice, NvmlPci*) = nullptr;

 private:
  void* address_of(const char* symbol) const;

  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  void* handle_;
  bool initialized_ = false;
  std::string why_;
};

}  // namespace saturate::distributed::detail
