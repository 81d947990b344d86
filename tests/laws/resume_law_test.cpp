// SPDX-License-Identifier: Apache-2.0
// Law 5 for the data: a run that is killed and goes on in a new process, on other numbers of workers and ranks, reads
// the samples that the uninterrupted one reads, one for one.
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/sampler.hpp"
#include "saturate/data/tensor_source.hpp"
#include "saturate/error.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"
#include "unit/data/sources.hpp"

#include <torch/torch.h>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch_test_macros.hpp>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

using namespace saturate::data;
using saturate::test::Numbers;
using saturate::test::samples_of;

extern char** environ;

namespace {

constexpr int64_t samples = 203, global_batch = 12;
constexpr uint64_t seed = 5;

LoaderOptions options_for(int64_t workers, int64_t rank, int64_t ranks) {
  return {.batch_size = global_batch / ranks,
          .shuffle = true,
          .seed = seed,
          .workers = workers,
          .rank = rank,
          .ranks = ranks,
          .uneven = Uneven::allow};
}

std::vector<int64_t> rest_of_epoch(int64_t epoch, int64_t position) {
  const auto order = epoch_order(samples, true, seed, epoch);
  return {order.begin() + position, order.end()};
}

/// Steps of all ranks, put together again: the global sequence.
std::vector<int64_t> together(std::vector<PrefetchLoader<Numbers>>& ranks) {
  std::vector<std::vector<std::vector<int64_t>>> seen;
  for (auto& loader : ranks) seen.push_back(saturate::test::batches_of(loader));
  std::vector<int64_t> sequence;
  for (std::size_t step = 0; step < seen.front().size(); ++step) {
    for (const auto& rank : seen) {
      if (step < rank.size()) sequence.insert(sequence.end(), rank[step].begin(), rank[step].end());
    }
  }
  return sequence;
}

/// A loader that keeps what was read ahead as if it had been handed over: what the law must not let pass.
int64_t broken_position(const PrefetchLoader<Numbers>& loader) {
  return loader.state().position + loader.options().prefetch * loader.options().batch_size;
}

std::string temporary_file() {
  std::string path = "/tmp/saturate-resume-XXXXXX";
  const int file = ::mkstemp(path.data());
  REQUIRE(file >= 0);
  ::close(file);
  return path;
}

}  // namespace

// Run by the test below in a process of its own; kills itself in the middle of the second epoch.
TEST_CASE("child: train until killed", "[.child]") {
  const std::string path = std::getenv("SATURATE_RESUME_FILE");
  PrefetchLoader loader(Numbers{samples}, options_for(2, 0, 1));
  std::ofstream out(path);
  int64_t steps = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader) {
      for (int64_t k = 0; k < batch.size(); ++k) out << batch.target()[k].item<int64_t>() << ' ';
      out << '\n' << loader.state().text() << std::endl;
      if (++steps == 25) std::raise(SIGKILL);
    }
  }
}

TEST_CASE("law 5: killed and resumed in a new process, on other workers and ranks, index for index", "[law][data]") {
  const std::string path = temporary_file();
  ::setenv("SATURATE_RESUME_FILE", path.c_str(), 1);
  std::string name = "child: train until killed";
  char program[] = "/proc/self/exe";
  char* arguments[] = {program, name.data(), nullptr};
  ::pid_t child = 0;
  REQUIRE(::posix_spawn(&child, program, nullptr, nullptr, arguments, environ) == 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(WTERMSIG(status) == SIGKILL);

  std::vector<int64_t> seen;
  std::ifstream in(path);
  LoaderState state;
  for (std::string numbers, text; std::getline(in, numbers) && std::getline(in, text);) {
    std::istringstream words(numbers);
    for (int64_t sample; words >> sample;) seen.push_back(sample);
    state = LoaderState::parse(text);
  }
  ::unlink(path.c_str());
  REQUIRE(state.epoch == 1);
  REQUIRE(state.position == (25 - 17) * global_batch);  // an epoch has 17 steps

  std::vector<int64_t> whole = rest_of_epoch(0, 0);
  const auto second = rest_of_epoch(1, 0);
  whole.insert(whole.end(), second.begin(), second.end());
  for (const int64_t ranks : {1, 2, 3}) {
    for (const int64_t workers : {0, 1, 4}) {
      std::vector<PrefetchLoader<Numbers>> loaders;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        loaders.emplace_back(Numbers{samples}, options_for(workers, rank, ranks));
        loaders.back().load_state(state);
      }
      std::vector<int64_t> all = seen;
      const auto rest = together(loaders);
      all.insert(all.end(), rest.begin(), rest.end());
      REQUIRE(all == whole);
      REQUIRE(together(loaders) == rest_of_epoch(2, 0));
    }
  }
}

TEST_CASE("law 5: at every batch of an epoch, from any number of ranks to any other", "[law][data]") {
  for (const int64_t before : {1, 2, 3}) {
    for (int64_t stop = 1; stop <= 17; ++stop) {
      PrefetchLoader first(Numbers{samples}, options_for(1, 0, before));
      auto it = first.begin();
      for (int64_t step = 1; step < stop; ++step) ++it;
      const LoaderState state = first.state();
      if (stop == 17) {
        REQUIRE(state.epoch == 1);
        REQUIRE(state.position == 0);
        continue;
      }
      REQUIRE(state.position == stop * global_batch);
      if (broken_position(first) < samples)
        REQUIRE(rest_of_epoch(0, broken_position(first)) != rest_of_epoch(0, state.position));
      for (const int64_t after : {1, 2, 3}) {
        std::vector<PrefetchLoader<Numbers>> loaders;
        for (int64_t rank = 0; rank < after; ++rank) {
          loaders.emplace_back(Numbers{samples}, options_for(0, rank, after));
          loaders.back().load_state(state);
        }
        REQUIRE(together(loaders) == rest_of_epoch(0, state.position));
      }
    }
  }
}

TEST_CASE("law 5: going on reads nothing that lies before", "[law][data]") {
  const Numbers source{100000};
  PrefetchLoader loader(source, {.batch_size = 4, .shuffle = true, .workers = 0});
  loader.load_state({.epoch = 3, .position = 40000, .seed = 0, .length = 100000, .sampler = "shuffled"});
  const auto order = epoch_order(100000, true, 0, 3);
  const auto it = loader.begin();
  REQUIRE(it->target()[0].item<int64_t>() == order[40000]);
  REQUIRE(*source.reads == 4);
}

TEST_CASE("a state of other data is refused, and changes nothing", "[data]") {
  PrefetchLoader loader(Numbers{100}, {.batch_size = 10, .shuffle = true, .seed = 1});
  auto it = loader.begin();
  ++it;
  const LoaderState state = loader.state();
  REQUIRE(LoaderState::parse(state.text()) == state);
  for (const auto& change :
       std::vector<void (*)(LoaderState&)>{[](LoaderState& s) { s.seed = 2; }, [](LoaderState& s) { s.length = 99; },
                                           [](LoaderState& s) { s.sampler = "sequential"; }}) {
    LoaderState other = state;
    change(other);
    REQUIRE_THROWS_AS(loader.load_state(other), saturate::ConfigError);
  }
  for (const auto& change : std::vector<void (*)(LoaderState&)>{[](LoaderState& s) { s.position = 101; },
                                                                [](LoaderState& s) { s.position = -1; },
                                                                [](LoaderState& s) { s.epoch = -1; }}) {
    LoaderState other = state;
    change(other);
    REQUIRE_THROWS_AS(loader.load_state(other), saturate::DataError);
  }
  REQUIRE(loader.state() == state);
  for (const char* text : {"", "saturate-loader-state-2 epoch 1", "saturate-loader-state-1 epoch x",
                           "saturate-loader-state-1 epoch 1 position 4"}) {
    REQUIRE_THROWS_AS(LoaderState::parse(text), saturate::DataError);
  }
}

TEST_CASE("law 5: fit goes on where a loader was left, and ends with the same weights", "[law][data]") {
  const at::Tensor x = torch::rand({60, 4}), y = torch::rand({60, 1});
  struct Run {
    explicit Run(const at::Tensor& x, const at::Tensor& y)
        : net(4, 1),
          trainer(net, saturate::optim::SGD(net->parameters(), {.lr = 0.1}), saturate::MSE{}),
          loader(TensorSource(x, y), {.batch_size = 10, .shuffle = true, .seed = 4, .workers = 1}) {}
    torch::nn::Linear net;
    saturate::Trainer<torch::nn::Linear, saturate::MSE> trainer;
    PrefetchLoader<TensorSource<2>> loader;
  };
  torch::manual_seed(0);
  Run whole(x, y), parts(x, y);
  {
    const torch::NoGradGuard no_grad;
    parts.net->weight.copy_(whole.net->weight);
    parts.net->bias.copy_(whole.net->bias);
  }
  whole.trainer.fit(whole.loader, {.epochs = 2});
  int64_t steps = 0;
  for (auto& batch : parts.loader) {
    parts.trainer.step(batch);
    if (++steps == 4) break;
  }
  PrefetchLoader again(TensorSource(x, y), {.batch_size = 10, .shuffle = true, .seed = 4, .workers = 2});
  again.load_state(parts.loader.state());
  const auto result = parts.trainer.fit(again, {.epochs = 2});
  REQUIRE(result.samples == 20 + 60);
  REQUIRE(parts.net->weight.equal(whole.net->weight));
  REQUIRE(parts.net->bias.equal(whole.net->bias));
}

TEST_CASE("another batch size goes on at the same sample", "[data]") {
  PrefetchLoader first(Numbers{100}, {.batch_size = 30, .shuffle = true});
  [[maybe_unused]] const auto it = first.begin();
  PrefetchLoader second(Numbers{100}, {.batch_size = 7, .shuffle = true});
  second.load_state(first.state());
  const auto order = epoch_order(100, true, 0, 0);
  REQUIRE(samples_of(second) == std::vector<int64_t>(order.begin() + 30, order.end()));
  REQUIRE(samples_of(second) == epoch_order(100, true, 0, 1));
}
