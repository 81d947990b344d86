// SPDX-License-Identifier: Apache-2.0
// What precision each matrix product and convolution really ran in:
//
//   st::GemmPrecision precision(*net);
//   trainer.step(batch);
//   std::cout << precision.table();
#pragma once

#include "saturate/marks.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace saturate {

struct GemmUse {
  std::string module;     ///< innermost marked part; "" outside of all
  std::string op;         ///< "aten::addmm"
  bool backward = false;  ///< direction
  /// "float32", "tf32", "bfloat16", "float16", "float64": what its inputs are rounded to. float32 tensors give "tf32"
  /// on a GPU, and "bfloat16" on a CPU, where LibTorch's switches allow it.
  std::string precision;
  int64_t calls = 0;
};

namespace detail {
struct GemmRecord;
}

/// Observes while it lives: forward on this thread, backward on whichever thread runs it. One at a time.
class GemmPrecision {
 public:
  explicit GemmPrecision(const torch::nn::Module& model);
  ~GemmPrecision();
  GemmPrecision(const GemmPrecision&) = delete;
  GemmPrecision& operator=(const GemmPrecision&) = delete;

  /// In the order of their first calls.
  std::vector<GemmUse> uses() const;
  std::string table() const;

 private:
  std::unique_ptr<detail::GemmRecord> record_;
  marks::Scope scope_;
};

}  // namespace saturate
