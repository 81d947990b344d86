// SPDX-License-Identifier: Apache-2.0
// No allocation churn: after warm-up a step of the Trainer allocates what a loop by hand allocates, block for block; a
// policy adds 0-dim tensors and a scalar for each parameter, nothing as large as gradients or weights.
#include "saturate/averaging/ema.hpp"
#include "saturate/averaging/swa.hpp"
#include "saturate/clip/skip_spikes.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/observe/nan_guard.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/schedule/one_cycle_lr.hpp"
#include "saturate/schedule/warmup.hpp"
#include "saturate/trainer.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>

namespace st = saturate;
using support::Batch;

namespace {

// Weights of 20 KiB and more, so that a copy of one is no scalar.
struct WideMlpImpl : torch::nn::Module {
  WideMlpImpl()
      : first(register_module("first", torch::nn::Linear(6, 1024))),
        second(register_module("second", torch::nn::Linear(1024, 1024))),
        third(register_module("third", torch::nn::Linear(1024, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return third(torch::tanh(second(torch::relu(first(x))))); }
  torch::nn::Linear first, second, third;
};
TORCH_MODULE(WideMlp);

struct CnnImpl : torch::nn::Module {
  CnnImpl()
      : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 64, 3).padding(1)))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(64, 64, 3).padding(1)))),
        head(register_module("head", torch::nn::Linear(64, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return head(torch::relu(conv2(torch::relu(conv1(x)))).mean({2, 3})); }
  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear head;
};
TORCH_MODULE(Cnn);

using Window = std::vector<Batch>;
Window vectors() { return {support::classes(8, 1)}; }
Window halves() { return support::split(support::classes(8, 1), {4, 4}); }
Window images() {
  torch::manual_seed(1);
  return {{torch::randn({8, 2, 6, 6}), torch::randint(4, {8})}};
}

constexpr st::CrossEntropy loss{.ignore_index = std::nullopt};

// Sizes of the blocks that a step allocates, smallest first; after warm-up.
using Blocks = std::vector<int64_t>;
Blocks blocks_of(const std::function<void()>& step) {
  for (int i = 0; i < 4; ++i) step();
  Blocks blocks;
  {
    const st::MemoryMeter meter([&](const st::MemoryEvent& event) {
      if (event.bytes > 0) blocks.push_back(event.bytes);
    });
    step();
  }
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

template <class Net>
void as_they_are(Net&, Window&) {}
void channels_last(Cnn& net, Window& window) {
  net->to(at::kFloat);
  for (at::Tensor& parameter : net->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.data().contiguous(at::MemoryFormat::ChannelsLast));
  }
  for (Batch& batch : window) batch.first = batch.first.contiguous(at::MemoryFormat::ChannelsLast);
}

struct NoScope {
  ~NoScope() {}
};

// The loop that somebody would write by hand with the same sum and count.
template <class Net, class Scope = NoScope (*)(), class Prepare = void (*)(Net&, Window&)>
Blocks by_hand(
    Window window, Scope scope = [] { return NoScope(); }, Prepare prepare = as_they_are<Net>) {
  Net net = support::seeded<Net>(1);
  prepare(net, window);
  st::optim::AdamW optimizer(net->parameters());
  double targets = 0;
  for (const Batch& batch : window) targets += loss.count(batch.second).host;
  const at::Tensor root = torch::scalar_tensor(1 / targets);
  return blocks_of([&] {
    at::Tensor total;
    for (const Batch& batch : window) {
      at::Tensor sum;
      {
        const auto precision = scope();
        sum = loss(net->forward(batch.first), batch.second);
      }
      torch::autograd::backward({sum}, {root});
      total = total.defined() ? total + sum.tensor_data() : sum.tensor_data();
    }
    optimizer.step();
    optimizer.zero_grad();
  });
}

template <class Net, class... Policies>
Blocks by_trainer(const Window& window, Policies... policies) {
  Net net = support::seeded<Net>(1);
  st::Trainer trainer(net, st::optim::AdamW(net->parameters()), loss,
                      st::TrainerOptions{.device = c10::Device(c10::kCPU)}, std::move(policies)...);
  return blocks_of([&] { trainer.step(window); });
}

struct Extra {
  std::size_t blocks = 0;
  int64_t bytes = 0, largest = 0;
};
Extra extra(const Blocks& with, const Blocks& without) {
  Blocks more;
  std::set_difference(with.begin(), with.end(), without.begin(), without.end(), std::back_inserter(more));
  return {more.size(), std::accumulate(more.begin(), more.end(), int64_t{0}), more.empty() ? 0 : more.back()};
}

// Six parameters in either model. A policy's scalars: a few dozen of 8 bytes, and a list of one for each parameter.
constexpr int64_t parameters = 6;
bool only_scalars(const Extra& extra, int64_t constant = 32) {
  return extra.largest <= std::max<int64_t>(8 * parameters, 64) && extra.bytes <= 64 * (parameters + constant);
}

struct CopiesGradients {  // deliberately wasteful
  using axis = st::axis::clipping;
  st::ClipResult clip(std::vector<at::Tensor>& gradients) const {
    support::clones(gradients);
    return {};
  }
};

}  // namespace

TEST_CASE("allocation law: with every axis at its default a step allocates what a loop by hand does", "[law]") {
  CHECK(by_trainer<WideMlp>(vectors()) == by_hand<WideMlp>(vectors()));
  CHECK(by_trainer<Cnn>(images()) == by_hand<Cnn>(images()));
  CHECK(by_trainer<WideMlp>(halves(), st::Accumulate{2}) == by_hand<WideMlp>(halves()));
  CHECK(by_hand<WideMlp>(vectors()).size() > 10);
}

TEST_CASE("allocation law: precision adds what autocast allocates, and the scaler's scalars", "[law]") {
  const auto bf16 = [] { return st::AutocastScope(at::kCPU, at::kBFloat16); };
  const auto half = [] { return st::AutocastScope(at::kCPU, at::kHalf); };
  CHECK(by_trainer<WideMlp>(vectors(), st::Bf16{}) == by_hand<WideMlp>(vectors(), bf16));
  CHECK(only_scalars(extra(by_trainer<WideMlp>(vectors(), st::Fp16{}), by_hand<WideMlp>(vectors(), half))));
}

TEST_CASE("allocation law: memory format adds the conversion of what is not in it yet", "[law]") {
  CHECK(by_trainer<WideMlp>(vectors(), st::ChannelsLast{}) == by_hand<WideMlp>(vectors()));
  Window converted = images();
  converted[0].first = converted[0].first.contiguous(at::MemoryFormat::ChannelsLast);
  CHECK(by_trainer<Cnn>(converted, st::ChannelsLast{}) == by_hand<Cnn>(
                                                              images(), [] { return NoScope(); }, channels_last));
}

TEST_CASE("allocation law: a policy adds scalars only", "[law]") {
  const auto check = [](const char* name, int64_t constant, auto make) {  // a policy may share its state with copies
    for (const auto& [with, without] :
         {std::pair(by_trainer<WideMlp>(vectors(), make()), by_trainer<WideMlp>(vectors())),
          std::pair(by_trainer<Cnn>(images(), make()), by_trainer<Cnn>(images()))}) {
      const Extra added = extra(with, without);
      INFO(name << ": " << added.blocks << " blocks, " << added.bytes << " bytes, the largest " << added.largest);
      CHECK(only_scalars(added, constant));
    }
  };
  check("ClipGradNorm", 32, [] { return st::ClipGradNorm{1.0}; });
  check("ClipGradNorm by the largest", 32, [] {
    return st::ClipGradNorm{1.0, std::numeric_limits<double>::infinity()};
  });
  check("ClipGradNorm by magnitudes", 32, [] { return st::ClipGradNorm{1.0, 1.0}; });
  check("ClipGradNorm by the 3-norm", 32, [] { return st::ClipGradNorm{1.0, 3.0}; });
  check("AdaptiveGradClip", 32, [] { return st::AdaptiveGradClip{}; });
  check("ClipGradNormPerGroup", 32, [] { return st::ClipGradNormPerGroup{{1.0}}; });
  check("ClipGradValue", 32, [] { return st::ClipGradValue{1.0}; });
  check("SkipSpikes", 32, [] { return st::SkipSpikes<>{{.warmup = 2}}; });
  check("Ema", 0, [] { return st::Ema(); });
  check("Swa", 0, [] { return st::Swa(); });
  check("WarmupCosine", 0, [] { return st::WarmupCosine{.warmup = 3, .total = 9}; });
  check("OneCycleLr", 0, [] { return st::OneCycleLr{.total = 100}; });
  check("NanGuard", 32, [] { return st::NanGuard(); });
}

TEST_CASE("allocation law: clipping copies no gradient, whatever its dtype and strides", "[law]") {
  torch::manual_seed(1);
  const at::Tensor dense = torch::randn({64, 96});
  const auto make = [&](at::ScalarType dtype, bool gaps) {
    const at::Tensor like = dense.to(dtype);
    if (!gaps) return like;
    const at::Tensor wide = at::zeros({96, 128}, like.options());
    const at::Tensor part = wide.slice(1, 0, 64).t();
    part.copy_(like);
    return part;
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const bool gaps : {false, true}) {
      std::vector<at::Tensor> parameters = {make(dtype, gaps)};
      std::vector<at::Tensor> gradients = {make(dtype, gaps)};
      const std::vector<std::size_t> groups = {0};
      const st::ClipContext context{.parameters = parameters, .groups = groups};
      const auto largest = [&](const std::function<void()>& clip) {
        const Blocks blocks = blocks_of(clip);
        return blocks.empty() ? int64_t{0} : blocks.back();
      };
      INFO("dtype " << dtype << (gaps ? ", transposed with gaps" : ""));
      for (const double p : {0.5, 1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
        INFO("norm " << p);
        CHECK(largest([&] { st::ClipGradNorm{1.0, p}.clip(gradients); }) <= 64);
      }
      CHECK(largest([&] { st::AdaptiveGradClip{}.clip(gradients, context); }) <= 64);
      CHECK(largest([&] { CopiesGradients{}.clip(gradients); }) > 64);
    }
  }
}

TEST_CASE("allocation law: the check fails on a policy that copies gradients", "[law]") {
  CHECK_FALSE(only_scalars(extra(by_trainer<WideMlp>(vectors(), CopiesGradients{}), by_trainer<WideMlp>(vectors()))));
  CHECK_FALSE(only_scalars(extra(by_trainer<Cnn>(images(), CopiesGradients{}), by_trainer<Cnn>(images()))));
}
