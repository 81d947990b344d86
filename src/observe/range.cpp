// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/range.hpp"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/api.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

namespace saturate {
namespace {

std::atomic<bool>& nvtx_switch() {
  // LibTorch links NVTX without its library: calls go to whatever tool this variable names, or nowhere.
  static std::atomic<bool> on{std::getenv("NVTX_INJECTION64_PATH") != nullptr};
  return on;
}

// LibTorch's own observer has pushed the range already. Not profilerType(): it would take a MemoryMeter for a profiler.
bool pushed_by_libtorch() {
  auto* const here = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  auto* const profiler = dynamic_cast<torch::profiler::impl::ProfilerStateBase*>(here);
  return profiler != nullptr && profiler->profilerType() == torch::profiler::impl::ActiveProfilerType::NVTX;
}

bool push_to_nvtx(const char* name) {
  if (!nvtx_switch().load(std::memory_order_relaxed) || pushed_by_libtorch()) return false;
  const auto* stubs = torch::profiler::impl::cudaStubs();
  if (!stubs->enabled()) return false;
  stubs->rangePush(name);
  return true;
}

}  // namespace

Range::Range(const char* name) {
  if (std::optional<at::StepCallbacks> listeners = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE)) {
    record_ = std::make_unique<at::RecordFunction>(std::move(*listeners));
    record_->before(std::string_view(name));
  }
  pushed_ = push_to_nvtx(name);
}

Range::~Range() {
  if (pushed_) torch::profiler::impl::cudaStubs()->rangePop();
}

void Range::set_nvtx(bool on) { nvtx_switch() = on; }
bool Range::nvtx() { return nvtx_switch(); }

}  // namespace saturate
