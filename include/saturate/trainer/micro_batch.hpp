// SPDX-License-Identifier: Apache-2.0
// One batch as a step has it, and parts of it.
#pragma once

#include "saturate/for_each_tensor.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace saturate::detail {

/// One batch on the device, in the memory format of the model.
template <class Inputs, class Target>
struct MicroBatch {
  Inputs inputs;  // a tuple, by value
  Target target;
  int64_t samples;
};

/// Rows [begin, end) of a tensor that has `samples` rows; a 0-dim or undefined tensor as it is.
/// @throws StateError any other number of rows: there is no telling what belongs to which sample.
at::Tensor rows_of(const at::Tensor& tensor, int64_t samples, int64_t begin, int64_t end);

/// Samples [begin, end) of a micro-batch.
template <class Micro>
Micro rows(Micro micro, int64_t begin, int64_t end) {
  const auto take = [&](at::Tensor& tensor) { tensor = rows_of(tensor, micro.samples, begin, end); };
  visit_tensors(micro.inputs, take);
  visit_tensors(micro.target, take);
  micro.samples = end - begin;
  return micro;
}

/// Splits each micro-batch into up to `parts` of nearly the same size.
template <class MicroBatches>
MicroBatches split(const MicroBatches& micro_batches, int64_t parts) {
  MicroBatches result;
  for (const auto& micro : micro_batches) {
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = micro.samples * part / parts, end = micro.samples * (part + 1) / parts;
      if (begin < end) result.push_back(rows(micro, begin, end));
    }
  }
  return result;
}

}  // namespace saturate::detail
