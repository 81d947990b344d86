// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/workload.hpp"

#include "saturate/error.hpp"
#include "saturate/host_memory.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/adamw.h>

#include <algorithm>

namespace saturate::audit {
namespace detail {

std::unique_ptr<optim::Optimizer> make_adamw(const std::vector<at::Tensor>& parameters, double lr, bool fused) {
  if (fused) return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions{.lr = lr});
  return std::make_unique<optim::TorchOptimizer>(
      std::make_shared<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(lr)));
}

std::atomic<int64_t>& largest_freed_block() {
  static std::atomic<int64_t> bytes{0};
  return bytes;
}

void note_freed_blocks(const MemoryMeter& meter) {
  const int64_t freed = meter.counts().largest_freed_small_block;
  if (freed > largest_freed_block()) largest_freed_block() = freed;
}

int64_t peak_bytes(const MemoryMeter& meter, c10::Device device) { return meter.counts(device).peak_bytes; }

void wait_for(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

void seed(uint64_t value) { at::manual_seed(value); }

PolicySettings settings_of(const TacticSet& tactics, int64_t batch_size) {
  PolicySettings settings;
  settings.fused_optimizer = tactics.has("fused-adamw");
  settings.channels_last = tactics.has("channels-last");
  if (tactics.has("bf16")) settings.precision = Precision::bf16;
  if (tactics.has("prefetch")) settings.workers = 1;
  if (const auto n = tactics.value("recompute")) settings.recompute_every = std::stoll(*n);
  if (const auto k = tactics.value("accumulate")) settings.accumulate = std::min<int64_t>(std::stoll(*k), batch_size);
  return settings;
}

std::vector<Tactic> recompute_tactics(int64_t marked_parts) {
  std::vector<Tactic> ways;
  int64_t recomputed = 0;  // by the way before
  for (const int64_t n : {1, 2, 3, 4}) {
    const int64_t count = (marked_parts + n - 1) / n;
    if (n > marked_parts || count == recomputed) continue;
    recomputed = count;
    const std::string call = n == 1 ? "all()" : "every(" + std::to_string(n) + ")";
    Tactic way{.id = "recompute-" + std::to_string(n),
               .title = "recompute " + call,
               .how_to_apply = "st::Recompute::" + call,
               .what = "Forward runs a second time in backward, where its activations are needed."};
    way.value = std::to_string(n);
    way.axis = "recompute";
    ways.push_back(std::move(way));
  }
  return ways;
}

// The root is the model itself, which is no part.
void PartCounter::enter(const std::vector<std::string>& names, const torch::nn::Module&) {
  if (!names.front().empty() && inside_++ == 0) ++parts_;
}
void PartCounter::leave(const std::vector<std::string>& names, const torch::nn::Module&) noexcept {
  if (!names.front().empty()) --inside_;
}

void check(const WorkloadOptions& options) {
  if (options.name.empty()) throw ConfigError("make_workload: give the workload a name");
  if (options.batch_size < 4 || options.batch_size % 4 != 0) {
    throw ConfigError(c10::str("make_workload: batch_size is ", options.batch_size,
                               "; give a positive multiple of 4, so that accumulation can split it"));
  }
}

}  // namespace detail

namespace {

Tactic threads_tactic(int64_t threads, int64_t usual) {
  const std::string count = std::to_string(threads);
  Tactic tactic{
      .id = "threads-" + count,
      .title = count + (threads == 1 ? " thread" : " threads"),
      .how_to_apply = "at::set_num_threads(" + count + ");",
      .what = "Fewer threads for each operator: small operators can spend more on waking threads than on work."};
  tactic.value = count;
  tactic.axis = "threads";
  tactic.enter = [threads] { at::set_num_threads(static_cast<int>(threads)); };
  tactic.leave = [usual] { at::set_num_threads(static_cast<int>(usual)); };
  return tactic;
}

Tactic keep_pages_tactic() {
  Tactic tactic{.id = "keep-pages",
                .title = "Kept pages",
                .how_to_apply = "st::host_memory::keep_pages();  // first line of main",
                .what =
                    "The C library gives large blocks back to the kernel after each use and faults them in again; this "
                    "keeps them. The process stays as large as its peak."};
  tactic.enter = [] { host_memory::keep_pages(); };
  tactic.leave = [] { host_memory::restore_default(detail::largest_freed_block()); };
  return tactic;
}

}  // namespace

std::vector<Tactic> standard_tactics(const Workload&) {
  std::vector<Tactic> tactics{
      {.id = "fused-adamw",
       .title = "Fused optimizer",
       .how_to_apply = "st::optim::AdamW(net->parameters(), {.lr = ...})",
       .what =
           "One kernel reads and writes parameters, gradients and moments once, instead of about ten kernels that each "
           "pass over them."},
      {.id = "prefetch",
       .title = "Prefetching loader",
       .how_to_apply = "st::data::PrefetchLoader loader(source, {.workers = 1});",
       .what = "A worker thread gathers the next batch while the current one trains."},
      {.id = "channels-last",
       .title = "Channels-last memory format",
       .how_to_apply = "st::ChannelsLast{}",
       .what = "Images and convolution weights lie with their channels together, as the fast convolution kernels want "
               "them."},
      {.id = "accumulate",
       .title = "Accumulation, 4 micro-batches",
       .how_to_apply = "st::Accumulate{4}, with a quarter of the batch size",
       .what = "The same effective batch in four parts: less memory for activations, and they may fit a cache.",
       .value = "4"},
      {.id = "bf16",
       .title = "BF16 autocast",
       .how_to_apply = "st::Bf16{}",
       .what = "Matrix products and convolutions in bfloat16: fast where the hardware has it, very slow where it is "
               "emulated.",
       .same_math = false},
  };
  const int64_t usual = at::get_num_threads();
  for (int64_t threads = usual / 2; threads >= 1; threads /= 2) {
    tactics.push_back(threads_tactic(threads, usual));
    if (tactics.size() >= 7) break;  // two steps down tell enough
  }
  // Last, because glibc's own default cannot be had back once it was changed: the others are measured against it.
  tactics.push_back(keep_pages_tactic());
  return tactics;
}

}  // namespace saturate::audit
