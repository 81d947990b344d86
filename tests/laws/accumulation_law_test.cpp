// SPDX-License-Identifier: Apache-2.0
// Law 1: however a batch is split into micro-batches, the gradient is that of the whole batch at once.
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>

#include <random>

namespace st = saturate;
using support::Batch;
using support::Mlp;

namespace {

template <class Loss, class... Policies>
std::vector<at::Tensor> gradient(const std::vector<Batch>& window, at::ScalarType dtype, Loss loss,
                                 Policies... policies) {
  Mlp net = support::seeded<Mlp>(1, dtype);
  std::vector<at::Tensor> seen;
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), loss, support::SpyGradients{&seen},
                      st::Accumulate{static_cast<int64_t>(window.size())}, policies...);
  trainer.step(window);
  return seen;
}

// 24 samples, split at random into 1 to 8 parts.
std::vector<int64_t> random_split(std::mt19937& random) {
  std::vector<int64_t> sizes;
  int64_t left = 24;
  while (left > 0) {
    const int64_t size = std::min<int64_t>(left, 1 + static_cast<int64_t>(random() % 12));
    sizes.push_back(size);
    left -= size;
  }
  return sizes;
}

template <class Loss, class... Policies>
double worst_error(const Batch& batch, at::ScalarType dtype, Loss loss, Policies... policies) {
  const auto whole = gradient({batch}, dtype, loss, policies...);
  std::mt19937 random(7);
  double worst = 0;
  for (int round = 0; round < 12; ++round) {
    const auto parts = gradient(support::split(batch, random_split(random)), dtype, loss, policies...);
    worst = std::max(worst, support::relative_error(parts, whole));
  }
  return worst;
}

const auto absolute_error = [](const at::Tensor& output, const at::Tensor& target) {
  return (output - torch::one_hot(target, 4)).abs().sum();
};
// Counts what only the output tells: rows whose first logit is positive.
const auto counted_in_forward = [](const at::Tensor& output, const at::Tensor&) {
  const at::Tensor kept = (output.select(1, 0) > 0).to(output.scalar_type()).detach();
  return st::SumCount{(output.pow(2).sum(1) * kept).sum(), st::Count(kept.sum())};
};
// Deliberately wrong: averages the means of unequal micro-batches, as most loops do.
const auto mean_of_means = [](const at::Tensor& output, const at::Tensor& target) {
  return st::SumCount{torch::cross_entropy_loss(output, target), st::Count(1.0)};
};

}  // namespace

TEST_CASE("law 1: any split of a batch gives one gradient, in float64", "[law]") {
  const Batch plain = support::classes(24, 3, at::kDouble);
  const Batch ignoring = support::classes(24, 3, at::kDouble, /*ignore_every=*/3);
  CHECK(worst_error(plain, at::kDouble, st::CrossEntropy{}) < 1e-10);
  CHECK(worst_error(plain, at::kDouble, st::CrossEntropy{.ignore_index = std::nullopt}) < 1e-10);
  CHECK(worst_error(ignoring, at::kDouble, st::CrossEntropy{}) < 1e-10);
  CHECK(worst_error(plain, at::kDouble, st::CrossEntropy{.label_smoothing = 0.1}) < 1e-10);
  CHECK(worst_error(plain, at::kDouble, absolute_error) < 1e-10);
  CHECK(worst_error(plain, at::kDouble, counted_in_forward) < 1e-10);
  Batch regression{plain.first, torch::sin(plain.first.narrow(1, 0, 4))};
  CHECK(worst_error(regression, at::kDouble, st::MSE{}) < 1e-10);
  Batch binary{plain.first, (plain.first.narrow(1, 0, 4) > 0).to(at::kDouble)};
  CHECK(worst_error(binary, at::kDouble, st::BCEWithLogits{}) < 1e-10);
}

TEST_CASE("law 1: in float32, and under the policies that could break it", "[law]") {
  const Batch batch = support::classes(24, 4, at::kFloat, 5);
  CHECK(worst_error(batch, at::kFloat, st::CrossEntropy{}) < 1e-5);
  CHECK(worst_error(batch, at::kFloat, st::CrossEntropy{}, st::ChannelsLast{}) < 1e-5);
  CHECK(worst_error(batch, at::kFloat, st::CrossEntropy{}, st::WarmupCosine{.warmup = 2, .total = 9}) < 1e-5);
  CHECK(worst_error(batch, at::kFloat, st::CrossEntropy{}, st::TrainerOptions{.count_on_device = true}) < 1e-5);
  // bfloat16 has 8 bits: each micro-batch's weight gradient is rounded to 2^-9 of itself before it is added.
  CHECK(worst_error(batch, at::kFloat, st::CrossEntropy{}, st::Bf16{}) < 2e-2);
}

TEST_CASE("law 1: the check fails on a loss that averages means", "[law]") {
  const Batch batch = support::classes(24, 3, at::kDouble);
  CHECK(worst_error(batch, at::kDouble, mean_of_means) > 1e-3);
}

TEST_CASE("law 1: a micro-batch whose targets are all ignored adds nothing", "[law]") {
  const Batch valid = support::classes(8, 5, at::kDouble);
  Batch masked = support::classes(8, 6, at::kDouble);
  masked.second.fill_(-100);
  const auto alone = gradient({valid}, at::kDouble, st::CrossEntropy{});
  CHECK(support::relative_error(gradient({masked, valid}, at::kDouble, st::CrossEntropy{}), alone) < 1e-12);
  CHECK(support::relative_error(gradient({valid, masked}, at::kDouble, st::CrossEntropy{}), alone) < 1e-12);

  Mlp net = support::seeded<Mlp>(1, at::kDouble);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Accumulate{2});
  const st::StepResult result = trainer.step(std::vector<Batch>{masked, valid});
  CHECK(std::isfinite(result.loss()));
  CHECK(result.taken());
}

TEST_CASE("law 1: clipping acts once a window, on the whole gradient", "[law]") {
  const Batch batch = support::classes(24, 8, at::kDouble);
  const auto after = [&](const std::vector<Batch>& window) {
    Mlp net = support::seeded<Mlp>(1, at::kDouble);
    st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                        st::ClipGradNorm{0.01}, st::Accumulate{static_cast<int64_t>(window.size())});
    const auto result = trainer.step(window);
    CHECK(result.grad_norm.item<double>() > 0.01);
    return support::clones(net->parameters());
  };
  CHECK(support::relative_error(after(support::split(batch, {7, 7, 10})), after({batch})) < 1e-9);
}

TEST_CASE("law 1: the last window of an epoch may be shorter, and the schedule counts windows", "[law]") {
  Mlp net = support::seeded<Mlp>(1, at::kDouble);
  const Batch batch = support::classes(20, 9, at::kDouble);
  const auto batches = support::split(batch, {4, 4, 4, 4, 4});
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.5}), st::CrossEntropy{}, st::Accumulate{3},
                      st::WarmupCosine{.warmup = 2, .total = 4});
  const auto result = trainer.fit(batches, {.epochs = 2});
  CHECK(result.windows == 4);  // 3 + 2 micro-batches, twice
  CHECK(trainer.state().step == 4);
  CHECK(trainer.state().samples == 40);
  CHECK(trainer.learning_rate() == 0.0);

  Mlp hand = support::seeded<Mlp>(1, at::kDouble);
  const st::WarmupCosine schedule{.warmup = 2, .total = 4};
  for (int64_t window = 0; window < 4; ++window) {
    const Batch part = window % 2 == 0 ? Batch{batch.first.narrow(0, 0, 12), batch.second.narrow(0, 0, 12)}
                                       : Batch{batch.first.narrow(0, 12, 8), batch.second.narrow(0, 12, 8)};
    hand->zero_grad();
    torch::cross_entropy_loss(hand->forward(part.first), part.second).backward();
    const torch::NoGradGuard no_grad;
    for (auto& p : hand->parameters()) p.sub_(p.grad(), 0.5 * schedule.factor(window));
  }
  CHECK(support::relative_error(support::clones(net->parameters()), support::clones(hand->parameters())) < 1e-10);
}
