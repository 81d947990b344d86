// SPDX-License-Identifier: Apache-2.0
// What saturate::forecast_memory says of batches of 8 to 128 samples after batches of 2, 3 and 4, against what such a
// step then needs at its highest: a transformer and a CNN. "count" is the relative error in per cent; of the side
// "fits", the worst of all ten.
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>

#include "models.hpp"
#include "rounds.hpp"
#include "saturate/loss.hpp"
#include "saturate/observe/memory_forecast.hpp"
#include "saturate/observe/memory_meter.hpp"

namespace {

namespace st = saturate;

// Forward, loss and backward over the first n samples, as a step of training runs them; no gradients are left.
template <class Net>
std::function<void(int64_t)> step_of(Net net, at::Tensor inputs, at::Tensor targets) {
  return [=](int64_t n) {
    Net model = net;
    st::CrossEntropy{}(model->forward(inputs.narrow(0, 0, n)), targets.narrow(0, 0, n)).backward();
    for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
  };
}

// @return the worst relative error in per cent.
double check(const std::string& name, const std::function<void(int64_t)>& step) {
  st::MemoryForecast forecast;
  const double seconds = bench::seconds_of([&] { forecast = st::forecast_memory(step, {2, 3, 4}); });
  double worst = 0;
  for (const int64_t n : {8, 16, 32, 64, 128}) {
    const st::MemoryMeter meter;
    step(n);
    const auto measured = meter.counts().peak_bytes, predicted = forecast.peak_bytes(n);
    const double error = 100 * std::abs(static_cast<double>(predicted) / static_cast<double>(measured) - 1);
    worst = std::max(worst, error);
    char more[160];
    std::snprintf(more, sizeof more, ", \"predicted\": %lld, \"measured\": %lld, \"count\": %.4f",
                  static_cast<long long>(predicted), static_cast<long long>(measured), error);
    bench::print_sample(name + " " + std::to_string(n), seconds, n, more);
  }
  return worst;
}

}  // namespace

int main() {
  torch::manual_seed(0);
  const auto gpt =
      step_of(bench::Gpt(), torch::randint(256, {128, 128}, at::kLong), torch::randint(256, {128, 128}, at::kLong));
  const auto cnn = step_of(bench::Cnn(), torch::randn({128, 1, 28, 28}), torch::randint(10, {128}, at::kLong));
  bench::print_info("fits", "forecasts from batches of 2, 3 and 4, for 8 to 128; LibTorch " TORCH_VERSION);
  bench::serve_rounds([&](int64_t) {
    double worst = 0;
    const double seconds = bench::seconds_of([&] { worst = std::max(check("gpt", gpt), check("cnn", cnn)); });
    char more[64];
    std::snprintf(more, sizeof more, ", \"count\": %.4f", worst);
    bench::print_sample("fits", seconds, 10, more);
  });
  return 0;
}
