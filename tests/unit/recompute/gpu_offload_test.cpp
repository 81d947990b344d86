// SPDX-License-Identifier: Apache-2.0
// Offload to page-locked memory; skipped where there is no CUDA device.
#include "saturate/observe/memory_meter.hpp"
#include "saturate/recompute/compress_saved.hpp"
#include "saturate/recompute/offload.hpp"
#include "saturate/recompute/recompute.hpp"
#include "saturate/trainer.hpp"
#include "saved_models.hpp"
#include "src/recompute/saved_store.hpp"

#include <torch/cuda.h>

#include <catch2/catch_test_macros.hpp>

#include <ATen/Context.h>

#include <optional>

namespace st = saturate;
namespace models = saved_models;

namespace {

const c10::Device gpu(c10::kCUDA, 0);

template <class Block>
void check_law(const at::Tensor& batch, models::Conditions conditions, int64_t min_bytes, bool tied = false) {
  conditions.device = gpu;
  const auto plain = models::train(models::stack<Block>(4, tied), batch, conditions, models::plainly);
  st::Offload offload({.min_bytes = min_bytes});
  bool first = true;
  const auto moved = models::train(models::stack<Block>(4, tied), batch, conditions, [&](const auto& net) {
    if (std::exchange(first, false)) offload.attach(net, gpu);
    return offload.scope();
  });
  CHECK(support::same_bits(plain[0].cpu(), moved[0].cpu()));
  REQUIRE(plain.size() == moved.size());
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(support::same_bits(plain[i].cpu(), moved[i].cpu()));
  CHECK(offload.counts().moved_tensors > 0);
  CHECK(offload.counts().stored_bytes == 0);
  CHECK(st::detail::parcels_alive() == 0);
}

struct Exact {
  Exact() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  ~Exact() { at::globalContext().setDeterministicAlgorithms(false, false); }
};

}  // namespace

TEST_CASE("Offload on a GPU: loss, gradients and statistics equal the plain run bit for bit", "[gpu][law]") {
  if (!torch::cuda::is_available()) SKIP("there is no CUDA device");
  const Exact exact;
  for (const int64_t min_bytes : {1, 4096}) {
    check_law<models::LinearBlock>(models::rows(), {}, min_bytes);
    check_law<models::LinearBlock>(models::rows(), {.autocast = at::kBFloat16}, min_bytes, /*tied=*/true);
    check_law<models::Attention>(models::tokens(8, 64), {}, min_bytes);
    check_law<models::Attention>(models::tokens(8, 64), {.autocast = at::kHalf}, min_bytes);
    check_law<models::ConvNorm>(models::images(), {.format = at::MemoryFormat::ChannelsLast}, min_bytes);
  }
}

TEST_CASE("Offload on a GPU: values are right while the device is far behind the host", "[gpu]") {
  if (!torch::cuda::is_available()) SKIP("there is no CUDA device");
  const torch::nn::Module none;
  st::Offload offload({.min_bytes = 1, .block_bytes = 1 << 22});
  offload.attach(none, gpu);
  const at::Tensor busy = torch::rand({4096, 4096}, gpu);
  for (int round = 0; round < 3; ++round) {
    const at::Tensor x = torch::linspace(-1, 1, 1 << 20, gpu).requires_grad_();
    const at::Tensor expected = torch::autograd::grad({x.exp().sin().exp().cos().exp().sin().sum()}, {x})[0];
    at::Tensor loss;
    for (int i = 0; i < 20; ++i) torch::matmul(busy, busy);
    {
      const auto scope = offload.scope();
      loss = x.exp().sin().exp().cos().exp().sin().sum();
    }
    for (int i = 0; i < 20; ++i) torch::matmul(busy, busy);
    loss.backward();
    // Memory that was let go is used again at once.
    for (int i = 0; i < 8; ++i) torch::full({1 << 20}, i, gpu);
    CHECK(support::same_bits(x.grad().cpu(), expected.cpu()));
  }
  CHECK(offload.counts().fetched_ahead > 0);
}

TEST_CASE("Offload on a GPU: a graph that is dropped, and one that is kept", "[gpu]") {
  if (!torch::cuda::is_available()) SKIP("there is no CUDA device");
  const torch::nn::Module none;
  st::Offload offload({.min_bytes = 1});
  offload.attach(none, gpu);
  const at::Tensor x = torch::randn({1 << 20}, gpu).requires_grad_();
  const auto forward = [&] {
    const auto scope = offload.scope();
    return x.exp().sin().exp().sum();
  };
  for (int i = 0; i < 50; ++i) forward();
  CHECK(offload.counts().stored_bytes == 0);
  const at::Tensor loss = forward();
  const auto first = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0];
  const auto second = torch::autograd::grad({loss}, {x})[0];
  CHECK(support::same_bits(first.cpu(), second.cpu()));
}

TEST_CASE("Offload on a GPU: the device's peak falls, alone and with recompute", "[gpu]") {
  if (!torch::cuda::is_available()) SKIP("there is no CUDA device");
  enum class How { plain, offload, recompute, both };
  const auto peak = [](How how) {
    auto net = models::stack<models::Attention>(24, false, 256);
    net->to(gpu);
    st::Offload offload({.min_bytes = 1 << 16});
    offload.attach(*net, gpu);
    const at::Tensor batch = models::tokens(16, 256, 256).to(gpu);
    for (int warm = 0; warm < 2; ++warm) {
      st::reset_device_peak(gpu);
      const int64_t before = st::device_peak_bytes(gpu);
      at::Tensor x = batch, loss;
      {
        std::optional<st::detail::SavedPass> scope;
        if (how == How::offload || how == How::both) scope.emplace(offload.scope());
        for (auto& block : net->blocks) {
          x = how == How::plain || how == How::offload ? block->forward(x) : st::recompute(block, x);
        }
        loss = x.sum();
      }
      loss.backward();
      net->zero_grad();
      if (warm == 1) return st::device_peak_bytes(gpu) - before;
    }
    return int64_t{0};
  };
  const int64_t plain = peak(How::plain), offloaded = peak(How::offload), again = peak(How::recompute),
                both = peak(How::both);
  UNSCOPED_INFO(plain << " plain, " << offloaded << " offloaded, " << again << " recomputed, " << both << " both");
  CHECK(offloaded < plain / 2);
  CHECK(both < again);
}

TEST_CASE("CompressSaved on a GPU: half the bytes, and gradients that are close", "[gpu]") {
  if (!torch::cuda::is_available()) SKIP("there is no CUDA device");
  const auto gradients = [](bool compressed) {
    auto net = models::stack<models::Attention>(4, false, 64, 0.0);
    net->to(gpu);
    st::CompressSaved compress;
    compress.attach(*net, gpu);
    at::Tensor loss;
    {
      std::optional<st::detail::SavedPass> scope;
      if (compressed) scope.emplace(compress.scope());
      loss = net->forward(models::tokens(4, 32, 64).to(gpu)).pow(2).mean();
    }
    loss.backward();
    if (compressed) CHECK(2 * compress.counts().peak_stored_bytes == compress.counts().moved_bytes);
    std::vector<at::Tensor> result;
    for (const at::Tensor& parameter : net->parameters()) result.push_back(parameter.grad());
    return result;
  };
  const double error = models::relative_l2(gradients(true), gradients(false));
  CHECK(error > 0);
  CHECK(error < 1e-2);
}
