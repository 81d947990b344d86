// SPDX-License-Identifier: Apache-2.0
#include "saturate/optim/stochastic_rounding.hpp"

#include "rounding.hpp"
#include "saturate/error.hpp"

#include <ATen/Context.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <cmath>

namespace saturate::optim {
namespace {

constexpr const char* seed_name = "rounding_seed";
constexpr const char* draws_name = "rounding_draws";
constexpr double largest = 9007199254740992.0;  // 2^53: state keeps options as doubles

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

bool is_count(double value) { return value >= 0 && value < largest && std::floor(value) == value; }

}  // namespace

void StochasticRounding::check(const std::vector<at::Tensor>& params, const StochasticRoundingOptions& options) {
  if (!is_count(static_cast<double>(options.seed))) {
    throw ConfigError(c10::str("StochasticRounding: the seed is ", options.seed, "; give one below 2^53"));
  }
  seed_ = options.seed;
  for (const at::Tensor& param : params) {
    if (param.defined() && param.scalar_type() == at::kHalf) {
      throw ConfigError(
          "StochasticRounding: a parameter is FP16, whose range is too small for it; use BF16, or MasterWeights");
    }
  }
}

uint64_t StochasticRounding::key(const Pair& pair) const {
  uint64_t hash = mix(mix(seed_) ^ draws_);
  for (const char letter : pair.name) hash = mix(hash ^ static_cast<unsigned char>(letter));
  return hash;
}

void StochasticRounding::prepare() {
  for (Pair pair : pairs()) {
    if (pair.widened() && pair.wide.grad().defined()) pair.wide.set_data(pair.param.detach().to(at::kFloat));
  }
}

void StochasticRounding::write_back() {
  for (const Pair& pair : pairs()) {
    if (!pair.widened() || !pair.wide.grad().defined()) continue;
    const at::Tensor param = pair.param.detach(), wide = pair.wide.detach();
    if (param.is_cpu()) {
      round_at_random(param, wide, key(pair));
      pair.param.unsafeGetTensorImpl()->bump_version();
    } else {
      at::Generator generator = at::globalContext().defaultGenerator(param.device()).clone();
      generator.set_current_seed(key(pair));
      round_at_random(param, wide, generator);
    }
  }
  ++draws_;
}

// A shape without memory.
void StochasticRounding::restore() {
  const c10::AutoGradMode no_grad(false);
  for (Pair pair : pairs()) {
    if (pair.widened())
      pair.wide.set_data(at::zeros({}, pair.wide.options().requires_grad(false)).expand(pair.wide.sizes()));
  }
}

OptimizerState StochasticRounding::state() const {
  OptimizerState result = inner().state();
  result.type = state_type(result);
  result.groups[0][seed_name] = static_cast<double>(seed_);
  result.groups[0][draws_name] = static_cast<double>(draws_);
  return result;
}

void StochasticRounding::load_state(const OptimizerState& saved) {
  const OptimizerState now = inner().state();
  if (saved.type != state_type(now)) refuse_state("the saved state is of " + saved.type);
  if (saved.groups.empty()) refuse_state("the saved state has no groups");
  OptimizerState rest = saved;
  rest.type = now.type;
  const auto take = [&](const char* name) {
    const auto found = rest.groups[0].find(name);
    if (found == rest.groups[0].end()) refuse_state(c10::str("'", name, "' is missing in the saved groups"));
    const double value = found->second;
    if (!is_count(value)) refuse_state(c10::str("'", name, "' is ", value, ", not a whole number below 2^53"));
    rest.groups[0].erase(found);
    return static_cast<uint64_t>(value);
  };
  const uint64_t seed = take(seed_name), draws = take(draws_name);
  inner().load_state(rest);  // the last that can refuse
  seed_ = seed;
  draws_ = draws;
}

}  // namespace saturate::optim
