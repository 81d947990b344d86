// SPDX-License-Identifier: Apache-2.0
#include "process_groups.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace saturate::torch_seam {

c10::intrusive_ptr<c10d::ProcessGroup> nccl_group(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                                                  std::chrono::milliseconds timeout, c10::Device device) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, world_size, options);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, world_size);
  group->setBoundDeviceId(device);
  group->setDefaultBackend(c10d::ProcessGroup::NCCL);
  group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::NCCL, backend);
  return group;
}

}  // namespace saturate::torch_seam
