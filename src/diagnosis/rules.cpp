// SPDX-License-Identifier: Apache-2.0
// The table of rules. A new one: its row here, its faults in tests/unit/diagnosis/rules_test.cpp, and docs/symptoms.md
// written anew (symptom_rows).
#include "saturate/diagnosis/rules.hpp"

#include <algorithm>
#include <array>

namespace saturate {
namespace {

constexpr auto above = Comparison::above, below = Comparison::below;
constexpr auto unless_refuted = Need::unless_refuted, supports = Need::supports;

// A number that a rule's evidence has made sure of.
double known(const std::optional<double>& value) { return value.value_or(0); }

// NaN under mixed precision ------------------------------------------------------------------------------------------
constexpr Evidence nonfinite_evidence[] = {{&Facts::nonfinite_share, above, 0.02, 0.2},
                                           {&Facts::sixteen_bit, above, 0.5, 0.9}};
constexpr RuleTactic nonfinite_tactics[] = {
    {"saturate::Bf16{}", "bfloat16 has the range of float32: nothing overflows that did not before",
     "docs/precision.md", "bf16"},
    {"saturate::Fp16{}.keep_fp32(\"...\")", "the part that overflows stays in float32: an FP32 island by module",
     "docs/precision.md#fp32-islands"},
    {"saturate::NanGuard{}", "names the part that makes the first NaN", "docs/precision.md#where-a-nan-comes-from"},
};

// Multi-GPU slower than one ------------------------------------------------------------------------------------------
constexpr Evidence serial_evidence[] = {{&Facts::ranks, above, 1.5, 1.9},
                                        {&Facts::exposed_communication_share, above, 0.08, 0.4},
                                        {&Facts::communication_overlap_share, below, 0.15, 0.02},
                                        {&Facts::scaling_efficiency, below, 0.9, 0.5, unless_refuted}};
constexpr RuleTactic serial_tactics[] = {
    {"saturate::Ddp(group)", "reduces a bucket as soon as its gradients are there, while backward goes on",
     "docs/distributed.md"},
    {"saturate::DdpOptions{.bucket_bytes = ...}", "smaller buckets: the first reduction begins earlier",
     "docs/distributed.md#buckets"},
    {"saturate::Accumulate{k}", "reduces once in k micro-batches, and not in those between (no_sync)",
     "docs/accumulation.md", "accumulate"},
};
constexpr Evidence exposed_evidence[] = {{&Facts::ranks, above, 1.5, 1.9},
                                         {&Facts::exposed_communication_share, above, 0.12, 0.5},
                                         {&Facts::communication_overlap_share, above, 0.15, 0.3},
                                         {&Facts::bytes_per_collective, above, 1e6, 4e6, unless_refuted},
                                         {&Facts::scaling_efficiency, below, 0.9, 0.5, unless_refuted}};
constexpr RuleTactic exposed_tactics[] = {
    {"saturate::distributed::Bf16Compress", "half the bytes; Fp16Compress where gradients are of moderate size",
     "docs/communication.md#hooks"},
    {"saturate::Accumulate{k}", "reduces once in k micro-batches, and not in those between (no_sync)",
     "docs/accumulation.md", "accumulate"},
    {"saturate::SyncEvery(group)", "averages parameters now and then in place of gradients always",
     "docs/distributed.md#fewer-reductions-syncevery"},
    {"saturate::distributed::PowerSgd", "sends matrices of a low rank, for links far slower than backward",
     "docs/communication.md#powersgd"},
};
constexpr Evidence bucket_evidence[] = {{&Facts::ranks, above, 1.5, 1.9},
                                        {&Facts::exposed_communication_share, above, 0.05, 0.3},
                                        {&Facts::communication_overlap_share, above, 0.15, 0.3},
                                        {&Facts::collectives_per_step, above, 4, 40},
                                        {&Facts::bytes_per_collective, below, 1e6, 1e5},
                                        {&Facts::bus_bandwidth_share, below, 0.6, 0.1, unless_refuted}};
constexpr RuleTactic bucket_tactics[] = {
    {"saturate::DdpOptions{.bucket_bytes = 25 << 20}", "larger buckets: the latency of each is paid less often",
     "docs/distributed.md#buckets"},
    {"saturate::distributed::probe_all_reduce(group)", "which size the link needs to be used well",
     "docs/communication.md#what-the-link-reaches-probe_all_reduce"},
};
constexpr Evidence straggler_evidence[] = {{&Facts::ranks, above, 1.5, 1.9},
                                           {&Facts::straggler_share, above, 0.1, 0.4}};
constexpr RuleTactic straggler_tactics[] = {
    {"saturate::StragglerReport(group)", "names the rank, and whether it waits for its loader",
     "docs/distributed.md#stragglers"},
    {"saturate::data::LoaderOptions{.uneven = ...}", "equal shards for all ranks", "docs/data.md#order-ranks-resuming"},
    {"", "look at that rank's machine: clocks, temperature, other programs, its share of long samples", ""},
};

// Data ---------------------------------------------------------------------------------------------------------------
constexpr Evidence data_evidence[] = {{&Facts::data_wait_share, above, 0.05, 0.4},
                                      {&Facts::loader_ceiling_ratio, below, 1.1, 0.6, supports}};
constexpr RuleTactic data_tactics[] = {
    {"saturate::data::PrefetchLoader loader(source, {.workers = n})",
     "reads ahead on threads of its own; auto_workers finds n", "docs/data.md#choosing-workers", "prefetch"},
    {"saturate::data::PrefetchLoader", "on a GPU its batches lie in pinned memory, and are copied beside the step",
     "docs/data.md#the-loader"},
    {"saturate::data::CropFlipNormalize", "preprocessing on the device, and bytes instead of floats on the bus",
     "docs/data.md#preprocessing-on-the-device"},
    {"saturate::data::TarShards", "few large files in place of many small ones", "docs/data.md#images"},
};
constexpr Evidence pageable_evidence[] = {{&Facts::devices, above, 0.5, 0.9},
                                          {&Facts::pageable_copy_share, above, 0.03, 0.2}};
constexpr RuleTactic pageable_tactics[] = {
    {"saturate::data::PrefetchLoader", "batches in pinned memory, copied on a stream of their own",
     "docs/data.md#the-loader", "prefetch"},
    {"", "tensor.pin_memory() once, and to(device, /*non_blocking=*/true), for copies of your own", ""},
    {"saturate::data::CropFlipNormalize", "send bytes and make floats of them on the device",
     "docs/data.md#preprocessing-on-the-device"},
};

// A device that waits for its host -----------------------------------------------------------------------------------
constexpr Evidence sync_evidence[] = {{&Facts::devices, above, 0.5, 0.9},
                                      {&Facts::host_syncs_per_step, above, 0.2, 1},
                                      {&Facts::sync_stall_share, above, 0.03, 0.2}};
constexpr RuleTactic sync_tactics[] = {
    {"on_log instead of on_step", "losses and norms stay tensors, and are read at logs only",
     "docs/policies.md#events"},
    {"saturate::over_budget(saturate::host_syncs(timeline), 0)", "a test that fails when a read comes back",
     "docs/traces.md"},
    {"", "where() in place of if (tensor.item()); masks in place of nonzero() and masked_select()", ""},
};
constexpr Evidence launch_evidence[] = {{&Facts::devices, above, 0.5, 0.9},
                                        {&Facts::launch_bound_share, above, 0.08, 0.4},
                                        {&Facts::small_kernel_share, above, 0.5, 0.9},
                                        {&Facts::late_launch_share, above, 0.3, 0.8, unless_refuted}};
constexpr RuleTactic launch_tactics[] = {
    {"", "a larger batch: as many kernels, with more work in each (batch sweep: where throughput stops to grow)",
     "docs/audit.md"},
    {"saturate::optim::AdamW", "one kernel for all parameters in place of some for each", "docs/optim.md",
     "fused-adamw"},
    {"", "a CUDA graph of the step (at::cuda::CUDAGraph): one launch for all kernels", ""},
};
constexpr Evidence own_code_evidence[] = {{&Facts::own_code_share, above, 0.15, 0.5}};
constexpr RuleTactic own_code_tactics[] = {
    {"", "profile with stacks (with_stack in Python, ranges in C++): which code of your own runs between operators",
     ""},
    {"saturate::data::PrefetchLoader", "what prepares batches belongs on the loader's threads",
     "docs/data.md#the-loader", "prefetch"},
};

// Arithmetic ---------------------------------------------------------------------------------------------------------
constexpr Evidence fp32_evidence[] = {{&Facts::fp32_gemm_share, above, 0.15, 0.5},
                                      {&Facts::low_precision_speedup, above, 1.5, 3}};
constexpr RuleTactic fp32_tactics[] = {
    {"saturate::Tf32{}", "on NVIDIA GPUs since Ampere: float32 tensors, products rounded to 10 bits of mantissa",
     "docs/precision.md"},
    {"saturate::Bf16{}", "half the memory traffic besides", "docs/precision.md", "bf16"},
    {"saturate::Fp16{}", "with a scaler, where bfloat16 is not fast", "docs/precision.md#fp16-and-its-scaler"},
};
constexpr Evidence layout_evidence[] = {{&Facts::layout_conversion_share, above, 0.05, 0.2}};
constexpr RuleTactic layout_tactics[] = {
    {"saturate::ChannelsLast{}", "one format from the batch to the loss", "docs/policies.md#memory-format",
     "channels-last"},
    {"saturate::data::ImageFormat::uint8_channels_last", "images arrive in that format",
     "docs/data.md#preprocessing-on-the-device"},
    {"", "reshape and permute inside of the model once, not around every convolution", ""},
};
constexpr Evidence dtype_evidence[] = {{&Facts::dtype_conversion_share, above, 0.08, 0.25}};
constexpr RuleTactic dtype_tactics[] = {
    {"saturate::Bf16{}",
     "one autocast scope around forward and loss keeps the copies of weights: each is converted once a forward",
     "docs/precision.md"},
    {"saturate::optim::MasterWeights", "a model whose parameters are bfloat16 converts none",
     "docs/optim.md#models-in-bf16-or-fp16"},
    {"", "fewer and larger FP32 islands; constants and batches made in the dtype that they are used in", ""},
};
constexpr Evidence optimizer_evidence[] = {{&Facts::training, above, 0.5, 0.9, unless_refuted},
                                           {&Facts::optimizer_share, above, 0.08, 0.25},
                                           {&Facts::optimizer_ops_per_parameter, above, 2.5, 8}};
constexpr RuleTactic optimizer_tactics[] = {
    {"saturate::optim::AdamW", "reads and writes parameters, gradients and moments once, for many tensors at a time",
     "docs/optim.md#speed", "fused-adamw"},
    {"saturate::Accumulate{k}", "one update for k micro-batches", "docs/accumulation.md", "accumulate"},
};

// Memory -------------------------------------------------------------------------------------------------------------
constexpr Evidence memory_evidence[] = {{&Facts::training, above, 0.5, 0.9, unless_refuted},
                                        {&Facts::memory_peak_share, above, 0.9, 0.98},
                                        {&Facts::compute_share, below, 0.4, 0.1}};
constexpr RuleTactic memory_tactics[] = {
    {"saturate::Recompute::budget(bytes)", "frees activations for a larger batch, and computes as few again as will do",
     "docs/recompute.md#a-budget-in-bytes", "recompute"},
    {"saturate::Bf16{}", "activations of half the size", "docs/precision.md", "bf16"},
    {"saturate::Offload{}", "activations in host memory, where the bus idles", "docs/recompute.md#offload"},
    {"saturate::ShardedOptimizer", "each rank keeps its share of the optimizer's state",
     "docs/distributed.md#sharded-optimizer-state"},
};
constexpr Evidence retry_evidence[] = {{&Facts::allocator_retries, above, 0.05, 0.5},
                                       {&Facts::driver_allocation_share, above, 0.01, 0.1, unless_refuted}};
constexpr RuleTactic retry_tactics[] = {
    {"saturate::Accumulate{k}", "smaller micro-batches: the device is no longer full", "docs/accumulation.md",
     "accumulate"},
    {"saturate::Recompute::budget(bytes)", "the same, at the same batch", "docs/recompute.md#a-budget-in-bytes",
     "recompute"},
    {"", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, when much of what is reserved is not in use", ""},
};
constexpr Evidence allocation_evidence[] = {{&Facts::devices, above, 0.5, 0.9},
                                            {&Facts::driver_allocations_per_step, above, 0.5, 4},
                                            {&Facts::driver_allocation_share, above, 0.02, 0.15},
                                            {&Facts::allocator_retries, below, 0.05, 0.01, unless_refuted}};
constexpr RuleTactic allocation_tactics[] = {
    {"saturate::Workspace", "scratch tensors of your own from memory that is kept",
     "docs/memory.md#no-allocation-in-the-step"},
    {"", "few different shapes: pad batches to some lengths, run the longest first", ""},
    {"", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; no emptyCache() in the step", ""},
};

// Latency ------------------------------------------------------------------------------------------------------------
constexpr Evidence latency_evidence[] = {{&Facts::training, below, 0.5, 0.1},
                                         {&Facts::busy_share, above, 0.7, 0.95},
                                         {&Facts::bandwidth_share, above, 0.4, 0.8},
                                         {&Facts::compute_share, below, 0.2, 0.02},
                                         {&Facts::samples_per_step, below, 16, 1.5, supports}};
constexpr RuleTactic latency_tactics[] = {
    {"", "quantize the weights (8 or 4 bits): a step reads all of them, and little else takes time", ""},
    {"", "keep keys and values of past tokens (a KV cache) in place of computing them again", ""},
    {"saturate::Bf16{}", "half the bytes of float32 weights", "docs/precision.md", "bf16"},
    {"", "several requests in a batch: they share what is read", ""},
};

// Threads of the CPU -------------------------------------------------------------------------------------------------
constexpr Evidence oversubscription_evidence[] = {
    {&Facts::runnable_per_core, above, 1.25, 2.5},
    {&Facts::involuntary_switches_per_second, above, 200, 5000, supports}};
constexpr RuleTactic oversubscription_tactics[] = {
    {"at::set_num_threads(n)", "intra-op threads, workers and processes together no more than the cores",
     "docs/data.md#choosing-workers", "threads"},
    {"saturate::data::LoaderOptions{.workers = n}", "fewer workers: they take cores from training",
     "docs/data.md#choosing-workers"},
    {"", "OMP_NUM_THREADS for each of several processes of one machine", ""},
};
constexpr Evidence few_threads_evidence[] = {{&Facts::devices, below, 0.5, 0.1},
                                             {&Facts::threads_per_core, below, 0.6, 0.2},
                                             {&Facts::busy_share, above, 0.7, 0.9},
                                             {&Facts::small_op_share, below, 0.3, 0.05},
                                             {&Facts::runnable_per_core, below, 0.9, 0.5, unless_refuted}};
constexpr RuleTactic few_threads_tactics[] = {
    {"at::set_num_threads(cores)", "one for each core that the process may use; look for OMP_NUM_THREADS=1", "",
     "threads"},
};
constexpr Evidence many_threads_evidence[] = {{&Facts::devices, below, 0.5, 0.1},
                                              {&Facts::intra_op_threads, above, 1.5, 8},
                                              {&Facts::small_op_share, above, 0.45, 0.8}};
constexpr RuleTactic many_threads_tactics[] = {
    {"at::set_num_threads(1)", "small operators spend more on waking threads than on work", "docs/audit.md", "threads"},
    {"", "the cores that become free: several processes, or workers of the loader", "docs/data.md#choosing-workers"},
};
constexpr Evidence small_op_evidence[] = {{&Facts::devices, below, 0.5, 0.1},
                                          {&Facts::small_op_share, above, 0.45, 0.8},
                                          {&Facts::intra_op_threads, below, 1.5, 1.1, unless_refuted}};
constexpr RuleTactic small_op_tactics[] = {
    {"", "a larger batch: as many operators, with more work in each", "docs/audit.md"},
    {"saturate::optim::AdamW", "one pass over all parameters in place of some operators for each", "docs/optim.md",
     "fused-adamw"},
    {"saturate::host_memory::keep_pages()", "no page faults for memory that comes back", "docs/memory.md",
     "keep-pages"},
};

constexpr auto rule_table = std::to_array<DiagnosisRule>({
    {"nonfinite", "NaN or inf under mixed precision", nonfinite_evidence,
     "values beyond float16's 65504, or an operator that needs float32 runs in 16 bits", nonfinite_tactics,
     [](const Facts& facts) { return known(facts.nonfinite_share); }, "windows that trained nothing", true},
    {"serial-all-reduce", "several devices slower than one, or hardly faster: communication comes after backward",
     serial_evidence, "gradients are reduced when backward is over, not while it runs", serial_tactics,
     [](const Facts& facts) { return known(facts.exposed_communication_share); }, "what is not hidden today"},
    {"exposed-communication", "several devices slower than one, or hardly faster: backward hides too little",
     exposed_evidence, "more bytes than the link moves while backward runs", exposed_tactics,
     [](const Facts& facts) { return 0.75 * known(facts.exposed_communication_share); },
     "three quarters of what is not hidden: a hook or fewer reductions leave some"},
    {"small-buckets", "several devices slower than one, or hardly faster: many small reductions", bucket_evidence,
     "each reduction costs its latency, and few bytes share it", bucket_tactics,
     [](const Facts& facts) { return 0.8 * known(facts.exposed_communication_share); },
     "four fifths of what is not hidden"},
    {"straggler", "one rank makes all wait", straggler_evidence,
     "its loader, its machine, or its share of the data is slower than the others'", straggler_tactics,
     [](const Facts& facts) { return known(facts.straggler_share); }, "what the others wait for it"},
    {"data", "the device waits for data", data_evidence, "the loader is slower than the step", data_tactics,
     [](const Facts& facts) { return known(facts.data_wait_share); }, "the wait"},
    {"pageable-copies", "copies to the device from pageable memory", pageable_evidence,
     "batches are not in pinned memory: the copy goes through a buffer of the driver's, and the host waits for it",
     pageable_tactics, [](const Facts& facts) { return known(facts.pageable_copy_share); },
     "copies that no kernel hides"},
    {"host-sync", "the host waits for the device inside of the step", sync_evidence,
     "a value is read in the step: item(), a printed loss, an if on a tensor, nonzero()", sync_tactics,
     [](const Facts& facts) { return known(facts.sync_stall_share); }, "what the device idles after each wait"},
    {"small-launches", "high utilisation, low throughput: small kernels, one launch each", launch_evidence,
     "the host needs longer to launch a kernel than the device to run it", launch_tactics,
     [](const Facts& facts) { return known(facts.launch_bound_share); }, "the gaps between kernels"},
    {"own-code", "nothing of LibTorch's runs for a part of the step", own_code_evidence,
     "code of your own between operators: metrics, logs, files, preparing batches", own_code_tactics,
     [](const Facts& facts) { return known(facts.own_code_share); }, "the time in it"},
    {"fp32-gemm", "matrix products in full float32, where the device is faster in others", fp32_evidence,
     "neither TF32 nor autocast is on", fp32_tactics,
     [](const Facts& facts) {
       return known(facts.fp32_gemm_share) * (1 - 1 / std::max(1.0, known(facts.low_precision_speedup)));
     },
     "products at the faster peak"},
    {"layout", "layout ping-pong: copies that only change strides", layout_evidence,
     "tensors change between NCHW and NHWC around operators that want one of them", layout_tactics,
     [](const Facts& facts) { return known(facts.layout_conversion_share); }, "the copies"},
    {"dtype-conversions", "much of the step is conversion between dtypes", dtype_evidence,
     "weights are converted at every use, or islands of another precision are many and small", dtype_tactics,
     [](const Facts& facts) { return 0.7 * known(facts.dtype_conversion_share); }, "most of the copies"},
    {"unfused-optimizer", "a slow optimizer, some kernels for every parameter", optimizer_evidence,
     "each parameter is updated by operators of its own that read and write it again and again", optimizer_tactics,
     [](const Facts& facts) {
       return known(facts.optimizer_share) * (1 - 2 / std::max(2.0, known(facts.optimizer_ops_per_parameter)));
     },
     "passes over memory beyond two"},
    {"memory-full", "memory full, low compute", memory_evidence,
     "memory ends before the batch is large enough to use the device", memory_tactics,
     [](const Facts& facts) { return 0.3 * std::max(0.0, 1 - known(facts.compute_share) / 0.6); },
     "a guess: a third of what lies between here and 60 % of the peak"},
    {"allocator-retries", "the device is full, and the allocator empties its cache in the step", retry_evidence,
     "not enough memory, or fragments of it", retry_tactics,
     [](const Facts& facts) { return facts.driver_allocation_share.value_or(0.02); },
     "time in cudaMalloc and cudaFree; a guess of 2 % where it was not measured"},
    {"driver-allocations", "cudaMalloc and cudaFree in the step", allocation_evidence,
     "the caching allocator has no block that fits: shapes change from step to step, or its cache is emptied",
     allocation_tactics, [](const Facts& facts) { return known(facts.driver_allocation_share); }, "the calls"},
    {"latency", "latency high though the device is busy", latency_evidence,
     "memory-bound: every step reads all weights for few samples", latency_tactics,
     [](const Facts& facts) { return 0.5 * known(facts.busy_share); }, "half the bytes, half the time"},
    {"oversubscription", "more threads than cores", oversubscription_evidence,
     "intra-op threads, loader workers or processes wait for each other's cores", oversubscription_tactics,
     [](const Facts& facts) { return 0.5 * (1 - 1 / std::max(1.0, known(facts.runnable_per_core))); },
     "a guess: half of what threads wait for cores"},
    {"few-threads", "cores idle while operators are large", few_threads_evidence, "fewer intra-op threads than cores",
     few_threads_tactics,
     [](const Facts& facts) { return known(facts.busy_share) * (1 - known(facts.threads_per_core)); },
     "operators that grow faster with every core"},
    {"many-threads", "small operators on many threads", many_threads_evidence,
     "every operator wakes threads that have nothing to do", many_threads_tactics,
     [](const Facts& facts) { return 0.5 * known(facts.small_op_share); },
     "a guess: half of the small operators' time"},
    {"small-operators", "small operators: the CPU is busy with everything around the arithmetic", small_op_evidence,
     "dispatch, shapes and allocation cost more than the work of an operator", small_op_tactics,
     [](const Facts& facts) { return 0.5 * known(facts.small_op_share); },
     "a guess: half of the small operators' time"},
});

}  // namespace

double Evidence::strength(double value) const {
  return std::clamp((value - threshold) / (clear - threshold), 0.0, 1.0);
}

std::string Evidence::in_words() const {
  const FactInfo& info = fact_info(fact);
  if (info.unit == FactUnit::yes_or_no) {
    return std::string(info.name) + (comparison == Comparison::above ? ": yes" : ": no");
  }
  return std::string(info.name) + (comparison == Comparison::above ? " above " : " below ") +
         saturate::in_words(threshold, info.unit);
}

std::span<const DiagnosisRule> diagnosis_rules() { return rule_table; }

}  // namespace saturate
