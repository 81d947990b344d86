// SPDX-License-Identifier: Apache-2.0
// What the optimizer tests share: the run that tests/oracle/make_optimizers.py does, too.
#pragma once

#include "saturate/optim/optimizer.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace optim_test {

inline auto says(const char* text) { return Catch::Matchers::MessageMatches(Catch::Matchers::ContainsSubstring(text)); }

inline std::vector<double> oracle(const std::string& name) {
  static const std::map<std::string, std::vector<double>> cases = [] {
    std::ifstream file(SATURATE_SOURCE_DIR "/tests/oracle/optimizers.txt");
    std::map<std::string, std::vector<double>> read;
    std::string line;
    while (std::getline(file, line)) {
      if (line.starts_with("#")) continue;
      std::istringstream words(line);
      std::string key;
      words >> key;
      for (double value; words >> value;) read[key].push_back(value);
    }
    return read;
  }();
  REQUIRE(cases.contains(name));
  return cases.at(name);
}

/// sin(1 + i) of size [19] and cos(2 + i) of size [2, 3].
inline std::vector<at::Tensor> oracle_parameters(at::ScalarType dtype = at::kDouble) {
  const auto first = (torch::arange(19, at::kDouble) + 1).sin(), second = (torch::arange(6, at::kDouble) + 2).cos();
  return {first.to(dtype).requires_grad_(true), second.reshape({2, 3}).to(dtype).requires_grad_(true)};
}

/// The second parameter takes no part in the first two steps and in every third.
inline void set_oracle_gradients(const std::vector<at::Tensor>& params, int step) {
  for (int p = 0; p < 2; ++p) {
    at::Tensor grad;
    if (p == 0 || (step >= 2 && step % 3 != 0)) {
      const at::Tensor angle = (torch::arange(params[p].numel(), at::kDouble) + 1) * (step + 1) + p;
      grad = (angle.cos() * (1 + 0.1 * step)).reshape(params[p].sizes()).to(params[p].scalar_type());
    }
    at::Tensor param = params[p];
    param.mutable_grad() = grad;
  }
}

inline void run(const std::vector<at::Tensor>& params, saturate::optim::Optimizer& optimizer, int from = 0, int to = 50,
                const saturate::optim::StepArgs& args = {}) {
  for (int step = from; step < to; ++step) {
    set_oracle_gradients(params, step);
    optimizer.step(args);
    optimizer.zero_grad();
  }
}

/// Largest |got - want| / max |want|.
inline double distance(const std::vector<at::Tensor>& params, const std::vector<double>& expected) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& param : params) flat.push_back(param.detach().flatten().to(at::kDouble));
  const at::Tensor want = torch::tensor(expected, at::kDouble);
  return ((torch::cat(flat) - want).abs().max() / want.abs().max()).item<double>();
}

inline saturate::optim::OptimizerState copied(saturate::optim::OptimizerState state) {
  for (auto& [name, entry] : state.parameters) {
    for (auto& [key, tensor] : entry) tensor = tensor.clone();
  }
  return state;
}

}  // namespace optim_test
