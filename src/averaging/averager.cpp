// SPDX-License-Identifier: Apache-2.0
#include "averager.hpp"

#include "lerp.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

namespace saturate::detail {
namespace {

constexpr int64_t chunk_elements = int64_t{1} << 25;  // of the scratch memory of an update, where it is needed
constexpr int64_t alignment = 64;                     // elements; what kernels like a tensor to begin with

at::ScalarType average_dtype(const at::Tensor& live) {
  return live.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Where the tensor is not in host memory this waits.
template <class T>
T host_value(const at::Tensor& tensor) {
  return tensor.is_cpu() ? *tensor.const_data_ptr<T>() : *tensor.cpu().const_data_ptr<T>();
}

at::Tensor on(const at::Tensor& tensor, c10::Device device) {
  return tensor.device() == device ? tensor : tensor.to(device, /*non_blocking=*/true);
}

// The loops that ours is one of: average and live as dense memory of one layout.
enum class Loop { none, float32, float64, bfloat16 };
Loop loop_of(const at::Tensor& average, const at::Tensor& live) {
  if (!average.is_cpu() || !live.is_non_overlapping_and_dense()) return Loop::none;
  if (live.scalar_type() == at::kBFloat16) return Loop::bfloat16;
  if (live.scalar_type() != average.scalar_type()) return Loop::none;
  return live.scalar_type() == at::kFloat ? Loop::float32 : Loop::float64;
}

template <class A, class P>
void lerp_block(void* average, const void* live, int64_t begin, int64_t size, double weight) {
  lerp(static_cast<A*>(average) + begin, static_cast<const P*>(live) + begin, size, static_cast<A>(weight));
}

}  // namespace

void Averager::require(bool condition, const char* what) const {
  if (!condition) throw StateError(rule_.type + ": " + what);
}

Averager::Averager(const Averager& other)
    : rule_(other.rule_),
      entries_(other.entries_),
      on_device_(other.on_device_),
      steps_(other.steps_),
      steps_on_device_(other.steps_on_device_.defined() ? other.steps_on_device_.clone() : at::Tensor()) {
  for (Entry& entry : entries_) entry.kept.reset();
  const at::NoGradGuard no_grad;
  if (attached()) make_plan();  // copies every average
}

void Averager::attach(torch::nn::Module& module, c10::Device device) {
  const at::NoGradGuard no_grad;
  std::vector<Entry> found;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto add = [&](const std::string& name, const at::Tensor& live, bool is_buffer) {
    if (!live.defined() || !seen.insert(live.unsafeGetTensorImpl()).second) return;  // tied: once
    const bool complex = live.is_complex() && !is_buffer;
    if (complex || live.layout() != at::kStrided) {
      throw ConfigError(c10::str(rule_.type, ": '", name, "' is ", complex ? "complex" : "not strided",
                                 "; only dense tensors of real numbers can be averaged"));
    }
    const bool averaged =
        at::isFloatingType(live.scalar_type()) && !(is_buffer && rule_.buffers == AverageBuffers::copy);
    found.push_back({name, live, {}, {}, is_buffer, averaged, live.scalar_type()});
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value(), false);
  for (const auto& item : module.named_buffers()) add(item.key(), item.value(), true);
  if (found.empty()) throw ConfigError(rule_.type + ": the model has no parameters to average");
  const auto same = [](const Entry& a, const Entry& b) { return a.live.is_same(b.live); };
  if (attached() && !std::equal(entries_.begin(), entries_.end(), found.begin(), found.end(), same)) {
    throw ConfigError(rule_.type + ": it averages another model already; make a new one for this model");
  }
  require(!open_, "the averaged weights are in the model; leave the scope first");
  if (!attached()) entries_ = std::move(found);
  on_device_ = rule_.count_on_device.value_or(device.is_cuda());
  make_plan();
}

bool Averager::fits(const Entry& entry) const {
  const at::Tensor &live = entry.live, &average = entry.average;
  return live.scalar_type() == entry.live_dtype && live.device() == average.device() &&
         (live.strides() == average.strides() || !live.is_non_overlapping_and_dense());
}

// Also when a parameter has changed its memory format, dtype or device since.
void Averager::make_plan() {
  for (const Entry& entry : entries_) {
    require(!entry.average.defined() || entry.average.sizes() == entry.live.sizes(),
            "a parameter has changed its shape; make new averages");
  }
  for (Entry& entry : entries_) {
    const at::Tensor from = entry.average.defined() ? entry.average : entry.live;
    const auto dtype = entry.averaged ? average_dtype(entry.live) : entry.live.scalar_type();
    entry.average = at::empty_like(entry.live, entry.live.options().dtype(dtype).requires_grad(false)).copy_(from);
    entry.live_dtype = entry.live.scalar_type();
  }
  chunks_.clear();
  looped_.clear();
  single_.clear();
  if (on_device_ || !entries_[0].live.is_cpu()) {
    make_chunks();
  } else {
    make_loops();
  }
}

void Averager::make_loops() {
  std::vector<at::Tensor> averages;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const bool looped = entry.averaged && loop_of(entry.average, entry.live) != Loop::none;
    (looped ? looped_ : single_).push_back(i);
    if (looped) averages.push_back(entry.average);
  }
  blocks_.emplace(averages);
}

void Averager::make_chunks() {
  std::map<std::pair<std::string, at::ScalarType>, std::vector<std::size_t>> alike;  // by device and dtype
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.averaged) {
      alike[{entry.average.device().str(), entry.average.scalar_type()}].push_back(i);
    } else {
      single_.push_back(i);
    }
  }
  const auto padded = [](int64_t numel) { return (numel + alignment - 1) / alignment * alignment; };
  for (const auto& [kind, members] : alike) {
    for (std::size_t begin = 0, end = 0; begin < members.size(); begin = end) {
      int64_t total = 0;
      for (; end < members.size(); ++end) {
        const int64_t size = padded(entries_[members[end]].live.numel());
        if (end > begin && total + size > chunk_elements) break;
        total += size;
      }
      Chunk chunk{at::zeros({total}, entries_[members[begin]].average.options()), {}, {}};
      int64_t offset = 0;
      for (std::size_t m = begin; m < end; ++m) {
        Entry& entry = entries_[members[m]];
        // As strided as `live` where that is dense, so that the parameter can hold it in a scope.
        at::Tensor view = chunk.flat.as_strided(entry.average.sizes(), entry.average.strides(), offset);
        entry.average = view.copy_(entry.average);
        offset += padded(entry.live.numel());
        chunk.averages.push_back(entry.average);
        chunk.lives.push_back(entry.live);
      }
      chunks_.push_back(std::move(chunk));
    }
  }
}

void Averager::update(const at::Tensor& refused) {
  require(attached(), "it has no model yet; give the module to the constructor, or the policy to a Trainer");
  require(!open_, "the averaged weights are in the model; leave the scope before training on");
  const at::NoGradGuard no_grad;
  if (!std::all_of(entries_.begin(), entries_.end(), [&](const Entry& entry) { return fits(entry); })) make_plan();
  const bool host_knows = !steps_on_device_.defined() && (!refused.defined() || !on_device_);
  if (!host_knows) return follow_on_device(refused);
  if (refused.defined() && host_value<float>(refused) != 0) return;
  ++steps_;
  if (rule_.due(steps_)) follow_on_host(rule_.weight(rule_.updates(steps_) - 1));
}

void Averager::follow_on_host(double weight) {
  run_loops(weight);
  for (const Chunk& chunk : chunks_) {
    const bool same = std::all_of(chunk.lives.begin(), chunk.lives.end(), [&](const at::Tensor& live) {
      return live.scalar_type() == chunk.flat.scalar_type();
    });
    if (same) {
      at::_foreach_lerp_(chunk.averages, chunk.lives, weight);
    } else {
      for (std::size_t i = 0; i < chunk.lives.size(); ++i) {
        chunk.averages[i].lerp_(chunk.lives[i].to(chunk.flat.scalar_type()), weight);
      }
    }
  }
  for (const std::size_t i : single_) {
    Entry& entry = entries_[i];
    if (entry.averaged) {
      entry.average.lerp_(entry.live.to(entry.average.scalar_type()), weight);
    } else {
      entry.average.copy_(entry.live);
    }
  }
}

// One pass over the memory of all averages, on all threads, however many and small they are: at::_foreach_lerp_ is a
// loop over tensors on the CPU.
void Averager::run_loops(double weight) {
  if (looped_.empty()) return;
  struct Place {
    Loop loop;
    void* average;
    const void* live;
  };
  std::vector<Place> places;
  places.reserve(looped_.size());
  for (const std::size_t i : looped_) {
    const Entry& entry = entries_[i];
    places.push_back(
        {loop_of(entry.average, entry.live), entry.average.mutable_data_ptr(), entry.live.const_data_ptr()});
  }
  blocks_->run([&](const optim::cpu::Block& block) {
    const Place& place = places[block.tensor];
    const auto run = place.loop == Loop::float32   ? &lerp_block<float, float>
                     : place.loop == Loop::float64 ? &lerp_block<double, double>
                                                   : &lerp_block<float, c10::BFloat16>;
    run(place.average, place.live, block.begin, block.size, weight);
  });
}

// Gated by where, never by multiplying: weights or statistics of a refused window may be NaN.
void Averager::follow_on_device(const at::Tensor& refused) {
  const c10::Device device = refused.defined() ? refused.device() : entries_[0].average.device();
  if (!steps_on_device_.defined()) {
    steps_on_device_ = at::scalar_tensor(steps_, at::TensorOptions(device).dtype(at::kLong));
  }
  const at::Tensor taken = refused.defined() ? refused == 0 : at::ones({}, at::TensorOptions(device).dtype(at::kBool));
  steps_on_device_ = steps_on_device_ + taken;
  const auto [due, weight] = rule_.on_device(taken, steps_on_device_);
  for (Chunk& chunk : chunks_) {
    at::Tensor moved = at::empty_like(chunk.flat);
    std::vector<at::Tensor> parts;
    parts.reserve(chunk.averages.size());
    for (const at::Tensor& average : chunk.averages) {
      parts.push_back(moved.as_strided(average.sizes(), average.strides(), average.storage_offset()));
    }
    at::_foreach_copy_(parts, chunk.lives);
    at::lerp_out(moved, chunk.flat, moved, on(weight, chunk.flat.device()).to(chunk.flat.scalar_type()));
    at::where_out(chunk.flat, on(due, chunk.flat.device()), moved, chunk.flat);
  }
  for (const std::size_t i : single_) {
    Entry& entry = entries_[i];
    at::where_out(entry.average, on(due, entry.average.device()), entry.live, entry.average);
  }
}

void Averager::open() {
  require(attached(), "it has no model yet; give the module to the constructor, or the policy to a Trainer");
  require(!open_, "the averaged weights are in the model already; scopes of the same averages do not nest");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> averages;
  averages.reserve(entries_.size());
  for (Entry& entry : entries_) {
    const bool same = entry.average.scalar_type() == entry.live.scalar_type();
    averages.push_back(same ? entry.average : entry.average.to(entry.live.scalar_type()));
    require(averages.back().sizes() == entry.live.sizes() && averages.back().device() == entry.live.device(),
            "a parameter has changed its shape or device since the last update");
  }
  open_ = true;
  try {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      entries_[i].kept = entries_[i].live.tensor_data();
      entries_[i].live.set_data(averages[i]);
    }
  } catch (...) {
    close();
    throw;
  }
  at::autocast::clear_cache();  // of low-precision copies of what the parameters held
}

void Averager::close() noexcept {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<Entry*, at::Tensor>> written;
  for (Entry& entry : entries_) {
    if (!entry.kept.defined()) continue;
    if (entry.is_buffer && entry.live.scalar_type() != entry.average.scalar_type()) {
      written.emplace_back(&entry, entry.live.tensor_data());
    }
    entry.live.set_data(entry.kept);
    entry.kept.reset();
  }
  open_ = false;
  at::autocast::clear_cache();
  try {
    // Statistics of a low-precision model: the scope had given out a copy.
    for (const auto& [entry, value] : written) entry->average.copy_(value);
  } catch (const std::exception& e) {
    log::warn(rule_.type + ": statistics computed with the averages were lost: " + e.what());
  }
}

int64_t Averager::steps() const { return steps_on_device_.defined() ? host_value<int64_t>(steps_on_device_) : steps_; }

const at::Tensor& Averager::average(const std::string& name) const {
  for (const Entry& entry : entries_) {
    if (entry.name == name) return entry.average;
  }
  throw StateError(rule_.type + ": there is no average of '" + name + "'; names() lists them");
}

std::vector<std::string> Averager::names() const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) names.push_back(entry.name);
  return names;
}

AveragedState Averager::state() const {
  AveragedState state{rule_.type, steps(), {}};
  for (const Entry& entry : entries_) state.averages[entry.name] = entry.average.clone();
  return state;
}

void Averager::load_state(const AveragedState& state) {
  const auto complain = [&](const std::string& what) {
    throw StateError(rule_.type + ": " + what + "; nothing was loaded");
  };
  require(attached(), "it has no model yet; attach it before loading");
  require(!open_, "the averaged weights are in the model; leave the scope before loading");
  if (state.type != rule_.type) complain("the saved averages are of " + state.type);
  if (state.steps < 0) complain(c10::str("the saved number of steps is ", state.steps));
  for (const Entry& entry : entries_) {
    const auto found = state.averages.find(entry.name);
    if (found == state.averages.end() || !found->second.defined()) complain("'" + entry.name + "' is missing");
    const at::Tensor& saved = found->second;
    if (saved.sizes() != entry.average.sizes() || saved.scalar_type() != entry.average.scalar_type()) {
      complain(c10::str("'", entry.name, "' is ", saved.scalar_type(), saved.sizes(), ", here ",
                        entry.average.scalar_type(), entry.average.sizes()));
    }
  }
  for (const auto& [name, tensor] : state.averages) {
    const auto known = [&, &name = name](const Entry& entry) { return entry.name == name; };
    if (std::none_of(entries_.begin(), entries_.end(), known)) complain("'" + name + "' does not exist here");
  }
  const at::NoGradGuard no_grad;
  for (Entry& entry : entries_) entry.average.copy_(state.averages.at(entry.name));
  steps_ = state.steps;
  steps_on_device_.reset();
}

}  // namespace saturate::detail
