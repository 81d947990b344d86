// SPDX-License-Identifier: Apache-2.0
// The one place that knows LibTorch's switches for float32 precision. There are two sets: a table (since 2.9), and
// older switches, which write to the table too. A question asked in the older way throws when the two disagree, so a
// program that uses the older ones has to find them changed together, and one that uses the table finds the table.
#include "saturate/precision/tf32_scope.hpp"

#include "saturate/log.hpp"
#include "saturate/precision/precision.hpp"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <utility>

namespace saturate {
namespace {

using Backend = at::Float32Backend;
using Op = at::Float32Op;
using Precision = at::Float32Precision;

// The last one is the CPU's: the older switch writes there as well.
constexpr std::array<std::pair<Backend, Op>, 4> entries = {
    {{Backend::CUDA, Op::MATMUL}, {Backend::CUDA, Op::CONV}, {Backend::CUDA, Op::RNN}, {Backend::MKLDNN, Op::MATMUL}}};

// nullopt: the older switches disagree with the table, so nobody asks them.
template <class Ask>
auto unless_mixed(Ask ask) -> std::optional<decltype(ask())> {
  try {
    return ask();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

void set_matmul(int precision) {
  static constexpr const char* names[] = {"highest", "high", "medium"};
  at::globalContext().setFloat32MatmulPrecision(names[precision]);
}

}  // namespace

Tf32Scope::Tf32Scope(bool enabled) {
  auto& context = at::globalContext();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    table_[i] = static_cast<int>(context.float32Precision(entries[i].first, entries[i].second));
  }
  matmul_ = unless_mixed([&] { return static_cast<int>(context.float32MatmulPrecision()); });
  convolution_ = unless_mixed([&] { return context.allowTF32CuDNN(); });
  if (matmul_) context.setAllowTF32CuBLAS(enabled);
  if (convolution_) context.setAllowTF32CuDNN(enabled);
  for (std::size_t i = 0; i < 3; ++i) {
    context.setFloat32Precision(entries[i].first, entries[i].second, enabled ? Precision::TF32 : Precision::IEEE);
  }
}

Tf32Scope::~Tf32Scope() {
  auto& context = at::globalContext();
  if (matmul_) set_matmul(*matmul_);
  if (convolution_) context.setAllowTF32CuDNN(*convolution_);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    context.setFloat32Precision(entries[i].first, entries[i].second, static_cast<Precision>(table_[i]));
  }
}

void Tf32::warn_without_gpu(c10::Device device) {
  if (device.is_cuda()) return;
  log::warn("Tf32 has no effect on " + device.str() +
            ": only a GPU since Ampere has TensorFloat-32 (docs/precision.md)");
}

}  // namespace saturate
