// SPDX-License-Identifier: Apache-2.0
// The processes that train together:
//
//   auto group = st::distributed::ProcessGroup::from_environment();     // torchrun, mpirun, srun, or alone
//   group.rank(), group.world_size();
//
// One process a device: Gloo between CPUs, NCCL between GPUs.
#pragma once

#include "saturate/distributed/launch.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace saturate::distributed {

enum class Backend {
  automatic,  ///< nccl on a GPU, gloo on the CPU
  gloo,
  nccl,
};

struct ProcessGroupOptions {
  Backend backend = Backend::automatic;
  /// The rank's device; default: GPU number local_rank where there is one, else the CPU.
  std::optional<c10::Device> device;
  /// How long a collective waits for the other ranks before it fails with a DistributedError. Also for the set-up.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Network interface for Gloo ("eth0"); empty: GLOO_SOCKET_IFNAME, else the one of this host's name.
  std::string network_interface;
  /// A file that all ranks see, which they meet at in place of MASTER_ADDR; must not exist from an earlier run.
  std::string file;
};

enum class ReduceOp { sum, max, min };

/// A handle: copies are the same group. The last one leaves it. A group of one process has no store and no backend, and
/// its collectives do nothing. Collectives are called by every rank in the same order.
class ProcessGroup {
 public:
  /// @throws ConfigError what the launcher says is incomplete or contradictory, or the device is not there.
  /// @throws DistributedError the ranks do not meet within the timeout.
  static ProcessGroup from_environment(const ProcessGroupOptions& options = {});
  explicit ProcessGroup(Launch launch, const ProcessGroupOptions& options = {});
  /// One process alone.
  ProcessGroup() : ProcessGroup(Launch()) {}

  int rank() const { return launch_.rank; }
  int world_size() const { return launch_.world_size; }
  const Launch& launch() const { return launch_; }
  c10::Device device() const { return device_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// "gloo", "nccl", or "none" for one process.
  std::string backend_name() const;

  /// In place. Tensors are contiguous (dense in any order) and on device(), or on the CPU with Gloo.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) const;
  void broadcast(const at::Tensor& tensor, int root = 0) const;
  /// @return [world_size, ...]: one row a rank.
  at::Tensor all_gather(const at::Tensor& tensor) const;
  void barrier() const;
  /// Whether any rank says so.
  bool any(bool here) const;
  /// What each rank says, on every rank.
  std::vector<std::string> gather_text(const std::string& text) const;

  /// Another group of the same ranks, with its own order of collectives. Called by every rank.
  ProcessGroup another(const std::string& name, int threads = 1) const;

  /// Another group of the same ranks between their CPUs (Gloo), for numbers that no GPU is to wait for.
  ProcessGroup beside(const std::string& name) const;

  /// LibTorch's own group, for what is not here; null for one process.
  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d() const;

  /// Runs what waits for other ranks. @param what names it in a DistributedError.
  void run(const std::string& what, const std::function<void()>& wait) const;

 private:
  struct Connected;
  ProcessGroup(const ProcessGroup& from, std::shared_ptr<const Connected> connected);

  Launch launch_;
  c10::Device device_;
  std::chrono::milliseconds timeout_;
  std::string interface_;
  std::shared_ptr<const Connected> connected_;
};

}  // namespace saturate::distributed
