// SPDX-License-Identifier: Apache-2.0
#include "saturate/recompute/offload.hpp"

#include "saturate/error.hpp"
#include "saturate/loss.hpp"
#include "saturate/memory_format/channels_last.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/precision/precision.hpp"
#include "saturate/recompute/recompute.hpp"
#include "saturate/trainer.hpp"
#include "saved_models.hpp"
#include "src/recompute/offload_places.hpp"
#include "src/recompute/saved_store.hpp"
#include "src/torch_seam/saved_tensors.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <torch/csrc/autograd/saved_variable.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace st = saturate;
namespace models = saved_models;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using models::LinearBlock;

namespace {

st::Offload twin(int64_t min_bytes = 1, int64_t block_bytes = 1 << 20) {
  return st::Offload({.min_bytes = min_bytes, .to = st::OffloadTo::cpu_copy, .block_bytes = block_bytes});
}

// A policy that is attached to a module without anything in it.
st::Offload attached(int64_t min_bytes = 1) {
  auto offload = twin(min_bytes);
  offload.attach(torch::nn::Module(), c10::kCPU);
  return offload;
}

template <class Net>
std::vector<at::Tensor> train_offloaded(Net net, const at::Tensor& batch, const models::Conditions& conditions,
                                        int64_t min_bytes = 1) {
  auto offload = twin(min_bytes);
  offload.attach(*net, c10::kCPU);
  auto outcome = models::train(net, batch, conditions, [&](const torch::nn::Module&) { return offload.scope(); });
  const st::SavedCounts counts = offload.counts();
  CHECK(counts.moved_tensors > 0);
  CHECK(counts.fetched == counts.moved_tensors);  // once each
  CHECK(counts.stored_bytes == 0);
  CHECK(st::detail::parcels_alive() == 0);
  return outcome;
}

template <class Block>
void check_law(const at::Tensor& batch, const models::Conditions& conditions = {}, bool tied = false) {
  const auto plain = models::train(models::stack<Block>(3, tied), batch, conditions, models::plainly);
  CHECK(support::same_bits(plain, train_offloaded(models::stack<Block>(3, tied), batch, conditions)));
  CHECK(support::same_bits(plain, train_offloaded(models::stack<Block>(3, tied), batch, conditions, 1500)));
}

// Keeps whatever it is given, and shows it again in backward.
struct Shown : torch::autograd::Function<Shown> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, at::TensorList kept) {
    context->save_for_backward(kept.vec());
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    seen = context->get_saved_variables();
    gradients.resize(1 + seen.size());
    return gradients;
  }
  static inline std::vector<at::Tensor> seen;
};

// What backward gets of the tensors that were saved.
std::vector<at::Tensor> through(const st::Offload& offload, const std::vector<at::Tensor>& kept) {
  at::Tensor y;
  {
    const auto scope = offload.scope();
    y = Shown::apply(torch::ones({1}).requires_grad_(), at::TensorList(kept)).sum();
  }
  y.backward();
  return std::exchange(Shown::seen, {});
}

// A place whose copies arrive when the test says so.
struct Story {
  std::vector<std::string> lines;
  bool arrive = false;
  std::map<const void*, std::string> names;
  std::string take() {
    std::string text;
    for (const std::string& line : std::exchange(lines, {})) text += (text.empty() ? "" : ", ") + line;
    return text;
  }
};

class SlowTransfer final : public st::detail::Transfer {
 public:
  SlowTransfer(const at::Tensor& from, const at::Tensor& to, Story& story, std::string name)
      : Transfer(from, to), story_(story), name_(std::move(name)) {}
  bool arrived() const override { return story_.arrive; }
  void wait() override { story_.lines.push_back("wait " + name_); }

 private:
  Story& story_;
  std::string name_;
};

class SlowPlace final : public st::detail::SavedPlace {
 public:
  explicit SlowPlace(Story& story) : story_(story) {}
  bool takes(const at::Tensor&) const override { return true; }
  std::unique_ptr<st::detail::Transfer> send(const at::Tensor& bytes) override {
    at::Tensor copy = bytes.clone();
    const std::string name = std::to_string(story_.names.size());
    story_.names[copy.const_data_ptr()] = name;
    stored_.push_back(copy);  // so that no address comes twice
    story_.lines.push_back("out " + name);
    return std::make_unique<SlowTransfer>(bytes, copy, story_, "out " + name);
  }
  std::unique_ptr<st::detail::Transfer> fetch(const at::Tensor& stored, c10::Device) override {
    const std::string name = story_.names.at(stored.const_data_ptr());
    story_.lines.push_back("back " + name);
    return std::make_unique<SlowTransfer>(stored, stored.clone(), story_, "back " + name);
  }
  bool worth_fetching_ahead() const override { return true; }
  std::string what_it_takes(int64_t) const override { return "is large"; }

 private:
  Story& story_;
  std::vector<at::Tensor> stored_;
};

std::shared_ptr<st::detail::SavedStore> slow_store(Story& story, const torch::nn::Module& model,
                                                   int64_t block_bytes = 1 << 20) {
  auto store = std::make_shared<st::detail::SavedStore>(st::detail::SavedStore::Settings{"Slow", 1, block_bytes},
                                                        std::make_unique<SlowPlace>(story));
  store->attach(model);
  return store;
}

// Saves one tensor, its output.
struct ExpImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x.exp(); }
};
TORCH_MODULE(Exp);

}  // namespace

TEST_CASE("Offload: loss, gradients, statistics and random numbers equal the plain run bit for bit", "[law]") {
  check_law<LinearBlock>(models::rows());
  check_law<models::Attention>(models::tokens());
  check_law<models::ConvNorm>(models::images());
  check_law<models::ConvNorm>(models::images(), {.format = at::MemoryFormat::ChannelsLast});
  check_law<LinearBlock>(models::rows(), {}, /*tied=*/true);
  check_law<models::ConvNorm>(models::images(), {}, /*tied=*/true);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    check_law<LinearBlock>(models::rows(), {.autocast = dtype}, /*tied=*/true);
    check_law<models::Attention>(models::tokens(), {.autocast = dtype});
    check_law<models::ConvNorm>(models::images(), {.autocast = dtype});
  }
}

TEST_CASE("Offload: its law notices one lost bit", "[law]") {
  struct Careless final : st::detail::SavedPlace {
    bool takes(const at::Tensor&) const override { return true; }
    std::unique_ptr<st::detail::Transfer> send(const at::Tensor& bytes) override {
      at::Tensor copy = bytes.clone();
      if (copy.numel() == 16 * 32 * 4) copy[2].bitwise_xor_(1);
      return std::make_unique<st::detail::Transfer>(bytes, copy);
    }
    std::unique_ptr<st::detail::Transfer> fetch(const at::Tensor& stored, c10::Device) override {
      return std::make_unique<st::detail::Transfer>(stored, stored.clone());
    }
    bool worth_fetching_ahead() const override { return true; }
    std::string what_it_takes(int64_t) const override { return {}; }
  };
  auto net = models::stack<LinearBlock>(3);
  auto store = std::make_shared<st::detail::SavedStore>(st::detail::SavedStore::Settings{"Careless", 1, 1 << 20},
                                                        std::make_unique<Careless>());
  store->attach(*net);
  const auto broken =
      models::train(net, models::rows(), {}, [&](const torch::nn::Module&) { return st::detail::SavedPass(store); });
  const auto plain = models::train(models::stack<LinearBlock>(3), models::rows(), {}, models::plainly);
  CHECK(support::same_bits(broken[0], plain[0]));
  CHECK(!support::same_bits(broken, plain));
}

TEST_CASE("Offload in a Trainer changes nothing, in any precision and memory format", "[law]") {
  const auto train = [](auto precision, auto... policies) {
    auto net = models::stack<models::ConvNorm>(3);
    const auto loss = [](const at::Tensor& output, const at::Tensor& target) {
      return (output.to(at::kFloat) - target).pow(2).sum();
    };
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.01}), loss, st::Accumulate{2}, precision,
                        st::ChannelsLast{}, policies...);
    std::vector<at::Tensor> outcome;
    for (int step = 0; step < 3; ++step) {
      const std::vector<support::Batch> window = {{models::images() + step, models::images()},
                                                  {models::images() - step, models::images()}};
      outcome.push_back(trainer.step(window).loss_sum);
    }
    for (const at::Tensor& parameter : net->parameters()) outcome.push_back(parameter.detach());
    for (const at::Tensor& buffer : net->buffers()) outcome.push_back(buffer);
    if constexpr (sizeof...(policies) > 0) {
      const st::SavedCounts counts = trainer.template policy<st::Offload>().counts();
      CHECK(counts.moved_tensors > 30);
      CHECK(counts.fetched_ahead > 0);
      CHECK(counts.stored_bytes == 0);
    }
    return outcome;
  };
  CHECK(support::same_bits(train(st::Fp32()), train(st::Fp32(), twin())));
  CHECK(support::same_bits(train(st::Bf16()), train(st::Bf16(), twin())));
  CHECK(support::same_bits(train(st::Bf16().keep_fp32(".*norm")), train(st::Bf16().keep_fp32(".*norm"), twin())));
}

TEST_CASE("Offload: what is saved twice is moved and fetched once, and so is what shares a storage") {
  const auto offload = attached();
  const at::Tensor x = torch::randn({1000});
  const at::Tensor table = torch::randn({10, 300});
  const auto parts = table.chunk(3, 1);
  const auto seen = through(offload, {x, x, x.view({10, 100}), x.detach(), parts[0], parts[1], parts[2]});
  const st::SavedCounts counts = offload.counts();
  CHECK(counts.moved_tensors == 2);
  CHECK(counts.moved_bytes == 4 * (1000 + 3000));
  CHECK(counts.peak_stored_bytes == counts.moved_bytes);
  CHECK(counts.fetched == 2);
  for (int i = 1; i < 4; ++i) CHECK(seen[i].const_data_ptr() == seen[0].const_data_ptr());
  CHECK(seen[5].storage().is_alias_of(seen[4].storage()));
  CHECK(seen[6].storage().is_alias_of(seen[4].storage()));
  CHECK(seen[6].equal(parts[2]));
  CHECK(!seen[0].storage().is_alias_of(x.storage()));
  CHECK(st::detail::parcels_alive() == 0);
}

TEST_CASE("Offload: of a small view the view alone is moved") {
  const auto offload = attached();
  const at::Tensor x = torch::randn({1000, 100});
  const auto seen = through(offload, {x.narrow(0, 501, 3), x.narrow(0, 501, 2)});
  CHECK(offload.counts().moved_tensors == 1);
  CHECK(offload.counts().moved_bytes < 3 * 400 + 512);
  CHECK(seen[0].equal(x.narrow(0, 501, 3)));
  CHECK(seen[1].equal(x.narrow(0, 501, 2)));
  CHECK(reinterpret_cast<std::uintptr_t>(seen[0].const_data_ptr()) % 64 ==
        reinterpret_cast<std::uintptr_t>(x[501].const_data_ptr()) % 64);
}

TEST_CASE("Offload: a change between two saves makes another copy") {
  const auto offload = attached();
  at::Tensor y;
  const at::Tensor one = torch::ones({1}).requires_grad_(), x = torch::zeros({64});
  {
    const auto scope = offload.scope();
    const std::vector<at::Tensor> first = {x};
    y = Shown::apply(one, at::TensorList(first));
    x.add_(1);
    y = Shown::apply(y, at::TensorList(first));
    const std::vector<at::Tensor> unrelated = {x.data()};  // counts its changes alone
    y = Shown::apply(y, at::TensorList(unrelated));
  }
  CHECK(offload.counts().moved_tensors == 3);
  CHECK_THROWS_MATCHES(y.backward(), st::StateError, MessageMatches(ContainsSubstring("changed in place")));
}

TEST_CASE("Offload: values, strides and dtypes of all kinds of tensors come back") {
  const auto offload = attached();
  const at::Tensor x = torch::randn({4, 6, 5, 3});
  const std::vector<at::Tensor> kept = {
      x,
      x.transpose(1, 3),
      x.contiguous(at::MemoryFormat::ChannelsLast),
      torch::randn({1, 7}).expand({5, 7}),
      torch::randn({3}).expand({1000, 3}),
      x.slice(1, 1, 6, 2).select(2, 1),
      torch::as_strided(x, {2, 2}, {1, 1}, 3),
      torch::tensor(2.5),
      torch::empty({0, 3}),
      torch::randn({3, 4}, at::kComplexDouble),
      torch::randn({3, 4}, at::kComplexFloat).conj(),
      torch::view_as_real(torch::randn({3, 4}, at::kComplexFloat).conj().resolve_conj()),
      torch::imag(torch::randn({3, 4}, at::kComplexFloat).conj()),  // with the negative bit
      torch::randn({40}, at::kDouble),
      torch::randn({40}).to(at::kBFloat16),
      torch::randn({40}).to(at::kHalf),
      torch::randn({40}).to(at::kFloat8_e4m3fn).view(at::kByte),
      torch::arange(40),
      torch::rand({40}) < 0.5,
      torch::full({9}, std::numeric_limits<float>::quiet_NaN()),
  };
  const auto seen = through(offload, kept);
  REQUIRE(seen.size() == kept.size());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    INFO(i);
    CHECK(seen[i].scalar_type() == kept[i].scalar_type());
    CHECK(seen[i].sizes() == kept[i].sizes());
    CHECK(seen[i].strides() == kept[i].strides());
    CHECK(seen[i].is_conj() == kept[i].is_conj());
    CHECK(support::same_bits(seen[i].resolve_conj().resolve_neg(), kept[i].resolve_conj().resolve_neg()));
  }
  CHECK(offload.counts().kept_tensors == 3);  // of no size, and those whose values are not what lies in the storage
}

TEST_CASE("Offload: sparse, nested and quantized tensors stay") {
  const auto offload = attached();
  const at::Tensor sparse = torch::randn({4, 4}).to_sparse();
  const at::Tensor nested = at::_nested_tensor_from_tensor_list({torch::randn({2, 3}), torch::randn({4, 3})});
  const at::Tensor quantized = torch::quantize_per_tensor(torch::randn({4}), 0.1, 0, at::kQInt8);
  std::vector<torch::autograd::SavedVariable> saved;
  {
    const auto scope = offload.scope();
    for (const at::Tensor& tensor : {sparse, nested, quantized}) saved.emplace_back(tensor, /*is_output=*/false);
  }
  CHECK(offload.counts().moved_tensors == 0);
  CHECK(offload.counts().kept_tensors == 3);
  CHECK(saved[0].unpack().to_dense().equal(sparse.to_dense()));
  CHECK(saved[1].unpack().is_nested());
  CHECK(saved[2].unpack().int_repr().equal(quantized.int_repr()));
}

TEST_CASE("Offload: who looks at a saved tensor outside of backward holds nothing") {
  const auto offload = attached();
  std::vector<torch::autograd::SavedVariable> saved;
  const at::Tensor x = torch::randn({100});
  {
    const auto scope = offload.scope();
    saved.emplace_back(x, /*is_output=*/false);
  }
  const st::MemoryMeter meter;
  for (int i = 0; i < 3; ++i) CHECK(saved[0].unpack().equal(x));
  CHECK(meter.counts().bytes == 0);
  CHECK(offload.counts().fetched == 3);
  saved.clear();
  CHECK(st::detail::parcels_alive() == 0);
}

TEST_CASE("Offload: parameters and buffers stay, and so do views of them and small tensors") {
  torch::nn::Sequential net(torch::nn::Linear(64, 64), torch::nn::BatchNorm1d(64), torch::nn::Linear(64, 64));
  for (at::Tensor& parameter : net[2]->as<torch::nn::Linear>()->parameters()) parameter.requires_grad_(false);
  net->eval();  // BatchNorm saves its statistics
  auto offload = twin(1024);
  offload.attach(*net, c10::kCPU);
  const at::Tensor x = torch::randn({3, 64}).requires_grad_();  // 768 bytes, below min_bytes
  at::Tensor y;
  {
    const support::LogCapture log;
    const auto scope = offload.scope();
    y = net->forward(x).exp().sum();
  }
  CHECK(offload.counts().moved_tensors == 0);
  CHECK(offload.counts().largest_kept == 768);
  y.backward();
  CHECK(net[0]->as<torch::nn::Linear>()->weight.grad().defined());
  CHECK(x.grad().defined());
}

TEST_CASE("Offload: a saved tensor that was changed in place is an error and not a wrong gradient") {
  for (const int64_t min_bytes : {1, 1 << 20}) {  // moved, and kept
    const auto offload = attached(min_bytes);
    const support::LogCapture log;
    const at::Tensor x = torch::randn({100}).requires_grad_();
    at::Tensor y, loss;
    {
      const auto scope = offload.scope();
      y = x.exp();
      loss = y.sum();
    }
    y.detach().mul_(2);
    CHECK_THROWS_MATCHES(loss.backward(), st::StateError,
                         MessageMatches(ContainsSubstring("Offload") && ContainsSubstring("changed in place")));
    CHECK(!x.grad().defined());
  }
  const at::Tensor weight = torch::randn({8, 8}).requires_grad_(), x = torch::randn({8, 8}).requires_grad_();
  const auto offload = attached();
  at::Tensor loss;
  {
    const auto scope = offload.scope();
    loss = x.matmul(weight).sum();
  }
  {
    const at::NoGradGuard no_grad;
    weight.mul_(2);
  }
  CHECK_THROWS_AS(loss.backward(), st::StateError);
}

TEST_CASE("Offload: a graph that is kept fetches again; one that is dropped leaves nothing") {
  const auto offload = attached();
  const at::Tensor x = torch::randn({1000}).requires_grad_();
  at::Tensor loss;
  {
    const auto scope = offload.scope();
    loss = x.exp().sin().sum();
  }
  CHECK(offload.counts().moved_tensors == 1);  // exp's output is what sin saves
  const st::MemoryMeter meter;
  const auto gradient = [&](bool keep) { return torch::autograd::grad({loss}, {x}, {}, keep)[0]; };
  const at::Tensor first = gradient(true), second = gradient(true);
  CHECK(meter.counts().bytes < 3 * 4000);  // nothing but the gradients
  const at::Tensor third = gradient(false);
  CHECK(support::same_bits({first, first}, {second, third}));
  CHECK(offload.counts().fetched == 3);
  CHECK(st::detail::parcels_alive() == 0);
  {
    const auto scope = offload.scope();
    loss = x.exp().sum();
    CHECK(st::detail::parcels_alive() == 1);
    CHECK(offload.counts().stored_bytes == 4000);
    loss = at::Tensor();
    CHECK(st::detail::parcels_alive() == 0);
    CHECK(offload.counts().stored_bytes == 0);
  }
}

TEST_CASE("Offload: second derivatives are right") {
  const auto offload = attached();
  const at::Tensor x = torch::randn({5}, at::kDouble).requires_grad_();
  const auto second = [&](bool offloaded) {
    at::Tensor y;
    {
      std::optional<st::detail::SavedPass> scope;
      if (offloaded) scope.emplace(offload.scope());
      y = (x.exp() * x.sin()).pow(3).sum();
    }
    const at::Tensor first = torch::autograd::grad({y}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {x})[0];
  };
  CHECK(support::same_bits(second(true), second(false)));
  CHECK(offload.counts().moved_tensors > 0);
  CHECK(st::detail::parcels_alive() == 0);
}

TEST_CASE("Offload: backward within the scope, and on another thread") {
  const auto offload = attached();
  const at::Tensor x = torch::randn({200}).requires_grad_();
  const auto build = [&] { return (x.sin().exp() * x).sum(); };
  const at::Tensor expected = torch::autograd::grad({build()}, {x})[0];
  {
    const auto scope = offload.scope();
    CHECK(support::same_bits(torch::autograd::grad({build()}, {x})[0], expected));
  }
  at::Tensor loss, gradient;
  {
    const auto scope = offload.scope();
    loss = build();
  }
  std::thread([&] { gradient = torch::autograd::grad({loss}, {x})[0]; }).join();
  CHECK(support::same_bits(gradient, expected));
  loss = at::Tensor();
  CHECK(st::detail::parcels_alive() == 0);
}

TEST_CASE("Offload: an exception in forward leaves nothing behind") {
  const auto offload = attached();
  const auto forward = [&](bool fail) {
    const auto scope = offload.scope();
    const at::Tensor y = torch::randn({100}).requires_grad_().exp();
    if (fail) throw std::runtime_error("model");
    return y.sum();
  };
  CHECK_THROWS_AS(forward(true), std::runtime_error);
  CHECK(st::torch_seam::current_packer() == nullptr);
  CHECK(st::marks::detail::active == nullptr);
  CHECK(st::detail::parcels_alive() == 0);
  forward(false).backward();
}

TEST_CASE("Offload: a block is fetched when the one after it is first asked for") {
  Story story;
  story.arrive = true;
  auto net = models::stack<Exp>(4);
  const auto store = slow_store(story, *net);
  const at::Tensor x = torch::zeros({10}).requires_grad_();
  at::Tensor loss;
  {
    const st::detail::SavedPass pass(store);
    loss = net->forward(x).pow(2).sum();  // 0 to 3: the blocks' outputs; pow saves the last one again
  }
  CHECK(story.take() == "out 0, out 1, out 2, out 3");
  loss.backward();
  CHECK(story.take() ==
        "back 3, back 2, wait back 3, wait back 3, back 1, wait back 2, back 0, wait back 1, wait back 0");
  const st::SavedCounts counts = store->counts();
  CHECK(counts.fetched == 4);
  CHECK(counts.moved_tensors == 4);
}

TEST_CASE("Offload: a block of several tensors comes back last one first, and a large one is cut") {
  Story story;
  story.arrive = true;
  const torch::nn::Module none;
  const auto store = slow_store(story, none, /*block_bytes=*/80);  // two tensors of 40 bytes
  const at::Tensor x = torch::zeros({10}).requires_grad_();
  at::Tensor loss;
  {
    const st::detail::SavedPass pass(store);
    loss = x.exp().exp().exp().exp().exp().sum();  // no marks: 0 1 | 2 3 | 4
  }
  story.take();
  loss.backward();
  CHECK(story.take() ==
        "back 4, back 3, back 2, wait back 4, back 1, back 0, wait back 3, wait back 2, wait back 1, wait back 0");
}

TEST_CASE("Offload: a tensor leaves when its copy is done, or when the block after the next begins") {
  Story story;
  auto net = models::stack<Exp>(4);
  const auto store = slow_store(story, *net);
  const at::Tensor x = torch::zeros({1000}).requires_grad_();
  const st::MemoryMeter meter;
  at::Tensor loss;
  {
    const st::detail::SavedPass pass(store);
    loss = net->forward(x).sum();
  }
  CHECK(story.take() == "out 0, out 1, wait out 0, out 2, wait out 1, out 3");
  CHECK(meter.counts().bytes == 4000 * (4 + 2) + 4);  // four stored, 2 and 3 on the way, the loss
  loss.backward();
  // What is still there is not fetched.
  CHECK(story.take() == "back 1, back 0, wait back 1, wait back 0");
  loss = at::Tensor();
  CHECK(st::detail::parcels_alive() == 0);

  story.arrive = true;
  {
    const st::detail::SavedPass pass(store);
    loss = net->forward(x).sum();
  }
  CHECK(story.take() == "out 4, out 5, out 6, out 7");
}

TEST_CASE("Offload: memory beside the stored bytes is that of two blocks") {
  const auto peak = [](auto scope_of) {
    auto net = models::stack<models::Attention>(12, false, 64);
    net->train();
    const at::Tensor x = models::tokens(4, 64, 64);
    const st::MemoryMeter meter;
    at::Tensor loss;
    {
      const auto scope = scope_of(*net);
      loss = net->forward(x).sum();
    }
    const int64_t forward = meter.counts().peak_bytes;
    loss.backward();
    return std::pair(forward, meter.counts().peak_bytes);
  };
  auto offload = twin(4096);
  const auto plain = peak(models::plainly);
  const auto moved = peak([&](const torch::nn::Module& net) {
    offload.attach(net, c10::kCPU);
    return offload.scope();
  });
  UNSCOPED_INFO("forward " << plain.first << " " << moved.first << ", both " << plain.second << " " << moved.second);
  CHECK(moved.first < plain.first / 4);
  CHECK(moved.second < plain.second / 2);
  // Everything that the peak lost lies at the other place.
  CHECK(offload.counts().peak_stored_bytes > plain.first - moved.first - (1 << 16));
  CHECK(offload.counts().peak_stored_bytes == offload.counts().moved_bytes);
}

TEST_CASE("Offload: the inputs of recomputed blocks are moved") {
  const auto train = [](bool recomputed, st::Offload* offload) {
    auto net = models::stack<models::Attention>(4);
    if (offload != nullptr) offload->attach(*net, c10::kCPU);
    torch::manual_seed(1);
    at::Tensor x = models::tokens(), loss;
    {
      std::optional<st::detail::SavedPass> scope;
      if (offload != nullptr) scope.emplace(offload->scope());
      for (auto& block : net->blocks) x = recomputed ? st::recompute(block, x) : block->forward(x);
      loss = x.sum();
    }
    loss.backward();
    std::vector<at::Tensor> outcome = {loss.detach(), models::random_state()};
    for (const at::Tensor& parameter : net->parameters()) outcome.push_back(parameter.grad());
    return outcome;
  };
  auto offload = twin();
  const auto plain = train(false, nullptr), both = train(true, &offload);
  CHECK(support::same_bits(plain, both));
  const st::SavedCounts counts = offload.counts();
  const int64_t input = 2 * 9 * 32 * 4;
  CHECK(counts.moved_tensors == 4);
  CHECK(counts.moved_bytes == 4 * input);
  CHECK(counts.fetched == 4);
  CHECK(counts.fetched_ahead == 3);
  CHECK(counts.stored_bytes == 0);
  CHECK(st::detail::frames_alive() == 0);
}

TEST_CASE("Offload: 500 steps leave nothing behind") {
  auto net = models::stack<LinearBlock>(3);
  auto offload = twin();
  offload.attach(*net, c10::kCPU);
  const at::Tensor x = models::rows();
  const auto step = [&] {
    at::Tensor loss;
    {
      const auto scope = offload.scope();
      loss = net->forward(x).sum();
    }
    loss.backward();
    net->zero_grad();
  };
  step();
  st::MemoryMeter meter;
  int64_t after_ten = 0;
  for (int i = 0; i < 500; ++i) {
    step();
    if (i == 10) after_ten = meter.counts().bytes;
  }
  CHECK(meter.counts().bytes == after_ten);
  CHECK(offload.counts().stored_bytes == 0);
  CHECK(st::detail::parcels_alive() == 0);
}

TEST_CASE("Offload: wrong settings") {
  const torch::nn::Module net;
  CHECK_THROWS_AS(st::Offload({.min_bytes = -1}), st::ConfigError);
  CHECK_THROWS_AS(st::Offload({.block_bytes = 0}), st::ConfigError);
  CHECK_THROWS_AS(st::Offload().scope(), st::StateError);
  CHECK_THROWS_MATCHES(st::Offload().attach(net, c10::kCPU), st::ConfigError,
                       MessageMatches(ContainsSubstring("nothing to win")));
  CHECK_THROWS_MATCHES(twin().attach(net, c10::Device(c10::kCUDA, 0)), st::ConfigError,
                       MessageMatches(ContainsSubstring("pinned_host")));
  CHECK_THROWS_AS(st::Offload().attach(net, c10::kMeta), st::ConfigError);
  auto mlp = support::seeded(1);
  CHECK_THROWS_AS(st::Trainer(mlp, st::optim::SGD(mlp->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Offload()),
                  st::ConfigError);
}

TEST_CASE("Offload: where all is too small it says so, once, with the largest") {
  const support::LogCapture log;
  auto net = support::seeded(1);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, twin(1 << 20));
  const std::vector<support::Batch> data = {support::classes(512, 2)};
  trainer.evaluate(data);
  CHECK(log.lines.empty());
  trainer.step(data[0]);
  trainer.step(data[0]);
  REQUIRE(log.lines.size() == 1);
  CHECK(log.contains("Offload has no effect"));
  CHECK(log.contains("16.0 KiB"));  // 512 rows of 8
}
