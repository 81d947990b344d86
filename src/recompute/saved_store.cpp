// SPDX-License-Identifier: Apache-2.0
#include "saved_store.hpp"

#include "../torch_seam/saved_tensors.hpp"
#include "bytes_text.hpp"
#include "captured_state.hpp"
#include "parcel.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "saturate/recompute/detail/saved_pass.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <unordered_map>
#include <utility>

namespace saturate::detail {
namespace {

/// The parcels of one forward, in blocks; shared by the hooks of all tensors that it saved.
class SavedForward final : public torch_seam::SavedTensorPacker, public std::enable_shared_from_this<SavedForward> {
 public:
  explicit SavedForward(std::shared_ptr<SavedStore> store)
      : store_(std::move(store)), storages_of_model_(store_->storages_of_model()) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;
  /// What is saved from now on is of another block.
  void cut() { cut_ = true; }
  void forward_done() {
    const std::lock_guard lock(mutex_);
    by_storage_.clear();
  }
  bool saved_any() const { return saved_any_; }

 private:
  class Hooks;
  struct BlockOfParcels {
    std::vector<std::weak_ptr<Parcel>> parcels;
    std::size_t bytes = 0;
    int pass = Parcel::no_pass;  // the last backward pass that its copies were started for
  };

  std::shared_ptr<Parcel> parcel_for(const at::Tensor& tensor, const SavedSpan& span);
  std::shared_ptr<Parcel> find(const at::Tensor& tensor, const SavedSpan& span);
  bool is_of_model(const at::Tensor& tensor) const;
  void count_kept(const at::Tensor& tensor);
  void begin_block();
  void let_go_of_what_arrived();
  void fetch_block(std::size_t number, int pass);

  const std::shared_ptr<SavedStore> store_;
  const std::unordered_set<const c10::StorageImpl*> storages_of_model_;
  std::unordered_map<const c10::StorageImpl*, std::vector<std::weak_ptr<Parcel>>> by_storage_;
  std::vector<BlockOfParcels> blocks_;
  std::deque<std::weak_ptr<Parcel>> on_the_way_;  // out, in order
  bool cut_ = true;
  bool saved_any_ = false;
  std::mutex mutex_;  // backward runs on several threads
};

/// One saved tensor.
class SavedForward::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<SavedForward> forward) : forward_(std::move(forward)) {}
  ~Hooks() override {
    if (parcel_ == nullptr) return;
    const std::lock_guard lock(forward_->mutex_);
    parcel_->remove_user(asked_in_);
  }
  void call_pack_hook(const at::Tensor& tensor) override;
  at::Tensor call_unpack_hook() override { return parcel_ == nullptr ? kept() : moved(); }

 private:
  at::Tensor kept() const;
  at::Tensor moved();
  StateError changed(const std::string& story) const {
    return StateError(c10::str(forward_->store_->settings().policy,
                               ": a tensor that forward saved for backward was changed in place since (", story,
                               "), so a gradient from it would be wrong; change a copy, or after backward"));
  }

  std::shared_ptr<SavedForward> forward_;
  KeptTensor kept_;
  std::shared_ptr<Parcel> parcel_;  // or where it went
  std::optional<Geometry> geometry_;
  int asked_in_ = Parcel::no_pass;
};

void SavedForward::Hooks::call_pack_hook(const at::Tensor& tensor) {
  const std::lock_guard lock(forward_->mutex_);
  if (!forward_->is_of_model(tensor)) {
    forward_->saved_any_ = true;
    const auto span = span_of(tensor);
    if (span && static_cast<int64_t>(tensor.storage().nbytes()) >= forward_->store_->settings().min_bytes &&
        forward_->store_->place().takes(tensor)) {
      auto parcel = forward_->parcel_for(tensor, *span);
      geometry_.emplace(tensor, parcel->span());
      parcel->add_user();
      parcel_ = std::move(parcel);
      return;
    }
    forward_->count_kept(tensor);
  }
  kept_ = KeptTensor(tensor);
}

at::Tensor SavedForward::Hooks::kept() const {
  if (kept_.changed()) throw changed(kept_.story());
  return kept_.values();
}

at::Tensor SavedForward::Hooks::moved() {
  const std::lock_guard lock(forward_->mutex_);
  const VersionWatch& versions = parcel_->versions();
  if (versions.changed()) throw changed(c10::str("version ", versions.then(), ", now ", versions.now()));
  const int pass = torch::autograd::get_current_graph_task_id();
  parcel_->note_question();
  if (pass >= 0 && forward_->store_->place().worth_fetching_ahead()) {
    forward_->fetch_block(parcel_->block(), pass);
    if (parcel_->block() > 0) forward_->fetch_block(parcel_->block() - 1, pass);
  }
  const bool first = std::exchange(asked_in_, pass) != pass;
  return geometry_->view(parcel_->take(pass, first));
}

std::unique_ptr<torch::autograd::SavedVariableHooks> SavedForward::hooks() {
  return std::make_unique<Hooks>(shared_from_this());
}

// These are there anyway, and so are views of them.
bool SavedForward::is_of_model(const at::Tensor& tensor) const {
  const at::Tensor base = tensor.is_view() ? at::Tensor(tensor._base()) : tensor;
  if (base.is_leaf() && base.requires_grad()) return true;
  return !tensor.is_nested() && tensor.has_storage() &&
         storages_of_model_.contains(tensor.storage().unsafeGetStorageImpl());
}

void SavedForward::count_kept(const at::Tensor& tensor) {
  const bool plain = !tensor.is_nested() && tensor.has_storage();
  const int64_t bytes = plain ? static_cast<int64_t>(tensor.storage().nbytes()) : 0;
  store_->count([&](SavedCounts& counts) {
    ++counts.kept_tensors;
    counts.kept_bytes += bytes;
    counts.largest_kept = std::max(counts.largest_kept, bytes);
  });
}

std::shared_ptr<Parcel> SavedForward::find(const at::Tensor& tensor, const SavedSpan& span) {
  auto& parcels = by_storage_[tensor.storage().unsafeGetStorageImpl()];
  std::erase_if(parcels, [](const auto& parcel) { return parcel.expired(); });
  for (const auto& one : parcels) {
    if (auto parcel = one.lock(); parcel != nullptr && parcel->serves(tensor, span)) return parcel;
  }
  return nullptr;
}

std::shared_ptr<Parcel> SavedForward::parcel_for(const at::Tensor& tensor, const SavedSpan& span) {
  if (auto found = find(tensor, span)) return found;
  let_go_of_what_arrived();
  if (cut_ || blocks_.back().bytes >= static_cast<std::size_t>(store_->settings().block_bytes)) begin_block();
  auto parcel = std::make_shared<Parcel>(store_, tensor, span, blocks_.size() - 1);
  blocks_.back().bytes += span.end - span.begin;
  blocks_.back().parcels.push_back(parcel);
  by_storage_[tensor.storage().unsafeGetStorageImpl()].push_back(parcel);
  if (!parcel->let_go_if_arrived()) on_the_way_.push_back(parcel);
  return parcel;
}

// The device holds the tensors of the block before on their way out, and not of more blocks: the next operator waits
// for older ones there. Otherwise memory would depend on how far the host is ahead.
void SavedForward::begin_block() {
  cut_ = false;
  blocks_.emplace_back();
  while (!on_the_way_.empty()) {
    if (const auto parcel = on_the_way_.front().lock()) {
      if (parcel->block() + 2 >= blocks_.size()) break;
      parcel->let_go_after_wait();
    }
    on_the_way_.pop_front();
  }
}

void SavedForward::let_go_of_what_arrived() {
  while (!on_the_way_.empty()) {
    const auto parcel = on_the_way_.front().lock();
    if (parcel != nullptr && !parcel->let_go_if_arrived()) return;
    on_the_way_.pop_front();
  }
}

void SavedForward::fetch_block(std::size_t number, int pass) {
  BlockOfParcels& block = blocks_[number];
  if (std::exchange(block.pass, pass) == pass) return;
  for (auto one = block.parcels.rbegin(); one != block.parcels.rend(); ++one) {
    if (const auto parcel = one->lock()) parcel->fetch_ahead(pass);
  }
}

/// Tells where blocks begin and end.
class BlockObserver final : public marks::Observer {
 public:
  explicit BlockObserver(SavedForward& forward) : forward_(forward) {}
  void enter(const std::vector<std::string>& names, const torch::nn::Module&) override {
    if (!names.front().empty() && depth_++ == 0) forward_.cut();
  }
  void leave(const std::vector<std::string>& names, const torch::nn::Module&) noexcept override {
    if (!names.front().empty() && --depth_ == 0) forward_.cut();
  }

 private:
  SavedForward& forward_;
  int depth_ = 0;
};

}  // namespace

// The store ----------------------------------------------------------------------------------------------------------

SavedStore::SavedStore(Settings settings, std::unique_ptr<SavedPlace> place)
    : settings_(std::move(settings)), place_(std::move(place)) {}

void SavedStore::attach(const torch::nn::Module& model) {
  auto names = marks::bind(model);
  std::vector<at::Tensor> tensors = model.parameters();
  for (const at::Tensor& buffer : model.buffers()) tensors.push_back(buffer);
  names_ = std::move(names);
  tensors_of_model_ = std::move(tensors);
}

std::unordered_set<const c10::StorageImpl*> SavedStore::storages_of_model() const {
  std::unordered_set<const c10::StorageImpl*> storages;
  for (const at::Tensor& tensor : tensors_of_model_) {
    if (tensor.defined() && tensor.has_storage()) storages.insert(tensor.storage().unsafeGetStorageImpl());
  }
  return storages;
}

SavedCounts SavedStore::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void SavedStore::pass_done() {
  if (std::exchange(looked_, true)) return;
  const SavedCounts now = counts();
  if (now.moved_tensors > 0) return;
  log::warn(c10::str(settings_.policy, " has no effect: of the ", now.kept_tensors,
                     " tensors that forward saved for backward, none ", place_->what_it_takes(settings_.min_bytes),
                     "; the largest of them holds ", bytes_text(now.largest_kept), " (docs/recompute.md)"));
}

// A pass -------------------------------------------------------------------------------------------------------------

struct SavedPass::Impl {
  explicit Impl(std::shared_ptr<SavedStore> its_store)
      : store(std::move(its_store)),
        forward(std::make_shared<SavedForward>(store)),
        observer(*forward),
        marks(store->names(), &observer),
        packing(forward.get()) {}

  ~Impl() {
    try {
      forward->forward_done();
      if (forward->saved_any() && std::uncaught_exceptions() == exceptions) store->pass_done();
    } catch (...) {  // NOLINT(bugprone-empty-catch): a warning that cannot be written ends no training
    }
  }

  std::shared_ptr<SavedStore> store;
  std::shared_ptr<SavedForward> forward;
  BlockObserver observer;
  marks::Scope marks;
  torch_seam::PackScope packing;
  int exceptions = std::uncaught_exceptions();
};

SavedPass::SavedPass(std::shared_ptr<SavedStore> store) {
  const std::string& policy = store->settings().policy;
  if (store->names() == nullptr) throw StateError(policy + ": attach(model) before the first forward");
  if (!torch_seam::install_engine()) {
    throw StateError(policy +
                     ": another autograd engine (Python's?) is installed, which does not hand over the "
                     "tensors that forward saves; use st::recompute, which works there too");
  }
  impl_ = std::make_unique<Impl>(std::move(store));
}
SavedPass::~SavedPass() = default;
SavedPass::SavedPass(SavedPass&&) noexcept = default;

}  // namespace saturate::detail
