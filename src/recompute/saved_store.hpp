// SPDX-License-Identifier: Apache-2.0
// Tensors that autograd saves, kept elsewhere than where they are: which go, what they share, and when they come back.
// Where the bytes go is a SavedPlace's business.
#pragma once

#include "saturate/marks.hpp"
#include "saturate/recompute/saved_counts.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

namespace saturate::detail {

/// A copy that has been started.
class Transfer {
 public:
  Transfer(at::Tensor from, at::Tensor to) : from_(std::move(from)), to_(std::move(to)) {}
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Undefined once it was let go.
  const at::Tensor& from() const { return from_; }
  const at::Tensor& to() const { return to_; }
  /// Asks without waiting.
  virtual bool arrived() const { return true; }
  /// What this thread launches from now on runs after the copy; the thread itself does not wait.
  virtual void wait() {}
  /// To be called when the copy has arrived, or after wait().
  void let_go() { from_.reset(); }

 private:
  at::Tensor from_, to_;
};

/// Where saved bytes go. `bytes` are one-dimensional, uint8 and dense. Called by one thread at a time for one forward.
class SavedPlace {
 public:
  virtual ~SavedPlace() = default;
  /// Whether tensors like this one are for it; a strided one, with a storage.
  virtual bool takes(const at::Tensor& tensor) const = 0;
  virtual std::unique_ptr<Transfer> send(const at::Tensor& bytes) = 0;
  /// @param stored what an earlier send() made. @return with the same bytes, on `device`.
  virtual std::unique_ptr<Transfer> fetch(const at::Tensor& stored, c10::Device device) = 0;
  /// Whether it takes time to fetch.
  virtual bool worth_fetching_ahead() const = 0;
  /// For the warning that nothing was moved: "holds 1 MiB or more"
  virtual std::string what_it_takes(int64_t min_bytes) const = 0;
};

/// What a policy shares with its passes, and those with the graphs that they make.
class SavedStore {
 public:
  struct Settings {
    std::string policy;  // its name
    int64_t min_bytes;
    int64_t block_bytes;
  };
  SavedStore(Settings settings, std::unique_ptr<SavedPlace> place);

  void attach(const torch::nn::Module& model);
  /// nullptr before attach().
  const std::shared_ptr<const marks::Names>& names() const { return names_; }
  const Settings& settings() const { return settings_; }
  SavedPlace& place() { return *place_; }
  /// Storages of the model's parameters and buffers, as they are now.
  std::unordered_set<const c10::StorageImpl*> storages_of_model() const;

  SavedCounts counts() const;
  template <class Change>
  void count(Change change) {
    const std::lock_guard lock(mutex_);
    change(counts_);
  }
  /// At the end of a forward that has saved something. Warns when nothing has ever been moved.
  void pass_done();

 private:
  Settings settings_;
  std::unique_ptr<SavedPlace> place_;
  std::shared_ptr<const marks::Names> names_;
  std::vector<at::Tensor> tensors_of_model_;
  mutable std::mutex mutex_;
  SavedCounts counts_;
  bool looked_ = false;
};

/// Moved tensors that some graph still holds, in this process.
int64_t parcels_alive();

}  // namespace saturate::detail
