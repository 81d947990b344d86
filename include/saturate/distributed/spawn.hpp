// SPDX-License-Identifier: Apache-2.0
// Several ranks on this machine without a launcher, for tests and laptops. Each is this program, started anew (a forked
// copy of a process that has used LibTorch hangs), which runs a registered entry:
//
//   const st::distributed::SpawnEntry entry("train", [](const std::vector<std::string>& arguments) { ...; return 0; });
//   int main(int argc, char** argv) {
//     if (const auto code = st::distributed::spawned_main(argc, argv)) return *code;       // first thing in main
//     st::distributed::spawn(2, "train");
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace saturate::distributed {

/// What a spawned rank runs; at namespace scope. @param run gives the exit code; an exception is printed and gives 1.
class SpawnEntry {
 public:
  SpawnEntry(std::string name, std::function<int(const std::vector<std::string>& arguments)> run);
};

struct SpawnOptions {
  std::vector<std::string> arguments = {};  ///< for the entry
  /// Variables of the ranks' environment beside RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and the like.
  std::vector<std::pair<std::string, std::string>> environment = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< then all ranks are killed
  /// When a rank fails, the others are killed after this long; nothing: they run on.
  std::optional<std::chrono::milliseconds> grace = std::chrono::seconds(5);
  /// Called again and again with the process ids while ranks run.
  std::function<void(const std::vector<int>& pids)> watch = {};
};

struct SpawnedRank {
  int exit_code = 0;    ///< meaningless after a signal
  int signal = 0;       ///< that ended it; 0: none
  bool killed = false;  ///< by spawn: timeout or grace
  double seconds = 0;   ///< it lived
  std::string output;   ///< standard output and error
  bool ok() const { return exit_code == 0 && signal == 0; }
};

/// Starts `ranks` processes and waits for all of them. @throws ConfigError no such entry, or ranks below 1.
/// @throws Error a process cannot be started.
std::vector<SpawnedRank> spawn(int ranks, const std::string& entry, const SpawnOptions& options = {});

/// In a spawned rank: runs the entry. @return its exit code; nothing in a program that was started otherwise.
std::optional<int> spawned_main(int argc, char** argv);

}  // namespace saturate::distributed
