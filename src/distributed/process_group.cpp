// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/process_group.hpp"

#include "../torch_seam/process_groups.hpp"
#include "saturate/distributed/waiting.hpp"
#include "saturate/error.hpp"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

namespace saturate::distributed {
namespace {

c10::Device device_of(const Launch& launch, const ProcessGroupOptions& options) {
  const auto gpus = static_cast<int>(at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0);
  if (options.device) {
    if (options.device->is_cuda() && gpus == 0) {
      throw ConfigError("distributed: the device is " + options.device->str() + ", but there is no GPU here");
    }
    return *options.device;
  }
  if (gpus == 0) return c10::Device(c10::kCPU);
  if (launch.local_rank >= gpus) {
    throw ConfigError(c10::str("distributed: local rank ", launch.local_rank, " on a host with ", gpus,
                               " GPUs; start as many ranks a host as it has, or give ProcessGroupOptions::device"));
  }
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(launch.local_rank));
}

Backend backend_of(Backend wanted, c10::Device device) {
  if (wanted == Backend::automatic) return device.is_cuda() ? Backend::nccl : Backend::gloo;
  if (wanted == Backend::nccl && !device.is_cuda()) {
    throw ConfigError("distributed: NCCL reduces between GPUs, and the device is " + device.str() + "; use Gloo there");
  }
  return wanted;
}

c10d::ReduceOp op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return c10d::ReduceOp::SUM;
    case ReduceOp::max: return c10d::ReduceOp::MAX;
    case ReduceOp::min: return c10d::ReduceOp::MIN;
  }
  return c10d::ReduceOp::SUM;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

struct ProcessGroup::Connected {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  Backend backend;
  mutable std::atomic<int> others = 0;

  /// A place in the store for one more group: never one where another has met. Ranks make groups in the same order.
  c10::intrusive_ptr<c10d::Store> place_for(const std::string& name) const {
    return torch_seam::with_prefix(name + "/" + std::to_string(others++), store);
  }

  static std::shared_ptr<const Connected> through(c10::intrusive_ptr<c10d::Store> store, Backend backend, int threads,
                                                  const ProcessGroup& of) {
    auto group = backend == Backend::nccl
                     ? torch_seam::nccl_group(store, of.rank(), of.world_size(), of.timeout_, of.device_)
                     : torch_seam::gloo_group(store, of.rank(), of.world_size(), of.timeout_, of.interface_, threads);
    auto connected = std::make_shared<Connected>();
    connected->store = std::move(store);
    connected->group = std::move(group);
    connected->backend = backend;
    return connected;
  }
};

ProcessGroup ProcessGroup::from_environment(const ProcessGroupOptions& options) {
  ReadVariable read;
  if (!options.file.empty()) {  // no address is needed then
    read = [](const std::string& name) -> std::optional<std::string> {
      const char* value = std::getenv(name.c_str());
      if (value != nullptr) return std::string(value);
      if (name == "MASTER_ADDR") return "file";
      if (name == "MASTER_PORT") return "1";
      return std::nullopt;
    };
  }
  return ProcessGroup(Launch::from_environment(read), options);
}

ProcessGroup::ProcessGroup(Launch launch, const ProcessGroupOptions& options)
    : launch_(std::move(launch)),
      device_(device_of(launch_, options)),
      timeout_(options.timeout),
      interface_(options.network_interface) {
  if (timeout_.count() <= 0) {
    throw ConfigError(c10::str("distributed: a timeout of ", timeout_.count(), " ms; give a positive one"));
  }
  const Backend backend = backend_of(options.backend, device_);
  if (options.file.empty()) launch_.validate();
  if (launch_.world_size == 1) return;
  run("meeting the other ranks", [&] {
    auto store = options.file.empty() ? torch_seam::tcp_store(launch_.master_addr, launch_.master_port,
                                                              launch_.rank == 0 && !launch_.store_is_served,
                                                              launch_.world_size, timeout_)
                                      : torch_seam::file_store(options.file, launch_.world_size);
    if (!launch_.store_prefix.empty()) store = torch_seam::with_prefix(launch_.store_prefix, std::move(store));
    connected_ = Connected::through(std::move(store), backend, /*threads=*/2, *this);
  });
}

ProcessGroup::ProcessGroup(const ProcessGroup& from, std::shared_ptr<const Connected> connected)
    : launch_(from.launch_),
      device_(from.device_),
      timeout_(from.timeout_),
      interface_(from.interface_),
      connected_(std::move(connected)) {}

ProcessGroup ProcessGroup::another(const std::string& name, int threads) const {
  if (connected_ == nullptr) return *this;
  std::shared_ptr<const Connected> connected;
  run("meeting the other ranks for group " + name,
      [&] { connected = Connected::through(connected_->place_for(name), connected_->backend, threads, *this); });
  return ProcessGroup(*this, std::move(connected));
}

ProcessGroup ProcessGroup::beside(const std::string& name) const {
  ProcessGroup host = *this;
  host.device_ = c10::Device(c10::kCPU);
  if (connected_ == nullptr) return host;
  run("meeting the other ranks for group " + name,
      [&] { host.connected_ = Connected::through(connected_->place_for(name), Backend::gloo, 1, host); });
  return host;
}

std::string ProcessGroup::backend_name() const {
  if (connected_ == nullptr) return "none";
  return connected_->backend == Backend::nccl ? "nccl" : "gloo";
}

const c10::intrusive_ptr<c10d::ProcessGroup>& ProcessGroup::c10d() const {
  static const c10::intrusive_ptr<c10d::ProcessGroup> none;
  return connected_ == nullptr ? none : connected_->group;
}

void ProcessGroup::run(const std::string& what, const std::function<void()>& wait) const {
  const Waiting waiting;
  try {
    wait();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DistributedError(c10::str("rank ", rank(), " of ", world_size(), ", ", what, ": ", first_line(error.what()),
                                    " (timeout ", timeout_.count(),
                                    " ms). A rank is gone, stopped or cut off; this "
                                    "group is of no use any more"));
  }
}

void ProcessGroup::all_reduce(const at::Tensor& tensor, ReduceOp op) const {
  if (connected_ == nullptr) return;
  run("all_reduce", [&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = op_of(op);
    options.timeout = timeout_;
    connected_->group->allreduce(tensors, options)->wait();
  });
}

void ProcessGroup::broadcast(const at::Tensor& tensor, int root) const {
  if (root < 0 || root >= world_size()) {
    throw ConfigError(c10::str("broadcast: root ", root, " of a world of ", world_size()));
  }
  if (connected_ == nullptr) return;
  run("broadcast", [&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout_;
    connected_->group->broadcast(tensors, options)->wait();
  });
}

at::Tensor ProcessGroup::all_gather(const at::Tensor& tensor) const {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), world_size());
  at::Tensor all = at::empty(sizes, tensor.options());
  if (connected_ == nullptr) {
    all[0].copy_(tensor);
    return all;
  }
  run("all_gather", [&] {
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (int64_t i = 0; i < world_size(); ++i) outputs[0].push_back(all[i]);
    std::vector<at::Tensor> inputs{tensor.contiguous()};
    c10d::AllgatherOptions options;
    options.timeout = timeout_;
    connected_->group->allgather(outputs, inputs, options)->wait();
  });
  return all;
}

void ProcessGroup::barrier() const {
  if (connected_ == nullptr) return;
  all_reduce(at::zeros({1}, at::TensorOptions(device_).dtype(at::kInt)));
}

bool ProcessGroup::any(bool here) const {
  if (connected_ == nullptr) return here;
  const at::Tensor flag = at::full({1}, here ? 1 : 0, at::TensorOptions(device_).dtype(at::kInt));
  all_reduce(flag, ReduceOp::max);
  return flag.item<int>() != 0;
}

std::vector<std::string> ProcessGroup::gather_text(const std::string& text) const {
  if (connected_ == nullptr) return {text};
  const at::Tensor length =
      at::full({1}, static_cast<int64_t>(text.size()), at::TensorOptions(device_).dtype(at::kLong));
  const at::Tensor lengths = all_gather(length).cpu();
  const int64_t longest = std::max<int64_t>(lengths.max().item<int64_t>(), 1);
  at::Tensor bytes = at::zeros({longest}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = all_gather(bytes.to(device_)).cpu();
  std::vector<std::string> result;
  for (int64_t i = 0; i < world_size(); ++i) {
    result.emplace_back(static_cast<const char*>(all[i].const_data_ptr()), lengths[i].item<int64_t>());
  }
  return result;
}

}  // namespace saturate::distributed
