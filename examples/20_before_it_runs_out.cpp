// SPDX-License-Identifier: Apache-2.0
// How large a batch fits, asked before anything runs out of memory: small batches tell what a large one needs. And a
// loss whose scratch tensors cost no allocation. Expected: the forecast of a batch of 512 is within 5 % of what it then
// takes, the largest batch that fits does fit and one that is half as large again does not, and the step with a
// Workspace allocates fewer blocks.
#include <torch/torch.h>

#include <cmath>
#include <iostream>

#include "saturate/saturate.hpp"

namespace st = saturate;

constexpr double mebibyte = 1 << 20;

// Pulls rows of one class together; the [n, n] matrix that says which are is scratch.
struct PullTogether {
  st::Workspace* workspace;  // null: LibTorch's own allocation
  torch::Tensor operator()(const torch::Tensor& output, const torch::Tensor& target) const {
    std::optional<st::Workspace::Scope> scope;
    const int64_t n = target.size(0);
    torch::Tensor same;
    if (workspace != nullptr) {
      // begin workspace
      scope.emplace(*workspace);
      same = workspace->take({n, n}, torch::kBool);
      at::eq_out(same, target.unsqueeze(1), target.unsqueeze(0));
      // end workspace
    } else {
      same = target.unsqueeze(1) == target.unsqueeze(0);
    }
    const auto rows = same.sum(1);
    return (torch::log_softmax(output, 1).gather(1, target.unsqueeze(1)).squeeze(1) * rows).sum().neg();
  }
};

template <class Step>
st::MemoryCounts count(Step&& step) {
  const st::MemoryMeter meter;
  step();
  return meter.counts();
}

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(64, 512), torch::nn::ReLU(), torch::nn::BatchNorm1d(512),
                            torch::nn::Linear(512, 512), torch::nn::ReLU(), torch::nn::Linear(512, 10));
  st::optim::AdamW optimizer(net->parameters());
  const std::pair batch(torch::randn({512, 64}), torch::randint(10, {512}));

  // begin fits
  const st::FitsReport report =
      st::fits(net, st::CrossEntropy{}, batch, {.optimizer = &optimizer, .limit_bytes = 16 << 20});
  std::cout << report.message() << '\n';
  // end fits

  // begin forecast
  const auto step = [&](int64_t n) {  // as the loop runs it
    st::CrossEntropy{}(net->forward(batch.first.narrow(0, 0, n)), batch.second.narrow(0, 0, n)).backward();
    optimizer.zero_grad();
  };
  const st::MemoryForecast forecast = st::forecast_memory(step, {8, 16});
  const int64_t largest = forecast.largest_batch(4 << 20);
  // end forecast
  const auto predicted = static_cast<double>(forecast.peak_bytes(512));
  const auto measured = static_cast<double>(count([&] { step(512); }).peak_bytes);
  std::cout << "a batch of 512: " << predicted / mebibyte << " MiB predicted, " << measured / mebibyte
            << " MiB taken\n";
  const bool right = std::abs(predicted - measured) < 0.05 * measured;
  const bool tight = count([&] { step(largest); }).peak_bytes <= 4 << 20 &&
                     count([&] { step(std::min<int64_t>(512, largest + largest / 2)); }).peak_bytes > 4 << 20;
  std::cout << "within 4 MiB: " << largest << " samples\n";

  st::Workspace workspace;
  const auto blocks = [&](PullTogether loss) {
    const auto run = [&] { loss(net->forward(batch.first), batch.second); };
    for (int i = 0; i < 3; ++i) run();
    return count(run).allocations;
  };
  const int64_t without = blocks({nullptr}), with = blocks({&workspace});
  std::cout << "blocks that a forward allocates: " << without << ", with a Workspace " << with << '\n';
  return report.forecast && right && tight && with < without ? 0 : 1;
}
