// SPDX-License-Identifier: Apache-2.0
#include "offload_places.hpp"

#include "bytes_text.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include <cstring>
#include <memory>
#include <utility>

namespace saturate::detail {
namespace {

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device); }

/// Between the device and the host, on a side stream.
///
/// The device's end belongs to the stream that was current when the copy was started, and the caching allocator may
/// give its memory to that stream's next operator as soon as nobody holds it. So whoever lets it go makes its stream
/// wait for the copy first; where nobody did, the allocator is told of the side stream. (Telling it always would be
/// simpler, but then memory comes back whenever the allocator happens to look, and the peak depends on how far ahead
/// the host is.)
class StreamCopy final : public Transfer {
 public:
  StreamCopy(const at::Tensor& from, at::Tensor to, c10::Stream side)
      : Transfer(from, std::move(to)), side_(side), owner_(current_stream(side.device())), done_(c10::kCUDA) {
    c10::Event ready(c10::kCUDA);
    ready.record(owner_);
    ready.block(side_);
    const c10::StreamGuard on_side(side_);
    this->to().copy_(from, /*non_blocking=*/true);
    done_.record(side_);
  }
  ~StreamCopy() override {
    try {
      if (!ordered_ && !done_.query()) tell_allocator(side_);
    } catch (...) {  // NOLINT(bugprone-empty-catch): the device is gone, and so is what could go wrong
    }
  }

  bool arrived() const override { return done_.query(); }
  void wait() override {
    const c10::Stream current = current_stream(side_.device());
    done_.block(current);
    if (current != owner_) tell_allocator(current);
    ordered_ = true;
  }

 private:
  void tell_allocator(c10::Stream stream) const {
    for (const at::Tensor& end : {from(), to()}) {
      if (end.defined() && end.is_cuda()) end.record_stream(stream);
    }
  }

  c10::Stream side_, owner_;
  c10::Event done_;
  bool ordered_ = false;
};

std::unique_ptr<Transfer> copied(const at::Tensor& from, at::Tensor to) {
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  return std::make_unique<Transfer>(from, std::move(to));
}

std::string as_large_as(int64_t min_bytes) { return c10::str("holds min_bytes (", bytes_text(min_bytes), ") or more"); }

}  // namespace

c10::Stream PinnedHost::stream_of(c10::Device device) {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(device.index());
  if (found != streams_.end()) return found->second;
  const c10::Stream stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device);
  return streams_.emplace(device.index(), stream).first->second;
}

std::unique_ptr<Transfer> PinnedHost::send(const at::Tensor& bytes) {
  at::Tensor host = at::empty(bytes.sizes(), at::TensorOptions(at::kByte).pinned_memory(true));
  return std::make_unique<StreamCopy>(bytes, std::move(host), stream_of(bytes.device()));
}

std::unique_ptr<Transfer> PinnedHost::fetch(const at::Tensor& stored, c10::Device device) {
  at::Tensor bytes = at::empty(stored.sizes(), at::TensorOptions(at::kByte).device(device));
  return std::make_unique<StreamCopy>(stored, std::move(bytes), stream_of(device));
}

std::string PinnedHost::what_it_takes(int64_t min_bytes) const {
  return "is on a CUDA device and " + as_large_as(min_bytes);
}

std::unique_ptr<Transfer> CpuCopy::send(const at::Tensor& bytes) {
  auto memory = std::make_unique<std::byte[]>(bytes.nbytes());
  const auto release = [](void* data) { delete[] static_cast<std::byte*>(data); };
  at::Tensor copy = at::from_blob(memory.get(), bytes.sizes(), release, bytes.options());
  memory.release();  // NOLINT(bugprone-unused-return-value): the tensor's now
  return copied(bytes, std::move(copy));
}

std::unique_ptr<Transfer> CpuCopy::fetch(const at::Tensor& stored, c10::Device) {
  return copied(stored, at::empty(stored.sizes(), stored.options()));
}

std::string CpuCopy::what_it_takes(int64_t min_bytes) const { return as_large_as(min_bytes); }

}  // namespace saturate::detail
