// SPDX-License-Identifier: Apache-2.0
#include "nvml.hpp"

#include "nvml_library.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>

namespace saturate::distributed::detail {
namespace {

constexpr unsigned int nvml_on = 1;
constexpr unsigned int most_nvlinks = 18;  // NVML_NVLINK_MAX_LINKS

std::vector<std::string> nvlink_peers_of(const NvmlLibrary& nvml, NvmlDevice device) {
  std::vector<std::string> peers;
  int (*link_state)(NvmlDevice, unsigned int, unsigned int*) = nullptr;
  int (*link_peer)(NvmlDevice, unsigned int, NvmlPci*) = nullptr;
  // Absent from drivers that know no NVLink.
  const bool knows_links =
      nvml.find(link_state, "nvmlDeviceGetNvLinkState") && nvml.find(link_peer, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
  if (!knows_links) return peers;
  for (unsigned int link = 0; link < most_nvlinks; ++link) {
    unsigned int state = 0;
    NvmlPci peer{};
    if (link_state(device, link, &state) != nvml_success || state != nvml_on) continue;
    const bool known = link_peer(device, link, &peer) == nvml_success;
    peers.push_back(known ? sysfs_address(peer.bus_id) : "unknown");
  }
  return peers;
}

}  // namespace

NvmlLibrary::NvmlLibrary(const std::string& name) : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) return;
  const bool whole = find(init_, "nvmlInit_v2") && find(shutdown_, "nvmlShutdown") &&
                     find(driver_version, "nvmlSystemGetDriverVersion") && find(count, "nvmlDeviceGetCount_v2") &&
                     find(device_at, "nvmlDeviceGetHandleByIndex_v2") && find(name_of, "nvmlDeviceGetName") &&
                     find(pci_of, "nvmlDeviceGetPciInfo_v3");
  why_ = whole ? "" : "functions are missing in it";
  if (!whole) return;
  const int error = init_();
  initialized_ = error == nvml_success;
  if (!initialized_) why_ = "it does not start: error " + std::to_string(error);
}

NvmlLibrary::~NvmlLibrary() {
  if (initialized_) shutdown_();
  if (handle_ != nullptr) ::dlclose(handle_);
}

void* NvmlLibrary::address_of(const char* symbol) const { return ::dlsym(handle_, symbol); }

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
