// SPDX-License-Identifier: Apache-2.0
#include "host_norms.hpp"

#include "../optim/cpu_kernel.hpp"
#include "../optim/loops.hpp"

#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <utility>

namespace saturate::detail {
namespace {

template <class Function>
auto with_host_type(at::ScalarType dtype, const Function& function) {
  switch (dtype) {
    case at::kDouble: return function(double{});
    case at::kHalf: return function(c10::Half{});
    case at::kBFloat16: return function(c10::BFloat16{});
    default: return function(float{});
  }
}

template <class T>
double wide_magnitude(T value) {
  return std::abs(static_cast<double>(value));
}

template <class T>
double sum_of_powers(const T* x, int64_t n, int64_t stride, double p) {
  double sum = 0;
  if (p == 2) {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      if (stride == 1) return optim::loops::best<T>().sum_of_squares(n, x);
    }
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i * stride]) * static_cast<double>(x[i * stride]);
  } else if (p == 1) {
    for (int64_t i = 0; i < n; ++i) sum += wide_magnitude(x[i * stride]);
  } else {
    for (int64_t i = 0; i < n; ++i) sum += std::pow(wide_magnitude(x[i * stride]), p);
  }
  return sum;
}

// The elements of a strided tensor, or of one unit of it, as runs of equal stride: without a copy, in few long runs.
class StridedRuns {
 public:
  StridedRuns(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] != 1) dims_.push_back({sizes[i], strides[i]});
    }
    std::sort(dims_.begin(), dims_.end(), [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
    merge();
  }

  /// function(offset of the first element, elements, stride), over all runs.
  template <class Function>
  void each(const Function& function) const {
    if (dims_.empty()) return function(int64_t{0}, int64_t{1}, int64_t{1});
    each(0, 0, function);
  }

 private:
  struct Dim {
    int64_t size, stride;
  };

  // Neighbours that lie behind one another are one dimension.
  void merge() {
    std::size_t kept = 0;
    for (std::size_t i = 1; i < dims_.size(); ++i) {
      if (dims_[kept].stride == dims_[i].size * dims_[i].stride) {
        dims_[kept] = {dims_[kept].size * dims_[i].size, dims_[i].stride};
      } else {
        dims_[++kept] = dims_[i];
      }
    }
    if (!dims_.empty()) dims_.resize(kept + 1);
  }

  template <class Function>
  void each(std::size_t dim, int64_t offset, const Function& function) const {
    const Dim& here = dims_[dim];
    if (dim + 1 == dims_.size()) return function(offset, here.size, here.stride);
    for (int64_t i = 0; i < here.size; ++i) each(dim + 1, offset + i * here.stride, function);
  }

  c10::SmallVector<Dim, 6> dims_;
};

template <class T>
double sum_of_powers(const T* data, const StridedRuns& runs, double p) {
  double sum = 0;
  runs.each([&](int64_t offset, int64_t n, int64_t stride) { sum += sum_of_powers(data + offset, n, stride, p); });
  return sum;
}

// On all threads.
double sum_of_dense(const std::vector<at::Tensor>& tensors, double p) {
  if (tensors.empty()) return 0;
  const optim::cpu::Blocks blocks(tensors);
  std::vector<double> sums(blocks.count());
  blocks.run([&](const optim::cpu::Block& block) {
    const at::Tensor& tensor = tensors[block.tensor];
    sums[block.index] = with_host_type(tensor.scalar_type(), [&](auto type) {
      return sum_of_powers(tensor.const_data_ptr<decltype(type)>() + block.begin, block.size, 1, p);
    });
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

double sum_of_strided(const at::Tensor& tensor, double p) {
  const StridedRuns runs(tensor.sizes(), tensor.strides());
  return with_host_type(tensor.scalar_type(),
                        [&](auto type) { return sum_of_powers(tensor.const_data_ptr<decltype(type)>(), runs, p); });
}

// A unit's elements begin at data + unit * step.
struct Units {
  explicit Units(const at::Tensor& tensor)
      : count(tensor.dim() > 1 ? tensor.size(0) : 1),
        step(tensor.dim() > 1 ? tensor.stride(0) : 0),
        runs(tensor.dim() > 1 ? tensor.sizes().slice(1) : tensor.sizes(),
             tensor.dim() > 1 ? tensor.strides().slice(1) : tensor.strides()) {}
  int64_t count, step;
  StridedRuns runs;
};

// Comparisons, for std::min and std::max lose a NaN on one side.
double factor_of(double of_grad, double of_parameter, double clip_factor, double eps) {
  const double limit = (of_parameter < eps ? eps : of_parameter) * clip_factor;
  const double factor = limit / (of_grad < 1e-6 ? 1e-6 : of_grad);
  return factor > 1 ? 1 : factor;
}

template <class G, class P>
double clip_units(G* grad, const Units& grad_units, const P* parameter, const Units& parameter_units,
                  double clip_factor, double eps, int64_t unit) {
  G* const values = grad + unit * grad_units.step;
  const double squares = sum_of_powers(values, grad_units.runs, 2);
  const double of_parameter =
      std::sqrt(sum_of_powers(parameter + unit * parameter_units.step, parameter_units.runs, 2));
  const G factor = static_cast<G>(factor_of(std::sqrt(squares), of_parameter, clip_factor, eps));
  if (factor == G(1)) return squares;
  grad_units.runs.each([&](int64_t offset, int64_t n, int64_t stride) {
    for (int64_t i = 0; i < n; ++i) values[offset + i * stride] = values[offset + i * stride] * factor;
  });
  return squares;
}

}  // namespace

bool in_readable_host_memory(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return tensor.is_cpu() && tensor.layout() == at::kStrided &&
         (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16);
}

double host_norm(const std::vector<at::Tensor>& tensors, double p) {
  std::vector<at::Tensor> dense;
  double sum = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_non_overlapping_and_dense()) {
      dense.push_back(tensor);
    } else if (tensor.numel() > 0) {
      sum += sum_of_strided(tensor, p);
    }
  }
  sum += sum_of_dense(dense, p);
  return p == 2 ? std::sqrt(sum) : std::pow(sum, 1 / p);
}

double clip_units_on_host(at::Tensor& grad, const at::Tensor& parameter, double clip_factor, double eps) {
  at::assert_no_internal_overlap(grad);
  const Units grad_units(grad), parameter_units(parameter);
  // A unit a chunk of at least 32 Ki elements, so that few small ones do not start all threads. Added in the order of
  // the units, whatever the number of threads: the sums of one chunk first.
  const int64_t in_unit = std::max<int64_t>(grad.numel() / grad_units.count, 1);
  const int64_t in_chunk = std::max<int64_t>(32768 / in_unit, 1);
  std::vector<double> sums((grad_units.count + in_chunk - 1) / in_chunk);
  with_host_type(grad.scalar_type(), [&](auto grad_type) {
    with_host_type(parameter.scalar_type(), [&](auto parameter_type) {
      auto* const values = grad.mutable_data_ptr<decltype(grad_type)>();
      const auto* const weights = parameter.const_data_ptr<decltype(parameter_type)>();
      const int64_t chunks = static_cast<int64_t>(sums.size());
      std::atomic<int64_t> next{0};
      optim::cpu::on_threads(std::min<int64_t>(chunks, at::get_num_threads()), [&] {
        for (int64_t chunk = next++; chunk < chunks; chunk = next++) {
          const int64_t last = std::min(grad_units.count, (chunk + 1) * in_chunk);
          for (int64_t unit = chunk * in_chunk; unit < last; ++unit) {
            sums[chunk] += clip_units(values, grad_units, weights, parameter_units, clip_factor, eps, unit);
          }
        }
      });
    });
  });
  grad.unsafeGetTensorImpl()->bump_version();
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace saturate::detail
