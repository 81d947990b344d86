// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/comm_hook.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace saturate::distributed {

c10::intrusive_ptr<c10::ivalue::Future> CommHook::all_reduce(const at::Tensor& tensor) const {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.timeout = group_.timeout();
  return group_.c10d()->allreduce(tensors, options)->getFuture();
}

c10::intrusive_ptr<c10::ivalue::Future> AllReduce::reduce(Bucket& bucket, double divisor) {
  if (divisor != 1) bucket.gradients.div_(divisor);  // before the sum, which may not fit otherwise
  return all_reduce(bucket.gradients);
}

}  // namespace saturate::distributed
