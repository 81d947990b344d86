// SPDX-License-Identifier: Apache-2.0
// What the data part does on a CUDA device; skipped where there is none.
#include "saturate/data/crop_flip_normalize.hpp"
#include "saturate/data/normalize.hpp"
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/tensor_source.hpp"
#include "unit/data/sources.hpp"

#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>

using namespace saturate::data;

TEST_CASE("normalize_u8 gives the CPU's bits on a CUDA device", "[data][gpu]") {
  if (!torch::cuda::is_available()) SKIP("there is no CUDA device");
  for (const int64_t count : {0, 1, 255, 256, 1000003}) {
    const auto pixels = torch::randint(0, 256, {count}, at::kByte);
    REQUIRE(normalize_u8(pixels.cuda(), 0.2860, 0.3530).cpu().equal(normalize_u8(pixels, 0.2860, 0.3530)));
  }
  const auto image = torch::randint(0, 256, {4, 3, 5, 6}, at::kByte).cuda().to(at::MemoryFormat::ChannelsLast);
  REQUIRE(normalize_u8(image, 0.5, 0.25).is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST_CASE("batches arrive on the device, right and in order", "[data][gpu]") {
  if (!torch::cuda::is_available()) SKIP("there is no CUDA device");
  const auto x = torch::rand({500, 64, 64}), y = torch::arange(500);
  for (const int64_t workers : {0, 1, 2}) {
    PrefetchLoader loader(TensorSource(x, y), {.batch_size = 16, .workers = workers, .device = c10::kCUDA});
    std::vector<Batch<2>> kept;
    for (int epoch = 0; epoch < 3; ++epoch) {
      kept.clear();
      for (auto& batch : loader) {
        REQUIRE(batch.data().is_cuda());
        kept.push_back(batch);
      }
      int64_t first = 0;
      for (auto& batch : kept) {
        REQUIRE(batch.target().cpu().equal(y.slice(0, first, first + batch.size())));
        REQUIRE(batch.data().cpu().equal(x.slice(0, first, first + batch.size())));
        first += batch.size();
      }
      REQUIRE(first == 500);
    }
  }
}

TEST_CASE("a pinned batch is not overwritten before the caller's copy of it has finished", "[data][gpu]") {
  if (!torch::cuda::is_available()) SKIP("there is no CUDA device");
  const auto x = torch::arange(64).view({64, 1}).expand({64, 1 << 18}).to(at::kFloat), y = torch::arange(64);
  PrefetchLoader loader(TensorSource(x, y), {.batch_size = 4, .workers = 2, .pin_memory = true});
  std::vector<at::Tensor> on_device;
  const auto busy = torch::rand({4096, 4096}, at::kCUDA);
  for (auto& batch : loader) {
    REQUIRE(batch.data().is_pinned());
    REQUIRE(batch.target().is_pinned());
    for (int i = 0; i < 20; ++i) torch::matmul(busy, busy);  // the copy waits behind these, the host does not
    on_device.push_back(batch.data().to(at::kCUDA, /*non_blocking=*/true));
  }
  for (std::size_t b = 0; b < on_device.size(); ++b) {
    const auto first = static_cast<int64_t>(4 * b);
    REQUIRE(on_device[b].cpu().equal(x.slice(0, first, first + 4)));
  }
}

TEST_CASE("CropFlipNormalize gives the CPU's bits on a CUDA device", "[data][gpu]") {
  if (!torch::cuda::is_available()) SKIP("there is no CUDA device");
  for (const int64_t samples : {0, 1, 7, 600}) {
    for (const int64_t channels : {1, 3, 4}) {
      const auto pixels = torch::randint(0, 256, {samples, channels, 37, 50}, at::kByte);
      std::vector<SampleAt> at;
      for (int64_t i = 0; i < samples; ++i) at.emplace_back(i, 3, 1, i);
      for (const bool last : {false, true}) {
        const CropFlipNormalize finish(
            {.height = 30, .width = 41, .flip = 0.5, .mean = {0.485}, .std = {0.229}, .channels_last = last});
        const auto expected = finish.apply(pixels, at);
        REQUIRE(finish.apply(pixels.cuda(), at).cpu().equal(expected));
        const auto values = finish.apply(pixels.cuda().contiguous(at::MemoryFormat::ChannelsLast), at);
        REQUIRE(values.cpu().equal(expected));
        REQUIRE(values.is_contiguous(last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous));
      }
    }
  }
}
