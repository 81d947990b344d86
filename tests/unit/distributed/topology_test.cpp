// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/topology.hpp"

#include "saturate/error.hpp"

#include <catch2/catch_test_macros.hpp>

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

namespace dist = saturate::distributed;

/// A root of sysfs in a temporary folder.
class FakeSysfs {
 public:
  FakeSysfs() {
    char name[] = "/tmp/saturate-sysfs-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  ~FakeSysfs() {
    ::nftw(
        root_.c_str(), [](const char* path, const struct stat*, int, FTW*) { return std::remove(path); }, 16,
        FTW_DEPTH | FTW_PHYS);
  }
  FakeSysfs(const FakeSysfs&) = delete;
  FakeSysfs& operator=(const FakeSysfs&) = delete;

  void write(const std::string& path, const std::string& content) const {
    folder(path.substr(0, path.rfind('/')));
    std::ofstream(root_ + "/" + path) << content << "\n";
  }
  void folder(const std::string& path) const {
    for (std::size_t end = path.find('/');; end = path.find('/', end + 1)) {
      ::mkdir((root_ + "/" + path.substr(0, end)).c_str(), 0777);
      if (end == std::string::npos) return;
    }
  }
  void link(const std::string& path, const std::string& target) const {
    folder(path.substr(0, path.rfind('/')));
    REQUIRE(::symlink((root_ + "/" + target).c_str(), (root_ + "/" + path).c_str()) == 0);
  }
  void gpu(const std::string& path, const std::string& node) const {
    const std::string device = "devices/" + path;
    write(device + "/class", "0x030200");
    write(device + "/vendor", "0x10de");
    write(device + "/device", "0x2330");
    write(device + "/numa_node", node);
    write(device + "/current_link_speed", "32.0 GT/s PCIe");
    write(device + "/current_link_width", "16");
    link("bus/pci/devices/" + path.substr(path.rfind('/') + 1), device);
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

constexpr const char* no_library = "libsaturate-no-such-library.so.1";

/// Two GPUs and a network card below one switch, one GPU at another root of the same node, one on the other node.
void make_server(const FakeSysfs& sysfs) {
  sysfs.write("devices/system/node/node0/cpulist", "0-7,16-23");
  sysfs.write("devices/system/node/node1/cpulist", "8-15,24-31");
  sysfs.write("devices/system/node/online", "0-1");
  sysfs.gpu("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "0");
  sysfs.gpu("pci0000:3a/0000:3a:00.0/0000:3c:00.0", "0");
  sysfs.gpu("pci0000:5a/0000:5a:00.0/0000:5b:00.0", "0");
  sysfs.gpu("pci0000:ba/0000:ba:00.0/0000:bb:00.0", "1");
  const std::string card = "devices/pci0000:3a/0000:3a:00.0/0000:3d:00.0";
  sysfs.write(card + "/class", "0x020000");
  sysfs.write(card + "/vendor", "0x15b3");
  sysfs.write(card + "/numa_node", "0");
  sysfs.link("bus/pci/devices/0000:3d:00.0", card);
  sysfs.write("class/net/eth0/speed", "100000");
  sysfs.write("class/net/eth0/operstate", "up");
  sysfs.link("class/net/eth0/device", card);
  sysfs.write("class/net/lo/operstate", "unknown");
  sysfs.write("class/net/eth1/speed", "-1");
  sysfs.write("class/net/eth1/operstate", "down");
  sysfs.write(card + "/virtio7/features", "0");
  sysfs.link("class/net/eth1/device", card + "/virtio7");
  sysfs.write("class/net/bonding_masters", "");
  sysfs.write("class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)");
  sysfs.link("class/infiniband/mlx5_0/device", card);
}

}  // namespace

TEST_CASE("topology: nodes, interfaces and GPUs of sysfs") {
  const FakeSysfs sysfs;
  make_server(sysfs);
  const auto topology = dist::read_topology({.sysfs = sysfs.root(), .nvml_library = no_library});
  REQUIRE(topology.numa_nodes.size() == 2);
  CHECK(topology.numa_nodes[1].cpus == "8-15,24-31");

  REQUIRE(topology.interfaces.size() == 3);
  const auto& eth0 = topology.interfaces[0];
  CHECK(eth0.name == "eth0");
  CHECK((eth0.up && !eth0.is_virtual && eth0.megabits_per_second == 100000));
  REQUIRE(eth0.pci);
  CHECK(eth0.pci->address == "0000:3d:00.0");
  CHECK(eth0.pci->numa_node == 0);
  const auto& eth1 = topology.interfaces[1];
  CHECK((!eth1.up && !eth1.is_virtual && !eth1.megabits_per_second));
  REQUIRE(eth1.pci);  // through its virtio device
  CHECK(eth1.pci->address == "0000:3d:00.0");
  const auto& lo = topology.interfaces[2];
  CHECK((lo.up && lo.is_virtual && !lo.pci));

  REQUIRE(topology.rdma_ports.size() == 1);
  CHECK(topology.rdma_ports[0].name == "mlx5_0/1");
  CHECK(topology.rdma_ports[0].rate == "200 Gb/sec (4X HDR)");

  REQUIRE(topology.gpus.size() == 4);
  CHECK(topology.gpus[0].pci.link_speed == "32.0 GT/s PCIe");
  CHECK(topology.gpus[0].pci.link_width == 16);
  CHECK(topology.gpus[3].pci.numa_node == 1);
  CHECK(topology.nvml == std::string("no ") + no_library + ": it is not there");
  CHECK(topology.text().find("GPU 0 to eth0: PCIe bridge") != std::string::npos);
}

TEST_CASE("topology: the way between devices") {
  const FakeSysfs sysfs;
  make_server(sysfs);
  auto gpus = dist::read_topology({.sysfs = sysfs.root(), .nvml_library = ""}).gpus;
  REQUIRE(gpus.size() == 4);
  CHECK(dist::way_between(gpus[0], gpus[1]) == dist::Way::pcie_bridge);
  CHECK(dist::way_between(gpus[0], gpus[2]) == dist::Way::numa_node);
  CHECK(dist::way_between(gpus[0], gpus[3]) == dist::Way::system);
  gpus[0].nvlink_peers = {gpus[3].pci.address};
  CHECK(dist::way_between(gpus[0], gpus[3]) == dist::Way::nvlink);
  CHECK(dist::way_between(gpus[3], gpus[0]) == dist::Way::nvlink);
  gpus[1].nvlink_peers = gpus[2].nvlink_peers = {"0000:c0:00.0"};  // a switch
  CHECK(dist::way_between(gpus[1], gpus[2]) == dist::Way::nvlink);
  const dist::PciDevice nowhere{.address = "0000:01:00.0", .path = "0000:01:00.0"};
  CHECK(dist::way_between(nowhere, gpus[0].pci) == dist::Way::unknown);
  const dist::PciDevice one{.path = "pci0000:00/0000:00:01.0"}, other{.path = "pci0000:00/0000:00:02.0"};
  CHECK(dist::way_between(one, other) == dist::Way::host_bridge);
}

TEST_CASE("topology: a machine that says nothing, this one, and no folder") {
  const FakeSysfs nothing;
  const auto empty = dist::read_topology({.sysfs = nothing.root(), .nvml_library = no_library});
  CHECK((empty.numa_nodes.empty() && empty.interfaces.empty() && empty.gpus.empty()));
  CHECK(empty.text().find("no NVIDIA GPU") != std::string::npos);
  CHECK_FALSE(dist::read_topology().nvml.empty());
  CHECK_THROWS_AS(dist::read_topology({.sysfs = nothing.root() + "/none"}), saturate::ConfigError);
}
