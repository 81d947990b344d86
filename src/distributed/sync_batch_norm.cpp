// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/sync_batch_norm.hpp"

#include "saturate/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace saturate::distributed {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType statistics_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// All dimensions but the channels'.
std::vector<int64_t> other_dims(const at::Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t i = 2; i < input.dim(); ++i) dims.push_back(i);
  return dims;
}

/// [C] as [1, C, 1, ...].
at::Tensor along_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = input.size(1);
  return values.view(shape);
}

/// [2 C + 1]: mean and sum of squared deviations by channel, and values a channel.
at::Tensor local_statistics(const at::Tensor& input) {
  const int64_t channels = input.size(1);
  const double count = static_cast<double>(input.numel() / std::max<int64_t>(channels, 1));
  at::Tensor row = at::zeros({2 * channels + 1}, input.options().dtype(statistics_dtype(input)).memory_format({}));
  if (input.numel() == 0) return row;
  const auto dims = other_dims(input);
  const auto [variance, mean] = at::var_mean(input.to(row.scalar_type()), dims, /*correction=*/0);
  row.narrow(0, 0, channels).copy_(mean);
  row.narrow(0, channels, channels).copy_(variance * count);
  row[2 * channels].fill_(count);
  return row;
}

/// Of all ranks' values by channel.
struct BatchStatistics {
  at::Tensor mean, squares;  // [C]; squares: the sum of squared deviations
  at::Tensor count;          // [1]

  /// Chan, Golub, LeVeque 1979: sums of squared deviations add up when those of the means are added.
  explicit BatchStatistics(const at::Tensor& rows) {
    const int64_t channels = rows.size(1) / 2;
    const at::Tensor counts = rows.narrow(1, 2 * channels, 1);
    const at::Tensor means = rows.narrow(1, 0, channels);
    count = counts.sum(0);
    mean = (means * counts).sum(0) / count.clamp_min(1);
    squares = (rows.narrow(1, channels, channels) + (means - mean).square() * counts).sum(0);
  }
  at::Tensor variance() const { return squares / count.clamp_min(1); }
  at::Tensor unbiased_variance() const { return squares / (count - 1).clamp_min(1); }
};

struct GroupHolder final : torch::CustomClassHolder {
  explicit GroupHolder(ProcessGroup group) : group(std::move(group)) {}
  ProcessGroup group;
};

/// Normalizes by the statistics of all ranks, and takes the gradient through them.
struct SyncedNorm : torch::autograd::Function<SyncedNorm> {
  /// @param weight, bias none where the layer is not affine.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const BatchStatistics& of_all,
                            const ProcessGroup& group, double eps) {
    const auto wide = [&](const std::optional<at::Tensor>& tensor) {
      return tensor ? std::optional<at::Tensor>(tensor->to(of_all.mean.scalar_type())) : std::nullopt;
    };
    const at::Tensor variance = of_all.variance();
    context->save_for_backward(
        {input, weight.value_or(at::Tensor()), of_all.mean, at::rsqrt(variance + eps), of_all.count});
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
    return std::get<0>(at::native_batch_norm(input, wide(weight), wide(bias), of_all.mean, variance,
                                             /*training=*/false, /*momentum=*/0.0, eps));
  }

  // With x' = x - mean, s = 1 / sqrt(variance + eps) and sums over all ranks' n values of a channel:
  //   dx = weight s (dy - sum(dy) / n - x' s^2 sum(dy x') / n)
  // Weight and bias have their gradient from this rank's values, as all parameters do: Ddp adds them up.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (at::GradMode::is_enabled()) {
      throw StateError("SyncBatchNorm cannot be differentiated twice (create_graph): use BatchNorm for that");
    }
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &scale = saved[3], &count = saved[4];
    const at::Tensor dy = gradients[0].to(mean.scalar_type());
    const at::Tensor deviation = input.to(mean.scalar_type()) - along_channels(mean, input);
    const auto dims = other_dims(input);
    const at::Tensor sum_dy = dy.sum(dims), sum_dy_deviation = (dy * deviation).sum(dims);
    variable_list result(6);
    if (context->needs_input_grad(0)) {
      const auto holder = context->saved_data["group"].toCapsule();
      at::Tensor sums = at::cat({sum_dy, sum_dy_deviation});
      static_cast<const GroupHolder&>(*holder).group.all_reduce(sums);
      sums.div_(count.clamp_min(1));
      const auto means = sums.chunk(2);
      at::Tensor dx = dy - along_channels(means[0], input);
      dx.addcmul_(deviation, along_channels(means[1] * scale.square(), input), /*value=*/-1);
      dx.mul_(along_channels(weight.defined() ? scale * weight.to(scale.scalar_type()) : scale, input));
      result[0] = dx.to(input.scalar_type());
    }
    if (weight.defined()) {
      result[1] = (sum_dy_deviation * scale).to(weight.scalar_type());
      result[2] = sum_dy.to(weight.scalar_type());
    }
    return result;
  }
};

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1dImpl>() != nullptr || module.as<torch::nn::BatchNorm2dImpl>() != nullptr ||
         module.as<torch::nn::BatchNorm3dImpl>() != nullptr;
}

/// Where the BatchNorms of a model are.
struct NormPlaces {
  struct Place {
    torch::nn::SequentialImpl* sequential;
    std::size_t index;
    std::string name;
  };
  std::vector<Place> places;
  std::vector<std::string> out_of_reach;
  std::unordered_set<const torch::nn::Module*> seen;

  void look_into(torch::nn::Module& module, const std::string& path) {
    if (!seen.insert(&module).second) return;
    auto* sequential = module.as<torch::nn::SequentialImpl>();
    std::size_t index = 0;
    for (const auto& child : module.named_children()) {
      const std::string name = path.empty() ? child.key() : path + "." + child.key();
      if (!is_batch_norm(*child.value())) {
        look_into(*child.value(), name);
      } else if (sequential != nullptr && index < sequential->size() && sequential->ptr(index) == child.value()) {
        places.push_back({sequential, index, child.key()});
      } else {
        out_of_reach.push_back(name);
      }
      ++index;
    }
  }

  void require_within_reach() const {
    if (out_of_reach.empty()) return;
    std::string names;
    for (const std::string& name : out_of_reach)
      names += (names.empty() ? "" : ", ") + (name.empty() ? "the model" : name);
    throw ConfigError("convert_sync_batch_norm: " + names +
                      ": a BatchNorm outside a torch::nn::Sequential cannot be exchanged, because its type is compiled "
                      "into the forward "
                      "that calls it. Declare it there as saturate::distributed::SyncBatchNorm");
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, ProcessGroup group)
    : NormImplBase(options), group_(std::move(group)) {}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() >= 2 && input.size(1) == options.num_features()) return;
  throw ConfigError(
      c10::str("SyncBatchNorm: an input of shape ", input.sizes(), "; give [N, ", options.num_features(), ", ...]"));
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  if (is_training() && !group_) {
    throw StateError(
        "SyncBatchNorm: it has no group yet. Call saturate::distributed::convert_sync_batch_norm(model, group) on "
        "every "
        "rank; with ProcessGroup() it is BatchNorm");
  }
  if (is_training() && group_->world_size() > 1) return synced(input);
  const double factor = is_training() ? average_factor() : 0.0;
  return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                   is_training() || !options.track_running_stats(), factor,
                                                   options.eps());
}

/// What the batch counts in the running statistics; a step on from the last time.
double SyncBatchNormImpl::average_factor() {
  if (!options.track_running_stats()) return 0;
  num_batches_tracked += 1;
  return options.momentum() ? *options.momentum() : 1.0 / num_batches_tracked.item<double>();
}

at::Tensor SyncBatchNormImpl::synced(const at::Tensor& input) {
  const ProcessGroup group = alone_ ? ProcessGroup() : *group_;
  std::optional<BatchStatistics> of_all;
  {
    const at::NoGradGuard no_grad;
    of_all.emplace(group.all_gather(local_statistics(input.detach())));
    // Every rank has one value or none then, so that all of them look.
    if (!alone_ && input.numel() <= input.size(1) && of_all->count.item<double>() <= 1) {
      throw ConfigError(c10::str("SyncBatchNorm: an input of shape ", input.sizes(),
                                 " in training mode: all ranks together have no more than one value a channel"));
    }
    update_statistics(of_all->mean, of_all->unbiased_variance());
  }
  const auto where_affine = [&](const at::Tensor& tensor) {
    return options.affine() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  };
  return SyncedNorm::apply(input, where_affine(weight), where_affine(bias), *of_all, group, options.eps());
}

void SyncBatchNormImpl::update_statistics(const at::Tensor& mean, const at::Tensor& unbiased_variance) {
  if (!options.track_running_stats()) return;
  const double factor = average_factor();
  running_mean.mul_(1 - factor).add_(mean, factor);
  running_var.mul_(1 - factor).add_(unbiased_variance, factor);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "saturate::distributed::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats() << ')';
}

/// The parameters are the same tensors, so that an optimizer goes on with them; buffers share their memory.
template <class Norm>
std::shared_ptr<SyncBatchNormImpl> synced_in_place_of(const Norm& norm) {
  auto synced = std::make_shared<SyncBatchNormImpl>(norm.options);
  synced->parameters_["weight"] = synced->weight = norm.weight;
  synced->parameters_["bias"] = synced->bias = norm.bias;
  if (norm.options.track_running_stats()) {
    synced->running_mean.set_data(norm.running_mean);
    synced->running_var.set_data(norm.running_var);
    synced->num_batches_tracked.set_data(norm.num_batches_tracked);
  }
  synced->train(norm.is_training());
  return synced;
}

namespace {

std::shared_ptr<SyncBatchNormImpl> synced_copy_of(const torch::nn::Module& norm) {
  if (const auto* one = norm.as<torch::nn::BatchNorm1dImpl>()) return synced_in_place_of(*one);
  if (const auto* two = norm.as<torch::nn::BatchNorm2dImpl>()) return synced_in_place_of(*two);
  return synced_in_place_of(*norm.as<torch::nn::BatchNorm3dImpl>());
}

}  // namespace

int64_t convert_sync_batch_norm(torch::nn::Module& module, const ProcessGroup& group) {
  NormPlaces norms;
  if (is_batch_norm(module)) norms.out_of_reach.emplace_back();
  norms.look_into(module, "");
  norms.require_within_reach();
  std::unordered_map<const torch::nn::Module*, std::shared_ptr<SyncBatchNormImpl>> done;  // one may be at two places
  for (const auto& place : norms.places) {
    const auto norm = place.sequential->ptr(place.index);
    auto& synced = done[norm.get()];
    if (synced == nullptr) synced = synced_copy_of(*norm);
    *(place.sequential->begin() + static_cast<std::ptrdiff_t>(place.index)) = torch::nn::AnyModule(synced);
    place.sequential->replace_module(place.name, synced);
  }
  std::unordered_set<SyncBatchNormImpl*> layers;
  module.apply([&](torch::nn::Module& part) {
    if (auto* layer = part.as<SyncBatchNormImpl>()) layers.insert(layer);
  });
  if (layers.empty()) return 0;
  const ProcessGroup own =
      group.another("sync_batch_norm", /*threads=*/1);  // an order that reductions of gradients do not mix with
  for (SyncBatchNormImpl* layer : layers) layer->synchronize_over(own);
  return static_cast<int64_t>(layers.size());
}

bool has_sync_batch_norm(const torch::nn::Module& module) {
  bool found = false;
  module.apply([&](const torch::nn::Module& part) {
    const auto* layer = part.as<SyncBatchNormImpl>();
    found = found || (layer != nullptr && layer->group() && layer->group()->world_size() > 1);
  });
  return found;
}

void normalize_alone(torch::nn::Module& module, bool alone) {
  module.apply([&](torch::nn::Module& part) {
    if (auto* layer = part.as<SyncBatchNormImpl>()) layer->normalize_alone(alone);
  });
}

}  // namespace saturate::distributed
