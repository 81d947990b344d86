// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/state_snapshot.hpp"

#include "saturate/error.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/trainer/out_of_memory.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>

#include <new>
#include <stdexcept>

namespace st = saturate;
using st::detail::StateSnapshot;

namespace {

struct StatefulImpl : torch::nn::Module {
  StatefulImpl()
      : norm(register_module("norm", torch::nn::BatchNorm1d(6))),
        mask(register_buffer("mask", torch::arange(24).view({4, 6}).t())) {
    register_module("again", norm);
  }
  at::Tensor forward(const at::Tensor& x) { return norm(x + torch::randn_like(x)).sum(); }
  torch::nn::BatchNorm1d norm;
  at::Tensor mask;  // not contiguous
};
TORCH_MODULE(Stateful);

std::vector<at::Tensor> buffers_of(const Stateful& net) { return support::clones(net->buffers()); }

}  // namespace

TEST_CASE("a snapshot brings back buffers and random numbers, as often as asked") {
  Stateful net;
  torch::manual_seed(5);
  torch::randn({1});  // its pair waits in the generator
  StateSnapshot snapshot;
  snapshot.take(*net, c10::kCPU);
  const auto before = buffers_of(net);
  std::vector<at::Tensor> losses;
  for (int i = 0; i < 3; ++i) {
    losses.push_back(net->forward(torch::ones({8, 6})).detach());
    net->mask.mul_(2);
    CHECK_FALSE(support::same_bits(before, buffers_of(net)));
    snapshot.restore();
    CHECK(support::same_bits(before, buffers_of(net)));
  }
  CHECK(support::same_bits(losses[0], losses[1]));
  CHECK(support::same_bits(losses[0], losses[2]));
  const at::Tensor single = torch::randn({1}), wide = torch::randn({1}, torch::kDouble);
  snapshot.restore();
  CHECK(support::same_bits(single, torch::randn({1})));
  CHECK(support::same_bits(wide, torch::randn({1}, torch::kDouble)));
}

TEST_CASE("a graph that saved a buffer stays valid over a restore") {
  Stateful net;
  const at::Tensor x = torch::ones({6, 4}).requires_grad_();
  StateSnapshot snapshot;
  snapshot.take(*net, c10::kCPU);
  const at::Tensor loss = (x * net->mask).sum();
  snapshot.restore();
  loss.backward();
  CHECK(x.grad().defined());
}

TEST_CASE("a snapshot allocates the first time only") {
  Stateful net;
  StateSnapshot snapshot;
  snapshot.take(*net, c10::kCPU);
  const st::MemoryMeter meter;
  for (int i = 0; i < 3; ++i) {
    snapshot.take(*net, c10::kCPU);
    snapshot.restore();
  }
  CHECK(meter.counts().allocations == 0);
}

TEST_CASE("a snapshot follows a model that changes, and buffers given whole new values") {
  Stateful net;
  StateSnapshot snapshot;
  CHECK_THROWS_AS(snapshot.restore(), st::StateError);
  snapshot.take(*net, c10::kCPU);
  net->to(torch::kDouble);
  snapshot.take(*net, c10::kCPU);
  const auto before = buffers_of(net);
  net->mask.set_data(torch::zeros({2}));
  net->norm->running_mean.fill_(3);
  snapshot.restore();
  CHECK(support::same_bits(before, buffers_of(net)));
}

TEST_CASE("out of memory: LibTorch's type, the C++ type, and the messages of what lies below") {
  CHECK(st::is_out_of_memory(std::bad_alloc()));
  try {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "no room");
    FAIL("no exception");
  } catch (const std::exception& error) {
    CHECK(st::is_out_of_memory(error));
  }
  try {
    torch::empty({int64_t{1} << 55});  // more than a process can address
    FAIL("no exception");
  } catch (const std::exception& error) {
    CAPTURE(error.what());
    CHECK(st::is_out_of_memory(error));
  }
  for (const char* message : {"[enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you "
                              "tried to allocate 8 bytes",
                              "CUDA out of memory. Tried to allocate 2.00 GiB", "CUDA error: out of memory",
                              "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                              "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
                              "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
                              "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
                              "CUDA driver error: out of memory", "NCCL error: Cuda failure 2 'out of memory'"}) {
    CAPTURE(message);
    CHECK(st::is_out_of_memory(std::runtime_error(message)));
  }
}

TEST_CASE("out of memory: nothing else") {
  for (const char* message :
       {"", "CUDA error: an illegal memory access was encountered", "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
        "the label 'out of memory' is no class", "mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"}) {
    CAPTURE(message);
    CHECK_FALSE(st::is_out_of_memory(std::runtime_error(message)));
  }
  CHECK_FALSE(st::is_out_of_memory(st::ConfigError("a batch of 0")));
  try {
    torch::ones({2, 3}).mm(torch::ones({2, 3}));
    FAIL("no exception");
  } catch (const std::exception& error) {
    CHECK_FALSE(st::is_out_of_memory(error));
  }
}
