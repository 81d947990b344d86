// SPDX-License-Identifier: Apache-2.0
// Times every bucket of a communication hook against backward, for comm_report. What is not wrapped costs nothing.
//
//   auto hook = std::make_shared<st::distributed::MeasuredHook>();                       // or of another hook
//   st::Trainer trainer(net, optimizer, loss, st::Ddp(group, {.hook = hook}));
//   trainer.fit(loader);
//   std::cout << st::distributed::comm_report(*hook).text();
#pragma once

#include "saturate/distributed/comm_hook.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace saturate::distributed {

/// Seconds from the beginning of the window's backward.
struct BucketTimes {
  std::size_t index = 0;
  int64_t bytes = 0;           ///< that this rank hands to its collectives (CommHook::bytes_sent)
  int64_t gradient_bytes = 0;  ///< of the bucket
  int64_t elements = 0;
  double launched = 0;  ///< the hook is called: the bucket's gradients are there
  double issued = 0;    ///< the hook returns; backward goes on
  double done = 0;      ///< the reduced gradients are there
};

/// One window's last backward on this rank, whose buckets have all been reduced.
struct WindowTimes {
  int64_t number = 0;  ///< of those that the hook saw, from 0
  /// Between forward and backward, or where nothing told (before_backward), at the launch of the first bucket.
  bool begin_is_known = false;
  double backward_end = 0;  ///< gradients are computed; from here on backward waits for buckets alone
  double step = 0;          ///< seconds since the window before this one was at the same point; 0: there is none
  double start = 0;         ///< of its backward, seconds since the hook's first window
  std::vector<BucketTimes> buckets;

  /// Seconds in which some bucket was on its way, from launch to done; overlapped() + exposed().
  double communication() const;
  /// Of these, those in which backward stood still: it was over, or inside the hook (which may compress, or block).
  double exposed() const;
  double overlapped() const { return communication() - exposed(); }
  double inside_hook() const;  ///< of exposed(), before backward_end
  int64_t bytes() const;
};

struct MeasuredHookOptions {
  int64_t keep = 256;  ///< windows, the last ones
  /// @throws ConfigError keep below 1.
  void validate() const;
};

/// Reduces as `hook` does. Times are the host's on the CPU, and the backward stream's on a GPU, where an event is put
/// into the stream at each launch and each completion. DistributedDataParallel calls before_backward.
class MeasuredHook final : public CommHook {
 public:
  /// @param hook none: AllReduce. @throws ConfigError options; a hook that measures already.
  explicit MeasuredHook(std::shared_ptr<CommHook> hook = nullptr, MeasuredHookOptions options = {});
  ~MeasuredHook() override;

  Future reduce(Bucket& bucket, double divisor) override;
  /// Between forward and the backward that reduces.
  void before_backward() override;

  void attach(const ProcessGroup& group) override;
  std::string name() const override { return hook_->name(); }  // whose state it is
  int64_t bytes_sent(const Bucket& bucket) const override { return hook_->bytes_sent(bucket); }
  void name_parameters(const std::vector<std::pair<std::string, at::Tensor>>& named) override {
    hook_->name_parameters(named);
  }
  HookState state() const override { return hook_->state(); }
  void load_state(const HookState& state) override { hook_->load_state(state); }
  void refuse(const at::Tensor& refused) override { hook_->refuse(refused); }
  void scaled_by(const at::Tensor& scale) override { hook_->scaled_by(scale); }

  /// For what is asked of it alone: relative_error, saturated_buckets.
  CommHook& inner() { return *hook_; }
  const ProcessGroup& ranks() const { return group(); }

  /// The last windows, oldest first; waits for a GPU. A window that an exception has left is not among them.
  std::vector<WindowTimes> windows() const;
  /// Forgets them: the first ones are slower, while buckets are made and memory is found.
  void clear();

 private:
  struct Window;
  struct Recorder;
  std::shared_ptr<Window> window_of(const Bucket& bucket);

  std::shared_ptr<CommHook> hook_;
  std::shared_ptr<Recorder> recorder_;
};

}  // namespace saturate::distributed
