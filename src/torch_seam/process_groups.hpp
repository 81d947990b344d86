// SPDX-License-Identifier: Apache-2.0
// How c10d's stores and process groups are made: the only place that knows their constructors.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace saturate::torch_seam {

c10::intrusive_ptr<c10d::Store> tcp_store(const std::string& host, int port, bool serve, int world_size,
                                          std::chrono::milliseconds timeout);
c10::intrusive_ptr<c10d::Store> file_store(const std::string& path, int world_size);
c10::intrusive_ptr<c10d::Store> with_prefix(const std::string& prefix, c10::intrusive_ptr<c10d::Store> store);

/// @param interface of the network; empty: GLOO_SOCKET_IFNAME, else the one that this host's name stands for.
/// @param threads that run collectives; 1 keeps them in order.
c10::intrusive_ptr<c10d::ProcessGroup> gloo_group(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                                  std::chrono::milliseconds timeout, const std::string& interface,
                                                  int threads);
/// @throws ConfigError built without NCCL.
c10::intrusive_ptr<c10d::ProcessGroup> nccl_group(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                                  std::chrono::milliseconds timeout, c10::Device device);

}  // namespace saturate::torch_seam
