// SPDX-License-Identifier: Apache-2.0
// Groups, options, bad input, memory formats and sizes: what CohortOptimizer does for all optimizers.
#include "../../../src/optim/loops.hpp"
#include "optim_support.hpp"
#include "saturate/error.hpp"
#include "saturate/optim/adagrad.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/decay_groups.hpp"
#include "saturate/optim/lamb.hpp"
#include "saturate/optim/lars.hpp"
#include "saturate/optim/lion.hpp"
#include "saturate/optim/rmsprop.hpp"
#include "saturate/optim/sgd.hpp"

namespace st = saturate;
using namespace optim_test;
using namespace st::optim;

namespace {

// The CPU loops cut tensors into blocks and share them out over threads: one large tensor, the same in pieces, and on
// one thread must all give the same.
template <class O, class Options>
void check_sizes(const Options& options, bool per_tensor) {
  const std::vector<int64_t> sizes{1, 0, 1000, 8192, 8193, 100000, 7, 40000};
  torch::manual_seed(1);
  std::vector<at::Tensor> many, grads;
  for (const int64_t size : sizes) {
    many.push_back(torch::randn({size}).requires_grad_(true));
    grads.push_back(torch::randn({size}));
  }
  std::vector<at::Tensor> whole{torch::cat(many).detach().requires_grad_(true)};
  std::vector<at::Tensor> serial = support::clones(many);
  for (auto& param : serial) param.requires_grad_(true);
  const auto train = [&](std::vector<at::Tensor>& params, const std::vector<at::Tensor>& with) {
    O optimizer(params, options);
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = with[i] * (step + 1);
      optimizer.step();
    }
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  train(many, grads);
  if (!per_tensor) {
    train(whole, {torch::cat(grads)});
    CHECK(support::same_bits(torch::cat(many).detach(), whole[0].detach()));
  }
  at::set_num_threads(1);
  train(serial, grads);
  at::set_num_threads(threads);
  CHECK(support::same_bits(support::clones(many), support::clones(serial)));
  CHECK(torch::cat(many).isfinite().all().item<bool>());
}

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    first = register_module("first", torch::nn::Linear(3, 3));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({3})));
    register_parameter("tied", first->weight);
  }
  torch::nn::Linear first{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Block);

}  // namespace

TEST_CASE("sizes, threads and cuts do not change the numbers of the CPU loops") {
  check_sizes<RMSprop>(RMSpropOptions{.momentum = 0.9, .centered = true}, false);
  check_sizes<Lion>(LionOptions{.weight_decay = 0.1}, false);
  check_sizes<LAMB>(LAMBOptions{}, true);
  check_sizes<LARS>(LARSOptions{}, true);
}

TEST_CASE("the loops for newer processors give the bits of those for all") {
  namespace loops = st::optim::loops;
  const auto check = []<class T>(T) {
    const auto data = [](int64_t seed) {
      torch::manual_seed(seed);
      return torch::rand({1003}, c10::CppTypeToScalarType<T>::value) - (seed % 2 == 0 ? 0.5 : 0.0);
    };
    const auto run = [&](const loops::Loops<T>& set) {
      std::vector<at::Tensor> t;
      for (int64_t i = 0; i < 20; ++i) t.push_back(data(i % 4 == 0 ? 2 : i % 4 == 1 ? 4 : i));  // p, g and states >= 0
      const auto at = [&](int64_t i) { return t[i].data_ptr<T>(); };
      const T a = T(0.1), b = T(0.9), c = T(0.03);
      set.adam({a, b, a, c, T(-1), c, b, a, b}, 1003, at(0), at(1), at(2), at(3), at(11));
      set.adagrad({a, c, c, T(1)}, 1003, at(4), at(5), at(7));
      set.sgd({a, b, a, c, T(1), true}, 1003, at(8), at(9), at(10));
      set.rmsprop({a, b, a, c, c, b, T(1)}, 1003, at(12), at(13), at(15), at(14), at(6));
      const auto lamb = set.lamb_moments({a, b, a, c, c, T(1), b, b}, 1003, at(16), at(17), at(18), at(19));
      const auto lars = set.lars_squares(1003, at(16), at(17));
      std::vector<at::Tensor> result = t;
      result.push_back(torch::tensor({lamb.first, lamb.second, lars.first, lars.second}, at::kDouble));
      at::Tensor narrow = torch::empty({1003}, at::kBFloat16);
      const at::Tensor wide = data(2).to(at::kFloat);
      set.round_at_random(1003, wide.data_ptr<float>(), static_cast<uint16_t*>(narrow.data_ptr()), 77, 5);
      result.push_back(narrow);
      return result;
    };
    const auto portable = run(loops::portable<T>()), best = run(loops::best<T>());
    CHECK(support::same_bits(portable, best));
    for (const at::Tensor& tensor : best) CHECK(tensor.isfinite().all().item<bool>());
  };
  check(float());
  check(double());
}

TEST_CASE("optimizers refuse what cannot work, before anything changes") {
  const auto param = torch::ones({2}, torch::requires_grad());
  CHECK_THROWS_MATCHES(AdamW(std::vector<at::Tensor>{}), st::ConfigError, says("no parameters"));
  CHECK_THROWS_MATCHES(AdamW({param}, {.lr = -1}), st::ConfigError, says("lr is -1"));
  CHECK_THROWS_MATCHES(AdamW({param}, {.lr = NAN}), st::ConfigError, says("lr is nan"));
  CHECK_THROWS_MATCHES(AdamW({param}, {.beta2 = 1.0}), st::ConfigError, says("beta2 is 1"));
  CHECK_THROWS_MATCHES(Adam({param}, {.eps = -1e-8}), st::ConfigError, says("eps is -1e-08"));
  CHECK_THROWS_MATCHES(SGD({param}, {.nesterov = true}), st::ConfigError, says("nesterov needs momentum"));
  CHECK_THROWS_MATCHES(Adagrad({param}, {.lr_decay = INFINITY}), st::ConfigError, says("lr_decay is inf"));
  CHECK_THROWS_MATCHES(RMSprop({param}, {.alpha = 1.5}), st::ConfigError, says("alpha is 1.5"));
  CHECK_THROWS_MATCHES(Lion({param}, {.beta1 = -0.1}), st::ConfigError, says("beta1 is -0.1"));
  CHECK_THROWS_MATCHES(LAMB({param}, {.weight_decay = -1}), st::ConfigError, says("weight_decay is -1"));
  CHECK_THROWS_MATCHES(LARS({param}, {.trust_coefficient = -1}), st::ConfigError, says("trust_coefficient is -1"));
  CHECK_THROWS_MATCHES(AdamW({at::Tensor()}), st::ConfigError, says("undefined"));
  CHECK_THROWS_MATCHES(AdamW({torch::ones({2}, at::kLong)}), st::ConfigError, says("dtype Long"));
  CHECK_THROWS_MATCHES(AdamW({param * 2}), st::ConfigError, says("not a leaf"));
  CHECK_THROWS_MATCHES(AdamW(std::vector<ParamGroup>{{{param}, {}, {}}, {{param}, {}, {}}}), st::ConfigError,
                       says("in group 0 and in group 1"));
  SGD optimizer({param}, {.lr = 0.1});
  CHECK_THROWS_MATCHES(optimizer.lr(1), st::ConfigError, says("no group 1"));
  CHECK_THROWS_MATCHES(optimizer.set_lr(-0.5), st::ConfigError, says("lr is -0.5"));
  CHECK(optimizer.lr() == 0.1);
  const auto table = torch::ones({3, 2}, torch::requires_grad());
  SGD embedding({param, table}, {.lr = 0.1});
  param.mutable_grad() = torch::ones({2});
  torch::embedding(table, torch::tensor({1}), -1, false, /*sparse=*/true).sum().backward();
  CHECK_THROWS_MATCHES(embedding.step(), st::ConfigError, says("is sparse"));
  CHECK(param[0].item<double>() == 1.0);
}

TEST_CASE("a group's options are checked like the optimizer's, and an unknown one lists those that there are") {
  const auto a = torch::ones({2}, torch::requires_grad()), b = torch::ones({2}, torch::requires_grad());
  const auto with = [&](Options more) {
    return std::vector<ParamGroup>{{.params = {a}}, {.params = {b}, .more = more}};
  };
  CHECK_THROWS_MATCHES(AdamW(with({{"momentum", 0.9}})), st::ConfigError,
                       says("sets 'momentum', which is no option; there are amsgrad, beta1, beta2, eps, lr, maximize, "
                            "weight_decay"));
  CHECK_THROWS_MATCHES(AdamW(with({{"beta1", 1}})), st::ConfigError, says("beta1 is 1"));
  CHECK_THROWS_MATCHES(AdamW(with({{"amsgrad", 0.5}})), st::ConfigError, says("amsgrad is 0.5; it is a flag"));
  CHECK_THROWS_MATCHES(SGD(with({{"nesterov", 1}})), st::ConfigError, says("nesterov needs momentum"));
  SGD optimizer(with({{"momentum", 0.5}, {"lr", 0.25}}), {.lr = 1.0, .weight_decay = 0.125});
  CHECK(optimizer.lr(0) == 1.0);
  CHECK(optimizer.lr(1) == 0.25);
  CHECK(optimizer.groups() == std::vector<std::size_t>{0, 1});
  const auto groups = optimizer.state().groups;
  CHECK(groups[0].at("momentum") == 0);
  CHECK(groups[1].at("momentum") == 0.5);
  CHECK(groups[1].at("weight_decay") == 0.125);
}

TEST_CASE("loaded state brings every option of every group") {
  auto params = oracle_parameters(), others = oracle_parameters();
  AdamW first({{.params = {params[0]}, .more = {{"beta1", 0.5}, {"amsgrad", 1}}}, {.params = {params[1]}, .lr = 0.5}},
              {.lr = 0.01, .eps = 1e-3, .maximize = true});
  AdamW second(std::vector<ParamGroup>{{.params = {others[0]}}, {.params = {others[1]}}}, {.lr = 0.9});
  run(params, first, 0, 6);
  for (std::size_t i = 0; i < 2; ++i) others[i].data().copy_(params[i]);
  second.load_state(copied(first.state()));
  CHECK(first.state().groups == second.state().groups);
  run(params, first, 6, 12);
  run(others, second, 6, 12);
  CHECK(support::same_bits(support::clones(params), support::clones(others)));
}

TEST_CASE("a step's momentum stands in for the group's, where it has one") {
  const auto differs = [](auto make, const Options& replaced, double momentum) {
    auto params = oracle_parameters(), others = oracle_parameters();
    auto scheduled = make(params, Options{});
    auto fixed = make(others, replaced);
    run(params, scheduled, 0, 6, {.momentum = momentum});
    run(others, fixed, 0, 6);
    CHECK(support::same_bits(support::clones(params), support::clones(others)));
    auto untouched = oracle_parameters();
    auto plain = make(untouched, Options{});
    run(untouched, plain, 0, 6);
    return !support::same_bits(support::clones(params), support::clones(untouched));
  };
  const auto group = [](const auto& params, const Options& more) {
    return std::vector<ParamGroup>{{.params = params, .more = more}};
  };
  CHECK(differs([&](auto& p, const Options& o) { return AdamW(group(p, o)); }, {{"beta1", 0.5}}, 0.5));
  CHECK(differs([&](auto& p, const Options& o) { return Lion(group(p, o)); }, {{"beta1", 0.5}}, 0.5));
  CHECK(differs([&](auto& p, const Options& o) { return LAMB(group(p, o)); }, {{"beta1", 0.5}}, 0.5));
  CHECK(differs([&](auto& p, const Options& o) { return LARS(group(p, o)); }, {{"momentum", 0.5}}, 0.5));
  CHECK(differs([&](auto& p, const Options& o) { return SGD(group(p, o), {.momentum = 0.9}); }, {{"momentum", 0.5}},
                0.5));
  CHECK(differs([&](auto& p, const Options& o) { return RMSprop(group(p, o), {.momentum = 0.9}); }, {{"momentum", 0.5}},
                0.5));
  CHECK_FALSE(differs([&](auto& p, const Options& o) { return SGD(group(p, o)); }, {}, 0.5));
  CHECK_FALSE(differs([&](auto& p, const Options& o) { return Adagrad(group(p, o)); }, {}, 0.5));

  auto params = oracle_parameters();
  AdamW optimizer(params);
  set_oracle_gradients(params, 4);
  const auto before = support::clones(params);
  CHECK_THROWS_MATCHES(optimizer.step({.momentum = 1.0}), st::ConfigError, says("beta1 is 1"));
  CHECK_THROWS_MATCHES(optimizer.step({.momentum = 0.0}), st::ConfigError, says("beta1 is 0"));
  CHECK(support::same_bits(before, support::clones(params)));
  CHECK(optimizer.state().parameters.at("parameter.0").empty());
}

TEST_CASE("moments follow a parameter that changes its memory format") {
  const auto check = [](auto make) {
    auto weight = torch::randn({4, 3, 2, 2}).requires_grad_(true);
    auto twin = weight.detach().clone().requires_grad_(true);
    auto optimizer = make(weight), reference = make(twin);
    for (int step = 0; step < 4; ++step) {
      const auto grad = torch::randn({4, 3, 2, 2});
      weight.mutable_grad() = grad.clone();
      twin.mutable_grad() = grad.clone();
      optimizer.step();
      reference.step();
      if (step == 1) weight.set_data(weight.contiguous(at::MemoryFormat::ChannelsLast));
    }
    CHECK(weight.is_contiguous(at::MemoryFormat::ChannelsLast));
    CHECK(torch::equal(weight, twin));
  };
  check([](const at::Tensor& weight) { return AdamW({weight}, {.lr = 0.1}); });
  check([](const at::Tensor& weight) { return RMSprop({weight}, {.lr = 0.1}); });
}

TEST_CASE("a NaN in a gradient reaches the weights: it is never hidden") {
  const auto check = [](auto make) {
    const auto param = torch::ones({3}, torch::requires_grad());
    auto optimizer = make(param);
    param.mutable_grad() = torch::tensor({1.0f, NAN, 1.0f});
    optimizer.step();
    CHECK(param[1].isnan().item<bool>());
  };
  check([](const at::Tensor& p) { return RMSprop({p}, {.centered = true}); });
  check([](const at::Tensor& p) { return LAMB({p}); });
  check([](const at::Tensor& p) { return LARS({p}); });
}

TEST_CASE("the variance of centered RMSprop does not fall below 0 by rounding") {
  const auto param = torch::full({1000}, 1.0f).requires_grad_(true);
  RMSprop optimizer({param}, {.lr = 1e-3, .alpha = 0.9, .centered = true});
  for (int step = 0; step < 400; ++step) {  // a constant gradient: the variance tends to 0
    param.mutable_grad() = torch::linspace(0.1, 7.3, 1000);
    optimizer.step();
  }
  CHECK(param.isfinite().all().item<bool>());
}

TEST_CASE("decay_groups: by dimensions, or by name; tied parameters once") {
  Block net;
  const auto names = [&](const std::vector<ParamGroup>& groups, std::size_t g) {
    std::string result;
    for (const auto& item : net->named_parameters()) {
      for (const at::Tensor& param : groups[g].params) {
        if (param.is_same(item.value())) result += item.key() + " ";
      }
    }
    return result;
  };
  const auto by_dimensions = decay_groups(*net, 0.25);
  CHECK(by_dimensions[0].params.size() == 1);  // first.weight is tied
  CHECK(names(by_dimensions, 0) == "tied first.weight ");
  CHECK(names(by_dimensions, 1) == "first.bias norm.weight norm.bias ");
  CHECK(by_dimensions[0].weight_decay == 0.25);
  CHECK(by_dimensions[1].weight_decay == 0.0);

  const auto by_name = decay_groups(*net, 0.25, {".*norm.*", "tied"});
  CHECK(names(by_name, 0) == "first.bias ");
  CHECK(names(by_name, 1) == "tied first.weight norm.weight norm.bias ");
  CHECK_THROWS_MATCHES(decay_groups(*net, 0.25, {".*bias", "bias"}), st::ConfigError, says("matches 'bias'"));
  CHECK_THROWS_MATCHES(decay_groups(*net, 0.25, {"head.*"}), st::ConfigError, says("norm.weight"));
  CHECK_THROWS_MATCHES(decay_groups(*net, 0.25, {"("}), st::ConfigError, says("no regular expression"));
  CHECK_THROWS_MATCHES(decay_groups(*net, -1), st::ConfigError, says("weight_decay is -1"));

  AdamW optimizer(by_dimensions, {.lr = 0.5});
  for (const at::Tensor& param : optimizer.parameters()) param.mutable_grad() = torch::zeros_like(param).detach();
  const auto weight = net->first->weight.detach().clone(), bias = net->first->bias.detach().clone();
  optimizer.step();
  CHECK(torch::allclose(net->first->weight, weight * (1 - 0.5 * 0.25)));
  CHECK(torch::equal(net->first->bias, bias));
}
