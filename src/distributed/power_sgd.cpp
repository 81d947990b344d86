// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/power_sgd.hpp"

#include "saturate/error.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>
#include <vector>

namespace saturate::distributed {
namespace {

/// A parameter as a matrix; its elements stay where they lie.
struct Shape {
  int64_t rows = 1, columns = 1, rank = 1;
  int64_t factors() const { return (rows + columns) * rank; }
};

Shape shape_of(const at::Tensor& parameter, int64_t rank) {
  const bool dense = parameter.is_non_overlapping_and_dense();
  int64_t outermost = -1;
  for (int64_t i = 0; i < parameter.dim(); ++i) {
    if (parameter.size(i) == 1) continue;  // its stride means nothing
    if (outermost < 0 || (dense && parameter.stride(i) > parameter.stride(outermost))) outermost = i;
  }
  Shape shape;
  if (outermost >= 0 && parameter.numel() > 0) shape.rows = parameter.size(outermost);
  shape.columns = parameter.numel() / shape.rows;
  shape.rank = std::min({rank, shape.rows, shape.columns});
  return shape;
}

}  // namespace

/// A parameter on its way.
struct PowerSgd::Factors {
  const Part* part;
  Shape shape;
  at::Tensor had;   // [rows, columns]
  at::Tensor p, q;  // [rows, rank], [columns, rank]: in the messages
};

/// A bucket on its way.
struct PowerSgd::Work {
  std::shared_ptr<Job> job;
  at::Tensor first, second;  // what is sent: every P, then the parameters without factors; every Q
  std::vector<Factors> factors;
  std::vector<std::pair<const Part*, at::Tensor>> whole;  // in `first`
};

void PowerSgdOptions::validate() const {
  const auto require = [](bool holds, const std::string& what) {
    if (!holds) throw ConfigError("PowerSgdOptions: " + what);
  };
  require(rank >= 1, c10::str("rank is ", rank, "; give 1 or more"));
  require(start_step >= 0, c10::str("start_step is ", start_step, "; give 0 or more"));
  require(min_compression_rate > 0,
          c10::str("min_compression_rate is ", min_compression_rate, "; give a positive number"));
}

PowerSgd::PowerSgd(PowerSgdOptions options) : ErrorFeedback(options.start_step), options_(options) {
  options_.validate();
}

void PowerSgd::attach(const ProcessGroup& group) {
  CommHook::attach(group);
  p_group_ = q_group_ = group;
  // NCCL's futures complete when the kernels are queued, so that all is started in the hook, in its order.
  if (group.backend_name() != "gloo") return;
  static std::atomic<int> made = 0;  // ranks attach in the same order
  const std::string name = c10::str("power_sgd.", made++);
  p_group_ = group.another(name + ".p", /*threads=*/1);  // completes in the order of the buckets
  q_group_ = group.another(name + ".q", /*threads=*/2);
}

bool PowerSgd::compresses(const at::Tensor& parameter) const {
  const Shape shape = shape_of(parameter, options_.rank);
  const double sent = static_cast<double>(shape.factors() * c10::elementSize(wide(parameter.scalar_type())));
  return sent * options_.min_compression_rate < static_cast<double>(parameter.nbytes());
}

ErrorFeedback::Memory PowerSgd::fresh(const at::Tensor& parameter) const {
  Memory memory;
  memory.parameter = parameter;
  if (options_.error_feedback) memory.residual = zeros_for(parameter);
  const Shape shape = shape_of(parameter, options_.rank);
  const auto options = parameter.options().dtype(wide(parameter.scalar_type())).memory_format(std::nullopt);
  if (options_.warm_start) memory.q.now = random_q(shape.columns, shape.rank, 0, options);
  return memory;
}

int64_t PowerSgd::bytes_sent(const Bucket& bucket) const {
  if (!compresses_now(bucket)) return CommHook::bytes_sent(bucket);
  int64_t count = 0;
  for (const at::Tensor& parameter : bucket.parameters) {
    count += compresses(parameter) ? shape_of(parameter, options_.rank).factors() : parameter.numel();
  }
  return count * static_cast<int64_t>(c10::elementSize(wide(bucket.gradients.scalar_type())));
}

at::Tensor PowerSgd::random_q(int64_t columns, int64_t rank, int64_t window, const at::TensorOptions& options) const {
  const auto seed = options_.seed + static_cast<uint64_t>(window);
  return at::randn({columns, rank}, at::detail::createCPUGenerator(seed), at::kDouble).to(options);
}

CommHook::Future PowerSgd::start(std::shared_ptr<Job> job) {
  const auto work = std::make_shared<Work>();
  work->job = std::move(job);
  lay_out(*work);
  for (Factors& of : work->factors) {
    const at::Tensor& kept = of.part->memory->q.now;
    const at::Tensor q = kept.defined() ? kept : random_q(of.shape.columns, of.shape.rank, windows(), of.q.options());
    at::mm_out(of.p, of.had, q);
  }
  return all_reduce(work->first, p_group_)
      ->thenAsync(
          [this, work](c10::ivalue::Future& done) {
            done.value();  // throws what went wrong
            const at::NoGradGuard no_grad;
            project(*work);
            return all_reduce(work->second, q_group_);
          },
          c10::TensorType::get())
      ->then(
          [this, work](c10::ivalue::Future& done) {
            done.value();
            const at::NoGradGuard no_grad;
            multiply(*work);
            return c10::IValue(work->job->gradients);
          },
          c10::TensorType::get());
}

/// Divides by the world size, adds residuals, and gives every factor its place in the messages.
void PowerSgd::lay_out(Work& work) const {
  const at::Tensor& gradients = work.job->gradients;
  const auto options = gradients.options().dtype(wide(gradients.scalar_type()));
  const double world = group().world_size();
  int64_t first = 0, second = 0;
  for (const Part& part : work.job->parts) {
    if (part.memory == nullptr) {
      first += part.size;
      continue;
    }
    const Shape shape = shape_of(part.parameter, options_.rank);
    first += shape.rows * shape.rank;
    second += shape.columns * shape.rank;
  }
  work.first = at::empty({first}, options);
  work.second = at::empty({second}, options);
  first = second = 0;
  const auto take = [](const at::Tensor& message, int64_t& begin, int64_t rows, int64_t columns) {
    begin += rows * columns;
    return message.narrow(0, begin - rows * columns, rows * columns).view({rows, columns});
  };
  for (const Part& part : work.job->parts) {
    const at::Tensor mine = gradients.narrow(0, part.offset, part.size);
    if (part.memory == nullptr) {
      const at::Tensor sent = take(work.first, first, 1, part.size).view({part.size});
      work.whole.emplace_back(&part, sent.copy_(mine).div_(world));
      continue;
    }
    const Shape shape = shape_of(part.parameter, options_.rank);
    const at::Tensor had = mine.to(work.first.scalar_type());  // `mine` itself, if that is wide
    take_share(had, part.memory->residual.now);
    work.factors.push_back({&part, shape, had.view({shape.rows, shape.columns}),
                            take(work.first, first, shape.rows, shape.rank),
                            take(work.second, second, shape.columns, shape.rank)});
  }
}

/// After the sum of every P. Residuals come before the sum of every Q overwrites this rank's.
void PowerSgd::project(Work& work) const {
  used_here({work.first, work.second});
  std::vector<at::Tensor> had, lost;
  for (Factors& of : work.factors) {
    used_here({of.had});
    of.p = std::get<0>(at::linalg_qr(of.p));
    at::mm_out(of.q, of.had.t(), of.p);
    at::Tensor left = of.part->memory->residual.next;
    if (left.defined()) left = left.view({of.shape.rows, of.shape.columns});
    if (left.defined()) at::addmm_out(left, of.had, of.p, of.q.t(), 1, -1);
    if (!measures()) continue;
    had.push_back(of.had);
    lost.push_back(left.defined() ? left : at::addmm(of.had, of.p, of.q.t(), 1, -1));
  }
  if (!measures()) return;
  for (const auto& [part, sent] : work.whole)
    had.push_back(work.job->gradients.narrow(0, part->offset, part->size) / group().world_size());
  note_error(work.job->index, had, lost);
}

/// After the sum of every Q.
void PowerSgd::multiply(Work& work) const {
  used_here({work.first, work.second});
  const Job& job = *work.job;
  for (const auto& [part, sum] : work.whole)
    job.gradients.narrow(0, part->offset, part->size).copy_(sum.mul_(job.factor));
  for (Factors& of : work.factors) {
    used_here({of.p, of.had});
    const Kept& kept = of.part->memory->q;
    if (kept.now.defined()) {
      // Of length 1, in the maximum's norm, or the next P would hold squares of gradients. A column of 0 stays 0 and
      // does no harm: QR puts some other direction in its place.
      const at::Tensor largest = of.q.abs().amax(0, /*keepdim=*/true);
      kept.next.copy_(of.q / largest.clamp_min(std::numeric_limits<float>::min()));
    }
    of.q.mul_(job.factor);
    if (job.gradients.scalar_type() == of.q.scalar_type()) {
      at::mm_out(of.had, of.p, of.q.t());  // which lies in the bucket
    } else {
      round_into(job, *of.part, at::mm(of.p, of.q.t()).view({of.part->size}));
    }
  }
}

}  // namespace saturate::distributed
