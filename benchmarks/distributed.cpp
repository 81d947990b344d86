// SPDX-License-Identifier: Apache-2.0
// Data parallelism. `link`: a rank that rate_limited_link.py has started; 8 x Linear(1024), batch 64, with the ways to
// reduce its gradients. `report`: there, what comm_report says. `alone`: Ddp with one process against no policy.
// `memory`: optimizer state of 4 ranks. `notice`: a killed and a stopped peer.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/version.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rounds.hpp"
#include "saturate/distributed/bandwidth_probe.hpp"
#include "saturate/distributed/comm_report.hpp"
#include "saturate/distributed/compress.hpp"
#include "saturate/distributed/ddp.hpp"
#include "saturate/distributed/distributed_data_parallel.hpp"
#include "saturate/distributed/sharded_optimizer.hpp"
#include "saturate/distributed/spawn.hpp"
#include "saturate/error.hpp"
#include "saturate/observe/op_counter.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"

namespace {

namespace st = saturate;
namespace dist = st::distributed;
using Batch = std::pair<at::Tensor, at::Tensor>;

constexpr int64_t width = 1024, batch_size = 64, layers = 8;
constexpr int64_t bucket_bytes = int64_t{4} << 20, first_bucket_bytes = int64_t{1} << 20;  // peers/distributed.py: too
constexpr int64_t steps_per_sample = 2;

torch::nn::Sequential make_wide() {
  torch::manual_seed(0);
  torch::nn::Sequential net;
  for (int64_t i = 0; i < layers; ++i) net->push_back(torch::nn::Linear(width, width));
  return net;
}

// --- ways to reduce the gradients, over a link ----------------------------------------------------------------------

/// Everything but communication.
class NoReduction final : public dist::CommHook {
 public:
  Future reduce(dist::Bucket& bucket, double) override {
    auto done = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    done->markCompleted(bucket.gradients);
    return done;
  }
  std::string name() const override { return "none"; }
};

/// A model and how its gradients are reduced.
class Way {
 public:
  explicit Way(std::string name) : name_(std::move(name)) {}
  virtual ~Way() = default;
  virtual void step(const at::Tensor& x) = 0;
  const std::string& name() const { return name_; }
  double backward = 0;  // seconds of the steps' backward passes so far

 protected:
  void run_backward(const at::Tensor& x) {
    const at::Tensor loss = net_->forward(x).pow(2).mean();
    backward += bench::seconds_of([&] { loss.backward(); });
  }
  torch::nn::Sequential net_ = make_wide();

 private:
  std::string name_;
};

class Overlapped final : public Way {
 public:
  Overlapped(std::string name, const dist::ProcessGroup& group, std::shared_ptr<dist::CommHook> hook = nullptr)
      : Way(std::move(name)),
        measured_(std::dynamic_pointer_cast<dist::MeasuredHook>(hook)),
        ddp_(*net_, group,
             {.bucket_bytes = bucket_bytes, .first_bucket_bytes = first_bucket_bytes, .hook = std::move(hook)}) {}
  void step(const at::Tensor& x) override {
    net_->zero_grad();
    {
      const auto micro_step = ddp_.micro_step();
      if (measured_ != nullptr) {
        const at::Tensor loss = net_->forward(x).pow(2).mean();
        measured_->before_backward();
        loss.backward();
      } else {
        run_backward(x);
      }
    }
    ddp_.finish();
  }
  std::vector<int64_t> buckets() const { return ddp_.bucket_bytes(); }

 private:
  std::shared_ptr<dist::MeasuredHook> measured_;
  dist::DistributedDataParallel ddp_;
};

/// One all-reduce of all gradients after backward.
class Flat final : public Way {
 public:
  Flat(std::string name, dist::ProcessGroup group) : Way(std::move(name)), group_(std::move(group)) {}
  void step(const at::Tensor& x) override {
    net_->zero_grad();
    run_backward(x);
    std::vector<at::Tensor> gradients, flat;
    for (const at::Tensor& parameter : net_->parameters()) gradients.push_back(parameter.grad());
    for (const at::Tensor& gradient : gradients) flat.push_back(gradient.flatten());
    const at::Tensor all = at::cat(flat).div_(group_.world_size());
    group_.all_reduce(all);
    int64_t at = 0;
    for (const at::Tensor& gradient : gradients) {
      gradient.copy_(all.narrow(0, at, gradient.numel()).view_as(gradient));
      at += gradient.numel();
    }
  }

 private:
  dist::ProcessGroup group_;
};

double time_steps(const dist::ProcessGroup& group, Way& way, const at::Tensor& x) {
  group.barrier();
  way.backward = 0;
  return bench::seconds_of([&] {
    for (int64_t i = 0; i < steps_per_sample; ++i) way.step(x);
  });
}

/// The buckets' all-reduces with nothing else to do.
double time_communication(const dist::ProcessGroup& group, const std::vector<int64_t>& buckets) {
  dist::AllReduce hook;
  hook.attach(group);
  std::vector<dist::Bucket> all;
  for (const int64_t bytes : buckets) all.push_back({.gradients = at::zeros({bytes / 4}), .index = all.size()});
  group.barrier();
  return bench::seconds_of([&] {
    std::vector<dist::CommHook::Future> futures;
    for (dist::Bucket& bucket : all) futures.push_back(hook.reduce(bucket, 1));
    for (const auto& future : futures) future->wait();
  });
}

class OverLink {
 public:
  explicit OverLink(dist::ProcessGroup group) : group_(std::move(group)) {
    auto overlapped = std::make_unique<Overlapped>("overlapped", group_);
    overlapped_ = overlapped.get();
    ways_.push_back(std::move(overlapped));
    ways_.push_back(std::make_unique<Overlapped>("no_hook", group_, std::make_shared<NoReduction>()));
    no_hook_ = ways_.back().get();
    ways_.push_back(std::make_unique<Flat>("flat", group_));
    ways_.push_back(std::make_unique<Overlapped>("fp16", group_, std::make_shared<dist::Fp16Compress>()));
    ways_.push_back(std::make_unique<Overlapped>("bf16", group_, std::make_shared<dist::Bf16Compress>()));
    for (const auto& way : ways_) way->step(x_);  // buckets are made anew after the first
  }

  /// By both ranks. @param n of the round
  void round(int64_t n) {
    const auto count = static_cast<int64_t>(ways_.size());
    for (int64_t i = 0; i < count; ++i) {
      Way& way = *ways_[static_cast<std::size_t>((i + n) % count)];
      const double seconds = time_steps(group_, way, x_);
      say(way.name(), seconds, steps_per_sample);
      if (&way == overlapped_) rounds_.overlapped.push_back(seconds / steps_per_sample);
      if (&way != no_hook_) continue;
      rounds_.without.push_back(seconds / steps_per_sample);
      rounds_.backward.push_back(way.backward / steps_per_sample);
    }
    rounds_.communication.push_back(time_communication(group_, overlapped_->buckets()));
    const double communication = fast(rounds_.communication);
    const double exposed = std::max(0.0, fast(rounds_.overlapped) - fast(rounds_.without));
    const double hidden = 1 - exposed / communication;
    const double of_what_can_be = hidden / std::min(1.0, fast(rounds_.backward) / communication);
    say("hidden", communication, 1, ", \"count\": " + std::to_string(of_what_can_be));
  }
  void tell(const std::string& rate) const {
    if (group_.rank() != 0) return;
    const std::string shape = "8 x Linear(1024), batch 64, " + std::to_string(group_.world_size()) +
                              " ranks, 1 thread each, " + rate + ", buckets of 4 MiB, LibTorch " TORCH_VERSION;
    bench::print_info("overlapped", "DistributedDataParallel, " + shape);
    bench::print_info("flat", "one all_reduce after backward");
    bench::print_info("fp16", "Fp16Compress");
    bench::print_info("bf16", "Bf16Compress");
    bench::print_info("hidden",
                      "(1 - exposed / communication) / min(1, backward / communication), lower quartiles so far; "
                      "beside: communication");
  }

 private:
  /// Seconds of every round so far.
  struct Rounds {
    std::vector<double> overlapped, without, backward, communication;
  };
  /// What disturbs only adds time, and the one fastest round is luck: the lower quartile, as bench.py has it.
  static double fast(std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    const double place = 0.25 * static_cast<double>(seconds.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const double above = seconds[std::min(below + 1, seconds.size() - 1)];
    return seconds[below] + (place - static_cast<double>(below)) * (above - seconds[below]);
  }

  void say(const std::string& side, double seconds, int64_t samples, const std::string& more = {}) const {
    if (group_.rank() == 0) bench::print_sample(side, seconds, samples, more);
  }

  dist::ProcessGroup group_;
  at::Tensor x_ = at::randn({batch_size, width});
  std::vector<std::unique_ptr<Way>> ways_;
  Overlapped* overlapped_;
  Way* no_hook_;
  Rounds rounds_;
};

/// Rank 0 answers rounds; the others do what it does.
void serve_on_all(const dist::ProcessGroup& group, const std::function<void(int64_t)>& round) {
  const at::Tensor next = at::zeros({1}, at::kLong);
  if (group.rank() == 0) {
    bench::serve_rounds([&](int64_t n) {
      group.broadcast(next.fill_(n));
      round(n);
    });
    group.broadcast(next.fill_(-1));
    return;
  }
  for (group.broadcast(next); next.item<int64_t>() >= 0; group.broadcast(next)) round(next.item<int64_t>());
}

int over_link(const std::string& rate) {
  at::set_num_threads(1);
  const auto group = dist::ProcessGroup::from_environment();
  OverLink link(group);
  link.tell(rate);
  serve_on_all(group, [&](int64_t n) { link.round(n); });
  group.barrier();
  return 0;
}

int report() {
  at::set_num_threads(1);
  const auto group = dist::ProcessGroup::from_environment();
  const auto probe = dist::probe_all_reduce(group);
  if (group.rank() == 0) std::printf("%s\n", probe.table().c_str());
  const at::Tensor x = at::randn({batch_size, width});
  for (const std::shared_ptr<dist::CommHook>& inner : std::vector<std::shared_ptr<dist::CommHook>>{
           std::make_shared<dist::AllReduce>(), std::make_shared<dist::Bf16Compress>()}) {
    const auto hook = std::make_shared<dist::MeasuredHook>(inner);
    Overlapped way(hook->name(), group, hook);
    for (int i = 0; i < 10; ++i) way.step(x);
    group.barrier();
    if (group.rank() == 0) std::printf("%s\n", dist::comm_report(*hook, probe.link).text().c_str());
  }
  return 0;
}

// --- one process ----------------------------------------------------------------------------------------------------

struct Side {
  std::string name;
  std::function<void(const Batch&)> step;
  std::string operators = {};
};

std::string operators_of(const Side& side, const Batch& batch) {
  side.step(batch);  // the first step makes the optimizer's state
  const st::OpCounter counter({.this_thread_only = true});
  side.step(batch);
  std::string all;
  for (const std::string& name : counter.operators()) all += name + " ";
  char text[64];
  std::snprintf(text, sizeof text, "%lld (%04zx)", static_cast<long long>(counter.total()),
                std::hash<std::string>{}(all)&0xffff);
  return text;
}

int alone() {
  at::set_num_threads(1);
  const auto make = [] {
    torch::manual_seed(0);
    return torch::nn::Sequential(torch::nn::Linear(784, 256), torch::nn::ReLU(), torch::nn::Linear(256, 10));
  };
  auto with_net = make(), without_net = make();
  st::Trainer with(with_net, st::optim::AdamW(with_net->parameters()), st::CrossEntropy{},
                   st::Ddp(dist::ProcessGroup()), st::TrainerOptions{.device = c10::Device(c10::kCPU)});
  st::Trainer without(without_net, st::optim::AdamW(without_net->parameters()), st::CrossEntropy{},
                      st::TrainerOptions{.device = c10::Device(c10::kCPU)});
  const Batch batch{at::randn({128, 784}), at::randint(10, {128})};
  std::vector<Side> sides{{"ddp", [&](const Batch& b) { with.step(b); }},
                          {"without", [&](const Batch& b) { without.step(b); }}};
  for (Side& side : sides) side.operators = operators_of(side, batch);
  bench::print_info("ddp", "Trainer with Ddp of one process, 784-256-10, batch 128, fused AdamW, 1 thread");
  bench::print_info("without", "Trainer without a distributed policy");
  bench::serve_rounds([&](int64_t n) {
    for (std::size_t i = 0; i < sides.size(); ++i) {
      const Side& side = sides[(i + static_cast<std::size_t>(n)) % sides.size()];
      const double seconds = bench::seconds_of([&] {
        for (int step = 0; step < 50; ++step) side.step(batch);
      });
      bench::print_sample(side.name, seconds, 50, ", \"count\": \"" + side.operators + "\"");
    }
  });
  return 0;
}

// --- spawned ranks --------------------------------------------------------------------------------------------------

/// What ranks have printed behind a word: "noticed 12.5". @throws Error the rank has not printed it.
double number_behind(const std::string& word, const dist::SpawnedRank& rank) {
  const auto at = rank.output.find(word + " ");
  if (at == std::string::npos) throw st::Error("no '" + word + "' of a rank: " + rank.output);
  return std::stod(rank.output.substr(at + word.size()));
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const dist::SpawnEntry state_bytes("state", [](const std::vector<std::string>&) {
  at::set_num_threads(1);
  const auto group = dist::ProcessGroup::from_environment();
  auto sharded_net = make_wide(), whole_net = make_wide();
  dist::ShardedOptimizer sharded(group, sharded_net->parameters(), [](std::vector<at::Tensor> parameters) {
    return st::optim::AdamW(std::move(parameters));
  });
  st::optim::AdamW whole(whole_net->parameters());
  for (auto& net : {sharded_net, whole_net}) {
    for (const at::Tensor& parameter : net->parameters()) parameter.mutable_grad() = at::ones_like(parameter);
  }
  sharded.step({});
  static_cast<st::optim::Optimizer&>(whole).step({});
  const at::Tensor largest = at::full({1}, sharded.state_bytes().now, at::kLong);
  group.all_reduce(largest, dist::ReduceOp::max);
  std::printf("sharded %lld\nwhole %lld\n", static_cast<long long>(largest.item<int64_t>()),
              static_cast<long long>(whole.state_bytes().now));
  group.barrier();
  return 0;
});

int memory() {
  bench::print_info("sharded", "ShardedOptimizer of AdamW, 8 x Linear(1024), 4 ranks, the largest one's state");
  bench::print_info("whole", "AdamW, every rank's state");
  bench::serve_rounds([](int64_t) {
    const auto ranks = dist::spawn(4, "state");
    for (const std::string side : {"sharded", "whole"}) {
      const double bytes = number_behind(side, ranks[0]);
      bench::print_sample(side, ranks[0].seconds, 1, ", \"count\": " + std::to_string(bytes));
    }
  });
  return 0;
}

const dist::SpawnEntry doomed("doomed", [](const std::vector<std::string>& arguments) -> int {
  at::set_num_threads(1);
  const auto group = dist::ProcessGroup::from_environment({.timeout = std::chrono::seconds(3)});
  // Small: what counts is the wait, not the rest of a step.
  torch::nn::Sequential net(torch::nn::Linear(16, 16));
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{}, st::Ddp(group));
  const Batch batch{at::randn({4, 16}), at::randint(16, {4})};
  try {
    for (int window = 0;; ++window) {
      if (window == 3 && group.rank() == 1) {
        std::printf("gone %.6f\n", seconds_now());
        std::fflush(stdout);
        ::raise(arguments.at(0) == "killed" ? SIGKILL : SIGSTOP);
      }
      trainer.step(batch);
    }
  } catch (const st::DistributedError& error) {
    std::printf("noticed %.6f: %s\n", seconds_now(), error.what());
    std::fflush(stdout);
    ::_exit(7);
  }
});

int notice() {
  bench::print_info("killed", "seconds until the other rank has a DistributedError, timeout 3 s");
  bench::print_info("stopped", "seconds until the other rank has a DistributedError, timeout 3 s");
  bench::serve_rounds([](int64_t) {
    for (const std::string fate : {"killed", "stopped"}) {
      // Long enough for the other to notice; a stopped one is ended once it has.
      const auto grace = std::chrono::milliseconds(fate == "killed" ? 10000 : 100);
      const auto ranks = dist::spawn(2, "doomed", {.arguments = {fate}, .grace = grace});
      const double seconds = number_behind("noticed", ranks[0]) - number_behind("gone", ranks[1]);
      bench::print_sample(fate, seconds, 1, ", \"count\": " + std::to_string(seconds));
    }
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = dist::spawned_main(argc, argv)) return *code;
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "link" && argc > 2) return over_link(argv[2]);
    if (what == "report") return report();
    if (what == "alone") return alone();
    if (what == "memory") return memory();
    if (what == "notice") return notice();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "usage: bench_distributed link RATE | report | alone | memory | notice\n");
  return 2;
}
