// SPDX-License-Identifier: Apache-2.0
#include "nvml.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>

namespace saturate::distributed::detail {
namespace {

// nvml.h's own declarations, of the functions that are used: the header belongs to the CUDA toolkit, which a machine
// that only trains need not have.
using NvmlDevice = void*;
struct NvmlPci {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
constexpr int nvml_success = 0;
constexpr unsigned int nvml_on = 1;
constexpr unsigned int most_nvlinks = 18;  // NVML_NVLINK_MAX_LINKS

class NvmlLibrary {
 public:
  explicit NvmlLibrary(const std::string& name) : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) return;
    const bool whole = find(init_, "nvmlInit_v2") && find(shutdown_, "nvmlShutdown") &&
                       find(driver_version, "nvmlSystemGetDriverVersion") && find(count, "nvmlDeviceGetCount_v2") &&
                       find(device_at, "nvmlDeviceGetHandleByIndex_v2") && find(name_of, "nvmlDeviceGetName") &&
                       find(pci_of, "nvmlDeviceGetPciInfo_v3");
    // Absent from drivers that know no NVLink.
    find(link_state, "nvmlDeviceGetNvLinkState");
    find(link_peer, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    why_ = whole ? "" : "functions are missing in it";
    if (!whole) return;
    const int error = init_();
    initialized_ = error == nvml_success;
    if (!initialized_) why_ = "it does not start: error " + std::to_string(error);
  }
  ~NvmlLibrary() {
    if (initialized_) shutdown_();
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  bool ready() const { return initialized_; }
  std::string why_not() const { return handle_ == nullptr ? "it is not there" : why_; }

  int (*driver_version)(char*, unsigned int) = nullptr;
  int (*count)(unsigned int*) = nullptr;
  int (*device_at)(unsigned int, NvmlDevice*) = nullptr;
  int (*name_of)(NvmlDevice, char*, unsigned int) = nullptr;
  int (*pci_of)(NvmlDevice, NvmlPci*) = nullptr;
  int (*link_state)(NvmlDevice, unsigned int, unsigned int*) = nullptr;
  int (*link_peer)(NvmlDevice, unsigned int, NvmlPci*) = nullptr;

 private:
  template <class Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(handle_, name));
    return function != nullptr;
  }

  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  void* handle_;
  bool initialized_ = false;
  std::string why_;
};

std::vector<std::string> nvlink_peers_of(const NvmlLibrary& nvml, NvmlDevice device) {
  std::vector<std::string> peers;
  if (nvml.link_state == nullptr || nvml.link_peer == nullptr) return peers;
  for (unsigned int link = 0; link < most_nvlinks; ++link) {
    unsigned int state = 0;
    NvmlPci peer{};
    if (nvml.link_state(device, link, &state) != nvml_success || state != nvml_on) continue;
    const bool known = nvml.link_peer(device, link, &peer) == nvml_success;
    peers.push_back(known ? sysfs_address(peer.bus_id) : "unknown");
  }
  return peers;
}

}  // namespace

std::string sysfs_address(std::string address) {
  std::transform(address.begin(), address.end(), address.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto colon = address.find(':');  // the domain has eight digits there, four here
  if (colon != std::string::npos && colon > 4) address.erase(0, colon - 4);
  return address;
}

NvmlAnswer ask_nvml(const std::string& library) {
  NvmlAnswer answer;
  if (library.empty()) return {"not asked for", {}};
  const NvmlLibrary nvml(library);
  if (!nvml.ready()) return {"no " + library + ": " + nvml.why_not(), {}};
  char text[96] = "unknown";
  nvml.driver_version(text, sizeof text);
  answer.about = std::string("driver ") + text;
  unsigned int gpus = 0;
  if (nvml.count(&gpus) != nvml_success) return answer;
  for (unsigned int i = 0; i < gpus; ++i) {
    NvmlDevice device = nullptr;
    NvmlPci pci{};
    if (nvml.device_at(i, &device) != nvml_success || nvml.pci_of(device, &pci) != nvml_success) continue;
    char name[96] = "GPU";
    nvml.name_of(device, name, sizeof name);
    answer.gpus.push_back({name, sysfs_address(pci.bus_id), nvlink_peers_of(nvml, device)});
  }
  return answer;
}

}  // namespace saturate::distributed::detail
