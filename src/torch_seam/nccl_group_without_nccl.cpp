// SPDX-License-Identifier: Apache-2.0
#include "process_groups.hpp"

#include "saturate/error.hpp"

namespace saturate::torch_seam {

c10::intrusive_ptr<c10d::ProcessGroup> nccl_group(c10::intrusive_ptr<c10d::Store>, int, int, std::chrono::milliseconds,
                                                  c10::Device) {
  throw ConfigError("distributed: saturate was built without NCCL; build it where a CUDA toolkit and nccl.h are");
}

}  // namespace saturate::torch_seam
