// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/launch.hpp"
#include "saturate/error.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <map>

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using saturate::ConfigError;
using saturate::distributed::Launch;
using Variables = std::map<std::string, std::string>;

namespace {

Launch launched(const Variables& variables) {
  return Launch::from_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

const Variables torchrun = {{"RANK", "3"},
                            {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "node-a"},
                            {"MASTER_PORT", "29500"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

void check_error(const Variables& variables, const std::string& text) {
  CHECK_THROWS_MATCHES(launched(variables), ConfigError, MessageMatches(ContainsSubstring(text)));
}

}  // namespace

TEST_CASE("Launch: without a launcher one process trains alone") {
  const Launch launch = launched({});
  CHECK(launch.world_size == 1);
  CHECK(launch.rank == 0);
  CHECK(launch.launcher == "none");
}

TEST_CASE("Launch: torchrun") {
  const Launch launch = launched(torchrun);
  CHECK(launch.launcher == "torchrun");
  CHECK(launch.rank == 3);
  CHECK(launch.world_size == 4);
  CHECK(launch.local_rank == 1);
  CHECK(launch.local_world_size == 2);
  CHECK(launch.master_addr == "node-a");
  CHECK(launch.master_port == 29500);
  CHECK_FALSE(launch.store_is_served);
  CHECK(launch.store_prefix.empty());
  // The agent's store outlives a restart.
  Variables agent = with(with(torchrun, "TORCHELASTIC_USE_AGENT_STORE", "True"), "TORCHELASTIC_RESTART_COUNT", "2");
  CHECK(launched(agent).store_is_served);
  CHECK(launched(agent).store_prefix == "saturate/2");
  agent["TORCHELASTIC_RESTART_COUNT"] = "3";
  CHECK(launched(agent).store_prefix == "saturate/3");
}

TEST_CASE("Launch: each variable that is missing or contradicts is named") {
  check_error(without(torchrun, "WORLD_SIZE"), "WORLD_SIZE is not set");
  check_error(without(torchrun, "RANK"), "RANK is not set");
  check_error(without(torchrun, "MASTER_ADDR"), "MASTER_ADDR is not set");
  check_error(without(torchrun, "MASTER_PORT"), "MASTER_PORT is not set");
  check_error(with(torchrun, "MASTER_PORT", "99999"), "99999");
  check_error(with(torchrun, "RANK", "two"), "RANK is 'two'");
  check_error(with(torchrun, "RANK", "-1"), "RANK is '-1'");
  check_error(with(torchrun, "RANK", "4"), "rank 4 of a world of 4");
  check_error(with(torchrun, "WORLD_SIZE", "0"), "world size is 0");
  check_error(with(torchrun, "LOCAL_RANK", "2"), "local rank 2 of 2");
  check_error(with(torchrun, "LOCAL_WORLD_SIZE", "5"), "5 processes on this node, but 4 in the world");
}

TEST_CASE("Launch: Open MPI and PMI, with and without a place to meet") {
  Variables mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                   {"PMIX_NAMESPACE", "prterun-host-123@1"}};
  const Launch one = launched(mpi);
  CHECK(one.launcher == "Open MPI");
  CHECK(one.master_addr == "127.0.0.1");
  CHECK(one.master_port == launched(with(mpi, "OMPI_COMM_WORLD_RANK", "0")).master_port);
  CHECK(one.master_port != launched(with(mpi, "PMIX_NAMESPACE", "prterun-host-124@1")).master_port);
  CHECK(launched(with(mpi, "MASTER_PORT", "4444")).master_port == 4444);
  check_error(without(mpi, "PMIX_NAMESPACE"), "MASTER_PORT is not set");
  mpi["OMPI_COMM_WORLD_SIZE"] = "4";  // more than this node
  check_error(mpi, "MASTER_ADDR is not set");
  CHECK(launched(with(mpi, "MASTER_ADDR", "node-b")).master_addr == "node-b");

  const Variables pmi = {{"PMI_RANK", "2"},        {"PMI_SIZE", "3"},         {"MPI_LOCALRANKID", "0"},
                         {"MPI_LOCALNRANKS", "1"}, {"MASTER_ADDR", "node-c"}, {"MASTER_PORT", "5000"}};
  CHECK(launched(pmi).launcher == "PMI");
  CHECK(launched(pmi).rank == 2);
  CHECK(launched(pmi).local_rank == 0);
  check_error(without(pmi, "PMI_SIZE"), "PMI_SIZE is not set");
}

TEST_CASE("Launch: Slurm, inside srun") {
  const Variables slurm = {{"SLURM_PROCID", "5"},
                           {"SLURM_NTASKS", "8"},
                           {"SLURM_LOCALID", "1"},
                           {"SLURM_STEP_ID", "0"},
                           {"SLURM_JOB_ID", "4711"},
                           {"SLURM_STEP_NUM_NODES", "2"},
                           {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                           {"SLURM_STEP_NODELIST", "gpu[003-004]"}};
  const Launch launch = launched(slurm);
  CHECK(launch.launcher == "Slurm");
  CHECK(launch.rank == 5);
  CHECK(launch.world_size == 8);
  CHECK(launch.local_rank == 1);
  CHECK(launch.local_world_size == 4);
  CHECK(launch.master_addr == "gpu003");
  CHECK(launch.master_port == launched(with(slurm, "SLURM_PROCID", "0")).master_port);
  // A batch script that trains without srun is one process.
  CHECK(launched(without(slurm, "SLURM_STEP_ID")).world_size == 1);
  check_error(without(slurm, "SLURM_LOCALID"), "SLURM_LOCALID is not set");
  // torchrun inside srun: torchrun's ranks count.
  Variables both = slurm;
  both.insert(torchrun.begin(), torchrun.end());
  CHECK(launched(both).launcher == "torchrun");
}

TEST_CASE("Launch: the first host of a list") {
  using saturate::distributed::detail::first_host;
  CHECK(first_host("login") == "login");
  CHECK(first_host("a1,b2") == "a1");
  CHECK(first_host("gpu[003-006,9],login") == "gpu003");
  CHECK(first_host("gpu[7,9]") == "gpu7");
  CHECK(first_host("login,gpu[003-006]") == "login");
  CHECK(first_host("r[1-2]n") == "r1n");
}
