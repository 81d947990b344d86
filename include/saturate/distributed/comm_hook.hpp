// SPDX-License-Identifier: Apache-2.0
// What is sent of a bucket of gradients, and what comes back: the communication hooks of data parallelism.
#pragma once

#include "saturate/distributed/process_group.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace saturate::distributed {

/// A bucket of gradients, ready to be reduced.
struct Bucket {
  at::Tensor gradients;                ///< [n], flat; may be written to
  std::size_t index = 0;               ///< of this step's buckets; they come in this order
  bool last = false;                   ///< of the step
  std::vector<at::Tensor> parameters;  ///< whose gradients lie in it, in this order
  std::vector<at::Tensor> views;       ///< of `gradients`, one for each parameter, in its shape
};

/// A parameter's part of a bucket, `flat` [numel], in the parameter's shape. Elements lie in a bucket as they do in the
/// parameter (channels_last, transposed), and row by row where the parameter is not dense.
at::Tensor in_shape_of(const at::Tensor& parameter, const at::Tensor& flat);

/// What a hook keeps from window to window, to be saved. It is this rank's own: each rank saves and loads its own.
struct HookState {
  std::string type;                                                          ///< CommHook::name()
  int ranks = 1;                                                             ///< that trained together
  int64_t windows = 0;                                                       ///< reduced so far
  std::map<std::string, std::map<std::string, at::Tensor>> parameters = {};  ///< "fc.weight": "residual", "q"; copies
};

/// Reduces buckets. One object belongs to one DistributedDataParallel.
class CommHook {
 public:
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;

  CommHook() = default;
  virtual ~CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;

  /// Starts the reduction and returns at once. @return a future of the reduced tensor: [n], like bucket.gradients,
  /// which it may be. `divisor`: what the sum over ranks is to be divided by (the world size, for a mean; or 1).
  virtual Future reduce(Bucket& bucket, double divisor) = 0;

  /// Between forward and the backward that reduces.
  virtual void before_backward() {}
  /// Called once, by every rank, before the first bucket.
  virtual void attach(const ProcessGroup& group) { group_ = group; }
  /// "fp16_compress"
  virtual std::string name() const = 0;
  /// Bytes that a rank hands to its collectives for a bucket, were it reduced now.
  virtual int64_t bytes_sent(const Bucket& bucket) const { return static_cast<int64_t>(bucket.gradients.nbytes()); }

  /// Windows from now on are measured. Costs one or two passes over the gradients.
  void measure_error(bool on = true);
  /// Of the last window, on this rank: norm of what was not sent over norm of what was to be sent (gradients, and what
  /// earlier windows had left over). 0-dim float64 on the device; undefined without measure_error. A window that is not
  /// finite gives NaN.
  at::Tensor relative_error() const;

  // For hooks that keep something from window to window:

  /// Names for state(), each with its parameter.
  virtual void name_parameters(const std::vector<std::pair<std::string, at::Tensor>>&) {}
  virtual HookState state() const;
  /// @throws StateError another type, rank count, names, shapes or dtypes; nothing has been changed then.
  virtual void load_state(const HookState& state);
  /// The window that was reduced last is not applied where this says so (0-dim, not 0; the same on all ranks): what is
  /// kept becomes what it was before it. A window that reduced to an inf or NaN is noticed without being told.
  virtual void refuse(const at::Tensor& /*refused*/) {}
  /// Losses of the windows to come are multiplied by this (0-dim, for example GradScaler's scale): what is left over of
  /// earlier windows is brought to it.
  virtual void scaled_by(const at::Tensor& /*scale*/) {}

 protected:
  const ProcessGroup& group() const { return group_; }
  /// The future of an all_reduce of `tensor` in place.
  Future all_reduce(const at::Tensor& tensor) const { return all_reduce(tensor, group_); }
  static Future all_reduce(const at::Tensor& tensor, const ProcessGroup& group);

  bool measures() const { return measured_ != nullptr; }
  /// Norms of what this rank had of a bucket, and of what it did not send. From any thread.
  void note_error(std::size_t bucket, at::TensorList had, at::TensorList lost) const;

 private:
  struct Measured;
  ProcessGroup group_;
  std::shared_ptr<Measured> measured_;
};

/// Sends gradients as they are.
class AllReduce : public CommHook {
 public:
  Future reduce(Bucket& bucket, double divisor) override;
  std::string name() const override { return "all_reduce"; }
};

}  // namespace saturate::distributed
