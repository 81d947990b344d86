// SPDX-License-Identifier: Apache-2.0
// One conformance suite an axis: a new policy earns every check with a line in a list. And the concepts' near misses.
#include "saturate/error.hpp"
#include "saturate/observe/op_counter.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/schedule/decay.hpp"
#include "saturate/schedule/sequence.hpp"
#include "saturate/trainer.hpp"
#include "support.hpp"

#include <ATen/autocast_mode.h>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <limits>

namespace st = saturate;

namespace {

// Near misses: each lacks one thing.
struct PrecisionWithoutScope {
  using axis = st::axis::precision;
};
struct ScheduleOfVoid {
  using axis = st::axis::schedule;
  void factor(int64_t) const {}
};
struct ScheduleNotConst {
  using axis = st::axis::schedule;
  double factor(int64_t) { return 1; }
};
struct AccumulationOfText {
  using axis = st::axis::accumulation;
  std::string micro_batches() const { return "4"; }
};
struct FormatWithoutInput {
  using axis = st::axis::memory_format;
  void convert(torch::nn::Module&) const {}
};
struct HalfAScaler : st::Fp32 {
  at::Tensor root_scale() const { return {}; }
};
static_assert(!st::PrecisionPolicy<PrecisionWithoutScope>);
static_assert(!st::SchedulePolicy<ScheduleOfVoid> && !st::SchedulePolicy<ScheduleNotConst>);
static_assert(!st::AccumulationPolicy<AccumulationOfText>);
static_assert(!st::MemoryFormatPolicy<FormatWithoutInput>);
static_assert(st::PrecisionPolicy<HalfAScaler> && !st::ScalesGradients<HalfAScaler>);

struct SteepDecay {
  using axis = st::axis::schedule;
  double factor(int64_t step) const { return 1.0 / static_cast<double>(1 + step); }
};

template <class P>
P example() {
  return P{};
}
template <>
st::WarmupCosine example() {
  return {.warmup = 3, .total = 20};
}
template <>
st::Accumulate example() {
  return {3};
}

}  // namespace

TEMPLATE_TEST_CASE("conformance: precision", "[conformance]", st::Fp32, st::Bf16) {
  const auto policy = example<TestType>();
  const bool enabled = at::autocast::is_autocast_enabled(at::kCPU);
  const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
  support::Mlp net = support::seeded(1);
  const auto batch = support::classes(5, 2);
  SECTION("it works alone around forward and the loss, and gradients have the parameters' dtype") {
    at::Tensor loss;
    {
      const auto scope = policy.scope(at::kCPU);
      loss = st::CrossEntropy{}(net->forward(batch.first), batch.second);
    }
    loss.backward();
    CHECK(loss.scalar_type() == at::kFloat);
    for (const auto& p : net->parameters()) CHECK(p.grad().scalar_type() == p.scalar_type());
    // The forward in its precision is the float32 one to the precision's accuracy.
    const auto reference = st::CrossEntropy{}(net->forward(batch.first), batch.second);
    CHECK(std::abs(loss.item<double>() - reference.item<double>()) < 2e-2 * reference.item<double>());
  }
  SECTION("scopes nest, and leave nothing behind after an exception") {
    try {
      const auto outer = policy.scope(at::kCPU);
      const auto inner = policy.scope(at::kCPU);
      throw std::runtime_error("inside");
    } catch (const std::runtime_error&) {
    }
  }
  CHECK(at::autocast::is_autocast_enabled(at::kCPU) == enabled);
  CHECK(at::autocast::get_autocast_dtype(at::kCPU) == dtype);
}

TEST_CASE("autocast: low-precision copies of weights do not outlive the scope") {
  support::Mlp net = support::seeded(1);
  const auto x = torch::randn({2, 6});
  const auto run = [&] {
    const st::AutocastScope scope(at::kCPU, at::kBFloat16);
    return net->forward(x).to(at::kFloat).detach().clone();
  };
  const auto before = run();
  for (auto& p : net->parameters()) p.data().mul_(2);
  CHECK_FALSE(torch::allclose(before, run()));
}

TEST_CASE("autocast: a region disabled inside stays in full precision, and bad dtypes are refused") {
  const auto a = torch::randn({4, 4});
  const st::AutocastScope outer(at::kCPU, at::kBFloat16);
  CHECK(torch::mm(a, a).scalar_type() == at::kBFloat16);
  {
    const st::AutocastScope island(at::kCPU, at::kBFloat16, /*enabled=*/false);
    CHECK(torch::mm(a, a).scalar_type() == at::kFloat);
  }
  CHECK(torch::mm(a, a).scalar_type() == at::kBFloat16);
  CHECK_THROWS_AS(st::AutocastScope(at::kCPU, at::kFloat), st::ConfigError);
  CHECK(at::autocast::get_autocast_dtype(at::kCPU) == at::kBFloat16);
}

TEMPLATE_TEST_CASE("conformance: accumulation", "[conformance]", st::OneMicroBatch, st::Accumulate) {
  CHECK(example<TestType>().micro_batches() >= 1);
}

TEMPLATE_TEST_CASE("conformance: schedule", "[conformance]", st::ConstantLr, st::WarmupCosine, SteepDecay) {
  const auto policy = example<TestType>();
  std::vector<double> forwards, backwards;
  for (int64_t step = 0; step < 100; ++step) forwards.push_back(policy.factor(step));
  for (int64_t step = 99; step >= 0; --step) backwards.insert(backwards.begin(), policy.factor(step));
  CHECK(forwards == backwards);  // a closed form: the order of asking does not matter
  for (const double factor : forwards) CHECK((std::isfinite(factor) && factor >= 0));
  CHECK(std::isfinite(policy.factor(int64_t{1} << 40)));
}

TEMPLATE_TEST_CASE("conformance: memory format", "[conformance]", st::KeepFormat, st::ChannelsLast) {
  const auto policy = example<TestType>();
  support::Conv net = support::seeded<support::Conv>(1), plain = support::seeded<support::Conv>(1);
  policy.convert(*net);
  const auto x = torch::randn({3, 2, 5, 5});
  const at::Tensor input = policy.input(x);
  CHECK(torch::equal(input, x));
  CHECK(torch::allclose(net->forward(input), plain->forward(x), 1e-5, 1e-6));
  CHECK(policy.input(input).const_data_ptr() == input.const_data_ptr());  // already there: nothing is copied
  const auto tokens = torch::zeros({3, 2}, at::kLong);
  CHECK(policy.input(tokens).const_data_ptr() == tokens.const_data_ptr());
}

TEST_CASE("ChannelsLast reaches tensors of one channel, which are contiguous in both formats") {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(1, 4, 3).padding(1));
  const at::Tensor image = torch::rand({2, 1, 6, 6});
  const st::ChannelsLast policy;
  policy.convert(*conv);
  CHECK(conv->weight.strides() == at::IntArrayRef({9, 1, 3, 1}));
  CHECK(policy.input(image).strides() == at::IntArrayRef({36, 1, 6, 1}));
  CHECK(conv(policy.input(image)).is_contiguous(at::MemoryFormat::ChannelsLast));
  const at::Tensor converted = policy.input(image);
  CHECK(policy.input(converted).is_same(converted));  // no second copy
}

TEST_CASE("ChannelsLast keeps parameters, their identity and the optimizer's moments in step") {
  const auto train = [](auto... policies) {
    support::Conv net = support::seeded<support::Conv>(1);
    const auto before = net->parameters();
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1, .momentum = 0.9}), st::CrossEntropy{},
                        policies...);
    torch::manual_seed(3);
    for (int i = 0; i < 5; ++i) trainer.step(std::pair(torch::randn({4, 2, 5, 5}), torch::randint(3, {4})));
    for (std::size_t i = 0; i < before.size(); ++i) {
      CHECK(before[i].unsafeGetTensorImpl() == net->parameters()[i].unsafeGetTensorImpl());
    }
    if constexpr (sizeof...(policies) > 0) {
      CHECK(net->conv->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
      const auto state = trainer.optimizer().state();
      CHECK(state.parameters.at("conv.weight").at("momentum_buffer").strides() == net->conv->weight.strides());
    }
    return support::clones(net->parameters());
  };
  CHECK(support::relative_error(train(st::ChannelsLast{}), train()) < 1e-5);
}

TEMPLATE_TEST_CASE("conformance: clipping", "[conformance]", st::NoClip, st::ClipGradNorm) {
  const auto policy = example<TestType>();
  SECTION("no gradients, and gradients without elements") {
    std::vector<at::Tensor> none, empty{torch::zeros({0}), torch::zeros({2, 0})};
    const auto a = policy.clip(none), b = policy.clip(empty);
    if (a.norm.defined()) CHECK(a.norm.template item<double>() == 0);
    if (b.norm.defined()) CHECK(b.norm.template item<double>() == 0);
  }
  SECTION("it never lengthens a gradient nor turns it, and reads nothing on the host") {
    std::vector<at::Tensor> grads{torch::randn({7}), torch::randn({2, 3}, at::kDouble)};
    const auto before = support::clones(grads);
    const st::OpCounter counter;
    policy.clip(grads);
    CHECK(counter.host_reads() == 0);
    for (std::size_t i = 0; i < grads.size(); ++i) {
      const double factor = (grads[i].flatten()[0] / before[i].flatten()[0]).template item<double>();
      CHECK(factor <= 1.0);
      CHECK(torch::allclose(grads[i], before[i] * factor, 1e-4, 1e-6));
    }
  }
}

TEST_CASE("ClipGradNorm computes in float64, whatever the gradients' dtypes") {
  const auto clip = [](std::vector<at::Tensor> grads, double max_norm) {
    const auto result = st::ClipGradNorm{max_norm}.clip(grads);
    return std::pair(result, grads);
  };
  {  // 3, 4: norm 5
    const auto [result, grads] = clip({torch::tensor({3.0, 4.0})}, 1.0);
    CHECK(std::abs(result.norm.item<double>() - 5) < 1e-12);
    CHECK(torch::allclose(grads[0], torch::tensor({0.6, 0.8}), 1e-5));
  }
  {  // four float16 values whose squares overflow float16
    const auto [result, grads] = clip({torch::full({4}, 40000.0, at::kHalf)}, 1.0);
    CHECK(result.norm.item<double>() == 80000);
    CHECK(torch::allclose(grads[0].to(at::kFloat), torch::full({4}, 0.5), 1e-2));
    CHECK(result.refused.item<float>() == 0);
  }
  {  // mixed dtypes
    const auto [result, grads] = clip({torch::tensor({12.f, 0.f}), torch::tensor({3.f, 4.f}).to(at::kBFloat16)}, 6.5);
    CHECK(std::abs(result.norm.item<double>() - 13) < 1e-9);
    CHECK(torch::allclose(grads[0], torch::tensor({6.f, 0.f}), 1e-5));
    CHECK(torch::allclose(grads[1].to(at::kFloat), torch::tensor({1.5f, 2.f}), 1e-2));
  }
  {  // finite, but its square is not finite in float32
    const auto [result, grads] = clip({torch::full({4}, 1e20f)}, 1.0);
    CHECK(std::abs(result.norm.item<double>() / 2e20 - 1) < 1e-6);
    CHECK(torch::allclose(grads[0], torch::full({4}, 0.5f), 1e-4));
    CHECK(result.refused.item<float>() == 0);
  }
  for (const float bad : {INFINITY, NAN}) {
    const auto [result, grads] = clip({torch::tensor({1.f, bad})}, 1.0);
    CHECK(result.refused.item<float>() == 1);
  }
  {  // short enough: untouched, bit for bit
    const auto [result, grads] = clip({torch::tensor({0.3f, 0.4f})}, 1.0);
    CHECK(torch::equal(grads[0], torch::tensor({0.3f, 0.4f})));
  }
  CHECK_THROWS_AS(st::ClipGradNorm{0.0}.validate(), st::ConfigError);
  CHECK_THROWS_AS(st::ClipGradNorm{NAN}.validate(), st::ConfigError);
}

TEST_CASE("losses give LibTorch's sums, and count what they sum over") {
  const auto output = torch::randn({6, 4}), pixels = torch::randn({2, 4, 3, 3});
  auto target = torch::randint(4, {6});
  target[1] = -100;
  CHECK(torch::allclose(st::CrossEntropy{}(output, target) / 5, torch::cross_entropy_loss(output, target)));
  CHECK(st::CrossEntropy{}.count(target).device.item<int64_t>() == 5);
  CHECK(st::CrossEntropy{}.count(torch::zeros({2, 3, 3}, at::kLong)).device.item<int64_t>() == 18);
  CHECK(st::CrossEntropy{.ignore_index = std::nullopt}.count(target).host == 6);
  CHECK_THROWS(st::CrossEntropy{.ignore_index = std::nullopt}(output, target));  // -100 is no class
  const auto probabilities = torch::softmax(torch::randn({6, 4}), 1);
  CHECK(st::CrossEntropy{}.count(probabilities).host == 6);
  CHECK(
      torch::allclose(st::CrossEntropy{}(output, probabilities) / 6, torch::cross_entropy_loss(output, probabilities)));
  CHECK(torch::allclose(st::MSE{}(output, probabilities) / 24, torch::mse_loss(output, probabilities)));
  CHECK(torch::allclose(st::BCEWithLogits{}(output, probabilities) / 24,
                        torch::binary_cross_entropy_with_logits(output, probabilities)));
  CHECK(st::CrossEntropy{}.correct(torch::eye(4), torch::tensor({0, 1, 3, -100})).item<int64_t>() == 2);
  CHECK_THROWS_AS(st::MSE{}(torch::zeros({4, 1}), torch::zeros({4})), st::ConfigError);
  CHECK_THROWS_AS((st::CrossEntropy{.label_smoothing = 2}.validate()), st::ConfigError);
}

TEST_CASE("a schedule per group moves each group by its own factor, in saturate's and in LibTorch's optimizers") {
  const st::PerGroup schedule{
      .schedules = {st::LinearLr{.start_factor = 0.5, .end_factor = 1.0, .total = 4}, st::ConstantLr{}}};
  const auto moved = [&](auto make) {
    support::Mlp net = support::seeded(1);
    const auto before = support::clones(net->parameters());
    const std::vector<at::Tensor> first = net->first->parameters(), second = net->second->parameters();
    std::vector<at::Tensor> gradients;
    st::Trainer trainer(net, make(first, second), st::CrossEntropy{}, schedule, support::SpyGradients{&gradients});
    trainer.step(support::classes(8, 1));
    std::vector<double> lrs;
    for (std::size_t i = 0; i < 4; ++i) {
      lrs.push_back(((before[i] - net->parameters()[i]) / gradients[i]).nanmean().template item<double>());
    }
    return lrs;
  };
  const auto ours = [](const auto& first, const auto& second) {
    return st::optim::SGD(std::vector<st::optim::ParamGroup>{{.params = first}, {.params = second, .lr = 0.2}},
                          {.lr = 0.1});
  };
  const auto libtorch = [](const auto& first, const auto& second) {
    std::vector<torch::optim::OptimizerParamGroup> groups{first, second};
    groups[0].set_options(std::make_unique<torch::optim::SGDOptions>(0.1));
    groups[1].set_options(std::make_unique<torch::optim::SGDOptions>(0.2));
    return torch::optim::SGD(groups, torch::optim::SGDOptions(0.1));
  };
  for (const auto& lrs : {moved(ours), moved(libtorch)}) {
    CHECK(std::abs(lrs[0] - 0.05) < 1e-4);
    CHECK(std::abs(lrs[2] - 0.2) < 1e-4);
  }
  support::Mlp net;
  CHECK_THROWS_AS(st::Trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, schedule),
                  st::ConfigError);
}

TEST_CASE("a one-cycle schedule gives the optimizer its momentum, and a plateau its new factor at once") {
  support::Mlp net = support::seeded(1);
  struct Halving {
    using axis = st::axis::schedule;
    int64_t changes = 0;
    double factor(int64_t) const { return changes == 0 ? 1.0 : 0.5; }
    std::optional<double> momentum(int64_t step) const { return step == 0 ? 0.5 : 0.9; }
    int64_t revision() const { return changes; }
    void on_evaluate(const st::EvaluateEvent&) { ++changes; }
  };
  Halving schedule;
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1, .momentum = 0.1}), st::CrossEntropy{},
                      std::ref(schedule), st::TrainerOptions{.count_on_device = true}, st::ClipGradNorm{100});
  const std::vector<support::Batch> batches{support::classes(8, 1), support::classes(8, 2)};
  trainer.fit(batches, batches, {.log_every = 0});
  CHECK(schedule.changes == 1);  // policies are told events
  const auto before = support::clones(net->parameters());
  trainer.step(batches[0]);
  const at::Tensor new_buffer = trainer.optimizer().state().parameters.at("first.bias").at("momentum_buffer");
  // lr 0.1 x 0.5, although the table of factors had been filled ahead with 1.
  CHECK(at::allclose(before[1] - net->parameters()[1], 0.05 * new_buffer, 1e-4, 1e-7));
}
