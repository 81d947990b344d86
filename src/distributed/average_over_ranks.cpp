// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/average_over_ranks.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstddef>
#include <deque>
#include <utility>

namespace saturate::distributed {
namespace {

constexpr std::size_t chunks_in_flight = 2;  // one is filled while the other travels

at::ScalarType averaged_in(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Tensors that travel in one all-reduce, flat, row by row.
class AverageChunk {
 public:
  AverageChunk(std::vector<at::Tensor> tensors, const ProcessGroup& group, const at::Tensor& share)
      : tensors_(std::move(tensors)) {
    int64_t size = 0;
    for (const at::Tensor& tensor : tensors_) size += tensor.numel();
    flat_ = at::empty({size}, at::TensorOptions(tensors_[0].device()).dtype(averaged_in(tensors_[0])));
    each([](const at::Tensor& tensor, const at::Tensor& part) { part.copy_(tensor); });
    if (share.defined()) {
      flat_.mul_(share);
    } else {
      flat_.div_(group.world_size());
    }
    std::vector<at::Tensor> sent{flat_};
    c10d::AllreduceOptions options;
    options.timeout = group.timeout();
    work_ = group.c10d()->allreduce(sent, options);
  }

  void finish() {
    work_->wait();
    each([](const at::Tensor& tensor, const at::Tensor& part) { tensor.copy_(part); });
  }

 private:
  template <class Use>
  void each(Use use) {
    int64_t begin = 0;
    for (const at::Tensor& tensor : tensors_) {
      use(tensor, flat_.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }

  std::vector<at::Tensor> tensors_;
  at::Tensor flat_;
  c10::intrusive_ptr<c10d::Work> work_;
};

std::vector<std::vector<at::Tensor>> chunks_of(const std::vector<at::Tensor>& tensors, int64_t chunk_bytes) {
  std::vector<std::vector<at::Tensor>> chunks;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    int64_t bytes = chunk_bytes;  // of the last chunk; the next tensor opens one
    for (const at::Tensor& given : tensors) {
      const at::Tensor tensor = given.is_complex() ? at::view_as_real(given.detach()) : given.detach();
      if (averaged_in(tensor) != dtype || tensor.numel() == 0) continue;
      const auto more = tensor.numel() * static_cast<int64_t>(c10::elementSize(dtype));
      if (bytes + more > chunk_bytes) {
        chunks.emplace_back();
        bytes = 0;
      }
      chunks.back().push_back(tensor);
      bytes += more;
    }
  }
  return chunks;
}

}  // namespace

void average_over_ranks(const std::vector<at::Tensor>& tensors, const ProcessGroup& group,
                        const AverageOptions& options) {
  if (group.world_size() == 1) return;
  const at::NoGradGuard no_grad;
  group.run("averaging over ranks", [&] {
    std::deque<AverageChunk> waiting;
    const auto finish_first = [&] {
      waiting.front().finish();
      waiting.pop_front();
    };
    for (auto& chunk : chunks_of(tensors, options.chunk_bytes)) {
      if (waiting.size() == chunks_in_flight) finish_first();
      waiting.emplace_back(std::move(chunk), group, options.share);
    }
    while (!waiting.empty()) finish_first();
  });
}

}  // namespace saturate::distributed
