// SPDX-License-Identifier: Apache-2.0
// Bf16 and Fp16 train like Fp32 on real data: the same CNN, the same order of samples, the losses side by side.
#include "../../benchmarks/models.hpp"
#include "saturate/audit/runtime_policies.hpp"
#include "saturate/data/idx_source.hpp"
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/trainer.hpp"

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <filesystem>
#include <vector>

namespace st = saturate;
using st::audit::Precision;

namespace {

// Mean loss of each tenth of the run.
std::vector<double> losses(Precision precision, int64_t samples) {
  constexpr int64_t batch_size = 50;
  torch::manual_seed(1);
  bench::Cnn net;
  st::data::PrefetchLoader loader(
      st::data::IdxSource::fashion_mnist(st::data::Split::train, {.mean = 0.2860, .std = 0.3530}),
      {.batch_size = batch_size, .shuffle = true, .workers = 1});
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{},
                      st::audit::RuntimePrecision(precision), st::ClipGradNorm{5.0});
  const int64_t steps = samples / batch_size;
  std::vector<double> result(10, 0.0);
  int64_t step = 0;
  for (const auto& batch : loader) {
    if (step == steps) break;
    result[static_cast<std::size_t>(step * 10 / steps)] += trainer.step(batch).loss() * 10 / static_cast<double>(steps);
    ++step;
  }
  return result;
}

double second_half(const std::vector<double>& tenths) {
  double sum = 0;
  for (std::size_t i = 5; i < 10; ++i) sum += tenths[i] / 5;
  return sum;
}

void compare(int64_t samples, double bound) {
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")) {
    SKIP("the package dataset-fashion-mnist is not installed");
  }
  const auto reference = losses(Precision::fp32, samples);
  CHECK(reference.back() < reference.front() / 1.8);  // it learns, so there is something to compare
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    CAPTURE(static_cast<int>(precision));
    const auto narrow = losses(precision, samples);
    // A tenth is a few batches: the runs take other paths (float16 skips steps until the scale has found its level).
    for (std::size_t i = 0; i < 10; ++i) {
      CAPTURE(i, narrow[i], reference[i]);
      CHECK(std::abs(narrow[i] - reference[i]) < 0.15 * reference[i]);
    }
    const double half = second_half(narrow), wanted = second_half(reference);
    CAPTURE(half, wanted);
    CHECK(std::abs(half - wanted) < bound * wanted);
  }
}

}  // namespace

TEST_CASE("the loss in bfloat16 and in float16 follows that in float32 over 4,000 samples") { compare(4000, 0.05); }

TEST_CASE("the loss in bfloat16 and in float16 follows that in float32 over an epoch", "[.full]") {
  compare(60000, 0.05);
}
