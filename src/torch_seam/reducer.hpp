// SPDX-License-Identifier: Apache-2.0
// c10d's Reducer: the only place that knows its constructor, and the order in which it wants to be called.
#pragma once

#include "saturate/distributed/comm_hook.hpp"

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace saturate::torch_seam {

struct ReducerOptions {
  int64_t bucket_bytes, first_bucket_bytes;
  bool find_unused_parameters, static_graph, gradient_as_bucket_view;
};

class Reducer {
 public:
  using Hook = std::function<c10::intrusive_ptr<c10::ivalue::Future>(distributed::Bucket&)>;

  Reducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
          c10::intrusive_ptr<c10d::ProcessGroup> group, const ReducerOptions& options, Hook hook);
  ~Reducer();

  /// Before the forward of a synced micro-batch, by every rank.
  void before_forward();
  /// Between forward and backward, when parameters may be unused.
  void before_backward(const at::Tensor& loss);
  /// After the backward. @throws StateError a parameter got no gradient: it is named.
  void after_backward();
  /// Reduces the window's buckets from number `begun` on with nothing of this rank, which cannot finish its backward
  /// while the others reduce theirs; does not wait for them. After this the reducer is of no use but for reset().
  void reduce_rest(int64_t begun);
  /// A window that was given up: waits for buckets on their way, and forgets
  /// those that were not reduced.
  void reset();
  std::vector<int64_t> bucket_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace saturate::torch_seam
