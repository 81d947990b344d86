// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/topology.hpp"

#include "nvml.hpp"
#include "saturate/error.hpp"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace saturate::distributed {
namespace {

constexpr const char* nvidia_vendor = "0x10de";

/// The first line of a file of sysfs; empty: it cannot be read. (A link that is down refuses to tell its speed.)
std::string sysfs_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int64_t> sysfs_number(const std::string& path) {
  const std::string line = sysfs_line(path);
  char* end = nullptr;
  const long long value = std::strtoll(line.c_str(), &end, 10);
  if (line.empty() || end == line.c_str() || value < 0) return std::nullopt;  // -1: not known
  return value;
}

std::vector<std::string> sysfs_names(const std::string& folder) {
  std::vector<std::string> names;
  DIR* open = ::opendir(folder.c_str());
  if (open == nullptr) return names;
  while (const dirent* item = ::readdir(open)) {
    if (item->d_name[0] != '.') names.emplace_back(item->d_name);
  }
  ::closedir(open);
  std::sort(names.begin(), names.end());
  return names;
}

std::string resolved(const std::string& path) {
  char buffer[PATH_MAX];
  return ::realpath(path.c_str(), buffer) == nullptr ? std::string() : std::string(buffer);
}

bool is_pci_address(const std::string& part) {
  unsigned int domain, bus, device, function;
  char more;
  return std::sscanf(part.c_str(), "%x:%x:%x.%x%c", &domain, &bus, &device, &function, &more) == 4;
}

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t slash = std::min(path.find('/', begin), path.size());
    if (slash > begin) parts.push_back(path.substr(begin, slash - begin));
    begin = slash + 1;
  }
  return parts;
}

/// The PCI device at or above a folder of sysfs ("virtio2" lies below one); nothing: there is none.
std::optional<PciDevice> pci_device_at(const std::string& link) {
  std::string folder = resolved(link);
  while (!folder.empty() && !is_pci_address(folder.substr(folder.rfind('/') + 1))) {
    const auto slash = folder.rfind('/');
    folder.resize(slash == std::string::npos ? 0 : slash);
  }
  if (folder.empty()) return std::nullopt;
  PciDevice device;
  device.address = folder.substr(folder.rfind('/') + 1);
  const auto root = folder.find("/pci");
  device.path = root == std::string::npos ? device.address : folder.substr(root + 1);
  if (const auto node = sysfs_number(folder + "/numa_node")) device.numa_node = static_cast<int>(*node);
  device.link_speed = sysfs_line(folder + "/current_link_speed");
  if (const auto width = sysfs_number(folder + "/current_link_width"); width && *width > 0) {
    device.link_width = static_cast<int>(*width);
  }
  return device;
}

std::vector<NumaNode> numa_nodes_in(const std::string& sysfs) {
  std::vector<NumaNode> nodes;
  const std::string folder = sysfs + "/devices/system/node";
  for (const std::string& name : sysfs_names(folder)) {
    int id;
    char more;
    if (std::sscanf(name.c_str(), "node%d%c", &id, &more) != 1) continue;
    nodes.push_back({id, sysfs_line(folder + "/" + name + "/cpulist")});
  }
  std::sort(nodes.begin(), nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  return nodes;
}

std::vector<NetworkInterface> interfaces_in(const std::string& sysfs) {
  std::vector<NetworkInterface> interfaces;
  for (const std::string& name : sysfs_names(sysfs + "/class/net")) {
    const std::string folder = sysfs + "/class/net/" + name;
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) continue;  // bonding_masters is a file
    NetworkInterface interface;
    interface.name = name;
    const std::string state = sysfs_line(folder + "/operstate");
    interface.up = state == "up" || state == "unknown";  // the loopback's
    interface.is_virtual = resolved(folder + "/device").empty();
    interface.megabits_per_second = sysfs_number(folder + "/speed");
    if (!interface.is_virtual) interface.pci = pci_device_at(folder + "/device");
    interfaces.push_back(std::move(interface));
  }
  return interfaces;
}

std::vector<RdmaPort> rdma_ports_in(const std::string& sysfs) {
  std::vector<RdmaPort> ports;
  for (const std::string& device : sysfs_names(sysfs + "/class/infiniband")) {
    const std::string folder = sysfs + "/class/infiniband/" + device;
    for (const std::string& port : sysfs_names(folder + "/ports")) {
      ports.push_back(
          {device + "/" + port, sysfs_line(folder + "/ports/" + port + "/rate"), pci_device_at(folder + "/device")});
    }
  }
  return ports;
}

std::vector<Gpu> gpus_in(const std::string& sysfs) {
  std::vector<Gpu> gpus;
  for (const std::string& address : sysfs_names(sysfs + "/bus/pci/devices")) {
    const std::string folder = sysfs + "/bus/pci/devices/" + address;
    const bool is_display = sysfs_line(folder + "/class").rfind("0x03", 0) == 0;  // VGA and 3D controllers
    if (!is_display || sysfs_line(folder + "/vendor") != nvidia_vendor) continue;
    auto device = pci_device_at(folder);
    if (!device) continue;
    Gpu gpu;
    gpu.name = "NVIDIA " + sysfs_line(folder + "/device");
    gpu.pci = std::move(*device);
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

void add_nvml(Topology& topology, const std::string& library) {
  detail::NvmlAnswer answer = detail::ask_nvml(library);
  topology.nvml = std::move(answer.about);
  for (detail::NvmlGpu& found : answer.gpus) {
    const auto same = [&](const Gpu& gpu) { return gpu.pci.address == found.pci_address; };
    auto gpu = std::find_if(topology.gpus.begin(), topology.gpus.end(), same);
    if (gpu == topology.gpus.end()) {  // a container may show the GPU but not its sysfs
      gpu = topology.gpus.emplace(topology.gpus.end());
      gpu->pci.address = gpu->pci.path = found.pci_address;
    }
    gpu->name = std::move(found.name);
    gpu->nvlinks = static_cast<int>(found.nvlink_peers.size());
    gpu->nvlink_peers = std::move(found.nvlink_peers);
  }
}

std::string device_text(const PciDevice& pci) {
  std::string text = pci.address;
  if (!pci.link_speed.empty()) text += ", " + pci.link_speed;
  if (pci.link_width) text += " x" + std::to_string(*pci.link_width);
  if (pci.numa_node) text += ", NUMA node " + std::to_string(*pci.numa_node);
  return text;
}

std::string device_text(const NetworkInterface& interface) {
  std::string text = "interface " + interface.name + (interface.up ? "" : ", down");
  text += interface.megabits_per_second ? ", " + std::to_string(*interface.megabits_per_second) + " Mbit/s"
                                        : ", speed unknown";
  if (interface.pci) text += ", " + device_text(*interface.pci);
  return text + (interface.is_virtual ? ", virtual\n" : "\n");
}

std::string ways_text(const Topology& topology) {
  std::string text;
  for (std::size_t i = 0; i < topology.gpus.size(); ++i) {
    const Gpu& gpu = topology.gpus[i];
    const std::string from = "GPU " + std::to_string(i) + " to ";
    for (std::size_t j = i + 1; j < topology.gpus.size(); ++j) {
      text += from + "GPU " + std::to_string(j) + ": " + name_of(way_between(gpu, topology.gpus[j])) + "\n";
    }
    for (const NetworkInterface& interface : topology.interfaces) {
      if (!interface.pci) continue;
      text += from + interface.name + ": " + name_of(way_between(gpu.pci, *interface.pci)) + "\n";
    }
    for (const RdmaPort& port : topology.rdma_ports) {
      if (port.pci) text += from + port.name + ": " + name_of(way_between(gpu.pci, *port.pci)) + "\n";
    }
  }
  return text;
}

}  // namespace

const char* name_of(Way way) {
  switch (way) {
    case Way::nvlink: return "NVLink";
    case Way::pcie_bridge: return "PCIe bridge";
    case Way::host_bridge: return "PCIe host bridge";
    case Way::numa_node: return "NUMA node";
    case Way::system: return "between NUMA nodes";
    case Way::unknown: return "unknown";
  }
  return "unknown";
}

Way way_between(const PciDevice& a, const PciDevice& b) {
  const auto one = parts_of(a.path), other = parts_of(b.path);
  std::size_t shared = 0;
  while (shared < std::min(one.size(), other.size()) && one[shared] == other[shared]) ++shared;
  if (shared >= 2) return Way::pcie_bridge;  // more than the root
  if (shared == 1 && one.size() > 1 && other.size() > 1) return Way::host_bridge;
  if (!a.numa_node || !b.numa_node) return Way::unknown;
  return *a.numa_node == *b.numa_node ? Way::numa_node : Way::system;
}

Way way_between(const Gpu& a, const Gpu& b) {
  const auto has = [](const Gpu& gpu, const std::string& peer) {
    return std::find(gpu.nvlink_peers.begin(), gpu.nvlink_peers.end(), peer) != gpu.nvlink_peers.end();
  };
  if (has(a, b.pci.address) || has(b, a.pci.address)) return Way::nvlink;
  // Through NVSwitches: both have links, which end at the same one.
  for (const std::string& peer : a.nvlink_peers) {
    if (peer != "unknown" && has(b, peer)) return Way::nvlink;
  }
  return way_between(a.pci, b.pci);
}

std::string Topology::text() const {
  std::string text;
  for (const NumaNode& node : numa_nodes) text += "NUMA node " + std::to_string(node.id) + ": CPUs " + node.cpus + "\n";
  for (const NetworkInterface& interface : interfaces) text += device_text(interface);
  for (const RdmaPort& port : rdma_ports) {
    text += "RDMA " + port.name + ", " + port.rate + (port.pci ? ", " + device_text(*port.pci) : "") + "\n";
  }
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    text += "GPU " + std::to_string(i) + ": " + gpus[i].name + ", " + device_text(gpus[i].pci) + ", " +
            std::to_string(gpus[i].nvlinks) + " NVLinks\n";
  }
  if (gpus.empty()) text += "no NVIDIA GPU\n";
  return text + ways_text(*this) + "NVML: " + nvml + "\n";
}

Topology read_topology(const TopologyOptions& options) {
  struct stat status {};
  if (::stat(options.sysfs.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    throw ConfigError("read_topology: sysfs is '" + options.sysfs + "', which is no folder");
  }
  Topology topology;
  topology.numa_nodes = numa_nodes_in(options.sysfs);
  topology.interfaces = interfaces_in(options.sysfs);
  topology.rdma_ports = rdma_ports_in(options.sysfs);
  topology.gpus = gpus_in(options.sysfs);
  add_nvml(topology, options.nvml_library);
  return topology;
}

}  // namespace saturate::distributed
