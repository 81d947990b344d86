// SPDX-License-Identifier: Apache-2.0
// What numerics cost: numerics clip_step_ema | scaler | host_reads, a round each.
#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <vector>

#include "rounds.hpp"
#include "saturate/averaging/ema.hpp"
#include "saturate/clip/skip_spikes.hpp"
#include "saturate/observe/op_counter.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/precision/grad_scaler.hpp"
#include "saturate/trainer.hpp"

namespace {

namespace st = saturate;

std::string threads() { return std::to_string(at::get_num_threads()) + " threads, LibTorch " TORCH_VERSION; }

// Tensors of one size as the parameters of a module, with gradients that stay.
struct ManyImpl : torch::nn::Module {
  ManyImpl(int64_t count, int64_t size) {
    for (int64_t i = 0; i < count; ++i) {
      auto& parameter = register_parameter("p" + std::to_string(i), torch::randn({size}));
      parameter.mutable_grad() = torch::randn({size});
    }
  }
};
TORCH_MODULE(Many);

void clip_step_ema() {
  torch::manual_seed(0);
  Many net(2000, 1000);
  st::optim::AdamW optimizer(net->parameters(), {.lr = 1e-3});
  st::Ema ema(*net, {.decay = 0.999});
  const st::ClipGradNorm clip{1.0};
  bench::print_info("saturate", "ClipGradNorm, optim::AdamW, Ema, 2000 x 1000, float32, " + threads());
  bench::serve_rounds([&](int64_t) {
    constexpr int64_t steps = 10;
    const double seconds = bench::seconds_of([&] {
      for (int64_t i = 0; i < steps; ++i) {
        std::vector<at::Tensor> gradients = optimizer.gradients();
        const st::ClipResult clipped = clip.clip(gradients);
        optimizer.step({.found_inf = clipped.refused});
        ema.update(clipped.refused);
      }
    });
    bench::print_sample("saturate", seconds, steps);
  });
}

// What Fp16 does in a step beyond Bf16: scale, unscale with the check, update. One pass is a read and a write of every
// gradient by the plain foreach kernel.
void scaler() {
  torch::manual_seed(0);
  Many net(20, 1000000);
  st::GradScaler scaler({.init_scale = 1, .growth_interval = 1 << 30});
  st::optim::AdamW optimizer(net->parameters(), {.lr = 1e-3});
  const std::vector<at::Tensor> gradients = optimizer.gradients();
  const at::Tensor root = torch::scalar_tensor(1.0 / 128);
  bench::print_info("scaler", "scale, unscale, update; 20 x 1000000 gradients, float32, " + threads());
  bench::print_info("pass", "_foreach_mul_ of the same gradients");
  bench::serve_rounds([&](int64_t n) {
    constexpr int64_t steps = 10;
    const torch::NoGradGuard no_grad;
    const auto ours = [&] {
      const double seconds = bench::seconds_of([&] {
        for (int64_t i = 0; i < steps; ++i) {
          const at::Tensor scaled = root * scaler.scale_on(c10::kCPU);
          const at::Tensor found = scaler.unscale(gradients);
          scaler.update(found, {});
        }
      });
      bench::print_sample("scaler", seconds, steps);
    };
    if (n % 2 == 0) ours();
    const at::Tensor one = torch::ones({});
    const double seconds = bench::seconds_of([&] {
      for (int64_t i = 0; i < steps; ++i) at::_foreach_mul_(gradients, one);
    });
    bench::print_sample("pass", seconds, steps);
    if (n % 2 == 1) ours();
  });
}

// Host reads of the windows between two logs of fit, with everything on.
void host_reads() {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(32, 64), torch::nn::ReLU(), torch::nn::Linear(64, 10));
  std::vector<std::pair<at::Tensor, at::Tensor>> batches;
  for (int i = 0; i < 100; ++i) batches.emplace_back(torch::randn({16, 32}), torch::randint(10, {16}));
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{}, st::Fp16{},
                      st::SkipSpikes{st::SpikeOptions{}, st::ClipGradNorm{1.0}}, st::Ema({.decay = 0.999}),
                      st::TrainerOptions{.count_on_device = true});
  trainer.fit(batches, {.max_windows = 2});
  bench::print_info("reads", "100 windows: Fp16, SkipSpikes, ClipGradNorm, AdamW, Ema between logs; " + threads());
  bench::serve_rounds([&](int64_t) {
    int64_t reads = 0;
    const double seconds = bench::seconds_of([&] {
      for (std::size_t i = 0; i < batches.size(); i += 49) {  // between two logs
        const st::OpCounter counter;
        for (std::size_t k = i; k < std::min(i + 49, batches.size()); ++k) trainer.step(batches[k]);
        reads += counter.host_reads();
      }
    });
    bench::print_sample("reads", seconds, 100, ", \"count\": " + std::to_string(reads));
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "clip_step_ema") {
    clip_step_ema();
  } else if (what == "scaler") {
    scaler();
  } else if (what == "host_reads") {
    host_reads();
  } else {
    std::fputs("numerics: give clip_step_ema, scaler or host_reads\n", stderr);
    return 2;
  }
  return 0;
}
