// SPDX-License-Identifier: Apache-2.0
// Law 9 over ranks, whole: whichever rank is killed, stopped or fails, wherever it is, every other rank gets a
// DistributedError that names what was running, in time, and its process ends by itself.
#include "distributed_support.hpp"
#include "saturate/distributed/ddp.hpp"
#include "saturate/error.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"

#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>

namespace st = saturate;
namespace dist = saturate::distributed;

namespace {

constexpr auto timeout = std::chrono::seconds(3);
constexpr int ranks = 3;
constexpr int64_t last_window = 3;  // buckets were made anew before it

/// Seconds of a clock that all processes share.
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// What happens to one rank, once: in the place and in the window that are given.
struct Doom {
  std::string fate, place;
  int64_t window = 0;
  void here(const std::string& at) {
    if (at != place || window != last_window) return;
    std::cout << "doomed at " << std::fixed << now() << std::endl;
    if (fate == "kill") ::raise(SIGKILL);
    if (fate == "stop") ::raise(SIGSTOP);
    if (fate == "throw") throw std::runtime_error("cable pulled");
    if (fate == "cut") std::system("ip link set veth0 down");
  }
};

struct DoomedImpl : support::MlpImpl {
  Doom* doom = nullptr;
  at::Tensor forward(const at::Tensor& x) {
    doom->here("forward");
    at::Tensor y = torch::tanh(first(x));
    y.register_hook([this](const at::Tensor&) { doom->here("backward"); });
    return second(y);
  }
};

/// In the middle of a window's reductions: the first bucket is on its way.
class DoomedReduce final : public dist::AllReduce {
 public:
  explicit DoomedReduce(Doom* doom) : doom_(doom) {}
  Future reduce(dist::Bucket& bucket, double divisor) override {
    if (bucket.index == 1) doom_->here("reduction");
    return AllReduce::reduce(bucket, divisor);
  }

 private:
  Doom* doom_;
};

void train(const dist::ProcessGroup& group, Doom& doom) {
  torch::manual_seed(3);
  auto net = std::make_shared<DoomedImpl>();
  net->doom = &doom;
  st::DdpOptions options{.bucket_bytes = 256, .first_bucket_bytes = 64};
  options.hook = std::make_shared<DoomedReduce>(&doom);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Ddp(group, options));
  for (doom.window = 1; doom.window < 10; ++doom.window) {
    trainer.step(support::classes(4, 10 * doom.window + group.rank()));
  }
}

/// Ends as a program does that knows nothing of faults: the error leaves everything, destructors run.
int doomed(const std::string& fate, const std::string& place, int victim) {
  at::set_num_threads(1);
  std::optional<double> noticed;
  try {
    const auto group = dist::ProcessGroup::from_environment({.timeout = timeout});
    Doom doom{group.rank() == victim ? fate : "", place};
    train(group, doom);
  } catch (const st::DistributedError& error) {
    noticed = now();  // destructors have run
    std::cout << "noticed: " << error.what() << "\nended at " << std::fixed << *noticed << std::endl;
    return 7;
  } catch (const std::runtime_error& error) {
    std::cout << "own error: " << error.what() << "\nended at " << std::fixed << now() << std::endl;
    return 8;
  }
  return 0;
}

const dist::SpawnEntry doom("fault", [](const std::vector<std::string>& arguments) {
  return doomed(arguments.at(0), arguments.at(1), std::stoi(arguments.at(2)));
});

double time_after(const std::string& output, const std::string& words) {
  const std::size_t found = output.find(words);
  return found == std::string::npos ? -1 : std::stod(output.substr(found + words.size()));
}

bool names_what_ran(const std::string& output) {
  for (const char* what : {"all_reduce", "forward and backward of a window", "agreeing on buckets"}) {
    if (output.find(what) != std::string::npos) return true;
  }
  return false;
}

/// Ends a stopped rank once the others are gone: it would not by itself.
std::function<void(const std::vector<int>&)> end_when_alone(int rank) {
  return [rank](const std::vector<int>& pids) {
    for (std::size_t other = 0; other < pids.size(); ++other) {
      if (static_cast<int>(other) != rank && pids[other] != 0) return;
    }
    if (pids[static_cast<std::size_t>(rank)] != 0) ::kill(pids[static_cast<std::size_t>(rank)], SIGKILL);
  };
}

void check_fault(const std::string& fate, const std::string& place, int victim) {
  CAPTURE(fate, place, victim);
  const double begin = now();
  dist::SpawnOptions options{.arguments = {fate, place, std::to_string(victim)},
                             .timeout = std::chrono::seconds(120),
                             .grace = std::chrono::seconds(60)};  // a rank that does not end by itself is killed
  if (fate == "stop") options.watch = end_when_alone(victim);
  const auto results = dist::spawn(ranks, "fault", options);
  const auto& of_victim = results[static_cast<std::size_t>(victim)];
  const double death = time_after(of_victim.output, "doomed at ");
  CAPTURE(of_victim.output);
  REQUIRE(death > 0);
  if (fate == "throw") CHECK(of_victim.exit_code == 8);
  if (fate == "kill") CHECK(of_victim.signal == SIGKILL);
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == victim) continue;
    const auto& result = results[static_cast<std::size_t>(rank)];
    CAPTURE(rank, result.output, result.signal);
    CHECK(result.exit_code == 7);
    CHECK_FALSE(result.killed);
    CHECK(result.output.find("noticed: rank " + std::to_string(rank) + " of 3, ") != std::string::npos);
    CHECK(names_what_ran(result.output));
    const double seconds = time_after(result.output, "ended at ") - death;
    const double at_exit = begin + result.seconds - death - seconds;
    std::cout << fate << " rank " << victim << " in " << place << ": rank " << rank << " noticed after " << seconds
              << " s, its process ended " << at_exit << " s later" << std::endl;
    CHECK(seconds < (fate == "stop" ? 4.5 : 2.5));
  }
}

}  // namespace

constexpr const char* places[] = {"forward", "backward", "reduction"};

// Each rank, and each place, once a fate; every pair under [full].
TEST_CASE("law 9 over ranks: a rank is killed, is stopped, or fails", "[law][multi][fault]") {
  const std::string fate = GENERATE("kill", "stop", "throw");
  for (int victim = 0; victim < ranks; ++victim) check_fault(fate, places[victim], victim);
}

TEST_CASE("law 9 over ranks: a rank is killed, is stopped, or fails, in every place", "[law][multi][.full]") {
  const std::string fate = GENERATE("kill", "stop", "throw");
  for (int victim = 0; victim < ranks; ++victim) {
    for (const char* place : places) check_fault(fate, place, victim);
  }
}

namespace {

/// Two network namespaces joined by a cable, where this process may make them.
class Cable {
 public:
  Cable() {
    const std::string script =
        "set -e; ip netns add " + name(0) + "; ip netns add " + name(1) + "; ip -n " + name(0) +
        " link add veth0 type veth peer name veth0 netns " + name(1) + "; for i in 0 1; do n=" + prefix_ +
        "$i; ip -n $n addr add 10.199.7.$((i+1))/24 dev veth0; ip -n $n link set veth0 up; ip -n $n link set lo up; "
        "done";
    made_ = std::system(("sh -c '" + script + "' > /dev/null 2>&1").c_str()) == 0;
  }
  ~Cable() {
    for (const int end : {0, 1}) std::system(("ip netns del " + name(end) + " > /dev/null 2>&1").c_str());
  }
  Cable(const Cable&) = delete;
  Cable& operator=(const Cable&) = delete;
  bool made() const { return made_; }
  std::string name(int end) const { return prefix_ + std::to_string(end); }

 private:
  std::string prefix_ = "saturate" + std::to_string(::getpid()) + "n";
  bool made_ = false;
};

const dist::SpawnEntry cut("cut", [](const std::vector<std::string>& arguments) {
  const std::string rank = std::getenv("RANK");
  const int file = ::open(("/run/netns/" + arguments.at(0) + rank).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 || ::setns(file, CLONE_NEWNET) != 0) return 77;
  return doomed("cut", arguments.at(1), 0);
});

}  // namespace

TEST_CASE("law 9 over ranks: the link goes down", "[law][multi][fault]") {
  const Cable cable;
  if (!cable.made()) SKIP("no network namespace can be made here (ip netns add needs CAP_NET_ADMIN)");
  const std::string prefix = cable.name(0).substr(0, cable.name(0).size() - 1);
  for (const char* place : places) {
    CAPTURE(place);
    const auto results = dist::spawn(2, "cut",
                                     {.arguments = {prefix, place},
                                      .environment = {{"MASTER_ADDR", "10.199.7.1"}, {"GLOO_SOCKET_IFNAME", "veth0"}},
                                      .timeout = std::chrono::seconds(60),
                                      .grace = std::chrono::seconds(20)});
    const double death = time_after(results[0].output, "doomed at ");
    CAPTURE(results[0].output);
    REQUIRE(death > 0);
    for (const auto& result : results) {
      CAPTURE(result.output);
      CHECK(result.exit_code == 7);
      CHECK_FALSE(result.killed);
      CHECK(names_what_ran(result.output));
      const double seconds = time_after(result.output, "ended at ") - death;
      std::cout << "link down in " << place << ": noticed after " << seconds << " s" << std::endl;
      CHECK(seconds < 4.5);
    }
    std::system(("ip -n " + cable.name(0) + " link set veth0 up").c_str());
  }
}
