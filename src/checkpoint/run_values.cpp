// SPDX-License-Identifier: Apache-2.0
#include "saturate/checkpoint/run_values.hpp"

#include "saturate/error.hpp"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <mutex>
#include <string_view>
#include <utility>

namespace saturate::checkpoint {
namespace {

using TensorsOf = std::map<std::string, std::map<std::string, at::Tensor>>;

/// Calls visit(rest of the name, value) for what lies under a prefix.
template <class Map, class Visit>
void under(const Map& map, const std::string& prefix, Visit visit) {
  for (auto at = map.lower_bound(prefix); at != map.end() && at->first.starts_with(prefix); ++at) {
    visit(at->first.substr(prefix.size()), at->second);
  }
}

/// Tensors of named parameters, some of which have none.
void put_named(Values& values, const std::string& prefix, const TensorsOf& named) {
  for (const auto& [name, tensors] : named) {
    values.integers[prefix + "/tensors of/" + name] = static_cast<int64_t>(tensors.size());
    for (const auto& [key, tensor] : tensors) values.tensors[prefix + "/" + key + "/" + name] = tensor;
  }
}

TensorsOf get_named(const Values& values, const std::string& prefix) {
  TensorsOf named;
  under(values.integers, prefix + "/tensors of/", [&](const std::string& name, int64_t) { named[name]; });
  under(values.tensors, prefix + "/", [&](const std::string& rest, const at::Tensor& tensor) {
    const std::size_t slash = rest.find('/');
    named[rest.substr(slash + 1)][rest.substr(0, slash)] = tensor;
  });
  return named;
}

template <class Items>
void put_module(Values& values, const std::string& prefix, const Items& items) {
  for (const auto& item : items) {
    if (item.value().defined()) values.tensors[prefix + item.key()] = item.value();
  }
}

template <class Items>
void check_module(const Values& values, const std::string& prefix, const Items& items) {
  std::size_t wanted = 0, there = 0;
  under(values.tensors, prefix, [&](const std::string&, const at::Tensor&) { ++there; });
  for (const auto& item : items) {
    if (!item.value().defined()) continue;
    ++wanted;
    const at::Tensor& saved = values.tensor(prefix + item.key());
    if (saved.sizes() == item.value().sizes() && saved.scalar_type() == item.value().scalar_type()) continue;
    throw StateError(c10::str("checkpoint: ", prefix, item.key(), " is ", saved.sizes(), " ", saved.scalar_type(),
                              " there, ", item.value().sizes(), " ", item.value().scalar_type(),
                              " in the model: make the model that was saved"));
  }
  if (wanted == there) return;
  throw StateError(c10::str("checkpoint: it holds ", there, " tensors under '", prefix, "', the model has ", wanted,
                            ": make the model that was saved"));
}

template <class Items>
void get_module(const Values& values, const std::string& prefix, const Items& items) {
  const at::NoGradGuard no_grad;
  for (const auto& item : items) {
    if (item.value().defined()) at::Tensor(item.value()).copy_(values.tensor(prefix + item.key()));
  }
}

at::Generator generator_of(c10::Device device) { return at::globalContext().defaultGenerator(device); }

constexpr const char* parameter_prefix = "parameter/";
constexpr const char* buffer_prefix = "buffer/";
constexpr const char* cpu_random = "random/cpu";
constexpr const char* gpu_random = "random/gpu";

}  // namespace

void put(Values& values, const TrainerState& state) {
  values.integers["trainer/step"] = state.step;
  values.integers["trainer/window"] = state.window;
  values.integers["trainer/epoch"] = state.epoch;
  values.integers["trainer/samples"] = state.samples;
}
void get(const Values& values, TrainerState& state) {
  state.step = values.integer("trainer/step");
  state.window = values.integer("trainer/window");
  state.epoch = values.integer("trainer/epoch");
  state.samples = values.integer("trainer/samples");
}

void put(Values& values, const optim::OptimizerState& state) {
  values.texts["optimizer/type"] = state.type;
  put_named(values, "optimizer", state.parameters);
  values.integers["optimizer groups"] = static_cast<int64_t>(state.groups.size());
  for (std::size_t i = 0; i < state.groups.size(); ++i) {
    for (const auto& [name, value] : state.groups[i])
      values.numbers[c10::str("optimizer/group ", i, "/", name)] = value;
  }
}
void get(const Values& values, optim::OptimizerState& state) {
  state = {.type = values.text("optimizer/type"), .parameters = get_named(values, "optimizer"), .groups = {}};
  state.groups.resize(static_cast<std::size_t>(values.integer("optimizer groups")));
  for (std::size_t i = 0; i < state.groups.size(); ++i) {
    under(values.numbers, c10::str("optimizer/group ", i, "/"),
          [&](const std::string& name, double value) { state.groups[i][name] = value; });
  }
}

void put(Values& values, const GradScalerState& state) {
  values.numbers["scaler/scale"] = state.scale;
  values.numbers["scaler/growth_factor"] = state.growth_factor;
  values.numbers["scaler/backoff_factor"] = state.backoff_factor;
  values.integers["scaler/growth_interval"] = state.growth_interval;
  values.integers["scaler/growth_tracker"] = state.growth_tracker;
}
void get(const Values& values, GradScalerState& state) {
  state.scale = values.number("scaler/scale");
  state.growth_factor = values.number("scaler/growth_factor");
  state.backoff_factor = values.number("scaler/backoff_factor");
  state.growth_interval = values.integer("scaler/growth_interval");
  state.growth_tracker = values.integer("scaler/growth_tracker");
}

void put(Values& values, const PlateauState& state) {
  values.numbers["plateau/factor"] = state.factor;
  values.numbers["plateau/best"] = state.best;
  values.integers["plateau/bad"] = state.bad;
  values.integers["plateau/cooldown"] = state.cooldown;
  values.integers["plateau/observations"] = state.observations;
}
void get(const Values& values, PlateauState& state) {
  state.factor = values.number("plateau/factor");
  state.best = values.number("plateau/best");
  state.bad = values.integer("plateau/bad");
  state.cooldown = values.integer("plateau/cooldown");
  state.observations = values.integer("plateau/observations");
}

void put(Values& values, const AveragedState& state) {
  values.texts["average type"] = state.type;
  values.integers["average steps"] = state.steps;
  for (const auto& [name, average] : state.averages) values.tensors["average/" + name] = average;
}
void get(const Values& values, AveragedState& state) {
  state = {.type = values.text("average type"), .steps = values.integer("average steps"), .averages = {}};
  under(values.tensors, "average/",
        [&](const std::string& name, const at::Tensor& average) { state.averages[name] = average; });
}

void put(Values& values, const distributed::HookState& state) {
  values.texts["hook/type"] = state.type;
  values.integers["hook ranks"] = state.ranks;
  values.integers["hook windows"] = state.windows;
  put_named(values, "hook", state.parameters);
}
void get(const Values& values, distributed::HookState& state) {
  state = {.type = values.text("hook/type"),
           .ranks = static_cast<int>(values.integer("hook ranks")),
           .windows = values.integer("hook windows"),
           .parameters = get_named(values, "hook")};
}

void put_parameters(Values& values, const torch::nn::Module& module) {
  put_module(values, parameter_prefix, module.named_parameters());
}
void put_buffers(Values& values, const torch::nn::Module& module) {
  put_module(values, buffer_prefix, module.named_buffers());
}
void put_buffers(Values& values, const AveragedState& state, const torch::nn::Module& module) {
  for (const auto& item : module.named_buffers()) {
    const auto average = state.averages.find(item.key());
    if (average != state.averages.end()) values.tensors["average/" + item.key()] = average->second;
  }
}
void check_tensors(const Values& values, const torch::nn::Module& module) {
  check_module(values, parameter_prefix, module.named_parameters());
  check_module(values, buffer_prefix, module.named_buffers());
}
void get_parameters(const Values& values, torch::nn::Module& module) {
  get_module(values, parameter_prefix, module.named_parameters());
}
void get_buffers(const Values& values, torch::nn::Module& module) {
  get_module(values, buffer_prefix, module.named_buffers());
}

void put_random(Values& values, c10::Device device) {
  const auto put_one = [&](const char* name, c10::Device of) {
    at::Generator generator = generator_of(of);
    const std::lock_guard lock(generator.mutex());
    values.tensors[name] = generator.get_state();
  };
  put_one(cpu_random, c10::Device(c10::kCPU));
  if (!device.is_cpu()) put_one(gpu_random, device);
}
void get_random(const Values& values, c10::Device device) {
  const at::Tensor cpu = values.tensor(cpu_random);
  const at::Tensor gpu = device.is_cpu() ? at::Tensor() : values.tensor(gpu_random);  // before anything is set
  const auto get_one = [](const at::Tensor& state, c10::Device of) {
    at::Generator generator = generator_of(of);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  };
  get_one(cpu, c10::Device(c10::kCPU));
  if (gpu.defined()) get_one(gpu, device);
}

}  // namespace saturate::checkpoint
