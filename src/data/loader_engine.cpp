// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/detail/loader_engine.hpp"

#include "device_transfer.hpp"
#include "saturate/data/sampler.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "slot_pool.hpp"

#include <ATen/Context.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace saturate::data::detail {
namespace {

using Order = std::shared_ptr<const std::vector<int64_t>>;
using Clock = std::chrono::steady_clock;

int64_t nanoseconds_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "something that is no std::exception was thrown";
  }
}

void check(const LoaderOptions& options, int64_t size) {
  const auto refuse = [](const char* name, int64_t value, const char* rule) {
    throw ConfigError("LoaderOptions: " + std::string(name) + " is " + std::to_string(value) + "; " + rule);
  };
  if (options.batch_size < 1) refuse("batch_size", options.batch_size, "a batch has at least one sample");
  if (options.workers < 0) refuse("workers", options.workers, "0 reads on the calling thread, 1 or more are threads");
  if (options.prefetch < 1)
    refuse("prefetch", options.prefetch, "at least one batch is read ahead; workers = 0 reads none ahead");
  if (size < 1)
    throw DataError("PrefetchLoader: the source has " + std::to_string(size) + " samples; there is nothing to read");
}

void warn_about(const LoaderOptions& options, int64_t size) {
  if (options.workers > options.prefetch) {
    const std::string message = "PrefetchLoader: " + std::to_string(options.workers) + " workers with prefetch " +
                                std::to_string(options.prefetch) +
                                ": as many workers as batches read ahead can be busy, the others wait";
    log::warn_once(message, message);
  }
  if (options.drop_last && size < options.batch_size) {
    log::warn("PrefetchLoader: drop_last leaves no batch: " + std::to_string(size) +
              " samples are fewer than batch_size " + std::to_string(options.batch_size));
  }
  if (options.pin_memory && !at::hasCUDA()) {
    log::warn_once("data.pin_memory", "PrefetchLoader: pin_memory has no effect: there is no CUDA device");
  }
}

}  // namespace

void throw_for_sample(int64_t index) {
  std::throw_with_nested(
      DataError("sample " + std::to_string(index) + " could not be read: " + message_of(std::current_exception())));
}

class LoaderEngine::Impl {
 public:
  Impl(std::unique_ptr<const BatchReader> reader, std::vector<FieldLayout> layout, int64_t size,
       const LoaderOptions& options);
  ~Impl();

  void set_epoch(int64_t epoch, int64_t first_batch);
  void start();
  bool next(std::span<at::Tensor> fields);
  LoaderStats stats() const;

  int64_t batches() const { return batches_; }
  int64_t epoch() const { return epoch_; }

 private:
  /// One batch that was read, or what went wrong.
  struct Entry {
    bool ready = false;
    std::vector<at::Tensor> tensors;
    std::optional<DeviceTransfer::Copied> copied;
    std::exception_ptr error;
  };
  struct Claim {
    uint64_t run = 0;
    int64_t batch = 0;
    Order order;
  };

  void work();
  bool can_claim() const { return claimed_ < end_ && claimed_ < taken_ + depth_; }
  Claim claim() { return {run_.load(std::memory_order_relaxed), claimed_++, order_}; }
  Entry& entry(int64_t batch) { return ring_[static_cast<std::size_t>(batch % depth_)]; }
  Entry take();
  void leave();
  void spawn_workers();

  Entry read(const Claim& claim) noexcept;
  void read_into_slot(std::span<const int64_t> indices, const Wanted& wanted, Entry& result);
  void read_into_pinned(std::span<const int64_t> indices, const Wanted& wanted, Entry& result);

  const std::unique_ptr<const BatchReader> reader_;
  const std::vector<FieldLayout> layout_;
  const LoaderOptions options_;
  const int64_t size_;
  const int64_t depth_;
  const int64_t batches_;
  const bool pinned_;
  std::optional<DeviceTransfer> transfer_;
  std::shared_ptr<SlotPool> slots_;
  int64_t epoch_ = 0;
  int64_t first_batch_ = 0;

  std::mutex mutex_;  // guards what follows; workers only ever hold it for a few instructions
  std::condition_variable work_;
  std::condition_variable ready_;
  std::atomic<uint64_t> run_{
      0};  // changes when an epoch starts or is left; reads under way look at it without the lock
  Order order_;
  int64_t claimed_ = 0;  // batches before this one are read or being read
  int64_t taken_ = 0;    // batches before this one were handed over
  int64_t end_ = 0;
  bool stopping_ = false;
  std::vector<Entry> ring_;

  std::atomic<int64_t> handed_over_{0};
  std::atomic<int64_t> waited_ns_{0};
  std::atomic<int64_t> read_ns_{0};
  std::vector<std::thread> workers_;
};

LoaderEngine::Impl::Impl(std::unique_ptr<const BatchReader> reader, std::vector<FieldLayout> layout, int64_t size,
                         const LoaderOptions& options)
    : reader_(std::move(reader)),
      layout_(std::move(layout)),
      options_((check(options, size), options)),
      size_(size),
      depth_(options.prefetch),
      batches_(options.drop_last ? size / options.batch_size : (size - 1) / options.batch_size + 1),
      pinned_(!options.device.is_cpu() || (options.pin_memory && at::hasCUDA())),
      ring_(static_cast<std::size_t>(options.prefetch)) {
  if (!options.device.is_cpu()) transfer_.emplace(options.device);
  warn_about(options, size);
  // Read ahead, held by the loop, and one a worker for an epoch that was just left.
  const int64_t expected = 1 + (options.workers == 0 ? 1 : options.prefetch + options.workers);
  slots_ = std::make_shared<SlotPool>(layout_, std::min(options.batch_size, size), expected);
}

LoaderEngine::Impl::~Impl() {
  leave();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void LoaderEngine::Impl::set_epoch(int64_t epoch, int64_t first_batch) {
  if (epoch < 0) throw ConfigError("set_epoch: epoch is " + std::to_string(epoch) + "; epochs count from 0");
  if (first_batch < 0 || first_batch > batches_) {
    throw ConfigError("set_epoch: first_batch is " + std::to_string(first_batch) + "; an epoch has " +
                      std::to_string(batches_) + " batches");
  }
  epoch_ = epoch;
  first_batch_ = first_batch;
}

void LoaderEngine::Impl::spawn_workers() {
  while (static_cast<int64_t>(workers_.size()) < options_.workers) workers_.emplace_back([this] { work(); });
}

void LoaderEngine::Impl::start() {
  leave();
  auto order =
      std::make_shared<const std::vector<int64_t>>(epoch_order(size_, options_.shuffle, options_.seed, epoch_));
  spawn_workers();
  {
    const std::lock_guard lock(mutex_);
    order_ = std::move(order);
    claimed_ = taken_ = first_batch_;
    end_ = batches_;
  }
  work_.notify_all();
  ++epoch_;
  first_batch_ = 0;
}

// Batches that nobody will ask for any more are dropped; those being read are dropped by their workers.
void LoaderEngine::Impl::leave() {
  std::vector<Entry> dropped(ring_.size());  // destroyed after the lock
  const std::lock_guard lock(mutex_);
  run_.fetch_add(1, std::memory_order_relaxed);
  claimed_ = taken_ = end_ = 0;
  order_.reset();
  ring_.swap(dropped);
}

void LoaderEngine::Impl::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stopping_ || can_claim(); });
    if (stopping_) return;
    const Claim mine = claim();
    lock.unlock();
    Entry result = read(mine);
    lock.lock();
    if (mine.run != run_.load(std::memory_order_relaxed)) {
      lock.unlock();
      result = Entry{};  // gives its slot back outside the lock
      lock.lock();
      continue;
    }
    entry(mine.batch) = std::move(result);
    if (mine.batch == taken_) ready_.notify_one();
  }
}

LoaderEngine::Impl::Entry LoaderEngine::Impl::take() {
  std::unique_lock lock(mutex_);
  if (options_.workers == 0) {
    const Claim mine = claim();
    ++taken_;
    lock.unlock();
    return read(mine);
  }
  ready_.wait(lock, [this] { return entry(taken_).ready; });
  Entry taken = std::exchange(entry(taken_), Entry{});
  ++taken_;
  lock.unlock();
  work_.notify_one();
  return taken;
}

bool LoaderEngine::Impl::next(std::span<at::Tensor> fields) {
  if (taken_ == end_) {  // only this thread writes them
    if (order_) leave();
    return false;
  }
  const auto start = Clock::now();
  Entry taken = take();
  waited_ns_.fetch_add(nanoseconds_since(start), std::memory_order_relaxed);
  if (taken.error) {
    leave();
    std::rethrow_exception(taken.error);
  }
  if (taken.copied) {
    transfer_->hand_over(*taken.copied);
    taken.tensors = std::move(taken.copied->tensors);
  }
  std::move(taken.tensors.begin(), taken.tensors.end(), fields.begin());
  handed_over_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

LoaderEngine::Impl::Entry LoaderEngine::Impl::read(const Claim& claim) noexcept {
  Entry result;
  const auto start = Clock::now();
  try {
    const int64_t first = claim.batch * options_.batch_size;
    const int64_t count = std::min(options_.batch_size, size_ - first);
    const std::span<const int64_t> indices(claim.order->data() + first, static_cast<std::size_t>(count));
    const Wanted wanted(run_, claim.run);
    if (pinned_) {
      read_into_pinned(indices, wanted, result);
    } else {
      read_into_slot(indices, wanted, result);
    }
  } catch (...) {
    result.error = std::current_exception();
  }
  result.ready = true;
  read_ns_.fetch_add(nanoseconds_since(start), std::memory_order_relaxed);
  return result;
}

void LoaderEngine::Impl::read_into_slot(std::span<const int64_t> indices, const Wanted& wanted, Entry& result) {
  SlotPool::Handle slot = slots_->acquire();
  std::vector<std::byte*> out(layout_.size());
  for (std::size_t f = 0; f < out.size(); ++f) out[f] = slots_->field(*slot, f);
  reader_->read(indices, out.data(), wanted);
  result.tensors = slots_->as_tensors(std::move(slot), layout_, static_cast<int64_t>(indices.size()));
}

void LoaderEngine::Impl::read_into_pinned(std::span<const int64_t> indices, const Wanted& wanted, Entry& result) {
  std::vector<at::Tensor> host = pinned_batch(layout_, static_cast<int64_t>(indices.size()));
  std::vector<std::byte*> out(layout_.size());
  for (std::size_t f = 0; f < out.size(); ++f) out[f] = static_cast<std::byte*>(host[f].mutable_data_ptr());
  reader_->read(indices, out.data(), wanted);
  if (transfer_) {
    result.copied.emplace(transfer_->copy(host));
  } else {
    result.tensors = std::move(host);
  }
}

LoaderStats LoaderEngine::Impl::stats() const {
  const auto seconds = [](const std::atomic<int64_t>& ns) {
    return 1e-9 * static_cast<double>(ns.load(std::memory_order_relaxed));
  };
  return {handed_over_.load(std::memory_order_relaxed), slots_->allocations(), seconds(waited_ns_), seconds(read_ns_)};
}

LoaderEngine::LoaderEngine(std::unique_ptr<const BatchReader> reader, std::vector<FieldLayout> layout, int64_t size,
                           const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(std::move(reader), std::move(layout), size, options)) {}
LoaderEngine::~LoaderEngine() = default;

void LoaderEngine::set_epoch(int64_t epoch, int64_t first_batch) { impl_->set_epoch(epoch, first_batch); }
int64_t LoaderEngine::epoch() const { return impl_->epoch(); }
int64_t LoaderEngine::batches_per_epoch() const { return impl_->batches(); }
void LoaderEngine::start() { impl_->start(); }
bool LoaderEngine::next(std::span<at::Tensor> fields) { return impl_->next(fields); }
LoaderStats LoaderEngine::stats() const { return impl_->stats(); }

}  // namespace saturate::data::detail
