// SPDX-License-Identifier: Apache-2.0
// Law 3: recompute is invisible. Loss, gradients, the random stream after forward and after backward, and BatchNorm's
// statistics and counter equal the plain run, bit for bit.
#include "saturate/optim/sgd.hpp"
#include "saturate/recompute/policy.hpp"
#include "saturate/recompute/recompute.hpp"
#include "saturate/trainer.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>

#include <functional>
#include <optional>
#include <string>

namespace st = saturate;

namespace {

// How a block is called: plainly, or recomputed.
enum class How { plain, recomputed, broken };

// Deliberately wrong recompute, as one would write it at first: an autograd function that runs forward a second time,
// but with the random stream and the buffers of then.
struct Forgetful : torch::autograd::Function<Forgetful> {
  using Block = std::function<at::Tensor(at::Tensor)>;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, at::TensorList,
                            const Block* block, std::vector<at::Tensor> parameters) {
    context->save_for_backward({x});
    context->saved_data["block"] = reinterpret_cast<int64_t>(new Block(*block));
    context->saved_data["parameters"] = parameters;
    return (*block)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const std::unique_ptr<Block> block(reinterpret_cast<Block*>(context->saved_data["block"].toInt()));
    const at::AutoGradMode grad_mode(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    std::vector<at::Tensor> wanted = {x};
    for (const at::Tensor& parameter : context->saved_data["parameters"].toTensorVector()) wanted.push_back(parameter);
    auto found = torch::autograd::grad({(*block)(x)}, wanted, gradients, false, false, true);
    found.resize(found.size() + 2);
    return found;
  }
};

template <class Module>
at::Tensor run(How how, Module& module, at::Tensor x) {
  if (how == How::plain) return st::call(module, x);
  if (how == How::recomputed) return st::recompute(module, x);
  const Forgetful::Block block = [&](at::Tensor input) { return module->forward(input); };
  const std::vector<at::Tensor> parameters = module->parameters();
  return Forgetful::apply(x, at::TensorList(parameters), &block, parameters);
}

struct ConvNormImpl : torch::nn::Module {
  ConvNormImpl()
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 3, 3).padding(1).bias(false)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(3))) {}
  at::Tensor forward(const at::Tensor& x) { return x + st::call(norm, st::call(conv, x)).relu_(); }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
};
TORCH_MODULE(ConvNorm);

struct AttentionImpl : torch::nn::Module {
  AttentionImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})))),
        qkv(register_module("qkv", torch::nn::Linear(8, 24))),
        out(register_module("out", torch::nn::Linear(8, 8))) {
    register_buffer("mask", torch::full({5, 5}, -1e9).triu(1));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = st::call(qkv, st::call(norm, x)).chunk(3, -1);
    const at::Tensor scores = torch::matmul(parts[0], parts[1].transpose(-1, -2)) / 3 + named_buffers()["mask"];
    const at::Tensor weights = torch::dropout(torch::softmax(scores, -1), 0.3, is_training());
    return x + torch::dropout(st::call(out, torch::matmul(weights, parts[2])), 0.2, is_training());
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear qkv, out;
};
TORCH_MODULE(Attention);

// A state that its own forward reads and changes, as spectral normalization's.
struct DriftImpl : torch::nn::Module {
  DriftImpl() : linear(register_module("linear", torch::nn::Linear(8, 8))) { register_buffer("u", torch::ones({8})); }
  at::Tensor forward(const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    at::Tensor u = named_buffers()["u"];
    u.mul_(1.5).add_(0.25);
    const at::AutoGradMode grad(true);
    return torch::tanh(linear(x) * u.clone());
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Drift);

// Two blocks of one kind. With `tied` both are the same module; `frozen` parameters of the first take no gradient.
template <class Block>
struct TwoImpl : torch::nn::Module {
  TwoImpl(How how, bool tied, bool frozen) : how(how), first(register_module("first", Block())) {
    second = tied ? first : register_module("second", Block());
    if (frozen) {
      for (at::Tensor& parameter : first->parameters()) parameter.requires_grad_(false);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return run(how, second, run(how, first, x)); }
  How how;
  Block first{nullptr}, second{nullptr};
};

// A block whose own two blocks are recomputed within it.
struct OuterImpl : torch::nn::Module {
  explicit OuterImpl(How how, bool inner = true)
      : how(how),
        inner(inner),
        first(register_module("first", Attention())),
        second(register_module("second", Attention())) {}
  at::Tensor forward(const at::Tensor& x) {
    const How inside = inner ? how : How::plain;
    return run(inside, second, torch::tanh(run(inside, first, x * 2)));
  }
  How how;
  bool inner;
  Attention first, second;
};
TORCH_MODULE(Outer);
struct NestedImpl : torch::nn::Module {
  explicit NestedImpl(How how)
      : how(how), one(register_module("one", Outer(how))), two(register_module("two", Outer(how))) {}
  at::Tensor forward(const at::Tensor& x) { return run(how, two, run(how, one, x)); }
  How how;
  Outer one, two;
};

struct Outcome {
  std::vector<at::Tensor> values;
  std::vector<std::string> names;
  void add(const std::string& name, const at::Tensor& value) {
    names.push_back(name);
    values.push_back(value.defined() ? value.detach().clone() : at::Tensor());
  }
};

at::Tensor random_state() { return at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).get_state(); }

// What differs between the two runs; empty: nothing.
std::string difference(const Outcome& a, const Outcome& b) {
  if (a.names != b.names) return "other values";
  std::string text;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    const bool same = a.values[i].defined() == b.values[i].defined() &&
                      (!a.values[i].defined() || (a.values[i].scalar_type() == b.values[i].scalar_type() &&
                                                  torch::equal(a.values[i], b.values[i])));
    if (!same) text += (text.empty() ? "" : ", ") + a.names[i];
  }
  return text;
}

struct Conditions {
  std::optional<at::ScalarType> autocast;
  bool input_gradient = true;
  int windows = 2;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
};

template <class Net>
Outcome train(Net net, const at::Tensor& batch, const Conditions& conditions) {
  Outcome outcome;
  torch::optim::SGD optimizer(net->parameters(), 0.002);
  torch::manual_seed(11);
  for (int window = 0; window < conditions.windows; ++window) {
    const std::string at = " of window " + std::to_string(window);
    for (int micro = 0; micro < 2; ++micro) {  // accumulation
      const at::Tensor x = (batch + micro).to(conditions.format).detach().set_requires_grad(conditions.input_gradient);
      at::Tensor loss;
      {
        std::optional<st::AutocastScope> autocast;
        if (conditions.autocast) autocast.emplace(c10::kCPU, *conditions.autocast);
        loss = net->forward(x).to(at::kFloat).pow(2).sum();
      }
      outcome.add("loss" + at, loss);
      outcome.add("random stream after forward" + at, random_state());
      loss.backward();
      outcome.add("random stream after backward" + at, random_state());
      outcome.add("input gradient" + at, x.grad());
    }
    for (const auto& item : net->named_parameters()) outcome.add("gradient of " + item.key() + at, item.value().grad());
    for (const auto& item : net->named_buffers()) outcome.add(item.key() + at, item.value());
    optimizer.step();
    optimizer.zero_grad();
  }
  return outcome;
}

template <class Impl, class... Args>
std::shared_ptr<Impl> seeded(Args... args) {
  torch::manual_seed(3);
  return std::make_shared<Impl>(args...);
}

template <class Block>
void check_law(const at::Tensor& batch, const Conditions& conditions = {}, bool tied = false, bool frozen = false) {
  using Net = TwoImpl<Block>;
  const Outcome plain = train(seeded<Net>(How::plain, tied, frozen), batch, conditions);
  const Outcome recomputed = train(seeded<Net>(How::recomputed, tied, frozen), batch, conditions);
  CHECK(difference(plain, recomputed) == "");
  CHECK(st::detail::frames_alive() == 0);
}

at::Tensor rows() { return torch::linspace(-1, 1, 4 * 8).reshape({4, 8}); }
at::Tensor tokens() { return torch::linspace(-1, 1, 2 * 5 * 8).reshape({2, 5, 8}).sin(); }
at::Tensor images() { return torch::linspace(-3, 3, 2 * 3 * 4 * 4).reshape({2, 3, 4, 4}).cos(); }

struct LinearBlockImpl : torch::nn::Module {
  LinearBlockImpl() : linear(register_module("linear", torch::nn::Linear(8, 8))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::gelu(st::call(linear, x)); }
  torch::nn::Linear linear;
};
TORCH_MODULE(LinearBlock);

struct DropoutBlockImpl : torch::nn::Module {
  DropoutBlockImpl() : linear(register_module("linear", torch::nn::Linear(8, 8))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::dropout(linear(torch::dropout(x, 0.5, true)), 0.5, true); }
  torch::nn::Linear linear;
};
TORCH_MODULE(DropoutBlock);

}  // namespace

TEST_CASE("law 3: recompute is invisible", "[law]") {
  check_law<LinearBlock>(rows());
  check_law<DropoutBlock>(rows());
  check_law<Attention>(tokens());
  check_law<ConvNorm>(images());
  check_law<Drift>(rows());
  check_law<ConvNorm>(images(), {.format = at::MemoryFormat::ChannelsLast});
}

TEST_CASE("law 3 holds for inputs without gradient, tied weights and frozen parts", "[law]") {
  const Conditions no_input_gradient{.input_gradient = false};
  check_law<LinearBlock>(rows(), no_input_gradient);
  check_law<Attention>(tokens(), no_input_gradient);
  check_law<ConvNorm>(images(), no_input_gradient);
  check_law<LinearBlock>(rows(), {}, /*tied=*/true);
  check_law<ConvNorm>(images(), {}, /*tied=*/true);
  check_law<Attention>(tokens(), {}, /*tied=*/true);
  check_law<LinearBlock>(rows(), no_input_gradient, false, /*frozen=*/true);
  check_law<ConvNorm>(images(), {}, false, /*frozen=*/true);
  check_law<Attention>(tokens(), no_input_gradient, false, /*frozen=*/true);
}

TEST_CASE("law 3 holds under autocast", "[law]") {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    check_law<LinearBlock>(rows(), {.autocast = dtype});
    check_law<LinearBlock>(rows(), {.autocast = dtype}, /*tied=*/true);
    check_law<Attention>(tokens(), {.autocast = dtype});
    check_law<ConvNorm>(images(), {.autocast = dtype});
  }
}

TEST_CASE("law 3 holds for nested blocks", "[law]") {
  for (const std::optional<at::ScalarType> dtype : {std::optional<at::ScalarType>(), {at::kBFloat16}}) {
    const Conditions conditions{.autocast = dtype};
    CHECK(difference(train(seeded<NestedImpl>(How::plain), tokens(), conditions),
                     train(seeded<NestedImpl>(How::recomputed), tokens(), conditions)) == "");
  }
  CHECK(st::detail::frames_alive() == 0);
}

TEST_CASE("law 3 holds for blocks of several tensors, in and out", "[law]") {
  const auto train_pair = [](How how) {
    auto net = seeded<OuterImpl>(How::plain);
    const auto block = [net](at::Tensor x, std::optional<at::Tensor> y, double factor) {
      const at::Tensor a = net->first(x) * factor;
      const at::Tensor b = y ? net->second(*y + a) : a.detach();
      return std::tuple(a, std::vector<at::Tensor>{b, x.sum().detach()}, std::optional<at::Tensor>());
    };
    Outcome outcome;
    torch::manual_seed(5);
    for (const bool given : {true, false}) {
      const at::Tensor x = tokens().requires_grad_(), y = tokens().neg();
      std::optional<at::Tensor> second;
      if (given) second = y;
      auto [a, list, none] =
          how == How::plain ? block(x, second, 0.5) : st::recompute(st::with_modules(block, *net), x, second, 0.5);
      CHECK(!none);
      // Two roots, one after the other, and one of them twice.
      a.sum().backward({}, /*retain_graph=*/true);
      if (given) list[0].pow(2).sum().backward({}, /*retain_graph=*/true);
      (a * a).sum().backward();
      outcome.add("a", a);
      outcome.add("list", list[0]);
      outcome.add("x", x.grad());
      outcome.add("random", random_state());
      for (const auto& item : net->named_parameters()) outcome.add(item.key(), item.value().grad());
    }
    return outcome;
  };
  CHECK(difference(train_pair(How::plain), train_pair(How::recomputed)) == "");
  CHECK(st::detail::frames_alive() == 0);
}

TEST_CASE("law 3 holds for the policies, with islands and every precision", "[law]") {
  const auto train_with = [](auto precision, auto... recompute) {
    auto net =
        torch::nn::Sequential(LinearBlock(), DropoutBlock(), LinearBlock(), torch::nn::BatchNorm1d(8), DropoutBlock());
    struct MarkedImpl : torch::nn::Module {
      explicit MarkedImpl(torch::nn::Sequential parts) : blocks(register_module("blocks", parts)) {}
      at::Tensor forward(const at::Tensor& x) { return st::call_each(blocks, x); }
      torch::nn::Sequential blocks;
    };
    torch::manual_seed(2);
    for (at::Tensor& parameter : net->parameters()) torch::nn::init::normal_(parameter);
    auto model = std::make_shared<MarkedImpl>(net);
    Outcome outcome;
    const auto loss = [](const at::Tensor& output, const at::Tensor& target) {
      return (output.to(at::kFloat) - target).pow(2).sum();
    };
    st::Trainer trainer(model, st::optim::SGD(model->parameters(), {.lr = 0.01}), loss, st::Accumulate{2}, precision,
                        recompute...);
    for (int step = 0; step < 3; ++step) {
      const std::vector<support::Batch> window = {{rows() + step, rows()}, {rows() - step, rows()}};
      outcome.add("loss", trainer.step(window).loss_sum);
      outcome.add("random stream", random_state());
    }
    for (const auto& item : model->named_parameters()) outcome.add(item.key(), item.value());
    for (const auto& item : model->named_buffers()) outcome.add(item.key(), item.value());
    return outcome;
  };
  const auto check = [&](auto precision) {
    const Outcome plain = train_with(precision());
    CHECK(difference(plain, train_with(precision(), st::Recompute::all())) == "");
    CHECK(difference(plain, train_with(precision(), st::Recompute::every(2))) == "");
    CHECK(difference(plain, train_with(precision(), st::Recompute::named({"blocks\\.[13]", "blocks.*"}))) == "");
  };
  check([] { return st::Fp32(); });
  check([] { return st::Bf16(); });
  check([] { return st::Bf16().keep_fp32("blocks\\.2"); });
  check([] { return st::Bf16().keep_fp32(".*linear"); });
  check([] { return st::Fp16(); });
}

TEST_CASE("law 3's test notices a recompute that forgets the random stream or the buffers", "[law]") {
  using Dropouts = TwoImpl<DropoutBlock>;
  using Norms = TwoImpl<ConvNorm>;
  const std::string random = difference(train(seeded<Dropouts>(How::plain, false, false), rows(), {}),
                                        train(seeded<Dropouts>(How::broken, false, false), rows(), {}));
  CHECK(random.find("random stream after backward of window 0") != std::string::npos);
  CHECK(random.find("gradient of first.linear.weight of window 0") != std::string::npos);
  const std::string buffers = difference(train(seeded<Norms>(How::plain, false, false), images(), {}),
                                         train(seeded<Norms>(How::broken, false, false), images(), {}));
  CHECK(buffers.find("second.norm.running_mean of window 0") != std::string::npos);
  CHECK(buffers.find("second.norm.num_batches_tracked of window 0") != std::string::npos);
}
