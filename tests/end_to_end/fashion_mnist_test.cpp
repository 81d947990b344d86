// SPDX-License-Identifier: Apache-2.0
// A whole training run on real data: source, loader, Trainer, policies, evaluation.
#include "../../benchmarks/models.hpp"
#include "saturate/data/idx_source.hpp"
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/trainer.hpp"

#include <catch2/catch_test_macros.hpp>

#include <filesystem>

namespace st = saturate;
using st::data::IdxSource;
using st::data::Split;

TEST_CASE("a CNN reaches 0.88 test accuracy on Fashion-MNIST in two epochs") {
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")) {
    SKIP("the package dataset-fashion-mnist is not installed");
  }
  const st::data::IdxOptions scale{.mean = 0.2860, .std = 0.3530};
  torch::manual_seed(1);
  bench::Cnn net;
  st::data::PrefetchLoader train(IdxSource::fashion_mnist(Split::train, scale),
                                 {.batch_size = 32, .shuffle = true, .workers = 1});
  st::data::PrefetchLoader test(IdxSource::fashion_mnist(Split::test, scale), {.batch_size = 500});
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{}, st::ChannelsLast{},
                      st::Accumulate{2}, st::ClipGradNorm{5.0}, st::WarmupCosine{.warmup = 40, .total = 1876});
  const auto result = trainer.fit(train, {.epochs = 2});
  CHECK(result.windows == 1876);
  CHECK(trainer.state().step == 1876);
  CHECK(result.samples == 120000);
  const auto metrics = trainer.evaluate(test);
  INFO("accuracy " << metrics.at("accuracy") << ", loss " << metrics.at("loss"));
  CHECK(metrics.at("accuracy") >= 0.88);
}
