// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/top_k.hpp"

#include "saturate/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace saturate::distributed {

void TopKOptions::validate() const {
  if (!(fraction > 0 && fraction <= 1)) {
    throw ConfigError(c10::str("TopKOptions: fraction is ", fraction, "; give more than 0, at most 1"));
  }
  if (start_step < 0) throw ConfigError(c10::str("TopKOptions: start_step is ", start_step, "; give 0 or more"));
}

TopK::TopK(TopKOptions options) : ErrorFeedback(options.start_step), options_(options) { options_.validate(); }

/// Bytes of a rank: values in the gradients' dtype, then places as int32.
struct TopK::Message {
  int64_t count;   // k
  int64_t places;  // where they begin
  int64_t bytes;
  c10::ScalarType dtype;

  at::Tensor values_in(const at::Tensor& bytes) const {
    return bytes.narrow(0, 0, count * static_cast<int64_t>(c10::elementSize(dtype))).view(dtype);
  }
  at::Tensor places_in(const at::Tensor& bytes) const { return bytes.narrow(0, places, 4 * count).view(at::kInt); }
};

TopK::Message TopK::message_of(int64_t gradients, c10::ScalarType dtype) const {
  constexpr int64_t aligned = 16;
  const auto round_up = [](int64_t bytes) { return (bytes + aligned - 1) / aligned * aligned; };
  const auto wanted = static_cast<int64_t>(std::ceil(options_.fraction * static_cast<double>(gradients)));
  const int64_t count = std::clamp<int64_t>(wanted, 1, gradients);
  const int64_t places = round_up(count * static_cast<int64_t>(c10::elementSize(dtype)));
  return {count, places, round_up(places + 4 * count), dtype};
}

int64_t TopK::bytes_sent(const Bucket& bucket) const {
  if (!compresses_now(bucket)) return CommHook::bytes_sent(bucket);
  return message_of(bucket.gradients.numel(), bucket.gradients.scalar_type()).bytes;
}

ErrorFeedback::Memory TopK::fresh(const at::Tensor& parameter) const {
  Memory memory;
  memory.parameter = parameter;
  if (options_.error_feedback) memory.residual = zeros_for(parameter);
  return memory;
}

CommHook::Future TopK::start(std::shared_ptr<Job> job) {
  const at::Tensor& gradients = job->gradients;
  TORCH_CHECK(gradients.numel() <= std::numeric_limits<int32_t>::max(), "TopK: a bucket of ", gradients.numel(),
              " gradients; make buckets smaller than 2^31");
  const at::Tensor had = gradients.to(wide(gradients.scalar_type()));  // `gradients` itself, if they are wide
  for (const Part& part : job->parts) {
    if (part.memory != nullptr) take_share(had.narrow(0, part.offset, part.size), part.memory->residual.now);
  }
  const at::Tensor mine = take_largest(*job, had);
  const at::Tensor all = at::empty({group().world_size(), mine.size(0)}, mine.options());
  std::vector<std::vector<at::Tensor>> outputs{all.unbind()};
  std::vector<at::Tensor> inputs{mine};
  c10d::AllgatherOptions options;
  options.timeout = group().timeout();
  return group()
      .c10d()
      ->allgather(outputs, inputs, options)
      ->getFuture()
      ->then(
          [this, job, mine, all](c10::ivalue::Future& done) {
            done.value();  // throws what went wrong
            const at::NoGradGuard no_grad;
            used_here({mine, all});
            add_up(*job, all);
            return c10::IValue(job->gradients);
          },
          c10::TensorType::get());
}

/// What is left goes into residuals. @return the message.
at::Tensor TopK::take_largest(const Job& job, const at::Tensor& had) const {
  const Message message = message_of(had.numel(), job.gradients.scalar_type());
  // NaN counts as the largest, then inf: neither stays behind unseen.
  const at::Tensor places = std::get<1>(had.abs().topk(message.count, 0, /*largest=*/true, /*sorted=*/false));
  at::Tensor values = had.index_select(0, places);
  if (message.dtype == at::kHalf) values = at::where(values.isfinite(), values.clamp(-65504, 65504), values);
  const at::Tensor bytes = at::zeros({message.bytes}, had.options().dtype(at::kByte));
  const at::Tensor sent = message.values_in(bytes).copy_(values);
  message.places_in(bytes).copy_(places);

  const at::Tensor whole = measures() ? had.clone() : at::Tensor();
  had.index_add_(0, places, sent.to(had.scalar_type()), -1);
  if (measures()) note_error(job.index, {whole}, {had});
  for (const Part& part : job.parts) {
    if (part.memory == nullptr || !part.memory->residual.next.defined()) continue;
    part.memory->residual.next.copy_(had.narrow(0, part.offset, part.size));
  }
  return bytes;
}

void TopK::add_up(const Job& job, const at::Tensor& gathered) const {
  const at::Tensor& gradients = job.gradients;
  const Message message = message_of(gradients.numel(), gradients.scalar_type());
  const at::Tensor sum = wide(message.dtype) == message.dtype
                             ? gradients.zero_()
                             : at::zeros({gradients.numel()}, gradients.options().dtype(wide(message.dtype)));
  // One rank after the other: places of one are distinct, so that the order of additions is the same on all.
  for (const at::Tensor& bytes : gathered.unbind()) {
    sum.index_add_(0, message.places_in(bytes), message.values_in(bytes).to(sum.scalar_type()), job.factor);
  }
  if (sum.is_same(gradients)) return;
  for (const Part& part : job.parts) round_into(job, part, sum.narrow(0, part.offset, part.size));
}

}  // namespace saturate::distributed
