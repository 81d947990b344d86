// SPDX-License-Identifier: Apache-2.0
// Averages as a policy of the Trainer: refused windows, evaluation, and policies that move.
#include "saturate/averaging/ema.hpp"
#include "saturate/averaging/swa.hpp"
#include "saturate/observe/op_counter.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <cmath>
#include <limits>

namespace st = saturate;
using support::Batch;

namespace {

st::optim::SGD sgd(const support::Mlp& net) { return st::optim::SGD(net->parameters(), {.lr = 0.1, .momentum = 0.9}); }

Batch poisoned(Batch batch) {
  batch.first = batch.first.clone();
  batch.first[0][0] = std::numeric_limits<float>::infinity();
  return batch;
}

std::vector<at::Tensor> averages_of(const st::AveragedWeights& averages) {
  std::vector<at::Tensor> result;
  for (const std::string& name : averages.names()) result.push_back(averages.average(name).clone());
  return result;
}

}  // namespace

TEST_CASE("law 2: a window that the Trainer refuses leaves the averages as they were, bit for bit") {
  const bool on_device = GENERATE(false, true);
  support::Mlp net = support::seeded(1), twin = support::seeded(1);
  st::Ema ema({.decay = 0.6, .warmup = true, .count_on_device = on_device}), other = ema;
  st::Trainer trainer(net, sgd(net), st::CrossEntropy{}, st::Accumulate{2}, st::ClipGradNorm{1.0}, std::ref(ema),
                      st::TrainerOptions{.device = at::kCPU, .count_on_device = on_device});
  st::Trainer never_met_it(twin, sgd(twin), st::CrossEntropy{}, st::Accumulate{2}, st::ClipGradNorm{1.0},
                           std::ref(other), st::TrainerOptions{.device = at::kCPU, .count_on_device = on_device});
  const auto window = [](int64_t i) { return support::split(support::classes(8, 20 + i), {3, 5}); };
  auto bad = window(9);
  bad[1] = poisoned(bad[1]);
  CHECK_FALSE(trainer.step(bad).taken());
  for (int64_t i = 0; i < 6; ++i) {
    trainer.step(window(i));
    never_met_it.step(window(i));
    const auto before = averages_of(ema);
    if (i % 2 == 0) trainer.step(bad);
    CHECK(support::same_bits(before, averages_of(ema)));
  }
  CHECK(support::same_bits(averages_of(ema), averages_of(other)));
  CHECK(ema.steps() == 6);
}

TEST_CASE("law 6: a step with averages reads nothing on the host") {
  const bool on_device = GENERATE(false, true);
  support::Mlp net = support::seeded(1);
  st::Trainer trainer(net, sgd(net), st::CrossEntropy{}, st::ClipGradNorm{1.0},
                      st::Ema({.every = 2, .count_on_device = on_device}),
                      st::TrainerOptions{.device = at::kCPU, .count_on_device = on_device});
  trainer.step(support::classes(8, 1));
  const st::OpCounter counter;
  for (int64_t i = 0; i < 3; ++i) trainer.step(support::classes(8, i));
  CHECK(counter.host_reads() == 0);
}

TEST_CASE("Trainer::evaluate uses the averages, and training goes on with the model's own weights") {
  support::Mlp net = support::seeded(1), twin = support::seeded(1);
  const std::vector<Batch> validation{support::classes(32, 5)};
  const std::vector<Batch> data{support::classes(8, 1), support::classes(8, 2), support::classes(8, 3)};
  auto ema = std::make_unique<st::Ema>(st::EmaOptions{.decay = 0.9});
  st::Trainer trainer(net, sgd(net), st::CrossEntropy{}, std::move(*ema), st::TrainerOptions{.device = at::kCPU});
  ema.reset();  // the averages went with the policy
  st::Trainer plain(twin, sgd(twin), st::CrossEntropy{}, st::Ema({.decay = 0.9, .evaluate = false}),
                    st::TrainerOptions{.device = at::kCPU});
  for (const Batch& batch : data) {
    trainer.step(batch);
    plain.step(batch);
    CHECK(support::same_bits(support::clones(net->parameters()), support::clones(twin->parameters())));
    const auto own = support::clones(net->parameters());
    const double averaged = trainer.evaluate(validation).at("loss"), own_loss = plain.evaluate(validation).at("loss");
    CHECK((averaged == own_loss) == (&batch == &data.front()));  // the first update takes the weights as they are
    CHECK(support::same_bits(own, support::clones(net->parameters())));
  }
  st::Trainer moved = std::move(trainer);
  moved.step(data[0]);
  plain.step(data[0]);
  CHECK(support::same_bits(support::clones(net->parameters()), support::clones(twin->parameters())));
}

TEST_CASE("fit evaluates with the averages of a policy given by reference") {
  support::Mlp net = support::seeded(1);
  st::Swa swa({.start = 3});
  std::vector<Batch> data;
  for (int64_t i = 0; i < 5; ++i) data.push_back(support::classes(8, i));
  std::vector<std::vector<at::Tensor>> seen;
  struct Watch {
    support::Mlp net;
    std::vector<std::vector<at::Tensor>>* seen;
    void on_step(const st::StepEvent&) { seen->push_back(support::clones(net->parameters())); }
  };
  st::Trainer watched(net, sgd(net), st::CrossEntropy{}, Watch{net, &seen}, std::ref(swa),
                      st::TrainerOptions{.device = at::kCPU});
  watched.fit(data, data, {.epochs = 1});
  REQUIRE(seen.size() == 5);
  CHECK(swa.updates() == 3);
  const at::Tensor mean = (seen[2][0] + seen[3][0] + seen[4][0]) / 3;
  CHECK(torch::allclose(swa.average("first.weight"), mean, 1e-6, 1e-7));
}
