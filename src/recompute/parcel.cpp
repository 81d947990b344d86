// SPDX-License-Identifier: Apache-2.0
#include "parcel.hpp"

#include "../torch_seam/saved_tensors.hpp"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace saturate::detail {
namespace {

std::atomic<int64_t> living_parcels = 0;

// A span begins on a multiple of this, so that what is in it is aligned as before.
constexpr std::size_t alignment = 512;
// Of a view that spans at least one part in so many of its storage, the whole storage is moved.
constexpr std::size_t parts = 4;

at::Tensor bytes_of(const c10::Storage& storage, const SavedSpan& span) {
  at::Tensor bytes = at::empty({0}, at::TensorOptions(storage.device()).dtype(at::kByte));
  return bytes.set_(storage, static_cast<int64_t>(span.begin), {static_cast<int64_t>(span.end - span.begin)}, {1});
}

bool is_plain(const at::Tensor& tensor) {
  return !tensor.is_nested() && tensor.layout() == at::kStrided && !tensor.is_quantized() && tensor.has_storage() &&
         tensor.numel() > 0 && !tensor.is_conj() && !tensor.is_neg() && !at::isTensorSubclassLike(tensor);
}

}  // namespace

int64_t parcels_alive() { return living_parcels; }

std::optional<SavedSpan> span_of(const at::Tensor& tensor) {
  if (!is_plain(tensor)) return std::nullopt;
  int64_t last = tensor.storage_offset();
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const auto item = static_cast<std::size_t>(tensor.itemsize());
  const std::size_t total = tensor.storage().nbytes();
  SavedSpan span{static_cast<std::size_t>(tensor.storage_offset()) * item, static_cast<std::size_t>(last + 1) * item};
  if (span.end > total) return std::nullopt;
  if ((span.end - span.begin) * parts >= total) return SavedSpan{0, total};
  span.begin -= span.begin % alignment;
  return span;
}

Geometry::Geometry(const at::Tensor& tensor, const SavedSpan& span)
    : sizes_(tensor.sizes().begin(), tensor.sizes().end()),
      strides_(tensor.strides().begin(), tensor.strides().end()),
      offset_(tensor.storage_offset() * tensor.itemsize() - static_cast<int64_t>(span.begin)),
      dtype_(tensor.scalar_type()) {}

at::Tensor Geometry::view(const at::Tensor& bytes) const {
  at::Tensor tensor = at::empty({0}, bytes.options().dtype(dtype_));
  return tensor.set_(bytes.storage(), (bytes.storage_offset() + offset_) / tensor.itemsize(), sizes_, strides_);
}

VersionWatch::VersionWatch(const at::Tensor& tensor)
    : counter_(tensor.unsafeGetTensorImpl()->version_counter()), version_(counter_.current_version()) {}

bool VersionWatch::is_of(const at::Tensor& tensor) const {
  return torch_seam::same_counter(counter_, tensor.unsafeGetTensorImpl()->version_counter()) && !changed();
}

Parcel::Parcel(std::shared_ptr<SavedStore> store, const at::Tensor& tensor, const SavedSpan& span, std::size_t block)
    : store_(std::move(store)),
      storage_(tensor.storage().getWeakStorageImpl()),
      span_(span),
      block_(block),
      device_(tensor.device()),
      versions_(tensor),
      out_(store_->place().send(bytes_of(tensor.storage(), span))) {
  ++living_parcels;
  store_->count([&](SavedCounts& counts) {
    ++counts.moved_tensors;
    counts.moved_bytes += static_cast<int64_t>(span.end - span.begin);
    counts.stored_bytes += static_cast<int64_t>(out_->to().nbytes());
    counts.peak_stored_bytes = std::max(counts.peak_stored_bytes, counts.stored_bytes);
  });
}

Parcel::~Parcel() {
  --living_parcels;
  store_->count([&](SavedCounts& counts) { counts.stored_bytes -= static_cast<int64_t>(out_->to().nbytes()); });
}

bool Parcel::serves(const at::Tensor& tensor, const SavedSpan& span) const {
  return span_.covers(span) && versions_.is_of(tensor);
}

bool Parcel::let_go_if_arrived() {
  if (!is_gone() && out_->arrived()) out_->let_go();
  return is_gone();
}

void Parcel::let_go_after_wait() {
  if (is_gone()) return;
  out_->wait();
  out_->let_go();
}

void Parcel::begin(int pass) {
  if (std::exchange(pass_, pass) != pass) asked_ = 0;
}

void Parcel::note_question() {
  if (!is_gone()) return;
  if (back_ != nullptr && !awaited_) store_->count([](SavedCounts& counts) { ++counts.fetched_ahead; });
  awaited_ = true;
}

void Parcel::start_fetching() {
  back_ = store_->place().fetch(out_->to(), device_);
  store_->count([](SavedCounts& counts) { ++counts.fetched; });
}

void Parcel::fetch_ahead(int pass) {
  begin(pass);
  if (asked_ == 0 && back_ == nullptr && is_gone()) start_fetching();
}

at::Tensor Parcel::take(int pass, bool first) {
  if (pass >= 0) begin(pass);
  if (pass >= 0 && first) ++asked_;
  if (!is_gone()) return out_->from();
  const bool there = back_ != nullptr;
  if (!there) start_fetching();
  back_->wait();
  at::Tensor bytes = back_->to();
  if (pass >= 0) {
    end_if_all_have_asked();
  } else if (!there) {
    forget();  // somebody looked, outside of backward
  }
  return bytes;
}

void Parcel::forget() {
  back_.reset();
  awaited_ = false;
}

void Parcel::remove_user(int pass) {
  --users_;
  if (pass == pass_ && asked_ > 0) --asked_;
  if (users_ > 0) end_if_all_have_asked();
}

// Who asks again, for another pass, has it fetched again.
void Parcel::end_if_all_have_asked() {
  if (asked_ >= users_) forget();
}

}  // namespace saturate::detail
