// SPDX-License-Identifier: Apache-2.0
#include "cpu_kernel.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>

namespace saturate::optim::cpu {
namespace {

// Elements that a thread takes at a time. Threads so work next to each other, which memory likes best, and one that the
// system holds up does not keep the others waiting.
constexpr int64_t share = 32768;

}  // namespace

// TensorIterator's loop is compiled inside LibTorch and runs on its threads: here over a byte a thread, never touched.
void on_threads(int64_t threads, c10::function_ref<void()> work) {
  if (threads == 1) return work();
  const at::Tensor bytes = at::empty({threads}, at::kByte);
  auto iterator = at::TensorIteratorConfig()
                      .set_check_mem_overlap(false)
                      .check_all_same_dtype(false)
                      .resize_outputs(false)
                      .declare_static_shape({threads})
                      .add_output(bytes)
                      .build();
  iterator.for_each([&](char**, const int64_t*, int64_t) { work(); }, /*grain_size=*/1);
}

Blocks::Blocks(at::TensorList tensors) {
  start_.reserve(tensors.size() + 1);
  first_block_.reserve(tensors.size() + 1);
  start_.push_back(0);
  first_block_.push_back(0);
  for (const at::Tensor& tensor : tensors) {
    const int64_t numel = tensor.numel();
    start_.push_back(start_.back() + numel);
    first_block_.push_back(first_block_.back() + static_cast<std::size_t>((numel + block_size - 1) / block_size));
  }
}

void Blocks::run(c10::function_ref<void(const Block&)> work) const {
  const int64_t total = start_.back(), shares = (total + share - 1) / share;
  if (total == 0) return;
  std::atomic<int64_t> next{0};
  on_threads(std::min<int64_t>(shares, at::get_num_threads()), [&] {
    for (int64_t i = next++; i < shares; i = next++) run(i * share, std::min((i + 1) * share, total), work);
  });
}

// A block belongs to the share in which it begins.
void Blocks::run(int64_t begin, int64_t end, c10::function_ref<void(const Block&)> work) const {
  std::size_t tensor =
      static_cast<std::size_t>(std::upper_bound(start_.begin(), start_.end(), begin) - start_.begin() - 1);
  int64_t offset = (begin - start_[tensor] + block_size - 1) / block_size * block_size;
  for (; tensor + 1 < start_.size() && start_[tensor] < end; ++tensor, offset = 0) {
    const int64_t numel = start_[tensor + 1] - start_[tensor];
    for (; offset < numel && start_[tensor] + offset < end; offset += block_size) {
      work({tensor, offset, std::min(block_size, numel - offset),
            first_block_[tensor] + static_cast<std::size_t>(offset / block_size)});
    }
  }
}

std::vector<double> Blocks::per_tensor(const std::vector<double>& per_block) const {
  std::vector<double> sums(first_block_.size() - 1);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    for (std::size_t b = first_block_[i]; b < first_block_[i + 1]; ++b) sums[i] += per_block[b];
  }
  return sums;
}

bool serves(const Cohort& cohort) {
  const at::Tensor& param = cohort.params[0];
  return param.is_cpu() && (param.scalar_type() == at::kFloat || param.scalar_type() == at::kDouble);
}

void by_size(Cohort& cohort, at::TensorList grads, c10::function_ref<void(Cohort&, at::TensorList)> loop,
             c10::function_ref<void(Cohort&, at::TensorList)> fused) {
  if (!serves(cohort)) return fused(cohort, grads);
  const auto is_small = [](const at::Tensor& param) { return param.numel() < at::internal::GRAIN_SIZE; };
  const auto count = std::count_if(cohort.params.begin(), cohort.params.end(), is_small);
  if (count == static_cast<int64_t>(cohort.params.size())) return loop(cohort, grads);
  if (count == 0) return fused(cohort, grads);
  for (const bool small : {true, false}) {
    Cohort part{.group = cohort.group, .step = cohort.step};
    part.state.resize(cohort.state.size());
    std::vector<at::Tensor> part_grads;
    for (std::size_t i = 0; i < cohort.params.size(); ++i) {
      if (is_small(cohort.params[i]) != small) continue;
      part.params.push_back(cohort.params[i]);
      part.steps.push_back(cohort.steps[i]);
      part_grads.push_back(grads[i]);
      for (std::size_t s = 0; s < cohort.state.size(); ++s) part.state[s].push_back(cohort.state[s][i]);
    }
    small ? loop(part, part_grads) : fused(part, part_grads);
  }
}

bool refused(const KernelArgs& args) { return args.found_inf && *args.found_inf->const_data_ptr<float>() != 0; }

double step_number(const Cohort& cohort) { return *cohort.step.const_data_ptr<float>(); }

}  // namespace saturate::optim::cpu
