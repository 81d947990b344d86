// SPDX-License-Identifier: Apache-2.0
#include "saturate/trainer/halve_microbatch.hpp"

#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "saturate/trainer/step_support.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/StringUtil.h>

namespace saturate::detail {

at::Tensor rows_of(const at::Tensor& tensor, int64_t samples, int64_t begin, int64_t end) {
  if (!tensor.defined() || tensor.dim() == 0) return tensor;
  if (tensor.size(0) != samples) {
    throw StateError(c10::str("a batch cannot be split: it has ", samples, " samples and a tensor of shape ",
                              tensor.sizes(), "; each tensor has the samples along dimension 0"));
  }
  return tensor.narrow(0, begin, end - begin);
}

void MicrobatchHalving::halve(int64_t samples, std::exception_ptr error, const torch::nn::Module& module,
                              c10::Device device) {
  if (samples <= 1 && error) std::rethrow_exception(error);
  const bool here = error != nullptr;
  error = nullptr;
  parts_ *= 2;
  if (!device.is_cpu()) {
    if (auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()))) {
      allocator->emptyCache();  // its blocks have the sizes of the larger micro-batch
    }
  }
  log::warn(c10::str(
      here ? "" : "another rank is ", "out of memory with micro-batches of ", samples,
      " samples: the window starts again with ", (samples + 1) / 2, ", and every window from now on has ", parts_,
      " micro-batches for each that it is given. The gradient is the same but for rounding, unless the "
      "model draws random numbers (dropout)",
      has_batch_norm(module) ? "; this one has BatchNorm, whose statistics are now over fewer samples" : ""));
}

}  // namespace saturate::detail
