// SPDX-License-Identifier: Apache-2.0
// What lies between this machine's devices: NUMA nodes, network interfaces, GPUs, and the way from one to another, as
// far as sysfs and NVML tell:
//
//   std::cout << st::distributed::read_topology().text();
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace saturate::distributed {

struct NumaNode {
  int id = 0;
  std::string cpus;  ///< "0-7,16-23"
};

struct PciDevice {
  std::string address;            ///< "0000:3b:00.0"
  std::string path;               ///< bridges above it and itself, below sysfs's devices: "pci0000:3a/0000:3a:00.0/..."
  std::optional<int> numa_node;   ///< where the machine has more than one, or says so
  std::string link_speed;         ///< of the PCIe link now, "16.0 GT/s PCIe"; empty: unknown
  std::optional<int> link_width;  ///< lanes now
};

struct NetworkInterface {
  std::string name;
  bool up = false;
  bool is_virtual = false;                     ///< loopback, bridge, one end of a pair: no device behind it
  std::optional<int64_t> megabits_per_second;  ///< unknown for many virtual ones
  std::optional<PciDevice> pci;
};

/// An InfiniBand or RoCE port.
struct RdmaPort {
  std::string name;  ///< "mlx5_0/1"
  std::string rate;  ///< "200 Gb/sec (4X HDR)"
  std::optional<PciDevice> pci;
};

struct Gpu {
  std::string name;  ///< of NVML; else of its PCI numbers
  PciDevice pci;
  int nvlinks = 0;                        ///< that are up
  std::vector<std::string> nvlink_peers;  ///< PCI address at the other end of each
};

enum class Way {
  nvlink,       ///< direct NVLinks
  pcie_bridge,  ///< a PCIe switch or bridge between them
  host_bridge,  ///< one PCIe root of the processor
  numa_node,    ///< several roots of one NUMA node
  system,       ///< from one NUMA node to another
  unknown,
};
const char* name_of(Way way);

struct Topology {
  std::vector<NumaNode> numa_nodes;
  std::vector<NetworkInterface> interfaces;
  std::vector<RdmaPort> rdma_ports;
  std::vector<Gpu> gpus;
  std::string nvml;  ///< "driver 580.65", or why there is none

  std::string text() const;
};

struct TopologyOptions {
  std::string sysfs = "/sys";
  std::string nvml_library = "libnvidia-ml.so.1";  ///< loaded at run time; empty: not asked for
};

/// What cannot be read is left out; nothing is thrown for it. @throws ConfigError `sysfs` is no folder.
Topology read_topology(const TopologyOptions& options = {});
Way way_between(const PciDevice& a, const PciDevice& b);
Way way_between(const Gpu& a, const Gpu& b);

}  // namespace saturate::distributed
