// SPDX-License-Identifier: Apache-2.0
// Every optimizer against Python's values (tests/oracle/make_optimizers.py) over 50 steps, with a parameter that is
// idle now and then.
#include "optim_support.hpp"
#include "saturate/optim/adagrad.hpp"
#include "saturate/optim/adam.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/lamb.hpp"
#include "saturate/optim/lars.hpp"
#include "saturate/optim/lion.hpp"
#include "saturate/optim/master_weights.hpp"
#include "saturate/optim/rmsprop.hpp"
#include "saturate/optim/sgd.hpp"

namespace st = saturate;
using namespace optim_test;
using namespace st::optim;

namespace {

// float64 to 1e-9, float32 to 1e-5, both relative to the largest parameter.
template <class O, class Options>
void check(const char* name, const Options& options) {
  INFO(name);
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    INFO(dtype);
    auto params = oracle_parameters(dtype);
    O optimizer(params, options);
    run(params, optimizer);
    CHECK(distance(params, oracle(name)) < (dtype == at::kDouble ? 1e-9 : 1e-5));
  }
}

// The same values again and again in large tensors, which Adam, AdamW and Adagrad give to LibTorch's fused kernels.
template <class O, class Options>
void check_large(const char* name, const Options& options) {
  INFO(name << ", large");
  constexpr int64_t copies = 6000;
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    INFO(dtype);
    const auto small = oracle_parameters(dtype);
    std::vector<at::Tensor> large;
    for (const at::Tensor& param : small) {
      large.push_back(param.detach().flatten().repeat(copies).requires_grad_(true));
    }
    O optimizer(large, options);
    for (int step = 0; step < 50; ++step) {
      set_oracle_gradients(small, step);
      for (std::size_t i = 0; i < 2; ++i) {
        const at::Tensor grad = small[i].grad();
        large[i].mutable_grad() = grad.defined() ? grad.flatten().repeat(copies) : at::Tensor();
      }
      optimizer.step();
    }
    for (const int64_t copy : {int64_t{0}, copies / 2, copies - 1}) {
      std::vector<at::Tensor> tile;
      for (std::size_t i = 0; i < 2; ++i) tile.push_back(large[i].reshape({copies, -1})[copy]);
      CHECK(distance(tile, oracle(name)) < (dtype == at::kDouble ? 1e-9 : 1e-5));
    }
  }
}

template <class O, class Options>
void check_groups(const char* name, ParamGroup first, ParamGroup second, const Options& options) {
  INFO(name);
  auto params = oracle_parameters();
  first.params = {params[0]};
  second.params = {params[1]};
  O optimizer({first, second}, options);
  CHECK(optimizer.groups() == std::vector<std::size_t>{0, 1});
  run(params, optimizer);
  CHECK(distance(params, oracle(name)) < 1e-9);
}

// Half precision runs on at::_foreach_*: the same 50 steps in bfloat16, where the weights have 8 bits. The bound is
// loose, but a wrong formula is far outside of it; float32 masters narrow it to the last rounding.
template <class O, class Options>
void check_bfloat16(const char* name, const Options& options, double bound) {
  INFO(name);
  auto params = oracle_parameters(at::kBFloat16);
  O optimizer(params, options);
  run(params, optimizer);
  CHECK(distance(params, oracle(name)) < bound);
  auto others = oracle_parameters(at::kBFloat16);
  MasterWeights wide(others, [&](auto masters) { return O(std::move(masters), options); });
  run(others, wide);
  CHECK(distance(others, oracle(name)) < 0.01);
}

}  // namespace

TEST_CASE("AdamW gives Python's values") {
  check<AdamW>("adamw", AdamWOptions{.lr = 0.01});
  check<AdamW>("adamw_options",
               AdamWOptions{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1});
  check<AdamW>("adamw_amsgrad", AdamWOptions{.lr = 0.01, .amsgrad = true});
  check<AdamW>("adamw_maximize", AdamWOptions{.lr = 0.01, .maximize = true});
  check_large<AdamW>("adamw_options",
                     AdamWOptions{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1});
  check_groups<AdamW>("adamw_groups", {.lr = 0.05, .more = {{"beta1", 0.7}, {"beta2", 0.9}}},
                      {.weight_decay = 0.0, .more = {{"amsgrad", 1}}}, AdamWOptions{.lr = 0.01, .weight_decay = 0.2});
}

TEST_CASE("Adam gives Python's values") {
  check<Adam>("adam", AdamOptions{.lr = 0.01});
  check<Adam>("adam_decay", AdamOptions{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1});
  check<Adam>("adam_amsgrad", AdamOptions{.lr = 0.01, .weight_decay = 0.1, .amsgrad = true});
  check<Adam>("adam_maximize", AdamOptions{.lr = 0.01, .weight_decay = 0.1, .maximize = true});
  check_large<Adam>("adam_amsgrad", AdamOptions{.lr = 0.01, .weight_decay = 0.1, .amsgrad = true});
  check_large<Adam>("adam_maximize", AdamOptions{.lr = 0.01, .weight_decay = 0.1, .maximize = true});
  check<Adam>("adam_decoupled", AdamOptions{.lr = 0.01, .weight_decay = 0.1, .decoupled_weight_decay = true});
}

TEST_CASE("SGD gives Python's values") {
  check<SGD>("sgd", SGDOptions{.lr = 0.01});
  check<SGD>("sgd_momentum", SGDOptions{.lr = 0.01, .momentum = 0.9});
  check<SGD>("sgd_nesterov", SGDOptions{.lr = 0.01, .momentum = 0.9, .nesterov = true});
  check<SGD>("sgd_dampening", SGDOptions{.lr = 0.01, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1});
  check<SGD>("sgd_maximize",
             SGDOptions{.lr = 0.01, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1, .maximize = true});
  check_groups<SGD>("sgd_groups", {.more = {{"momentum", 0.9}}}, {.lr = 0.05},
                    SGDOptions{.lr = 0.01, .weight_decay = 0.1});
  check_large<SGD>("sgd_dampening", SGDOptions{.lr = 0.01, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1});
}

TEST_CASE("Adagrad gives Python's values") {
  check<Adagrad>("adagrad", AdagradOptions{.lr = 0.05});
  check<Adagrad>(
      "adagrad_options",
      AdagradOptions{.lr = 0.05, .lr_decay = 0.1, .weight_decay = 0.1, .initial_accumulator_value = 0.5, .eps = 1e-6});
  check<Adagrad>("adagrad_maximize", AdagradOptions{.lr = 0.05, .weight_decay = 0.1, .maximize = true});
  check_large<Adagrad>("adagrad_maximize", AdagradOptions{.lr = 0.05, .weight_decay = 0.1, .maximize = true});
}

TEST_CASE("RMSprop gives Python's values") {
  check<RMSprop>("rmsprop", RMSpropOptions{.lr = 0.01});
  check<RMSprop>("rmsprop_options", RMSpropOptions{.lr = 0.01, .alpha = 0.9, .eps = 1e-5, .weight_decay = 0.1});
  check<RMSprop>("rmsprop_momentum", RMSpropOptions{.lr = 0.01, .momentum = 0.9});
  check<RMSprop>("rmsprop_centered", RMSpropOptions{.lr = 0.01, .centered = true});
  check<RMSprop>(
      "rmsprop_all",
      RMSpropOptions{
          .lr = 0.01, .alpha = 0.95, .weight_decay = 0.1, .momentum = 0.8, .centered = true, .maximize = true});
  check_groups<RMSprop>("rmsprop_groups", {.more = {{"momentum", 0.9}, {"centered", 1}}}, {.more = {{"alpha", 0.8}}},
                        RMSpropOptions{.lr = 0.01});
}

TEST_CASE("Lion, LAMB and LARS give the values of their papers' formulas") {
  check<Lion>("lion", LionOptions{.lr = 0.01});
  check<Lion>("lion_options",
              LionOptions{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.5, .maximize = true});
  check<LAMB>("lamb", LAMBOptions{.lr = 0.01});
  check<LAMB>("lamb_maximize", LAMBOptions{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .maximize = true});
  check<LAMB>("lamb_undecayed", LAMBOptions{.lr = 0.01, .weight_decay = 0});
  check_groups<LAMB>("lamb_groups", {}, {.weight_decay = 0.0}, LAMBOptions{.lr = 0.01, .adapt_undecayed = false});
  check<LARS>("lars", LARSOptions{.lr = 0.5, .trust_coefficient = 0.01});
  check<LARS>("lars_plain",
              LARSOptions{.lr = 0.5, .momentum = 0, .weight_decay = 0.1, .trust_coefficient = 0.01, .eps = 0.1});
  check<LARS>("lars_maximize", LARSOptions{.lr = 0.5, .trust_coefficient = 0.01, .maximize = true});
  check_groups<LARS>("lars_groups", {}, {.lr = 0.01, .weight_decay = 0.0},
                     LARSOptions{.lr = 0.5, .trust_coefficient = 0.01, .adapt_undecayed = false});
}

TEST_CASE("half precision follows Python's values as far as 8 bits go") {
  check_bfloat16<AdamW>("adamw", AdamWOptions{.lr = 0.01}, 0.05);
  check_bfloat16<Adam>("adam_decay",
                       AdamOptions{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1}, 0.1);
  check_bfloat16<SGD>("sgd", SGDOptions{.lr = 0.01}, 0.05);
  check_bfloat16<SGD>("sgd_nesterov", SGDOptions{.lr = 0.01, .momentum = 0.9, .nesterov = true}, 0.05);
  check_bfloat16<SGD>("sgd_maximize",
                      SGDOptions{.lr = 0.01, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1, .maximize = true},
                      0.05);
  check_bfloat16<Adagrad>("adagrad", AdagradOptions{.lr = 0.05}, 0.05);
  check_bfloat16<RMSprop>("rmsprop_options", RMSpropOptions{.lr = 0.01, .alpha = 0.9, .eps = 1e-5, .weight_decay = 0.1},
                          0.1);
  check_bfloat16<RMSprop>("rmsprop_momentum", RMSpropOptions{.lr = 0.01, .momentum = 0.9}, 0.1);
  check_bfloat16<RMSprop>("rmsprop_centered", RMSpropOptions{.lr = 0.01, .centered = true}, 0.1);
  check_bfloat16<Lion>(
      "lion_options", LionOptions{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.5, .maximize = true}, 0.1);
  check_bfloat16<LAMB>("lamb", LAMBOptions{.lr = 0.01}, 0.05);
  check_bfloat16<LARS>("lars", LARSOptions{.lr = 0.5, .trust_coefficient = 0.01}, 0.1);
  check_bfloat16<LARS>("lars_maximize", LARSOptions{.lr = 0.5, .trust_coefficient = 0.01, .maximize = true}, 0.1);
}
