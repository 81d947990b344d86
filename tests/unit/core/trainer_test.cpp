// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer.hpp"
#include "saturate/averaging/ema.hpp"
#include "saturate/error.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/sgd.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using support::Batch;
using support::Mlp;

namespace {

// Two inputs, one of them optional, and a tuple out.
struct TwoInputsImpl : torch::nn::Module {
  TwoInputsImpl() : linear(register_module("linear", torch::nn::Linear(3, 2))) {}
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
    const at::Tensor y = linear(mask ? x * *mask : x);
    return {y, y.pow(2)};
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(TwoInputs);

struct Sentence {
  at::Tensor x;
  std::optional<at::Tensor> mask;
  at::Tensor y;
};
auto inputs(const Sentence& s) { return std::tie(s.x, s.mask); }
const at::Tensor& target(const Sentence& s) { return s.y; }

struct Journal {
  std::string* text;
  void on_fit_begin(const st::FitBegin& e) { *text += "[" + std::to_string(e.windows_per_epoch.value_or(-1)); }
  void on_epoch_begin(const st::EpochBegin&) { *text += "("; }
  void on_step(const st::StepEvent&) { *text += "s"; }
  void on_log(const st::LogEvent&) { *text += "l"; }
  void on_evaluate(const st::EvaluateEvent& e) { *text += e.metrics.contains("accuracy") ? "e" : "?"; }
  void on_epoch_end(const st::EpochEnd&) { *text += ")"; }
  void on_fit_end(const st::FitEnd& e) { *text += e.failed ? "!" : "]"; }
};

// SGD that steps only when it is waited for, as an optimizer that sends its parameters to other ranks does.
class LateSgd final : public st::optim::Optimizer {
 public:
  using Optimizer::step;
  explicit LateSgd(std::vector<at::Tensor> params) : inner_(std::move(params), {.lr = 0.1}) {}
  void step(const st::optim::StepArgs& args) override { start_step(args), wait(); }
  void start_step(const st::optim::StepArgs& args) override {
    wait();
    for (const at::Tensor& param : parameters()) gradients_.push_back(param.grad());
    args_ = args;
  }
  void wait() const override {
    if (!args_) return;
    const auto params = parameters();
    for (std::size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = gradients_[i];
    gradients_.clear();
    inner_.step(*std::exchange(args_, std::nullopt));
    inner_.zero_grad();
  }
  bool under_way() const { return args_.has_value(); }
  void zero_grad(bool set_to_none = true) override { inner_.zero_grad(set_to_none); }
  std::vector<at::Tensor> parameters() const override { return inner_.parameters(); }
  double lr(std::size_t group = 0) const override { return inner_.lr(group); }
  void set_lr(double lr, std::size_t group = 0) override { inner_.set_lr(lr, group); }
  void name_parameters(const st::optim::NamedTensors& named) override { inner_.name_parameters(named); }
  st::optim::OptimizerState state() const override { return inner_.state(); }
  void load_state(const st::optim::OptimizerState& state) override { inner_.load_state(state); }

 private:
  mutable st::optim::SGD inner_;
  mutable std::vector<at::Tensor> gradients_;
  mutable std::optional<st::optim::StepArgs> args_;
};

// Takes down the weights whenever it is told something.
struct Weights {
  Mlp net;
  std::vector<at::Tensor>* seen;
  void take() {
    for (const at::Tensor& param : net->parameters()) seen->push_back(param.detach().clone());
  }
  void on_step(const st::StepEvent&) { take(); }
  void on_fit_end(const st::FitEnd&) { take(); }
};

// Asks, when its next batch is wanted, whether the step is still under way.
struct Asking {
  std::vector<Batch> batches;
  const LateSgd* optimizer;
  int* under_way;
  struct Iterator {
    const Asking* loader;
    std::size_t at;
    const Batch& operator*() const { return loader->batches[at]; }
    Iterator& operator++() {
      *loader->under_way += loader->optimizer->under_way();
      ++at;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at != other.at; }
    bool operator==(const Iterator& other) const { return at == other.at; }
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, batches.size()}; }
};

struct StopAfter {
  int64_t windows;
  std::unique_ptr<int> only_moves = {};
  void on_step(const st::StepEvent& event) {
    if (event.state.window >= windows) event.state.stop = true;
  }
};

std::vector<Batch> five_batches() { return support::split(support::classes(20, 1), {4, 4, 4, 4, 4}); }

double train_loss(Mlp& net, auto& trainer) {
  trainer.fit(five_batches(), {.epochs = 30});
  (void)net;
  return trainer.evaluate(five_batches()).at("loss");
}

}  // namespace

TEST_CASE("the optimizer comes by value, by reference or by unique_ptr, ours or LibTorch's") {
  const auto check = [](auto make) {
    Mlp net = support::seeded(1);
    CHECK(make(net) < 0.9);
  };
  check([](Mlp& net) {
    st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.05}), st::CrossEntropy{});
    return train_loss(net, trainer);
  });
  check([](Mlp& net) {
    st::optim::AdamW optimizer(net->parameters(), {.lr = 0.05});
    st::Trainer trainer(net, std::ref(optimizer), st::CrossEntropy{});
    const double loss = train_loss(net, trainer);
    CHECK(optimizer.state().parameters.at("first.weight").at("step").item<double>() == 150);
    return loss;
  });
  check([](Mlp& net) {
    auto optimizer = std::make_unique<st::optim::AdamW>(net->parameters(), st::optim::AdamWOptions{.lr = 0.05});
    st::Trainer trainer(net, std::move(optimizer), st::CrossEntropy{});
    return train_loss(net, trainer);
  });
  check([](Mlp& net) {
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.05));
    st::Trainer trainer(net, std::ref(optimizer), st::CrossEntropy{});
    return train_loss(net, trainer);
  });
  check([](Mlp& net) {
    std::unique_ptr<torch::optim::Optimizer> optimizer =
        std::make_unique<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(0.05));
    st::Trainer trainer(net.ptr(), std::move(optimizer), st::CrossEntropy{});  // and the model as a shared_ptr
    return train_loss(net, trainer);
  });
}

TEST_CASE("a schedule drives LibTorch's optimizers as well") {
  const auto train = [](auto make) {
    Mlp net = support::seeded(1, at::kDouble);
    st::Trainer trainer(net, make(net), st::CrossEntropy{.ignore_index = std::nullopt},
                        st::WarmupCosine{.warmup = 2, .total = 5});
    trainer.fit(support::split(support::classes(20, 1, at::kDouble), {4, 4, 4, 4, 4}));
    return support::clones(net->parameters());
  };
  CHECK(support::relative_error(train([](Mlp& n) { return st::optim::SGD(n->parameters(), {.lr = 0.3}); }),
                                train([](Mlp& n) { return torch::optim::SGD(n->parameters(), 0.3); })) < 1e-12);
}

TEST_CASE("several inputs, optional ones, tuple outputs and a batch type of one's own") {
  torch::manual_seed(1);
  TwoInputs net;
  const auto loss = [](const std::tuple<at::Tensor, at::Tensor>& output, const at::Tensor& target) {
    return (std::get<0>(output) - target).pow(2).sum() + std::get<1>(output).sum() * 1e-3;
  };
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.05}), loss, st::Accumulate{2});
  std::vector<Sentence> batches;
  for (int i = 0; i < 5; ++i) {
    batches.push_back(
        {torch::randn({4, 3}), i % 2 ? std::optional(torch::ones({4, 3})) : std::nullopt, torch::ones({4, 2})});
  }
  const double before = trainer.evaluate(batches).at("loss");
  trainer.fit(batches, {.epochs = 20});
  CHECK(trainer.evaluate(batches).at("loss") < before);
  CHECK(trainer.step(batches[0]).samples == 4);
  CHECK(trainer.step(std::vector{batches[0], batches[1]}).samples == 8);
}

TEST_CASE("LibTorch's Example and its data loader are taken as they are") {
  struct Numbers : torch::data::datasets::Dataset<Numbers> {
    torch::data::Example<> get(std::size_t i) override {
      return {torch::full({6}, static_cast<double>(i) / 10), torch::tensor(static_cast<int64_t>(i % 4))};
    }
    std::optional<std::size_t> size() const override { return 10; }
  };
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Numbers().map(torch::data::transforms::Stack<>()), 4);
  Mlp net = support::seeded(1);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::Accumulate{2});
  const auto result = trainer.fit(*loader, {.epochs = 2});
  CHECK(result.samples == 20);
  CHECK(result.windows == 4);
}

TEST_CASE("events come in order, to every callback, two of one type and move-only ones included") {
  Mlp net = support::seeded(1);
  std::string first, second;
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, Journal{&first},
                      st::Accumulate{2}, Journal{&second}, StopAfter{100});
  trainer.fit(five_batches(), five_batches(), {.epochs = 2, .log_every = 2, .evaluate_every = 2});
  CHECK(first == "[3(sslesle)(seslsel)]");
  CHECK(first == second);
}

TEST_CASE("a step may end as late as the next forward; nobody reads weights before") {
  const auto train = [](auto optimizer, Mlp net, auto... policies) {
    st::Trainer trainer(net, std::move(optimizer), st::CrossEntropy{}, policies...);
    const st::Metrics before = trainer.evaluate(five_batches());
    trainer.fit(five_batches(), five_batches(), {.epochs = 2, .evaluate_every = 2});
    trainer.step(five_batches()[0]);
    auto result = support::clones(net->parameters());  // right after a step
    result.push_back(at::full({}, trainer.evaluate(five_batches()).at("loss") - before.at("loss"), at::kDouble));
    return result;
  };
  Mlp plain = support::seeded(1), late = support::seeded(1);
  std::vector<at::Tensor> expected, seen;
  const auto sgd = [](Mlp net) { return st::optim::SGD(net->parameters(), {.lr = 0.1}); };
  const auto a = train(sgd(plain), plain, Weights{plain, &expected}, st::Ema());
  const auto b = train(LateSgd(late->parameters()), late, Weights{late, &seen}, st::Ema());
  CHECK(support::same_bits(a, b));
  CHECK(support::same_bits(expected, seen));

  Mlp net = support::seeded(1), other = support::seeded(1);
  LateSgd optimizer(net->parameters());
  int under_way = 0;
  st::Trainer trainer(net, std::ref(optimizer), st::CrossEntropy{});
  trainer.fit(Asking{five_batches(), &optimizer, &under_way}, {.log_every = 0});
  CHECK(under_way == 5);
  CHECK_FALSE(optimizer.under_way());
  st::Trainer(other, sgd(other), st::CrossEntropy{}).fit(five_batches(), {.log_every = 0});
  CHECK(support::same_bits(support::clones(net->parameters()), support::clones(other->parameters())));
}

TEST_CASE("a callback can stop the run, and max_windows does") {
  Mlp net = support::seeded(1);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, StopAfter{7});
  const auto result = trainer.fit(five_batches(), {.epochs = 9});
  CHECK(result.windows == 7);
  CHECK(result.stopped);
  Mlp other = support::seeded(1);
  st::Trainer limited(other, st::optim::SGD(other->parameters(), {.lr = 0.1}), st::CrossEntropy{});
  CHECK(limited.fit(five_batches(), {.epochs = 9, .max_windows = 6}).windows == 6);
  CHECK(limited.state().epoch == 2);
}

TEST_CASE("an exception in training reaches the caller, and callbacks learn of it") {
  Mlp net = support::seeded(1);
  std::string text;
  const auto failing = [](const at::Tensor& output, const at::Tensor& target) {
    if (target.size(0) == 3) throw std::runtime_error("three");
    return torch::cross_entropy_loss(output, target, {}, at::Reduction::Sum);
  };
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), failing, Journal{&text});
  const auto batches = support::split(support::classes(7, 1), {4, 3});
  CHECK_THROWS_MATCHES(trainer.fit(batches), std::runtime_error, MessageMatches(ContainsSubstring("three")));
  CHECK(text == "[2(s!");
}

TEST_CASE("evaluate: eval mode, no gradients, every target counted once, modes restored") {
  struct DropImpl : torch::nn::Module {
    DropImpl()
        : linear(register_module("linear", torch::nn::Linear(6, 4))),
          drop(register_module("drop", torch::nn::Dropout(0.5))) {}
    at::Tensor forward(const at::Tensor& x) { return drop(linear(x)); }
    torch::nn::Linear linear;
    torch::nn::Dropout drop;
  };
  auto net = std::make_shared<DropImpl>();
  net->drop->eval();  // frozen by its owner
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{});
  const Batch batch = support::classes(10, 1, at::kFloat, 3);
  const auto metrics = trainer.evaluate(support::split(batch, {7, 3}));
  const auto output = net->linear(batch.first);
  CHECK(std::abs(metrics.at("loss") - torch::cross_entropy_loss(output, batch.second).item<double>()) < 1e-6);
  const double right = (output.argmax(1) == batch.second).sum().item<double>();
  CHECK(std::abs(metrics.at("accuracy") - right / 6) < 1e-9);  // 4 of 10 are ignored
  CHECK(net->is_training());
  CHECK_FALSE(net->drop->is_training());
  CHECK(torch::GradMode::is_enabled());
  CHECK(std::isnan(trainer.evaluate(std::vector<Batch>{}).at("loss")));
}

TEST_CASE("frozen parameters stay, and a frozen model is refused in a sentence") {
  Mlp net = support::seeded(1);
  net->first->weight.requires_grad_(false);
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::ClipGradNorm{1.0});
  const auto frozen = net->first->weight.clone();
  trainer.fit(five_batches());
  CHECK(torch::equal(frozen, net->first->weight));
  for (auto& p : net->parameters()) p.requires_grad_(false);
  CHECK_THROWS_MATCHES(trainer.step(five_batches()[0]), st::ConfigError, MessageMatches(ContainsSubstring("frozen")));
}

TEST_CASE("settings that cannot work are refused before the model is touched") {
  const auto says = [](const char* text) { return MessageMatches(ContainsSubstring(text)); };
  Mlp net = support::seeded(1);
  const auto make = [&](auto... policies) {
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, policies...);
  };
  CHECK_THROWS_MATCHES(make(st::Accumulate{0}), st::ConfigError, says("0 micro-batches"));
  CHECK_THROWS_MATCHES(make(st::ClipGradNorm{-1}), st::ConfigError, says("max_norm is -1"));
  CHECK_THROWS_MATCHES(make(st::WarmupCosine{.warmup = 9, .total = 3}), st::ConfigError, says("warmup is 9"));
  if (!torch::cuda::is_available()) {
    CHECK_THROWS_MATCHES(make(st::TrainerOptions{.device = c10::Device(c10::kCUDA, 0)}), st::ConfigError,
                         says("no GPU"));
  }
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{});
  CHECK_THROWS_MATCHES(trainer.step(std::vector<Batch>{}), st::ConfigError, says("window is empty"));
  CHECK_THROWS_MATCHES(trainer.fit(five_batches(), {.epochs = 0}), st::ConfigError, says("epochs is 0"));
  CHECK_THROWS_MATCHES(trainer.fit(five_batches(), {.log_every = -1}), st::ConfigError, says("log_every is -1"));
  const auto vector_loss = [](const at::Tensor& output, const at::Tensor&) { return output.sum(1); };
  st::Trainer unreduced(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), vector_loss);
  CHECK_THROWS_MATCHES(unreduced.step(five_batches()[0]), st::ConfigError, says("0-dim"));
  CHECK_THROWS_MATCHES(trainer.step(Batch(torch::tensor(1.0), torch::tensor(1))), st::ConfigError,
                       says("batch dimension"));
}

TEST_CASE("what has no effect or is at odds is warned about") {
  support::LogCapture log;
  Mlp net = support::seeded(1), other = support::seeded(2);
  st::Trainer strays(net, st::optim::SGD(other->parameters(), {.lr = 0.1}), st::CrossEntropy{}, st::ChannelsLast{});
  CHECK(log.contains("parameters are not the model's"));
  CHECK(log.contains("require a gradient but are not the optimizer's"));
  CHECK(log.contains("ChannelsLast has no effect"));
  torch::nn::Sequential with_norm(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4));
  st::Trainer norm(with_norm, st::optim::SGD(with_norm->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                   st::Accumulate{2});
  CHECK(log.contains("Accumulate with BatchNorm"));
  norm.step(support::split(support::classes(8, 1), {4, 4}));
  norm.fit(std::vector<Batch>{});
  CHECK(log.contains("gave no batch"));
}

TEST_CASE("the log's loss is the mean over targets, finite also around a window with nothing to learn from") {
  Mlp net = support::seeded(1);
  std::vector<double> losses;
  int64_t refused = 0;
  struct Losses {
    std::vector<double>& losses;
    int64_t& refused;
    void on_log(const st::LogEvent& event) {
      losses.push_back(event.loss);
      refused += event.refused;
    }
  };
  auto batches = five_batches();
  batches[1].second = torch::full({4}, -100);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.0}), st::CrossEntropy{}, Losses{losses, refused});
  trainer.fit(batches, {.log_every = 2});
  REQUIRE(losses.size() == 3);
  for (const double loss : losses) CHECK(std::isfinite(loss));
  CHECK(refused == 1);
  CHECK(std::abs(losses[0] -
                 torch::cross_entropy_loss(net->forward(batches[0].first), batches[0].second).item<double>()) < 1e-5);
}

TEST_CASE("marks: names of parts, shared ones too, on this thread only and left on exceptions") {
  struct Recorder : st::marks::Observer {
    std::string text;
    void enter(const std::vector<std::string>& names, const torch::nn::Module&) override {
      text += "<" + names.front() + (names.size() > 1 ? "=" + names[1] : "");
      seen = std::string(st::marks::current());
    }
    void leave(const std::vector<std::string>&, const torch::nn::Module&) noexcept override { text += ">"; }
    std::string seen;
  };
  struct TiedImpl : torch::nn::Module {
    TiedImpl()
        : a(register_module("a", torch::nn::Linear(6, 6))),
          body(register_module("body", torch::nn::Sequential(a, torch::nn::ReLU()))) {}
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor y = st::call_each(body, st::call(a, x));
      if (y.size(0) == 3) throw std::runtime_error("three");
      return y;
    }
    torch::nn::Linear a;
    torch::nn::Sequential body;
  };
  auto net = std::make_shared<TiedImpl>();
  st::call(net, torch::ones({2, 6}));  // without a scope: forwards, nothing else
  Recorder recorder;
  {
    const st::marks::Scope scope(st::marks::bind(*net), &recorder);
    st::call(net, torch::ones({2, 6}));
    CHECK(recorder.text == "<<a=body.0><a=body.0><body.1>>");
    CHECK(recorder.seen == "body.1");
    std::string elsewhere = "unset";
    std::thread([&] { elsewhere = std::string(st::marks::current()); }).join();
    CHECK(elsewhere.empty());
    CHECK_THROWS(st::call(net, torch::ones({3, 6})));
    CHECK(st::marks::current().empty());
  }
  CHECK(st::marks::current().empty());
}
