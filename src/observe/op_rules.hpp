// SPDX-License-Identifier: Apache-2.0
// FLOPs and bytes of one call of an operator, from its schema, its arguments and its results.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <vector>

namespace saturate::detail {

enum class Product {
  none,
  unknown,   // computes products, but there is no formula
  mm,        // a, b
  added_mm,  // c, a, b
  convolution,
  convolution_backward,
  attention,
  attention_backward,
};

/// What is known of an operator before it runs.
struct OpRule {
  struct Use {
    bool read = false, written = false;
  };
  std::string name;  // "aten::addmm"
  Product product = Product::none;
  bool works = true;       // false: makes or describes tensors, and touches no values
  bool rows_only = false;  // of its first tensor it reads as much as it returns
  std::vector<Use> arguments;

  /// Of the operator that is being run; kept for the next time.
  static const OpRule& of(const at::RecordFunction& op);
};

/// What a call does, taken down as it begins: its arguments are gone when it ends, and holding them would change what
/// autograd may do in place.
struct OpFacts {
  int64_t flops = 0;             // of a product, once finished
  int64_t flops_of_a_place = 0;  // a convolution's: of each place of the output
  int64_t bytes = 0;             // once finished
  std::string precision;         // of a product's inputs: "float32", "tf32", "bfloat16", ...
  std::string shapes;            // "[32], [64, 128]"
  bool on_device = false;        // a tensor is on another device than the CPU

  OpFacts(const OpRule& rule, c10::ArrayRef<const c10::IValue> inputs);
  void finish(const OpRule& rule, const std::vector<c10::IValue>& outputs);

 private:
  int64_t read_ = 0, written_ = 0, first_ = -1;
  std::size_t spatial_ = 0;  // dimensions of a convolution
  c10::SmallVector<const void*, 6> storages_;
};

}  // namespace saturate::detail
