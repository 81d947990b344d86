// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/spawn.hpp"

#include "saturate/error.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>

extern char** environ;

namespace saturate::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using Run = std::function<int(const std::vector<std::string>&)>;
constexpr const char* flag = "--saturate-spawned";

std::map<std::string, Run>& entries() {
  static std::map<std::string, Run> instance;
  return instance;
}

[[noreturn]] void fail(const std::string& what) { throw Error("spawn: " + what + ": " + std::strerror(errno)); }

/// A port that is free now. Another program may take it before rank 0 does: then the ranks fail and say so.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) fail("a socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const bool bound = ::bind(socket, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  ::close(socket);
  if (!bound) fail("a free port");
  return ntohs(address.sin_port);
}

std::vector<std::string> environment_of(int rank, int ranks, int port, const SpawnOptions& options) {
  std::map<std::string, std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const auto equals = text.find('=');
    // A rank inside a launched job is not to take that job's ranks for its own.
    const std::string name = text.substr(0, equals);
    const bool launchers = name.rfind("TORCHELASTIC", 0) == 0 || name.rfind("OMPI_", 0) == 0 ||
                           name.rfind("PMI", 0) == 0 || name.rfind("SLURM_", 0) == 0;
    if (!launchers) variables[name] = equals == std::string::npos ? "" : text.substr(equals + 1);
  }
  variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(port);
  variables.try_emplace("GLOO_SOCKET_IFNAME", "lo");
  for (const auto& [name, value] : options.environment) variables[name] = value;
  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

struct Child {
  pid_t pid = 0;
  int output = -1;
  bool running = true;
  SpawnedRank rank;
};

Child start(int rank, int ranks, int port, const std::string& entry, const SpawnOptions& options) {
  Child child;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("a pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<std::string> arguments{"/proc/self/exe", flag, entry};
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  std::vector<std::string> environment = environment_of(rank, ranks, port, options);
  const int error = ::posix_spawn(&child.pid, "/proc/self/exe", &actions, nullptr, pointers(arguments).data(),
                                  pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  child.output = ends[0];
  if (error != 0) {
    ::close(ends[0]);
    errno = error;
    fail("rank " + std::to_string(rank));
  }
  return child;
}

/// The ranks, until all have ended.
class Children {
 public:
  ~Children() {
    for (Child& child : children_) {
      if (child.running) kill(child);
      if (child.running) ::waitpid(child.pid, nullptr, 0);
      if (child.output >= 0) ::close(child.output);
    }
  }
  void add(Child child) { children_.push_back(std::move(child)); }

  std::vector<SpawnedRank> wait(const SpawnOptions& options) {
    const auto begin = Clock::now();
    std::optional<Clock::time_point> end_others;
    while (any_running()) {
      if (options.watch) options.watch(pids());
      read_for(std::chrono::milliseconds(20));
      for (Child& child : children_) {
        if (child.running && ended(child, begin) && !child.rank.ok() && options.grace && !end_others) {
          end_others = Clock::now() + *options.grace;
        }
      }
      const bool late = Clock::now() - begin > options.timeout || (end_others && Clock::now() > *end_others);
      for (Child& child : children_) {
        if (late && child.running) kill(child);
      }
    }
    while (read_for(std::chrono::milliseconds(0))) {
    }
    std::vector<SpawnedRank> result;
    for (Child& child : children_) result.push_back(std::move(child.rank));
    return result;
  }

 private:
  static void kill(Child& child) {
    ::kill(child.pid, SIGKILL);
    child.rank.killed = true;
  }
  static bool ended(Child& child, Clock::time_point begin) {
    int status = 0;
    if (::waitpid(child.pid, &status, WNOHANG) != child.pid) return false;
    child.running = false;
    child.rank.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (WIFSIGNALED(status)) child.rank.signal = WTERMSIG(status);
    if (WIFEXITED(status)) child.rank.exit_code = WEXITSTATUS(status);
    return true;
  }
  bool any_running() const {
    for (const Child& child : children_) {
      if (child.running) return true;
    }
    return false;
  }
  std::vector<int> pids() const {
    std::vector<int> result;
    for (const Child& child : children_) result.push_back(child.running ? child.pid : 0);
    return result;
  }
  // A pipe that nobody empties stops its writer.
  bool read_for(std::chrono::milliseconds wait) {
    std::vector<pollfd> open;
    std::vector<Child*> of;
    for (Child& child : children_) {
      if (child.output < 0) continue;
      open.push_back({child.output, POLLIN, 0});
      of.push_back(&child);
    }
    if (::poll(open.data(), open.size(), static_cast<int>(wait.count())) <= 0) return false;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].revents != 0) read_some(*of[i]);
    }
    return true;
  }
  static void read_some(Child& child) {
    char buffer[4096];
    const auto count = ::read(child.output, buffer, sizeof(buffer));
    if (count > 0) {
      child.rank.output.append(buffer, static_cast<std::size_t>(count));
    } else if (count == 0) {
      ::close(child.output);
      child.output = -1;
    }
  }

  std::vector<Child> children_;
};

}  // namespace

SpawnEntry::SpawnEntry(std::string name, Run run) { entries()[std::move(name)] = std::move(run); }

std::vector<SpawnedRank> spawn(int ranks, const std::string& entry, const SpawnOptions& options) {
  if (ranks < 1) throw ConfigError("spawn: " + std::to_string(ranks) + " ranks; at least one");
  if (!entries().contains(entry)) {
    throw ConfigError("spawn: no entry '" + entry + "' is registered; make a SpawnEntry of that name");
  }
  const int port = free_port();
  Children children;
  for (int rank = 0; rank < ranks; ++rank) children.add(start(rank, ranks, port, entry, options));
  return children.wait(options);
}

std::optional<int> spawned_main(int argc, char** argv) {
  if (argc < 3 || std::strcmp(argv[1], flag) != 0) return std::nullopt;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives its parent
  const auto entry = entries().find(argv[2]);
  if (entry == entries().end()) {
    std::fprintf(stderr, "spawn: no entry '%s' in this program\n", argv[2]);
    return 1;
  }
  try {
    return entry->second(std::vector<std::string>(argv + 3, argv + argc));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace saturate::distributed
