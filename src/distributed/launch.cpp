// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/launch.hpp"

#include "saturate/error.hpp"

#include <charconv>
#include <cstdlib>
#include <functional>
#include <vector>

namespace saturate::distributed {
namespace {

constexpr int first_port = 20000, ports = 30000;  // above what systems give out to servers, below ephemeral ports' most

std::optional<std::string> from_process(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

/// The variables of one launcher.
class Variables {
 public:
  Variables(std::string launcher, const ReadVariable& read) : launcher_(std::move(launcher)), read_(read) {}

  std::optional<std::string> text(const std::string& name) const {
    const auto value = read_(name);
    return value && !value->empty() ? value : std::nullopt;
  }
  std::optional<int> number_if_set(const std::string& name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int result = 0;
    const auto end = value->data() + value->size();
    const auto [stopped, error] = std::from_chars(value->data(), end, result);
    if (error != std::errc() || stopped != end || result < 0) {
      throw ConfigError("distributed: " + name + " is '" + *value + "'; it is a number that is not negative (" +
                        launcher_ + " sets it)");
    }
    return result;
  }
  int number(const std::string& name) const {
    if (const auto value = number_if_set(name)) return *value;
    throw ConfigError("distributed: " + name + " is not set, though this looks like a start by " + launcher_ +
                      "; set it, or start the program by its launcher");
  }

 private:
  std::string launcher_;
  const ReadVariable& read_;
};

int port_of_job(const std::string& job) {
  return first_port + static_cast<int>(std::hash<std::string>{}(job) % static_cast<std::size_t>(ports));
}

// MASTER_ADDR and MASTER_PORT win over what can be guessed.
void meet(Launch& launch, const Variables& variables, const std::optional<std::string>& host,
          const std::optional<std::string>& job) {
  const bool one_node = launch.local_world_size == launch.world_size;
  launch.master_addr = variables.text("MASTER_ADDR").value_or(host ? *host : one_node ? "127.0.0.1" : "");
  launch.master_port = variables.number_if_set("MASTER_PORT").value_or(job ? port_of_job(*job) : 0);
}

Launch from_torchrun(const ReadVariable& read) {
  const Variables variables("torchrun", read);
  Launch launch;
  launch.launcher = "torchrun";
  launch.rank = variables.number("RANK");
  launch.world_size = variables.number("WORLD_SIZE");
  launch.local_rank = variables.number_if_set("LOCAL_RANK").value_or(launch.world_size == 1 ? 0 : launch.rank);
  launch.local_world_size = variables.number_if_set("LOCAL_WORLD_SIZE").value_or(launch.world_size);
  meet(launch, variables, std::nullopt, std::nullopt);
  launch.store_is_served = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (const auto restarts = variables.number_if_set("TORCHELASTIC_RESTART_COUNT")) {
    launch.store_prefix = "saturate/" + std::to_string(*restarts);
  }
  return launch;
}

Launch from_open_mpi(const ReadVariable& read) {
  const Variables variables("Open MPI", read);
  Launch launch;
  launch.launcher = "Open MPI";
  launch.rank = variables.number("OMPI_COMM_WORLD_RANK");
  launch.world_size = variables.number("OMPI_COMM_WORLD_SIZE");
  launch.local_rank = variables.number("OMPI_COMM_WORLD_LOCAL_RANK");
  launch.local_world_size = variables.number("OMPI_COMM_WORLD_LOCAL_SIZE");
  auto job = variables.text("PMIX_NAMESPACE");
  if (!job) job = variables.text("OMPI_MCA_orte_hnp_uri");
  meet(launch, variables, std::nullopt, job);
  return launch;
}

Launch from_pmi(const ReadVariable& read) {
  const Variables variables("a PMI launcher", read);
  Launch launch;
  launch.launcher = "PMI";
  launch.rank = variables.number("PMI_RANK");
  launch.world_size = variables.number("PMI_SIZE");
  launch.local_rank = variables.number_if_set("MPI_LOCALRANKID").value_or(launch.rank);
  launch.local_world_size = variables.number_if_set("MPI_LOCALNRANKS").value_or(launch.world_size);
  meet(launch, variables, std::nullopt, variables.text("PMI_JOBID"));
  return launch;
}

// "4(x2),3" : tasks on each node of the step.
int tasks_on_first_node(const std::string& counts) {
  int result = 1;
  std::from_chars(counts.data(), counts.data() + counts.size(), result);
  return result;
}

Launch from_slurm(const ReadVariable& read) {
  const Variables variables("Slurm", read);
  Launch launch;
  launch.launcher = "Slurm";
  launch.rank = variables.number("SLURM_PROCID");
  launch.world_size =
      variables.number(variables.text("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
  launch.local_rank = variables.number("SLURM_LOCALID");
  const auto nodes = variables.number_if_set("SLURM_STEP_NUM_NODES").value_or(1);
  const auto per_node = variables.text("SLURM_STEP_TASKS_PER_NODE");
  launch.local_world_size = per_node     ? tasks_on_first_node(*per_node)
                            : nodes == 1 ? launch.world_size
                                         : launch.local_rank + 1;
  auto list = variables.text("SLURM_STEP_NODELIST");
  if (!list) list = variables.text("SLURM_JOB_NODELIST");
  std::optional<std::string> host;
  if (list) host = detail::first_host(*list);
  const std::string step =
      variables.text("SLURM_JOB_ID").value_or("") + "." + variables.text("SLURM_STEP_ID").value_or("");
  meet(launch, variables, host, step);
  return launch;
}

}  // namespace

Launch Launch::from_environment(const ReadVariable& given) {
  const ReadVariable read = given ? given : ReadVariable(&from_process);
  const auto set = [&](const char* name) {
    const auto value = read(name);
    return value && !value->empty();
  };
  Launch launch;
  if (set("RANK") || set("WORLD_SIZE")) {
    launch = from_torchrun(read);
  } else if (set("OMPI_COMM_WORLD_RANK")) {
    launch = from_open_mpi(read);
  } else if (set("PMI_RANK")) {
    launch = from_pmi(read);
  } else if (set("SLURM_STEP_ID") && set("SLURM_PROCID")) {  // a batch script itself has no step
    launch = from_slurm(read);
  }
  launch.validate();
  return launch;
}

void Launch::validate() const {
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw ConfigError("distributed: " + what + " (started by: " + launcher + ")");
  };
  const auto text = [](int value) { return std::to_string(value); };
  require(world_size >= 1, "the world size is " + text(world_size) + "; at least one process trains");
  require(rank >= 0 && rank < world_size,
          "rank " + text(rank) + " of a world of " + text(world_size) + "; ranks go from 0 to world size - 1");
  require(local_world_size >= 1 && local_world_size <= world_size,
          text(local_world_size) + " processes on this node, but " + text(world_size) + " in the world");
  require(local_rank >= 0 && local_rank < local_world_size,
          "local rank " + text(local_rank) + " of " + text(local_world_size) + " processes on this node");
  if (world_size == 1) return;
  require(!master_addr.empty(), "MASTER_ADDR is not set; it is the host of rank 0, which the others connect to");
  require(master_port >= 1 && master_port <= 65535,
          "MASTER_PORT is " + (master_port == 0 ? std::string("not set") : text(master_port)) +
              "; it is a free port on MASTER_ADDR, between 1 and 65535");
}

std::string detail::first_host(const std::string& list) {
  const auto bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const auto number = list.substr(bracket + 1, list.find_first_of("-,]", bracket) - bracket - 1);
  const auto close = list.find(']', bracket);
  const auto after = close == std::string::npos ? std::string::npos : list.find(',', close);
  const std::string suffix =
      close == std::string::npos ? "" : list.substr(close + 1, after == std::string::npos ? after : after - close - 1);
  return list.substr(0, bracket) + number + suffix;
}

}  // namespace saturate::distributed
