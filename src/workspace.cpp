// SPDX-License-Identifier: Apache-2.0
#include "saturate/workspace.hpp"

#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/Stream.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

namespace saturate {
namespace {

constexpr int64_t alignment = 256;

int64_t padded(int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

struct Block {
  at::Tensor bytes;  // [capacity] uint8
  int64_t used = 0;
  std::size_t pieces = 0;  // taken from it and not given back
  bool escaped = false;    // somebody outside still has a part of it: nothing more is taken from it

  bool has_room(int64_t size) const { return !escaped && used + size <= bytes.numel(); }
  // Besides the block itself, each piece that is out refers to the storage.
  bool held_outside() const { return bytes.storage().use_count() > pieces + 1; }
};

// The blocks of one device and stream.
struct Arena {
  c10::Device device;
  c10::StreamId stream;
  std::vector<Block> blocks;
  int64_t needed = 0, most_needed = 0;  // bytes out at once

  int64_t capacity() const {
    int64_t total = 0;
    for (const Block& block : blocks) total += block.bytes.numel();
    return total;
  }

  Block& with_room(int64_t size) {
    // Only behind the last block in use: pieces come back in reverse order.
    std::size_t next = blocks.size();
    while (next > 0 && blocks[next - 1].pieces == 0) --next;
    if (next > 0 && blocks[next - 1].has_room(size)) return blocks[next - 1];
    for (; next < blocks.size(); ++next) {
      if (blocks[next].has_room(size)) return blocks[next];
    }
    const int64_t capacity = std::max({size, most_needed, needed});
    blocks.push_back({at::empty({capacity}, at::TensorOptions(device).dtype(at::kByte))});
    return blocks.back();
  }

  // With nothing out: one block for the next round, and none that is not ours alone.
  void tidy() {
    std::erase_if(blocks, [](const Block& block) { return block.escaped; });
    if (blocks.size() > 1 || (blocks.size() == 1 && blocks[0].bytes.numel() < most_needed)) blocks.clear();
  }
};

struct Piece {
  at::Tensor tensor;
  std::size_t arena, block;
  int64_t used_before, size;
};

void check(at::IntArrayRef sizes, const at::TensorOptions& options) {
  for (const int64_t size : sizes) {
    if (size < 0) throw ConfigError(c10::str("Workspace: a size is negative in ", sizes));
  }
  if (options.requires_grad()) {
    throw ConfigError("Workspace: requires_grad is set; scratch tensors take no gradient, make a tensor of your own");
  }
  if (options.pinned_memory()) throw ConfigError("Workspace: pinned memory is not kept here; use at::empty for it");
  if (options.layout() != at::kStrided) throw ConfigError("Workspace: only strided tensors can be taken");
}

// What at::empty makes, on memory that is there.
at::Tensor tensor_on(const Block& block, int64_t offset, at::IntArrayRef sizes, c10::ScalarType dtype) {
  const auto key = block.bytes.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(block.bytes.storage()), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(dtype));
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  impl->set_storage_offset(offset / static_cast<int64_t>(c10::elementSize(dtype)));
  return result;
}

}  // namespace

struct Workspace::Impl {
  std::vector<Arena> arenas;
  std::vector<Piece> pieces;  // that are out, the last one taken last
  std::size_t scopes = 0;
  std::thread::id thread;

  std::size_t arena_of(c10::Device device) {
    const bool streams = !device.is_cpu();
    const c10::StreamId stream = streams ? c10::impl::VirtualGuardImpl(device.type()).getStream(device).id() : 0;
    const auto found = std::find_if(arenas.begin(), arenas.end(),
                                    [&](const Arena& a) { return a.device == device && a.stream == stream; });
    if (found != arenas.end()) return static_cast<std::size_t>(found - arenas.begin());
    arenas.push_back({device, stream, {}});
    return arenas.size() - 1;
  }

  void give_back(std::size_t until) {
    bool escaped = false;
    while (pieces.size() > until) {
      Piece piece = std::move(pieces.back());
      pieces.pop_back();
      Arena& arena = arenas[piece.arena];
      Block& block = arena.blocks[piece.block];
      piece.tensor.reset();
      --block.pieces;
      block.used = piece.used_before;
      arena.needed -= piece.size;
      block.escaped = block.escaped || block.held_outside();
      escaped = escaped || block.escaped;
    }
    if (escaped) {
      log::warn_once(
          "workspace.escaped",
          "a tensor of a Workspace, or a view of it, is still held after its scope: it keeps its memory, and "
          "the Workspace allocates anew each time; let it go within the scope, or make it with at::empty");
    }
    if (pieces.empty()) {
      for (Arena& arena : arenas) arena.tidy();
    }
  }

  void require_no_scope(const char* what) const {
    if (scopes > 0) throw StateError(c10::str("Workspace: ", what, " inside a Scope; leave the scope first"));
  }
};

Workspace::Workspace() : impl_(std::make_unique<Impl>()) {}
Workspace::~Workspace() = default;
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;

at::Tensor Workspace::take(at::IntArrayRef sizes, const at::TensorOptions& options) {
  check(sizes, options);
  Impl& impl = *impl_;
  if (impl.pieces.empty()) {
    impl.thread = std::this_thread::get_id();
  } else if (impl.thread != std::this_thread::get_id()) {
    throw StateError("Workspace: another thread has tensors of it; give each thread a Workspace of its own");
  }
  c10::Device device = options.device();
  if (!device.is_cpu() && !device.is_cuda()) {
    throw ConfigError("Workspace: no memory is kept on device " + device.str() + "; use the CPU or a GPU");
  }
  if (!device.is_cpu() && !device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  uint64_t elements = 0, bytes = 0;
  const bool too_large = c10::safe_multiplies_u64(sizes, &elements) ||
                         c10::mul_overflows(elements, static_cast<uint64_t>(c10::elementSize(dtype)), &bytes) ||
                         bytes > (uint64_t{1} << 62);
  if (too_large) throw ConfigError(c10::str("Workspace: ", sizes, " is more than memory can hold"));
  const int64_t size = padded(static_cast<int64_t>(bytes));

  const std::size_t arena_index = impl.arena_of(device);
  Arena& arena = impl.arenas[arena_index];
  Block& block = arena.with_room(size);
  at::Tensor result = tensor_on(block, block.used, sizes, dtype);
  impl.pieces.push_back(
      {result, arena_index, static_cast<std::size_t>(&block - arena.blocks.data()), block.used, size});
  ++block.pieces;
  block.used += size;
  arena.needed += size;
  arena.most_needed = std::max(arena.most_needed, arena.needed);
  return result;
}

Workspace::Scope::Scope(Workspace& workspace) : workspace_(workspace), taken_before_(workspace.impl_->pieces.size()) {
  ++workspace_.impl_->scopes;
}

Workspace::Scope::~Scope() {
  --workspace_.impl_->scopes;
  workspace_.impl_->give_back(taken_before_);
}

void Workspace::reset() {
  impl_->require_no_scope("reset()");
  impl_->give_back(0);
}

void Workspace::clear() {
  reset();
  impl_->arenas.clear();
}

int64_t Workspace::bytes() const {
  int64_t total = 0;
  for (const Arena& arena : impl_->arenas) total += arena.capacity();
  return total;
}

}  // namespace saturate
