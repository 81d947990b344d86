// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/nan_guard.hpp"

#include "nan_tracer.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "saturate/trainer/state_snapshot.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <deque>
#include <optional>
#include <utility>

namespace saturate {
namespace {

constexpr int64_t rows_named = 8;

bool all_finite(const at::Tensor& tensor) {
  return !tensor.defined() || !at::isFloatingType(tensor.scalar_type()) || at::isfinite(tensor).all().item<bool>();
}

std::string joined(const std::vector<std::string>& names, std::size_t limit = 8) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < limit; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > limit) text += c10::str(" and ", names.size() - limit, " more");
  return text;
}

// "input 0 (samples 3, 17)"; empty: every value is finite.
std::string bad_samples(const char* what, const std::vector<at::Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (all_finite(tensors[i])) continue;
    std::vector<std::string> rows;
    if (tensors[i].dim() > 0) {
      const at::Tensor rows_of = tensors[i].reshape({tensors[i].size(0), -1});
      const at::Tensor bad = at::isfinite(rows_of).logical_not().any(1).nonzero().flatten().cpu();
      for (int64_t k = 0; k < bad.numel(); ++k) rows.push_back(std::to_string(bad[k].item<int64_t>()));
    }
    return c10::str(what, " ", i, rows.empty() ? "" : " (samples " + joined(rows, rows_named) + ")");
  }
  return {};
}

using detail::RandomState;

// The random streams of the CPU and of `device`.
RandomState random_state(c10::Device device) {
  return RandomState::now(device.is_cuda() ? std::vector{device} : std::vector<c10::Device>());
}

// Everything that a forward pass may change besides gradients is put back, also after an exception.
class Unchanged {
 public:
  Unchanged(torch::nn::Module& module, c10::Device device) : random_(random_state(device)) {
    for (const at::Tensor& buffer : module.buffers()) buffers_.emplace_back(buffer, buffer.detach().clone());
  }
  ~Unchanged() {
    random_.restore();
    for (auto& [buffer, saved] : buffers_) buffer.data().copy_(saved);
  }

 private:
  RandomState random_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

const char* name_of(NanReport::Cause cause) {
  switch (cause) {
    case NanReport::Cause::data: return "data";
    case NanReport::Cause::weights: return "weights";
    case NanReport::Cause::arithmetic: return "arithmetic";
    case NanReport::Cause::not_reproduced: break;
  }
  return "not reproduced";
}

}  // namespace

void NanGuardOptions::validate() const {
  const auto complain = [](const char* name, int64_t value, const char* wanted) {
    throw ConfigError(c10::str("NanGuard: ", name, " is ", value, "; give ", wanted));
  };
  if (closely < 0) complain("closely", closely, "0 or more windows");
  if (every < 1) complain("every", every, "1 window or more");
  if (max_kept_bytes < 0) complain("max_kept_bytes", max_kept_bytes, "0 bytes or more");
  if (overflow_patience < 1) complain("overflow_patience", overflow_patience, "1 window or more");
  if (max_reports < 0) complain("max_reports", max_reports, "0 or more");
}

std::string NanReport::message() const {
  std::string text = c10::str("NanGuard: window ", window, " (", name_of(cause), "): ");
  switch (cause) {
    case Cause::data: text += "the batch holds a value that is not finite: " + detail; break;
    case Cause::weights: text += "not finite before the window began: " + detail; break;
    case Cause::not_reproduced: text += "loss or gradients were not finite, but run again they are" + detail; break;
    case Cause::arithmetic:
      text += module.empty() ? "outside of every marked part" : module;
      text +=
          c10::str(": ", op.empty() ? "an operation that is no operator" : op, backward ? " (backward" : " (forward",
                   node.empty() ? "" : ", " + node, ") gave the first ", dtype, " that is not finite");
      if (input_min <= input_max) text += c10::str(", from inputs in [", input_min, ", ", input_max, "]");
  }
  if (!parameters.empty()) text += "; gradients hit: " + joined(parameters);
  return text + ". The window changed nothing." + (advice.empty() ? "" : " " + advice);
}

namespace detail {

class NanWatch {
 public:
  explicit NanWatch(const NanGuardOptions& options) : options_(options) {}

  void attach(torch::nn::Module& module, c10::Device device) {
    module_ = &module;
    device_ = device;
    names_ = marks::bind(module);
    pending_.clear();
  }

  void begin() { random_ = random_state(device_); }

  at::Tensor check(const at::Tensor& loss_sum, const at::Tensor& grad_norm, const at::Tensor& found_inf) {
    const at::NoGradGuard no_grad;
    const at::Tensor loss_bad = at::isfinite(loss_sum).logical_not();
    const at::Tensor norm_bad = at::isfinite(grad_norm).logical_not().to(loss_bad.device());
    scales_ = found_inf.defined();
    flags_ = at::stack({loss_bad, norm_bad}).to(at::kFloat);
    return loss_bad.logical_or(norm_bad).to(at::kFloat);
  }

  void end(WindowReplay replay) {
    const int64_t window = windows_++;
    if (!flags_.defined()) return;  // a window without targets: nothing was computed from
    for (const at::Tensor& tensor : replay.inputs) kept_bytes_ += static_cast<int64_t>(tensor.nbytes());
    pending_.push_back({window, std::exchange(flags_, {}), std::move(replay), *random_});
    if (due()) look();
  }

  const std::vector<NanReport>& reports() const { return reports_; }

 private:
  struct Pending {
    int64_t window;
    at::Tensor flags;  // [2] float32: the loss, the gradients
    WindowReplay replay;
    RandomState random;
  };

  bool due() const {
    return device_.is_cpu() || windows_ <= options_.closely ||
           static_cast<int64_t>(pending_.size()) >= options_.every || kept_bytes_ > options_.max_kept_bytes;
  }

  // The one host read.
  void look() {
    std::vector<at::Tensor> flags;
    for (const Pending& one : pending_) flags.push_back(one.flags);
    const at::Tensor all = flags.size() == 1 ? flags[0] : at::stack(flags);
    const at::Tensor host = all.is_cpu() ? all : all.cpu();
    const float* flag = host.const_data_ptr<float>();
    std::optional<Pending> bad;
    for (std::size_t i = 0; i < pending_.size() && !bad; ++i) {
      if (anomaly(flag[2 * i] != 0, flag[2 * i + 1] != 0)) bad = std::move(pending_[i]);
    }
    pending_.clear();
    kept_bytes_ = 0;
    if (bad && static_cast<int64_t>(reports_.size()) < options_.max_reports) report(*bad);
  }

  bool anomaly(bool loss, bool gradients) {
    overflows_ = gradients && !loss ? overflows_ + 1 : 0;
    return loss || (gradients && (!scales_ || overflows_ >= options_.overflow_patience));
  }

  void report(Pending& bad) {
    NanReport report = diagnose(bad);
    report.window = bad.window;
    advise(report, bad.replay);
    log::warn(report.message());
    reports_.push_back(report);
    overflows_ = 0;
    if (options_.raise) throw NonFiniteError(report.message());
  }

  NanReport diagnose(Pending& bad) {
    NanReport report;
    report.detail = bad_samples("input", bad.replay.inputs);
    if (report.detail.empty()) report.detail = bad_samples("target", bad.replay.targets);
    if (!report.detail.empty()) {
      report.cause = NanReport::Cause::data;
      return report;
    }
    for (const auto& item : module_->named_parameters()) {
      if (all_finite(item.value().detach())) continue;
      report.cause = NanReport::Cause::weights;
      report.detail = item.key();
      return report;
    }
    run_again(bad, report);
    return report;
  }

  void run_again(Pending& bad, NanReport& report) {
    const Unchanged unchanged(*module_, device_);
    bad.random.restore();
    NanTracer tracer;
    try {
      const marks::Scope marks(names_, &tracer);
      bad.replay.run();
    } catch (const std::exception& error) {
      report.detail = c10::str("; the run ended with: ", error.what());
    }
    name_gradients(bad.replay, report);
    bad.replay.clear();
    const auto& origin = tracer.first() ? tracer.first() : tracer.first_receiver();
    if (!origin) return;
    report.cause = NanReport::Cause::arithmetic;
    report.module = origin->module;
    report.op = origin->op;
    report.node = origin->node;
    report.backward = origin->backward;
    report.dtype = origin->dtype;
    report.input_min = origin->input_min;
    report.input_max = origin->input_max;
  }

  void name_gradients(const WindowReplay& replay, NanReport& report) const {
    for (const auto& item : module_->named_parameters()) {
      const at::Tensor& grad = item.value().grad();
      if (grad.defined() && !all_finite(grad)) report.parameters.push_back(item.key());
    }
    if (!report.parameters.empty()) return;
    // An optimizer with gradients of its own (optim::MasterWeights) has taken them over.
    const std::vector<at::Tensor> gradients = replay.gradients();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined() && !all_finite(gradients[i])) {
        report.parameters.push_back("parameter." + std::to_string(i));
      }
    }
  }

  void advise(NanReport& report, const WindowReplay& replay) const {
    if (report.cause == NanReport::Cause::data) {
      report.advice = "Leave such samples out, or clean them, in the data source.";
    } else if (report.cause == NanReport::Cause::weights) {
      report.advice = "Weights were not finite when training began, or something else wrote to them.";
    }
    if (report.cause != NanReport::Cause::arithmetic) return;
    const bool half = report.dtype == "Half", narrow = half || report.dtype == "BFloat16";
    if (!narrow) {
      report.advice =
          "This is float32 or wider: no precision switch helps. Keep the inputs out of the range shown (an eps, a "
          "clamp), "
          "or lower the learning rate if they grew.";
      return;
    }
    if (report.op == "aten::_to_copy" || report.op == "aten::copy_") {
      report.advice = "The value itself does not fit " + report.dtype + ": scale it down, or train with " +
                      (half ? "Bf16." : "Fp32.");
      return;
    }
    const std::string island = report.module.empty() ? std::string() : "keep_fp32(\"" + report.module + "\")";
    report.advice = half ? "float16 ends at 65504: Bf16 has the range of float32" : "bfloat16 has 8 bits of mantissa";
    report.advice += island.empty() ? "; mark the part with saturate::call to make it an FP32 island."
                                    : (half ? ", or " : ": ") + island + " makes the part an FP32 island.";
    if (!options_.apply || island.empty() || !replay.keep_fp32) return;
    replay.keep_fp32(report.module);
    report.applied = true;
    report.advice += " That has been done.";
  }

  NanGuardOptions options_;
  torch::nn::Module* module_ = nullptr;
  c10::Device device_ = c10::Device(c10::kCPU);
  std::shared_ptr<const marks::Names> names_;
  std::optional<RandomState> random_;
  at::Tensor flags_;
  bool scales_ = false;
  std::deque<Pending> pending_;
  int64_t windows_ = 0, kept_bytes_ = 0, overflows_ = 0;
  std::vector<NanReport> reports_;
};

}  // namespace detail

NanGuard::NanGuard(const NanGuardOptions& options) : watch_(std::make_shared<detail::NanWatch>(options)) {
  options.validate();
}

void NanGuard::attach(torch::nn::Module& module, c10::Device device) { watch_->attach(module, device); }
void NanGuard::begin() { watch_->begin(); }
at::Tensor NanGuard::check(const at::Tensor& loss_sum, const at::Tensor& grad_norm, const at::Tensor& found_inf) {
  return watch_->check(loss_sum, grad_norm, found_inf);
}
void NanGuard::end(WindowReplay replay) { watch_->end(std::move(replay)); }
const std::vector<NanReport>& NanGuard::reports() const { return watch_->reports(); }

}  // namespace saturate
