// SPDX-License-Identifier: Apache-2.0
// What forecasts memory, starts a window again and hands out scratch tensors, where there is a GPU.
#include "saturate/observe/fits.hpp"
#include "saturate/observe/free_memory.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/trainer/out_of_memory.hpp"
#include "saturate/trainer/state_snapshot.hpp"
#include "saturate/workspace.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>

namespace st = saturate;

namespace {

const c10::Device gpu(c10::kCUDA, 0);

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(64, 2048), torch::nn::BatchNorm1d(2048), torch::nn::ReLU(),
                            torch::nn::Dropout(0.5), torch::nn::Linear(2048, 2048), torch::nn::ReLU(),
                            torch::nn::Linear(2048, 10));
  net->to(gpu);
  return net;
}

}  // namespace

TEST_CASE("gpu: fits forecasts the allocator's peak within 5 %") {
  if (!torch::cuda::is_available()) SKIP("no GPU");
  auto net = make_net();
  const support::Batch batch{torch::randn({1024, 64}, gpu),
                             torch::randint(10, {1024}, at::TensorOptions(gpu).dtype(at::kLong))};
  st::optim::AdamW optimizer(net->parameters());
  const auto report = st::fits(net, st::CrossEntropy{}, batch, {.optimizer = &optimizer});
  CHECK(report.fits);
  CHECK(report.limit_bytes <= report.held_bytes + st::free_memory_bytes(gpu) + (1 << 20));
  st::reset_device_peak(gpu);
  st::CrossEntropy{}(net->forward(batch.first), batch.second).backward();
  const auto measured = static_cast<double>(st::device_peak_bytes(gpu));
  const auto predicted = static_cast<double>(report.held_bytes + report.step_bytes);
  CHECK(std::abs(predicted - measured) < 0.05 * measured);
}

TEST_CASE("gpu: a snapshot brings back buffers and random numbers") {
  if (!torch::cuda::is_available()) SKIP("no GPU");
  auto net = make_net();
  const at::Tensor x = torch::randn({32, 64}, gpu);
  st::detail::StateSnapshot snapshot;
  snapshot.take(*net, gpu);
  const auto before = support::clones(net->buffers());
  const at::Tensor first = net->forward(x).detach().cpu();
  CHECK_FALSE(before[0].equal(net->buffers()[0]));
  snapshot.restore();
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(before[i].equal(net->buffers()[i]));
  CHECK(support::same_bits(first, net->forward(x).detach().cpu()));
  const st::MemoryMeter meter;
  snapshot.take(*net, gpu);
  snapshot.restore();
  CHECK(meter.counts(gpu).allocations == 0);
}

TEST_CASE("gpu: a workspace allocates nothing after two rounds, and keeps a block a stream") {
  if (!torch::cuda::is_available()) SKIP("no GPU");
  st::Workspace workspace;
  const auto round = [&] {
    const st::Workspace::Scope scope(workspace);
    at::Tensor a = workspace.take({1000, 1000}, gpu).fill_(1);
    const at::Tensor b = workspace.take({1000}, at::TensorOptions(gpu).dtype(at::kLong)).fill_(2);
    CHECK(a.sum().item<float>() == 1e6F);
    CHECK(b.sum().item<int64_t>() == 2000);
  };
  round();
  round();
  const int64_t kept = workspace.bytes();
  round();
  CHECK(workspace.bytes() == kept);
  CHECK(kept < 5'000'000);
}

TEST_CASE("gpu: asking for more than there is is out of memory") {
  if (!torch::cuda::is_available()) SKIP("no GPU");
  try {
    torch::empty({int64_t{1} << 44}, gpu);
    FAIL("no exception");
  } catch (const std::exception& error) {
    CHECK(st::is_out_of_memory(error));
  }
}
