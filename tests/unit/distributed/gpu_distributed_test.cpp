// SPDX-License-Identifier: Apache-2.0
// Data parallel training on GPUs: NCCL between two where there are two; on one, NCCL with itself, and two ranks that
// share it over Gloo (NCCL refuses a device that two ranks share).
#include "distributed_support.hpp"
#include "saturate/distributed/bandwidth_probe.hpp"
#include "saturate/distributed/ddp.hpp"
#include "saturate/distributed/sharded_optimizer.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/trainer.hpp"
#include "src/torch_seam/process_groups.hpp"

#include <torch/cuda.h>

#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <utility>

namespace st = saturate;
namespace dist = st::distributed;

namespace {

std::vector<support::Batch> window_of(int rank, int64_t window) {
  return {support::classes(3 + rank, 100 * window + rank), support::classes(4 - rank, 100 * window + 10 + rank)};
}

/// Both ranks train as one process does with all of their samples.
int train(dist::Backend backend, c10::Device device) {
  const auto group = dist::ProcessGroup::from_environment({.backend = backend, .device = device});
  support::RankChecks check;
  const auto optimizer = [](auto params) { return st::optim::AdamW(std::move(params), {.lr = 0.01}); };
  support::Mlp ours = support::seeded<support::Mlp>(3), whole = support::seeded<support::Mlp>(3);
  ours->to(device);
  whole->to(device);
  st::Trainer trainer(ours, dist::ShardedOptimizer(group, ours->parameters(), optimizer), st::CrossEntropy{},
                      st::Accumulate{2}, st::ClipGradNorm{0.5}, st::Ddp(group, {.bucket_bytes = 256}));
  st::Trainer alone(whole, optimizer(whole->parameters()), st::CrossEntropy{}, st::ClipGradNorm{0.5},
                    st::TrainerOptions{.device = device});
  for (int64_t window = 0; window < 5; ++window) {
    const double loss = trainer.step(window_of(group.rank(), window)).loss();
    auto all = window_of(0, window);
    for (const auto& batch : window_of(1, window)) all.push_back(batch);
    check(std::abs(loss - alone.step(all).loss()) < 1e-4, "loss of window " + std::to_string(window));
  }
  check(support::relative_error(ours->parameters(), whole->parameters()) < 1e-4, "other parameters");
  check(support::same_on_all_ranks(group, ours->parameters()), "ranks have different parameters");
  const auto probe = dist::probe_all_reduce(group);
  check(probe.link.bandwidth > 0 && probe.link.latency >= 0, "the probe: " + probe.table());
  group.barrier();
  return check.exit_code();
}

const dist::SpawnEntry shared("gpu, shared", [](const std::vector<std::string>&) {
  return train(dist::Backend::gloo, c10::Device(c10::kCUDA, 0));
});
const dist::SpawnEntry own("gpu, one each", [](const std::vector<std::string>&) {
  return train(dist::Backend::nccl,
               c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(std::atoi(std::getenv("RANK")))));
});

}  // namespace

TEST_CASE("a process group on NCCL reduces, gathers and broadcasts", "[gpu][multi]") {
  if (!torch::cuda::is_available()) SKIP("no GPU here");
  const c10::Device device(c10::kCUDA, 0);
  const auto file = std::filesystem::temp_directory_path() / ("saturate-nccl-" + std::to_string(::getpid()));
  {
    const auto group = st::torch_seam::nccl_group(st::torch_seam::file_store(file.string(), 1), 0, 1,
                                                  std::chrono::seconds(60), device);
    const at::Tensor value = torch::arange(6, device).to(at::kFloat), expected = value.cpu().clone();
    std::vector<at::Tensor> tensors{value};
    group->allreduce(tensors)->wait();
    CHECK(support::same_bits(value.cpu(), expected));
    group->broadcast(tensors)->wait();
    CHECK(support::same_bits(value.cpu(), expected));
    std::vector<std::vector<at::Tensor>> gathered{{torch::zeros({6}, device)}};
    group->allgather(gathered, tensors)->wait();
    CHECK(support::same_bits(gathered[0][0].cpu(), expected));
  }
  ::unlink(file.c_str());
}

TEST_CASE("Ddp and ShardedOptimizer on a GPU that two ranks share, over Gloo", "[gpu][multi]") {
  if (!torch::cuda::is_available()) SKIP("no GPU here");
  support::check_ranks(2, "gpu, shared");
}

TEST_CASE("Ddp and ShardedOptimizer on two GPUs, over NCCL", "[gpu][multi]") {
  if (torch::cuda::device_count() < 2) SKIP("fewer than two GPUs here");
  support::check_ranks(2, "gpu, one each");
}
