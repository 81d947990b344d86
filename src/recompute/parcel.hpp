// SPDX-License-Identifier: Apache-2.0
// A stretch of a storage that was moved, shared by the saved tensors that lie in it.
#pragma once

#include "saved_store.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace saturate::detail {

/// Bytes [begin, end) of a storage.
struct SavedSpan {
  std::size_t begin = 0, end = 0;
  bool covers(const SavedSpan& other) const { return begin <= other.begin && other.end <= end; }
};

/// What is to be moved so that `tensor` can be made again: of a view of much of its storage the whole storage, because
/// the rest is likely to be saved too; of a sliver the sliver. Nothing for what has no plain strided storage.
std::optional<SavedSpan> span_of(const at::Tensor& tensor);

/// How a tensor lies in its storage.
class Geometry {
 public:
  Geometry(const at::Tensor& tensor, const SavedSpan& span);
  at::Tensor view(const at::Tensor& bytes) const;

 private:
  c10::SmallVector<int64_t, 5> sizes_, strides_;
  int64_t offset_;  // in bytes, from the beginning of the span
  at::ScalarType dtype_;
};

/// Notices changes in place of a tensor that it does not keep.
class VersionWatch {
 public:
  explicit VersionWatch(const at::Tensor& tensor);
  bool changed() const { return counter_.current_version() != version_; }
  /// Whether `tensor` has the values of then, given that it has the same storage.
  bool is_of(const at::Tensor& tensor) const;
  uint32_t then() const { return version_; }
  uint32_t now() const { return counter_.current_version(); }

 private:
  c10::VariableVersion counter_;
  uint32_t version_;
};

/// Guarded by the lock of its forward.
class Parcel {
 public:
  static constexpr int no_pass = -2;  // unlike any pass, and unlike -1: outside of one

  Parcel(std::shared_ptr<SavedStore> store, const at::Tensor& tensor, const SavedSpan& span, std::size_t block);
  ~Parcel();
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  bool serves(const at::Tensor& tensor, const SavedSpan& span) const;
  const SavedSpan& span() const { return span_; }
  std::size_t block() const { return block_; }
  const VersionWatch& versions() const { return versions_; }

  /// Whether the tensor where it was may be let go, or has been.
  bool is_gone() const { return !out_->from().defined(); }
  bool let_go_if_arrived();
  void let_go_after_wait();

  /// One saved tensor more, or less; `asked` in backward pass `pass` or an earlier one.
  void add_user() { ++users_; }
  void remove_user(int pass);
  /// Backward asks for it: before fetch_ahead() and take().
  void note_question();
  /// Starts the copy back for backward pass `pass`.
  void fetch_ahead(int pass);
  /// The bytes. @param pass number of the backward pass, below 0 outside of one; @param first this user's first
  /// question in it.
  at::Tensor take(int pass, bool first);

 private:
  /// A new pass counts anew.
  void begin(int pass);
  void start_fetching();
  void forget();
  void end_if_all_have_asked();

  std::shared_ptr<SavedStore> store_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;  // so that no other one gets its address
  SavedSpan span_;
  std::size_t block_;
  c10::Device device_;
  VersionWatch versions_;
  std::unique_ptr<Transfer> out_, back_;
  int users_ = 0;
  int pass_ = no_pass;  // the last backward pass, and how many users have asked in it
  int asked_ = 0;
  bool awaited_ = false;  // backward has asked since back_ was last empty
};

}  // namespace saturate::detail
