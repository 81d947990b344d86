// SPDX-License-Identifier: Apache-2.0
// What lossy hooks have in common: what a window does not send is added to the next window's gradients (error feedback,
// Seide et al. 2014; Karimireddy et al. 2019).
//
//   had = gradients / ranks + residual;   residual = had - sent;   the sum over ranks of `sent` is what comes back
#pragma once

#include "saturate/distributed/comm_hook.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace saturate::distributed {

/// Residuals belong to parameters, not to buckets, which are made anew. They are kept in float32 (float64 for float64
/// gradients), twice: a window's become valid with the next window, if this one was applied. So a window with an inf or
/// NaN on any rank, one that was refused, and one that an exception ended leave residuals as they were, bit for bit;
/// nothing is read from the device for it.
class ErrorFeedback : public CommHook {
 public:
  Future reduce(Bucket& bucket, double divisor) final;
  void name_parameters(const std::vector<std::pair<std::string, at::Tensor>>& named) final;
  HookState state() const final;
  void load_state(const HookState& state) final;
  void refuse(const at::Tensor& refused) final;
  void scaled_by(const at::Tensor& scale) final;

 protected:
  /// A tensor that outlives windows.
  struct Kept {
    at::Tensor now;   ///< undefined: none is kept
    at::Tensor next;  ///< what this window makes of it
  };
  struct Memory {
    at::Tensor parameter;     // holds it, so that its address stays its own
    Kept residual;            // [numel], in the order of the bucket
    Kept q;                   // PowerSgd's
    at::Tensor scale;         // of the losses that the residual comes from; undefined: 1
    int64_t written_in = -1;  // the window that makes `next`
  };
  /// A parameter's part of a bucket.
  struct Part {
    std::shared_ptr<Memory> memory;  ///< none: it is sent whole
    at::Tensor parameter;
    int64_t offset = 0, size = 0;
  };
  struct Job {
    at::Tensor gradients;
    std::size_t index = 0;
    std::vector<Part> parts;
    double factor = 1;  ///< from the sum of shares (gradients over ranks) to what is asked for
  };

  /// @param start_step windows before it are reduced whole.
  explicit ErrorFeedback(int64_t start_step) : start_step_(start_step) {}

  /// Whether it is sent in a smaller form. A bucket that holds one such parameter is for start().
  virtual bool compresses(const at::Tensor& parameter) const = 0;
  /// What is kept of a parameter before its first window: `now` of the right shapes, of zeros.
  virtual Memory fresh(const at::Tensor& parameter) const = 0;
  /// Like reduce. Memory's `next` is written before the future completes. Its callbacks may use this object: a
  /// destructor calls wait() first.
  virtual Future start(std::shared_ptr<Job> job) = 0;

  /// Whether a bucket would be compressed now.
  bool compresses_now(const Bucket& bucket) const;
  int64_t windows() const { return windows_; }
  /// For all futures of the window.
  void wait() const;

  /// What sums, residuals and factors are kept in.
  static c10::ScalarType wide(c10::ScalarType gradients);
  /// A flat tensor of zeros for a parameter's residual.
  static Kept zeros_for(const at::Tensor& parameter);
  /// Of a future's callback: tensors of another stream are used on this one.
  static void used_here(at::TensorList tensors);
  /// Wide gradients become what is to be sent: divided by the world size, with the residual (undefined: none) added.
  void take_share(const at::Tensor& gradients, const at::Tensor& residual) const;
  /// Writes `reduced` [size], wide, into a part's gradients; what is lost by rounding goes into the residual, a share
  /// for each rank.
  void round_into(const Job& job, const Part& part, const at::Tensor& reduced) const;

 private:
  struct Window;
  void begin_window();
  std::pair<int64_t, at::Tensor> last_applied() const;
  void recall(Memory& memory) const;
  std::shared_ptr<Memory> memory_of(const at::Tensor& parameter);
  std::vector<std::pair<std::string, std::shared_ptr<Memory>>> named_memories() const;
  std::shared_ptr<Memory> loaded(const std::string& name, const std::map<std::string, at::Tensor>& tensors) const;

  int64_t start_step_;
  int64_t windows_ = 0;     // that were reduced to the last bucket
  int64_t begun_ = 0;       // those that were given up included
  int64_t completed_ = -1;  // the last of them that was reduced to the last bucket
  at::Tensor applied_;      // 0-dim bool: whether that one counts
  at::Tensor scale_;        // of losses to come
  std::shared_ptr<Window> window_;
  std::vector<std::shared_ptr<Memory>> memories_;  // in the order of their first gradients
  std::unordered_map<const c10::TensorImpl*, std::shared_ptr<Memory>> by_parameter_;
  std::vector<std::pair<std::string, at::Tensor>> named_;
};

}  // namespace saturate::distributed
