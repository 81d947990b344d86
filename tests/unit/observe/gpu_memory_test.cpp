// SPDX-License-Identifier: Apache-2.0
// The memory report on a CUDA device; skipped where there is none.
#include "saturate/observe/memory_report.hpp"
#include "saturate/saturate.hpp"

#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <utility>

namespace st = saturate;
using st::MemoryKind;

TEST_CASE("measure_memory on a CUDA device: kinds, phases and the allocator's state", "[observe][gpu]") {
  if (!torch::cuda::is_available()) SKIP("there is no CUDA device");
  constexpr int64_t batch = 64, width = 512;
  torch::nn::Sequential net(torch::nn::Linear(width, width), torch::nn::ReLU(), torch::nn::Linear(width, 16));
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{},
                      st::TrainerOptions{.device = c10::Device(c10::kCUDA, 0)});
  const auto on = torch::TensorOptions(c10::Device(c10::kCUDA, 0));
  const std::pair data(torch::randn({batch, width}, on), torch::randint(0, 16, {batch}, on.dtype(at::kLong)));
  for (int i = 0; i < 3; ++i) trainer.step(data);
  const auto report = st::measure_memory(trainer, data);

  const auto& memory = report.memory();
  CHECK(memory.device == "cuda:0");
  int64_t parameters = 0;
  for (const auto& parameter : net->parameters()) parameters += static_cast<int64_t>(parameter.nbytes());
  CHECK(memory.before[MemoryKind::parameters] == parameters);
  CHECK(memory.before[MemoryKind::optimizer_state] == 2 * parameters);
  CHECK(memory.peak[MemoryKind::gradients] >= parameters);  // blocks are rounded up to 512 bytes
  CHECK(memory.peak[MemoryKind::gradients] <= parameters + 4 * 512);
  CHECK(memory.after[MemoryKind::activations] == 0);
  CHECK(memory.peak[MemoryKind::inputs] == batch * width * 4 + batch * 8);
  CHECK(memory.peak[MemoryKind::activations] >= batch * width * 4);
  REQUIRE(memory.allocator.has_value());
  CHECK(memory.allocator->reserved_bytes >= memory.allocator->allocated_bytes);
  CHECK(memory.allocator->allocated_bytes >= 3 * parameters);
  CHECK(memory.allocator->retries == 0);
  CHECK(report.phase("backward") != nullptr);  // which runs on the device's engine thread
  CHECK(report.phase("update") != nullptr);
}
