// SPDX-License-Identifier: Apache-2.0
#include "process_groups.hpp"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <utility>

namespace saturate::torch_seam {

c10::intrusive_ptr<c10d::Store> tcp_store(const std::string& host, int port, bool serve, int world_size,
                                          std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = serve;
  options.numWorkers = static_cast<std::size_t>(world_size);
  options.waitWorkers = false;  // the group's own rendezvous waits, and says for whom
  options.timeout = timeout;
  options.multiTenant = true;  // a second group of this process meets at the same place
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

c10::intrusive_ptr<c10d::Store> file_store(const std::string& path, int world_size) {
  return c10::make_intrusive<c10d::FileStore>(path, world_size);
}

c10::intrusive_ptr<c10d::Store> with_prefix(const std::string& prefix, c10::intrusive_ptr<c10d::Store> store) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
}

c10::intrusive_ptr<c10d::ProcessGroup> gloo_group(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                                  std::chrono::milliseconds timeout, const std::string& interface,
                                                  int threads) {
  auto options = c10d::ProcessGroupGloo::Options::create_default(timeout);
  if (!interface.empty()) options->devices = {c10d::ProcessGroupGloo::createDeviceForInterface(interface)};
  options->threads = threads;
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world_size, options);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, world_size);
  group->setDefaultBackend(c10d::ProcessGroup::GLOO);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::GLOO, backend);
  group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::GLOO, backend);
  return group;
}

}  // namespace saturate::torch_seam
