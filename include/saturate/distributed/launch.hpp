// SPDX-License-Identifier: Apache-2.0
// Who this process is among those that train together, as its launcher says: torchrun, Open MPI, a PMI launcher (MPICH,
// Intel MPI), Slurm, or nobody.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace saturate::distributed {

/// Reads one variable of the environment; nothing when it is not set.
using ReadVariable = std::function<std::optional<std::string>(const std::string& name)>;

struct Launch {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        ///< among the processes of this node
  int local_world_size = 1;  ///< processes of this node
  std::string master_addr;   ///< where the ranks meet; empty: nowhere is given (one process, or a file is to be used)
  int master_port = 0;
  /// The launcher serves the store (torchrun's agent): no rank does.
  bool store_is_served = false;
  /// Put before every key in the store: an agent's store outlives a restart, and would hand out stale addresses.
  std::string store_prefix;
  std::string launcher = "none";  ///< "torchrun", "Open MPI", "PMI", "Slurm", "none"

  /// The first of these whose variables are there: torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
  /// MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*; also set by hand), Open MPI (OMPI_COMM_WORLD_*), PMI (PMI_RANK,
  /// PMI_SIZE), Slurm inside srun (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID). Without any: one process alone.
  /// Where a launcher gives no meeting place: MASTER_ADDR and MASTER_PORT if they are set, else Slurm's first node, or
  /// this machine when all ranks are on it, and a port that follows from the job's number.
  /// @throws ConfigError one variable is missing, is no number, or contradicts another: naming it and its value.
  static Launch from_environment(const ReadVariable& read = {});

  /// @throws ConfigError ranks out of range, or more than one process and no place to meet.
  void validate() const;
};

namespace detail {
/// The first host of a Slurm list: "gpu[003-006,9],login" gives "gpu003".
std::string first_host(const std::string& list);
}  // namespace detail

}  // namespace saturate::distributed
