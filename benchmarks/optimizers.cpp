// SPDX-License-Identifier: Apache-2.0
// An optimizer of saturate against its twin in torch::optim, or, where that has none, against the loop of operators one
// writes by hand, in one process: optimizers OPTIMIZER COUNT SIZE (tensors, elements each). `adamw-copy`: against a
// plain copy of as many bytes as AdamW reads and writes.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rounds.hpp"
#include "saturate/optim/adagrad.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/lamb.hpp"
#include "saturate/optim/lars.hpp"
#include "saturate/optim/lion.hpp"
#include "saturate/optim/rmsprop.hpp"
#include "saturate/optim/sgd.hpp"

namespace {

namespace ours = saturate::optim;
namespace theirs = torch::optim;

constexpr int64_t steps_per_round = 5;

using Parameters = std::vector<at::Tensor>;

// Parameters with gradients that stay: both sides see the same ones in every step.
Parameters make_parameters(int64_t count, int64_t size) {
  torch::manual_seed(0);
  Parameters parameters;
  for (int64_t i = 0; i < count; ++i) {
    parameters.push_back(torch::randn({size}).requires_grad_());
    parameters.back().mutable_grad() = torch::randn({size});
  }
  return parameters;
}

/// What is compared. `theirs` takes one step over its own parameters.
struct Pair {
  std::unique_ptr<ours::Optimizer> ours;
  std::function<void()> theirs;
  std::string side;  // of theirs: "torch", "hand", "copy"
  std::string what;  // settings of both
};

template <class Ours, class Theirs, class OurOptions, class TheirOptions>
Pair twins(const char* name, const Parameters& mine, const Parameters& other, OurOptions options, TheirOptions twin) {
  auto rival = std::make_shared<Theirs>(other, twin);
  return {std::make_unique<Ours>(mine, options), [rival] { rival->step(); }, "torch", name};
}

// --- by hand
// ----------------------------------------------------------------------------------------------------------

std::function<void()> lion_by_hand(const Parameters& parameters) {
  auto moments = std::make_shared<Parameters>();
  for (const auto& p : parameters) moments->push_back(torch::zeros_like(p));
  return [=] {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor p = parameters[i], m = (*moments)[i];
      const at::Tensor& g = p.grad();
      p.mul_(1 - 1e-4 * 0.1).sub_((m * 0.9).add_(g, 0.1).sign_(), 1e-4);
      m.mul_(0.99).add_(g, 0.01);
    }
  };
}

std::function<void()> lamb_by_hand(const Parameters& parameters) {
  auto moments = std::make_shared<std::vector<std::pair<at::Tensor, at::Tensor>>>();
  for (const auto& p : parameters) moments->emplace_back(torch::zeros_like(p), torch::zeros_like(p));
  auto step = std::make_shared<int64_t>(0);
  return [=] {
    const torch::NoGradGuard no_grad;
    ++*step;
    const double c1 = 1 - std::pow(0.9, *step), c2 = std::sqrt(1 - std::pow(0.999, *step));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor p = parameters[i];
      auto& [m, v] = (*moments)[i];
      const at::Tensor& g = p.grad();
      m.mul_(0.9).add_(g, 0.1);
      v.mul_(0.999).addcmul_(g, g, 0.001);
      at::Tensor u = (m / c1).div_(v.sqrt().div_(c2).add_(1e-6)).add_(p, 0.01);
      p.sub_(u.mul_(p.norm() / u.norm()), 1e-3);
    }
  };
}

std::function<void()> lars_by_hand(const Parameters& parameters) {
  auto buffers = std::make_shared<Parameters>();
  for (const auto& p : parameters) buffers->push_back(torch::zeros_like(p));
  return [=] {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor p = parameters[i], m = (*buffers)[i];
      const at::Tensor& g = p.grad();
      const at::Tensor norm = p.norm(), rate = norm * 1e-3 / (g.norm() + norm * 1e-4);
      m.mul_(0.9).add_(g.add(p, 1e-4).mul_(rate), 0.1);
      p.sub_(m);
    }
  };
}

// AdamW reads four values an element (parameter, gradient, two moments) and writes three: a copy of three and a half.
std::function<void()> copy_of_bytes(int64_t count, int64_t size) {
  auto pairs = std::make_shared<std::vector<std::pair<at::Tensor, at::Tensor>>>();
  for (int64_t i = 0; i < count; ++i) {
    for (const int64_t part : {size, size, size, size / 2})
      pairs->emplace_back(torch::zeros({part}), torch::ones({part}));
  }
  return [pairs] {
    for (auto& [to, from] : *pairs) to.copy_(from);
  };
}

// ----------------------------------------------------------------------------------------------------------------------

std::map<std::string, std::function<Pair()>> pairs(const Parameters& a, const Parameters& b, int64_t count,
                                                   int64_t size) {
  return {
      {"adamw",
       [&] {
         return twins<ours::AdamW, theirs::AdamW>("AdamW", a, b, ours::AdamWOptions{}, theirs::AdamWOptions(1e-3));
       }},
      {"adamw-copy",
       [&, count, size] {
         return Pair{std::make_unique<ours::AdamW>(a), copy_of_bytes(count, size), "copy", "AdamW"};
       }},
      {"adam",
       [&] { return twins<ours::Adam, theirs::Adam>("Adam", a, b, ours::AdamOptions{}, theirs::AdamOptions(1e-3)); }},
      {"adagrad",
       [&] {
         return twins<ours::Adagrad, theirs::Adagrad>("Adagrad", a, b, ours::AdagradOptions{},
                                                      theirs::AdagradOptions(1e-2));
       }},
      {"sgd", [&] { return twins<ours::SGD, theirs::SGD>("SGD", a, b, ours::SGDOptions{}, theirs::SGDOptions(1e-3)); }},
      {"momentum",
       [&] {
         return twins<ours::SGD, theirs::SGD>("SGD, momentum 0.9", a, b, ours::SGDOptions{.momentum = 0.9},
                                              theirs::SGDOptions(1e-3).momentum(0.9));
       }},
      {"rmsprop",
       [&] {
         return twins<ours::RMSprop, theirs::RMSprop>("RMSprop", a, b, ours::RMSpropOptions{},
                                                      theirs::RMSpropOptions(1e-2));
       }},
      {"lion",
       [&] {
         return Pair{std::make_unique<ours::Lion>(a, ours::LionOptions{.weight_decay = 0.1}), lion_by_hand(b), "hand",
                     "Lion"};
       }},
      {"lamb",
       [&] {
         return Pair{std::make_unique<ours::LAMB>(a), lamb_by_hand(b), "hand", "LAMB"};
       }},
      {"lars",
       [&] {
         return Pair{std::make_unique<ours::LARS>(a), lars_by_hand(b), "hand", "LARS"};
       }},
  };
}

void take_round(const std::string& side, const std::function<void()>& step) {
  const double seconds = bench::seconds_of([&] {
    for (int64_t i = 0; i < steps_per_round; ++i) step();
  });
  bench::print_sample(side, seconds, steps_per_round);
}

// The same numbers, or the comparison is worth nothing. Lion's steps are of one size: where a moment is next to 0,
// rounding may choose the sign.
bool same(const Parameters& ours, const Parameters& theirs, const std::string& name) {
  const double tolerance = name == "lion" ? 1e-2 : 1e-4;  // hundreds of steps, each rounded in another order
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (!at::allclose(ours[i], theirs[i], tolerance, tolerance / 10)) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "adamw";
  const int64_t count = argc > 2 ? std::atoll(argv[2]) : 20;
  const int64_t size = argc > 3 ? std::atoll(argv[3]) : 1000000;
  const Parameters mine = make_parameters(count, size), other = make_parameters(count, size);
  const auto known = pairs(mine, other, count, size);
  if (!known.contains(name)) {
    std::fprintf(stderr, "optimizers: '%s' is none of:", name.c_str());
    for (const auto& [one, make] : known) std::fprintf(stderr, " %s", one.c_str());
    std::fputs("\n", stderr);
    return 2;
  }
  const Pair pair = known.at(name)();

  const std::string shape = std::to_string(count) + " x " + std::to_string(size) + ", float32, " +
                            std::to_string(at::get_num_threads()) + " threads";
  bench::print_info("saturate", "optim::" + pair.what + ", " + shape);
  const std::map<std::string, std::string> rivals{{"torch", "torch::optim of LibTorch " TORCH_VERSION},
                                                  {"hand", "operators by hand"},
                                                  {"copy", "copy of its bytes"}};
  bench::print_info(pair.side, rivals.at(pair.side) + ", " + shape);
  const auto step = [&] { pair.ours->step(); };
  bench::serve_rounds([&](int64_t n) {
    // The side that goes first takes turns.
    if (n % 2 == 0) take_round("saturate", step);
    take_round(pair.side, pair.theirs);
    if (n % 2 == 1) take_round("saturate", step);
  });
  if (pair.side != "copy" && !same(mine, other, name)) {
    std::fputs("optimizers: the two sides ended with different parameters\n", stderr);
    return 1;
  }
  return 0;
}
