// SPDX-License-Identifier: Apache-2.0
// Laws 2 (a skipped step changes nothing), 6 (no hidden host read), 7 (no-op policies cost nothing), 8 (thread-local
// state is restored).
#include "saturate/observe/op_counter.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"
#include "support.hpp"

#include <ATen/autocast_mode.h>
#include <catch2/catch_test_macros.hpp>

#include <limits>
#include <stdexcept>
#include <thread>

namespace st = saturate;
using support::Batch;
using support::Mlp;

namespace {

// --- Law 2 ----------------------------------------------------------------------------------------------------------

std::vector<at::Tensor> everything(Mlp& net, const st::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> result = support::clones(net->parameters());
  for (const auto& [name, entry] : optimizer.state().parameters) {
    for (const auto& [key, tensor] : entry) result.push_back(tensor.detach().clone());
  }
  return result;
}

// On the clipping axis: notices nothing and refuses nothing.
struct BlindClip {
  using axis = st::axis::clipping;
  st::ClipResult clip(std::vector<at::Tensor>&) const { return {}; }
};

Batch poisoned(Batch batch) {
  batch.first = batch.first.clone();
  batch.first[0][0] = std::numeric_limits<float>::infinity();
  return batch;
}
Batch all_ignored(Batch batch) {
  batch.second = torch::full_like(batch.second, -100);
  return batch;
}

template <class MakeOptimizer, class... Policies>
void check_skipped_window(MakeOptimizer make, const std::vector<Batch>& bad, Policies... policies) {
  Mlp net = support::seeded(1), twin = support::seeded(1);
  st::Trainer trainer(net, make(net), st::CrossEntropy{}, st::Accumulate{2}, policies...);
  st::Trainer never_met_it(twin, make(twin), st::CrossEntropy{}, st::Accumulate{2}, policies...);
  const auto good = [](int64_t i) { return support::split(support::classes(8, 20 + i), {3, 5}); };

  // Also as the very first window, before any state exists.
  CHECK_FALSE(trainer.step(bad).taken());
  CHECK(trainer.state().step == 0);
  for (int64_t i = 0; i < 3; ++i) {
    trainer.step(good(i));
    never_met_it.step(good(i));
  }
  const auto before = everything(net, trainer.optimizer());
  const double lr = trainer.learning_rate();
  CHECK_FALSE(trainer.step(bad).taken());
  CHECK(support::same_bits(before, everything(net, trainer.optimizer())));
  CHECK(trainer.state().step == 3);
  CHECK(trainer.learning_rate() == lr);
  CHECK(trainer.state().window == 5);
  // And what follows is as if it had never been.
  trainer.step(good(3));
  never_met_it.step(good(3));
  CHECK(support::same_bits(everything(net, trainer.optimizer()), everything(twin, never_met_it.optimizer())));
}

const auto adamw = [](Mlp& net) { return st::optim::AdamW(net->parameters(), {.lr = 0.1, .amsgrad = true}); };
const auto sgd = [](Mlp& net) { return st::optim::SGD(net->parameters(), {.lr = 0.1, .momentum = 0.9}); };
const auto dampened = [](Mlp& net) {
  return st::optim::SGD(net->parameters(), {.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1});
};
const auto libtorch = [](Mlp& net) { return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1)); };

// --- Law 7 ----------------------------------------------------------------------------------------------------------

// The loop that somebody would write by hand with the same sum and count.
template <class Loss>
void hand_step(Mlp& net, st::optim::Optimizer& optimizer, const std::vector<Batch>& window, Loss loss,
               const at::Tensor& root) {
  at::Tensor total;
  for (const Batch& batch : window) {
    const at::Tensor sum = loss(net->forward(batch.first), batch.second);
    torch::autograd::backward({sum}, {root});
    total = total.defined() ? total + sum.tensor_data() : sum.tensor_data();
  }
  optimizer.step();
  optimizer.zero_grad();
}

template <class Loss, class... Policies>
std::pair<std::vector<std::string>, std::vector<std::string>> operators_of(Loss loss, const std::vector<Batch>& window,
                                                                           Policies... policies) {
  Mlp net = support::seeded(1), hand = support::seeded(1);
  st::Trainer trainer(net, st::optim::AdamW(net->parameters()), loss,
                      st::Accumulate{static_cast<int64_t>(window.size())}, policies...);
  st::optim::AdamW optimizer(hand->parameters());
  double targets = 0;
  for (const Batch& batch : window) targets += loss.count(batch.second).host;
  const at::Tensor root = torch::scalar_tensor(1 / targets);
  trainer.step(window);  // the first step makes the optimizer's state
  hand_step(hand, optimizer, window, loss, root);
  std::pair<std::vector<std::string>, std::vector<std::string>> result;
  {
    st::OpCounter counter({.this_thread_only = true});
    trainer.step(window);
    result.first = counter.operators();
  }
  st::OpCounter counter({.this_thread_only = true});
  hand_step(hand, optimizer, window, loss, root);
  result.second = counter.operators();
  CHECK(support::same_bits(support::clones(net->parameters()), support::clones(hand->parameters())));
  return result;
}

struct CopiesInputs {  // deliberately not free
  using axis = st::axis::memory_format;
  void convert(torch::nn::Module&) const {}
  at::Tensor input(const at::Tensor& tensor) const { return tensor.clone(); }
};

// --- Law 8 ----------------------------------------------------------------------------------------------------------

struct ThrowingImpl : torch::nn::Module {
  ThrowingImpl() : linear(register_module("linear", torch::nn::Linear(6, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = saturate::call(linear, x);
    if (armed) throw std::runtime_error("thrown in forward");
    return y;
  }
  torch::nn::Linear linear;
  bool armed = true;
};
TORCH_MODULE(Throwing);

struct ThreadState {
  bool enabled = at::autocast::is_autocast_enabled(at::kCPU);
  at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
  bool cache = at::autocast::is_autocast_cache_enabled();
  int nesting = [] {
    at::autocast::increment_nesting();
    return at::autocast::decrement_nesting();
  }();
  bool grad = at::GradMode::is_enabled();
  std::string mark{saturate::marks::current()};
  bool operator==(const ThreadState&) const = default;
};

struct LeakyAutocast {  // deliberately without a scope
  using axis = st::axis::precision;
  st::Fp32::Nothing scope(c10::DeviceType device) const {
    at::autocast::set_autocast_enabled(device, true);
    return {};
  }
};

template <class... Policies>
bool restores_thread_state(Policies... policies) {
  Throwing net;
  net->eval();
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, policies...);
  const saturate::marks::Scope marks(trainer.names());
  const Batch batch = support::classes(4, 1);
  const ThreadState before;
  CHECK_THROWS_AS(trainer.step(batch), std::runtime_error);
  const bool after_step = ThreadState() == before;
  CHECK_THROWS_AS(trainer.evaluate(std::vector<Batch>{batch}), std::runtime_error);
  const bool after_evaluate = ThreadState() == before;
  CHECK_THROWS_AS(trainer.fit(std::vector<Batch>{batch}), std::runtime_error);
  const bool after_fit = ThreadState() == before;
  CHECK_FALSE(net->is_training());
  net->armed = false;
  trainer.step(batch);
  const bool after_success = ThreadState() == before;
  at::autocast::set_autocast_enabled(at::kCPU, before.enabled);
  return after_step && after_evaluate && after_fit && after_success;
}

}  // namespace

TEST_CASE("law 2: a refused window changes nothing, bit for bit", "[law]") {
  const Batch batch = support::classes(8, 11);
  const auto parts = support::split(batch, {3, 5});
  const std::vector<std::vector<Batch>> with_inf{{poisoned(parts[0]), parts[1]}, {parts[0], poisoned(parts[1])}};
  const std::vector<Batch> ignored{all_ignored(parts[0]), all_ignored(parts[1])};
  for (const auto& bad : with_inf) {
    check_skipped_window(adamw, bad, st::ClipGradNorm{1.0});
    check_skipped_window(sgd, bad, st::ClipGradNorm{1.0});
    check_skipped_window(dampened, bad, st::ClipGradNorm{1.0}, st::TrainerOptions{.count_on_device = true});
    check_skipped_window(adamw, bad, st::ClipGradNorm{1.0}, st::WarmupCosine{.warmup = 3, .total = 9},
                         st::TrainerOptions{.count_on_device = true});
  }
  check_skipped_window(adamw, ignored);
  check_skipped_window(adamw, ignored, st::Bf16{}, st::WarmupCosine{.warmup = 3, .total = 9});
  check_skipped_window(sgd, ignored, st::TrainerOptions{.count_on_device = true});
  check_skipped_window(dampened, ignored, st::ClipGradNorm{1.0});
}

TEST_CASE("law 2: a torch::optim optimizer is skipped too, and says what that costs", "[law]") {
  support::LogCapture log;
  Mlp net = support::seeded(1);
  st::Trainer trainer(net, libtorch(net), st::CrossEntropy{});
  const auto before = support::clones(net->parameters());
  CHECK_FALSE(trainer.step(all_ignored(support::classes(4, 1))).taken());
  CHECK(support::same_bits(before, support::clones(net->parameters())));
  CHECK(log.contains("every step reads a flag on the host"));
}

TEST_CASE("law 2: the check fails on a policy that does not look", "[law]") {
  Mlp net = support::seeded(1);
  st::Trainer trainer(net, sgd(net), st::CrossEntropy{}, BlindClip{});
  const auto before = support::clones(net->parameters());
  trainer.step(poisoned(support::classes(4, 1)));
  CHECK_FALSE(support::same_bits(before, support::clones(net->parameters())));
}

TEST_CASE("law 2: the step number on the device gives the learning rates that the host would", "[law]") {
  const auto run = [](bool on_device) {
    Mlp net = support::seeded(1);
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.5}), st::CrossEntropy{},
                        st::WarmupCosine{.warmup = 4, .total = 12}, st::TrainerOptions{.count_on_device = on_device});
    for (int64_t i = 0; i < 12; ++i) {
      Batch batch = support::classes(8, 30 + i);
      trainer.step(i % 3 == 1 ? all_ignored(batch) : batch);
    }
    CHECK(trainer.state().step == 8);
    return support::clones(net->parameters());
  };
  CHECK(support::relative_error(run(true), run(false)) < 1e-6);  // the device holds the factor in float32
}

TEST_CASE("law 6: a step reads nothing on the host", "[law]") {
  const auto reads = [](auto loss, auto... policies) {
    Mlp net = support::seeded(1);
    st::Trainer trainer(net, st::optim::AdamW(net->parameters()), loss, st::Accumulate{2}, policies...);
    const auto window = support::split(support::classes(8, 11, at::kFloat, 3), {3, 5});
    trainer.step(window);
    const st::OpCounter counter;
    for (int i = 0; i < 3; ++i) trainer.step(window);
    return counter.host_reads();
  };
  const st::TrainerOptions on_device{.count_on_device = true};
  CHECK(reads(st::CrossEntropy{}) == 0);
  CHECK(reads(st::CrossEntropy{}, on_device) == 0);
  CHECK(reads(st::CrossEntropy{}, st::Bf16{}, st::ChannelsLast{}, st::ClipGradNorm{1.0}, on_device,
              st::WarmupCosine{.warmup = 3, .total = 9}) == 0);
  CHECK(reads(st::CrossEntropy{}, st::ClipGradNorm{1.0}) == 0);
  const auto planted = [](const at::Tensor& output, const at::Tensor& target) {
    const at::Tensor sum = torch::cross_entropy_loss(output, target, {}, at::Reduction::Sum);
    if (sum.item<double>() < -1e9) throw std::runtime_error("never");
    return sum;
  };
  CHECK(reads(planted) == 6);  // one a micro-batch
}

TEST_CASE("law 6: fit reads once a log, and nothing in between", "[law]") {
  Mlp net = support::seeded(1);
  st::Trainer trainer(net, st::optim::AdamW(net->parameters()), st::CrossEntropy{}, st::ClipGradNorm{1.0});
  const auto batches = support::split(support::classes(40, 11), std::vector<int64_t>(10, 4));
  trainer.fit(batches, {.max_windows = 1});
  const st::OpCounter counter;
  trainer.fit(batches, {.epochs = 1, .log_every = 0});
  CHECK(counter.host_reads() == 0);  // the log's one read is a copy, which on the CPU is none
}

TEST_CASE("law 7: with every axis at its default a step runs the operators of a loop by hand", "[law]") {
  const auto window = support::split(support::classes(12, 11), {4, 4, 4});
  const Batch whole = support::classes(12, 11);
  const std::vector<Batch> regression{{whole.first, whole.first.narrow(1, 0, 4)}};
  const std::vector<Batch> binary{{whole.first, (whole.first.narrow(1, 0, 4) > 0).to(at::kFloat)}};
  for (const auto& [ours, by_hand] : {operators_of(st::CrossEntropy{.ignore_index = std::nullopt}, {whole}),
                                      operators_of(st::CrossEntropy{.ignore_index = std::nullopt}, window),
                                      operators_of(st::MSE{}, regression), operators_of(st::BCEWithLogits{}, binary)}) {
    CHECK(by_hand.size() > 20);
    CHECK(ours == by_hand);
  }
  const auto [ours, by_hand] = operators_of(st::CrossEntropy{.ignore_index = std::nullopt}, {whole}, CopiesInputs{});
  CHECK(ours != by_hand);
}

TEST_CASE("law 7: counting targets that may be ignored costs a handful of small operators, and no more", "[law]") {
  Mlp net = support::seeded(1), other = support::seeded(1);
  st::Trainer counting(net, st::optim::AdamW(net->parameters()), st::CrossEntropy{});
  st::Trainer plain(other, st::optim::AdamW(other->parameters()), st::CrossEntropy{.ignore_index = std::nullopt});
  const Batch batch = support::classes(12, 11);
  const auto top_level = [&](auto& trainer) {
    trainer.step(batch);
    const st::OpCounter counter({.this_thread_only = true});
    trainer.step(batch);
    return counter.total();
  };
  CHECK(top_level(counting) - top_level(plain) <= 24);
}

TEST_CASE("law 8: an exception on any path leaves this thread as it was", "[law]") {
  CHECK(restores_thread_state());
  CHECK(restores_thread_state(st::Bf16{}));
  CHECK(restores_thread_state(st::Bf16{}, st::Accumulate{2}, st::ClipGradNorm{1.0}, st::ChannelsLast{}));
  CHECK_FALSE(restores_thread_state(LeakyAutocast{}));
}

TEST_CASE("law 8: a new thread starts with autocast off, inside a scope too", "[law]") {
  const st::AutocastScope scope(at::kCPU, at::kBFloat16);
  bool enabled = true;
  std::thread([&] { enabled = at::autocast::is_autocast_enabled(at::kCPU); }).join();
  CHECK_FALSE(enabled);
  CHECK(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST_CASE("law 8: a failed window leaves no gradients for the next one", "[law]") {
  Throwing net;
  net->armed = false;
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Accumulate{2});
  int calls = 0;
  Throwing other = net;
  const auto batches = support::split(support::classes(8, 1), {4, 4});
  struct Second {
    int& calls;
    at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const {
      if (++calls == 2) throw std::runtime_error("second micro-batch");
      return torch::cross_entropy_loss(output, target, {}, at::Reduction::Sum);
    }
  };
  st::Trainer failing(other, st::optim::SGD(other->parameters(), {.lr = 0.1}), Second{calls}, st::Accumulate{2});
  CHECK_THROWS_AS(failing.step(batches), std::runtime_error);
  for (const auto& parameter : other->parameters()) CHECK_FALSE(parameter.grad().defined());
  CHECK(failing.state().window == 0);
  CHECK(failing.step(batches).taken());
}
