// SPDX-License-Identifier: Apache-2.0
// Where a step's time goes, from a profile taken by the program itself: three calls of a step; then two steps every ten
// of a fit, in files for Perfetto.
// Expected: the parts of a step and the operators with the most own time; the planted fault, a loss that is read in
// every step, is found, and is gone in the mended loop; two windows are written and read again.
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "saturate/saturate.hpp"

namespace st = saturate;

void print(const st::Trace& trace) {
  const st::Timeline timeline(trace);
  std::cout << timeline.steps().size() << " steps\n";
  int rows = 0;
  for (const st::SelfTime& row : st::self_times(timeline)) {
    if (++rows > 8) break;
    std::cout << "  " << 1e-3 * static_cast<double>(row.self_ns) << " us own, " << row.calls << " calls, "
              << trace.text(row.name) << "\n";
  }
  for (const st::HostSync& wait : st::host_syncs(timeline).rows) {
    std::cout << "  the host reads: " << wait.call << " in " << wait.caller << ", " << wait.count << " times\n";
  }
}

// How often the host reads in the range around the loss. (LibTorch's fused AdamW reads its step count on the CPU.)
int64_t watched_in(const st::Trace& trace) {
  int64_t count = 0;
  for (const st::HostSync& wait : st::host_syncs(st::Timeline(trace)).rows) {
    if (wait.caller == "watch the loss") count += wait.count;
  }
  return count;
}

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(256, 256), torch::nn::ReLU(), torch::nn::Linear(256, 10));
  const std::pair batch(torch::randn({64, 256}), torch::randint(10, {64}));
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{});

  double loss = 0;
  // begin profile
  const auto watched = [&] {
    const auto result = trainer.step(batch);
    const st::Range range("watch the loss");
    loss += result.loss_sum.item<double>();  // on a GPU, the host waits here for all that it has launched
  };
  const st::Trace trace = st::profile(watched, {}, /*steps=*/3, /*warmup=*/2);
  // end profile
  print(trace);
  const st::Trace mended = st::profile([&] { trainer.step(batch); }, {}, 3, 2);
  print(mended);

  const std::filesystem::path folder = "profiles";
  std::vector<std::pair<torch::Tensor, torch::Tensor>> loader(25, batch);
  // begin window
  st::Trainer watching(
      net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{},
      st::ProfileWindow({.skip = 4, .record = 2, .repeat_every = 10, .max_windows = 2}, st::TraceFolder{folder}));
  watching.fit(loader, {.epochs = 1});
  // end window
  const std::vector<st::Trace> read = st::read_traces((folder / "step_15").string());
  const st::Timeline timeline(read.at(0));
  std::cout << "profiles/step_15: steps " << timeline.steps().front().number << " and "
            << timeline.steps().back().number << "\n";

  return watched_in(trace) == 3 && watched_in(mended) == 0 && timeline.steps().size() == 2 &&
                 std::filesystem::exists(folder / "step_5")
             ? 0
             : 1;
}
