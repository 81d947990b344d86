// SPDX-License-Identifier: Apache-2.0
// The optimizers' own loops, for float32 and float64 on the CPU: one pass over everything that a step touches.
// LibTorch's at::_foreach_* is, on the CPU, one pass over the memory for every operator; its fused kernels start and
// join all threads for every tensor, however small.
#pragma once

#include "saturate/optim/cohort_optimizer.hpp"

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <array>
#include <cstdint>
#include <vector>

namespace saturate::optim::cpu {

/// Calls `work` on that many of LibTorch's threads. at::parallel_for is a template that needs OpenMP in this library
/// too, whose runtime need not be LibTorch's; without it all would run on one thread.
void on_threads(int64_t threads, c10::function_ref<void()> work);

/// Part of a tensor, small enough for the first cache to hold what a kernel works on.
struct Block {
  std::size_t tensor;
  int64_t begin, size;
  std::size_t index;  // of all blocks
};

/// Cuts a list of tensors into blocks. Where the cuts are does not depend on the number of threads, so that sums over
/// blocks do not either.
class Blocks {
 public:
  explicit Blocks(at::TensorList tensors);
  /// Calls `work` for every block, on all of LibTorch's threads, be the blocks of one large tensor or of thousands of
  /// small ones.
  void run(c10::function_ref<void(const Block&)> work) const;
  /// Sums a value per block into one per tensor.
  std::vector<double> per_tensor(const std::vector<double>& per_block) const;
  std::size_t count() const { return first_block_.back(); }

 private:
  void run(int64_t begin, int64_t end, c10::function_ref<void(const Block&)> work) const;

  static constexpr int64_t block_size = 8192;
  std::vector<int64_t> start_;            // elements before each tensor, and all elements
  std::vector<std::size_t> first_block_;  // blocks before each tensor, and all blocks
};

/// Memory of a cohort and its gradients.
template <class T>
class Pointers {
 public:
  static constexpr std::size_t most_states = 3;
  struct Place {
    T* p;
    const T* g;
    std::array<T*, most_states> state;  // null beyond what the cohort has
  };

  Pointers(Cohort& cohort, at::TensorList grads) {
    places_.reserve(cohort.params.size());
    for (std::size_t i = 0; i < cohort.params.size(); ++i) {
      Place place{cohort.params[i].mutable_data_ptr<T>(), grads[i].const_data_ptr<T>(), {}};
      for (std::size_t s = 0; s < cohort.state.size(); ++s) {
        place.state[s] = cohort.state[s][i].template mutable_data_ptr<T>();
      }
      places_.push_back(place);
    }
  }

  Place operator[](const Block& block) const {
    Place place = places_[block.tensor];
    place.p += block.begin;
    place.g += block.begin;
    for (T*& state : place.state) state = state == nullptr ? nullptr : state + block.begin;
    return place;
  }

 private:
  std::vector<Place> places_;
};

/// Whether the loops of ours can serve this cohort.
bool serves(const Cohort& cohort);
/// Calls `loop` with the cohort's small tensors, and `fused` with the large ones and with all that our loops do not
/// serve. Which is small depends on nothing but the tensor, so that a run from saved state goes the same ways.
void by_size(Cohort& cohort, at::TensorList grads, c10::function_ref<void(Cohort&, at::TensorList)> loop,
             c10::function_ref<void(Cohort&, at::TensorList)> fused);
/// On the CPU the flag lies in memory: reading it waits for nothing.
bool refused(const KernelArgs& args);
/// The cohort's step number, this step counted.
double step_number(const Cohort& cohort);

/// kernel(float()) or kernel(double()).
template <class Kernel>
void dispatch(const Cohort& cohort, Kernel&& kernel) {
  if (cohort.params[0].scalar_type() == at::kFloat) {
    kernel(float());
  } else {
    kernel(double());
  }
}

}  // namespace saturate::optim::cpu
