// SPDX-License-Identifier: Apache-2.0
// The averages of one module, and when and how strongly they follow it. ema.hpp and swa.hpp are its faces.
#pragma once

#include "averaging_rule.hpp"
#include "saturate/averaging/averaged_weights.hpp"

#include "../optim/cpu_kernel.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace saturate::detail {

class Averager {
 public:
  explicit Averager(AveragingRule rule) : rule_(std::move(rule)) {}
  /// Averages of its own; no scope is open on it.
  Averager(const Averager& other);

  void attach(torch::nn::Module& module, c10::Device device);
  void update(const at::Tensor& refused);
  /// Exchange what the parameters and buffers hold. open() changes nothing when it throws.
  void open();
  void close() noexcept;

  bool attached() const { return !entries_.empty(); }
  bool evaluates() const { return rule_.evaluate; }
  const AveragingRule& rule() const { return rule_; }
  int64_t steps() const;
  const at::Tensor& average(const std::string& name) const;
  std::vector<std::string> names() const;
  AveragedState state() const;
  void load_state(const AveragedState& state);

 private:
  struct Entry {
    std::string name;
    at::Tensor live;     // the model's parameter or buffer
    at::Tensor average;  // as `live` lies in memory
    at::Tensor kept;     // what `live` held, while a scope is open
    bool is_buffer;
    bool averaged;              // otherwise copied
    at::ScalarType live_dtype;  // when the plan was made
  };
  /// Averages that share one flat tensor, so that a few kernels serve them all, with the flag read on the device.
  struct Chunk {
    at::Tensor flat;
    std::vector<at::Tensor> averages, lives;  // views of flat; what they follow
  };

  void require(bool condition, const char* what) const;
  bool fits(const Entry& entry) const;
  void make_plan();
  void make_chunks();
  void make_loops();
  void follow_on_host(double weight);
  void follow_on_device(const at::Tensor& refused);
  void run_loops(double weight);

  AveragingRule rule_;
  std::vector<Entry> entries_;
  bool on_device_ = false;
  bool open_ = false;
  int64_t steps_ = 0;           // exact while steps_on_device_ is undefined
  at::Tensor steps_on_device_;  // 0-dim int64, from the first step on that only the device knows of

  // The plan: each entry is in a chunk, in the loop over CPU memory, or on its own.
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> looped_, single_;
  std::optional<optim::cpu::Blocks> blocks_;  // of the looped ones
};

}  // namespace saturate::detail
