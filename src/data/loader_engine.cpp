// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/detail/loader_engine.hpp"

#include "batch_maker.hpp"
#include "cores.hpp"
#include "epoch_plan.hpp"
#include "saturate/data/sampler.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "worker_count.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

namespace saturate::data::detail {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t no_end = std::numeric_limits<int64_t>::max();

// A worker is one of several threads: what it calls in LibTorch must not start as many again. OpenMP keeps that number
// for each thread; at::set_num_threads would change it for threads that start later, too.
void use_one_core() {
  at::get_num_threads();  // the first call in a thread sets the number that is changed here
  using Set = void (*)(int);
  if (const auto set = reinterpret_cast<Set>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
}

void check(const LoaderOptions& options) {
  const auto refuse = [](const char* name, int64_t value, const char* rule) {
    throw ConfigError("LoaderOptions: " + std::string(name) + " is " + std::to_string(value) + "; " + rule);
  };
  if (options.batch_size < 1) refuse("batch_size", options.batch_size, "a batch has at least one sample");
  if (options.workers < auto_workers)
    refuse("workers", options.workers, "0 reads on the calling thread, 1 or more are threads, auto_workers finds out");
  if (options.prefetch < 1)
    refuse("prefetch", options.prefetch, "at least one batch is read ahead; workers = 0 reads none ahead");
  if (options.ranks < 1) refuse("ranks", options.ranks, "it counts the processes that share the data, 1 or more");
  if (options.rank < 0 || options.rank >= options.ranks) {
    throw ConfigError("LoaderOptions: rank is " + std::to_string(options.rank) + "; with ranks = " +
                      std::to_string(options.ranks) + " it is 0 to " + std::to_string(options.ranks - 1));
  }
  int64_t global;
  if (__builtin_mul_overflow(options.batch_size, options.ranks, &global))
    refuse("batch_size", options.batch_size, "times ranks, it is more than a number can hold");
}

/// Samples an epoch, -1 for a stream.
int64_t length_of(const Sampler* sampler, int64_t size, const LoaderOptions& options) {
  check(options);
  if (sampler == nullptr) return -1;
  if (size < 1)
    throw DataError("PrefetchLoader: the source has " + std::to_string(size) + " samples; there is nothing to read");
  const int64_t length = sampler->length(size);
  if (length < 1) {
    throw ConfigError("PrefetchLoader: the sampler " + sampler->name() + " gives " + std::to_string(length) +
                      " samples an epoch; there is nothing to read");
  }
  return length;
}

Order order_of(const Sampler& sampler, int64_t size, int64_t length, uint64_t seed, int64_t epoch) {
  auto order = std::make_shared<const std::vector<int64_t>>(sampler.order(size, seed, epoch));
  const auto fits = [&](int64_t index) { return index >= 0 && index < size; };
  if (static_cast<int64_t>(order->size()) != length || !std::all_of(order->begin(), order->end(), fits)) {
    throw ConfigError("PrefetchLoader: the sampler " + sampler.name() + " gave " + std::to_string(order->size()) +
                      " samples for epoch " + std::to_string(epoch) + "; it promised " + std::to_string(length) +
                      " numbers from 0 to " + std::to_string(size - 1));
  }
  return order;
}

void warn_about(const LoaderOptions& options, int64_t length) {
  if (options.workers > options.prefetch) {
    const std::string message = "PrefetchLoader: " + std::to_string(options.workers) + " workers with prefetch " +
                                std::to_string(options.prefetch) +
                                ": as many workers as batches read ahead can be busy, the others wait";
    log::warn_once(message, message);
  }
  if (length >= 0 && options.drop_last && length < options.batch_size * options.ranks) {
    log::warn("PrefetchLoader: drop_last leaves no batch: " + std::to_string(length) +
              " samples are fewer than batch_size " + std::to_string(options.batch_size) +
              (options.ranks > 1 ? " on " + std::to_string(options.ranks) + " ranks" : ""));
  }
  if (options.pin_memory && !at::hasCUDA()) {
    log::warn_once("data.pin_memory", "PrefetchLoader: pin_memory has no effect: there is no CUDA device");
  }
}

int64_t most_workers(const LoaderOptions& options) {
  return options.workers == auto_workers ? std::min(cores(), options.prefetch) : options.workers;
}

}  // namespace

std::shared_ptr<const Sampler> chosen_sampler(std::shared_ptr<const Sampler> given, bool shuffle) {
  if (given) {
    if (shuffle) log::warn("PrefetchLoader: shuffle has no effect beside the sampler " + given->name());
    return given;
  }
  if (shuffle) return std::make_shared<ShuffledSampler>();
  return std::make_shared<SequentialSampler>();
}

class LoaderEngine::Impl {
 public:
  Impl(std::unique_ptr<const BatchReader> reader, std::vector<FieldLayout> layout, int64_t size,
       std::shared_ptr<const Sampler> sampler, const LoaderOptions& options);
  ~Impl();

  void set_epoch(int64_t epoch, int64_t first_batch);
  void load_state(const LoaderState& state);
  LoaderState state() const;
  void start();
  bool next(std::span<at::Tensor> fields);
  LoaderStats stats() const;

  int64_t batches() const { return EpochPlan(length_, 0, options_).batches(); }
  int64_t epoch() const { return epoch_; }

 private:
  /// One batch that somebody has undertaken to read.
  struct Claim {
    uint64_t run = 0;
    int64_t batch = 0;
    int64_t epoch = 0;
    EpochPlan::Range range;
    Order order;
    std::unique_ptr<Pulled> pulled;
    std::exception_ptr error;
  };

  bool is_stream() const { return sampler_ == nullptr; }
  void work(int64_t id);
  bool can_claim() const { return claimed_ < end_ && claimed_ < taken_ + depth_; }
  Claim claim();
  std::optional<Claim> claim_from_stream(std::unique_lock<std::mutex>& lock);
  std::optional<Claim> claim_any(std::unique_lock<std::mutex>& lock);
  void pull(Claim& claim);
  MadeBatch make(Claim& claim) noexcept;
  std::span<const int64_t> indices_of(const Claim& claim, std::vector<int64_t>& own) const;
  MadeBatch& entry(int64_t batch) { return ring_[static_cast<std::size_t>(batch % depth_)]; }
  std::optional<MadeBatch> take();
  void adjust_workers();
  void spawn_workers();
  void leave();
  void open_stream();
  void go_on_from(int64_t epoch, int64_t position);

  const std::shared_ptr<const Sampler> sampler_;
  const LoaderOptions options_;
  const int64_t size_;
  const int64_t length_;
  const int64_t depth_;
  BatchMaker maker_;

  // Of the loop's thread.
  int64_t epoch_ = 0;  // that the next start() begins, at this position
  int64_t first_position_ = 0;
  int64_t running_epoch_ = -1;
  int64_t after_epoch_ = 0;  // after the last batch that was handed over
  int64_t after_position_ = 0;

  std::mutex stream_mutex_;  // taken before mutex_; guards the stream: who holds it pulls the records of one batch
  std::unique_ptr<RecordStream> stream_;
  std::exception_ptr stream_error_;
  std::vector<std::unique_ptr<Pulled>> spare_;

  mutable std::mutex mutex_;  // guards what follows; workers only ever hold it for a few instructions
  std::condition_variable work_;
  std::condition_variable ready_;
  std::atomic<uint64_t> run_{
      0};  // changes when an epoch starts or is left; reads under way look at it without the lock
  Order order_;
  std::optional<EpochPlan> plan_;
  int64_t claimed_ = 0;  // batches before this one are read or being read
  int64_t taken_ = 0;    // batches before this one were handed over
  int64_t ready_count_ = 0;
  int64_t end_ = 0;
  int64_t asked_ = 0, found_ready_ = 0;
  int64_t wanted_workers_ = 0;
  WorkerCount worker_count_;
  bool stopping_ = false;
  std::vector<MadeBatch> ring_;

  std::atomic<int64_t> handed_over_{0}, samples_{0}, waited_ns_{0};
  std::vector<std::thread> workers_;
};

LoaderEngine::Impl::Impl(std::unique_ptr<const BatchReader> reader, std::vector<FieldLayout> layout, int64_t size,
                         std::shared_ptr<const Sampler> sampler, const LoaderOptions& options)
    : sampler_(std::move(sampler)),
      options_(options),
      size_(size),
      length_(length_of(sampler_.get(), size, options)),
      depth_(options.prefetch),
      // Slots: read ahead, held by the loop, and one a worker for an epoch that was just left.
      maker_(std::move(reader), std::move(layout), options,
             is_stream() ? options.batch_size : std::min(options.batch_size, length_),
             1 + (options.workers == 0 ? 1 : options.prefetch + most_workers(options))),
      wanted_workers_(options.workers == auto_workers ? 1 : options.workers),
      worker_count_(most_workers(options)),
      ring_(static_cast<std::size_t>(options.prefetch)) {
  warn_about(options, length_);
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

void LoaderEngine::Impl::go_on_from(int64_t epoch, int64_t position) {
  epoch_ = after_epoch_ = epoch;
  first_position_ = after_position_ = position;
}

void LoaderEngine::Impl::set_epoch(int64_t epoch, int64_t first_batch) {
  if (epoch < 0) throw ConfigError("set_epoch: epoch is " + std::to_string(epoch) + "; epochs count from 0");
  const int64_t global = options_.batch_size * options_.ranks;
  if (first_batch < 0 || (!is_stream() && first_batch > batches()) || first_batch > no_end / global) {
    throw ConfigError(
        "set_epoch: first_batch is " + std::to_string(first_batch) +
        (is_stream() ? "; batches count from 0" : "; an epoch has " + std::to_string(batches()) + " batches"));
  }
  go_on_from(epoch, is_stream() ? first_batch * global : std::min(first_batch * global, length_));
}

LoaderState LoaderEngine::Impl::state() const {
  return {after_epoch_, after_position_, options_.seed,
          length_,      options_.ranks,  is_stream() ? "stream" : sampler_->name()};
}

void LoaderEngine::Impl::load_state(const LoaderState& state) {
  const auto refuse = [](const std::string& what, const auto& saved, const auto& here) {
    std::string text = "load_state: the saved " + what + " is ";
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(saved)>>) {
      text += std::to_string(saved) + ", this loader's is " + std::to_string(here);
    } else {
      text += saved + ", this loader's is " + here;
    }
    throw ConfigError(text + ": the samples would come in another order. Make the loader as the saved one was");
  };
  const LoaderState mine = this->state();
  if (state.seed != mine.seed) refuse("seed", state.seed, mine.seed);
  if (state.length != mine.length) refuse("number of samples an epoch", state.length, mine.length);
  if (state.sampler != mine.sampler) refuse("sampler", state.sampler, mine.sampler);
  if (is_stream() && state.ranks != mine.ranks) refuse("number of ranks", state.ranks, mine.ranks);
  if (state.epoch < 0 || state.position < 0 || (!is_stream() && state.position > length_)) {
    throw DataError("load_state: epoch " + std::to_string(state.epoch) + ", position " +
                    std::to_string(state.position) + " is no place in this data");
  }
  go_on_from(state.epoch, state.position);
}

void LoaderEngine::Impl::start() {
  leave();
  Order order;
  if (!is_stream()) order = order_of(*sampler_, size_, length_, options_.seed, epoch_);
  running_epoch_ = epoch_;
  after_epoch_ = epoch_;
  after_position_ = first_position_;
  if (is_stream()) open_stream();
  {
    const std::lock_guard lock(mutex_);
    order_ = std::move(order);
    plan_.emplace(is_stream() ? no_end : length_, first_position_, options_);
    claimed_ = taken_ = 0;
    end_ = is_stream() ? no_end : plan_->batches();
    spawn_workers();
  }
  work_.notify_all();
  ++epoch_;
  first_position_ = 0;
}

// To the position where the epoch goes on: a stream has no index, so what lies before is read and dropped.
void LoaderEngine::Impl::open_stream() {
  const std::lock_guard turn(stream_mutex_);
  stream_error_ = nullptr;
  stream_ = maker_.reader().open({options_.seed, running_epoch_, options_.rank, options_.ranks});
  Record dropped;
  std::string where;
  for (int64_t k = first_position_ / options_.ranks; k > 0; --k) {
    if (!stream_->next(dropped, where)) break;
  }
}

// Batches that nobody will ask for any more are dropped; those being read are dropped by their workers.
void LoaderEngine::Impl::leave() {
  std::vector<MadeBatch> dropped(ring_.size());  // destroyed after the lock
  const std::lock_guard lock(mutex_);
  run_.fetch_add(1, std::memory_order_relaxed);
  claimed_ = taken_ = end_ = ready_count_ = 0;
  order_.reset();
  plan_.reset();
  ring_.swap(dropped);
}

LoaderEngine::Impl::Claim LoaderEngine::Impl::claim() {
  Claim claim;
  claim.run = run_.load(std::memory_order_relaxed);
  claim.batch = claimed_++;
  claim.epoch = running_epoch_;
  claim.range = plan_->batch(claim.batch);
  claim.order = order_;
  return claim;
}

// Whoever holds the stream's mutex claims the next batch and takes its records; so they stay in order.
std::optional<LoaderEngine::Impl::Claim> LoaderEngine::Impl::claim_from_stream(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const std::lock_guard turn(stream_mutex_);
  lock.lock();
  if (!can_claim()) return std::nullopt;
  Claim mine = claim();
  lock.unlock();
  pull(mine);
  lock.lock();
  if (mine.run != run_.load(std::memory_order_relaxed)) return std::nullopt;
  // Complete samples before an error are handed over first; the next claim gets the error.
  const auto got = static_cast<int64_t>(mine.pulled->count);
  if (got == 0 && stream_error_) mine.error = std::exchange(stream_error_, nullptr);
  if (mine.error) {
    end_ = mine.batch + 1;
  } else if (got < options_.batch_size && !stream_error_) {
    const bool handed_over = got > 0 && !options_.drop_last;
    end_ = mine.batch + (handed_over ? 1 : 0);
    if (!handed_over) {
      ready_.notify_one();
      return std::nullopt;
    }
  }
  return mine;
}

void LoaderEngine::Impl::pull(Claim& claim) {
  if (!spare_.empty()) {
    claim.pulled = std::move(spare_.back());
    spare_.pop_back();
  } else {
    claim.pulled = std::make_unique<Pulled>();
  }
  Pulled& pulled = *claim.pulled;
  pulled.count = 0;
  if (stream_error_) {
    claim.error = std::exchange(stream_error_, nullptr);
    return;
  }
  pulled.items.resize(static_cast<std::size_t>(options_.batch_size));
  const Wanted wanted(run_, claim.run);
  try {
    while (pulled.count < pulled.items.size() && wanted) {
      Pulled::Item& item = pulled.items[pulled.count];
      if (!stream_->next(item.record, item.where)) break;
      ++pulled.count;
    }
  } catch (...) {
    stream_error_ = std::current_exception();
  }
}

std::optional<LoaderEngine::Impl::Claim> LoaderEngine::Impl::claim_any(std::unique_lock<std::mutex>& lock) {
  if (is_stream()) return claim_from_stream(lock);
  return claim();
}

void LoaderEngine::Impl::work(int64_t id) {
  use_one_core();
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || (id < wanted_workers_ && can_claim()); });
    if (stopping_) return;
    std::optional<Claim> mine = claim_any(lock);
    if (!mine) continue;
    lock.unlock();
    MadeBatch result = make(*mine);
    lock.lock();
    if (mine->run != run_.load(std::memory_order_relaxed)) {
      lock.unlock();
      result = MadeBatch{};  // gives its slot back outside the lock
      lock.lock();
      continue;
    }
    entry(mine->batch) = std::move(result);
    ++ready_count_;
    if (mine->batch == taken_) ready_.notify_one();
  }
}

// nullopt: the stream is at its end.
std::optional<MadeBatch> LoaderEngine::Impl::take() {
  std::unique_lock lock(mutex_);
  if (options_.workers == 0) {
    std::optional<Claim> mine = claim_any(lock);
    if (!mine) return std::nullopt;
    ++taken_;
    lock.unlock();
    return make(*mine);
  }
  ++asked_;
  found_ready_ += ready_count_;
  if (options_.workers == auto_workers) adjust_workers();
  ready_.wait(lock, [this] { return entry(taken_).ready || taken_ >= end_; });
  if (taken_ >= end_) return std::nullopt;
  MadeBatch taken = std::exchange(entry(taken_), MadeBatch{});
  --ready_count_;
  ++taken_;
  lock.unlock();
  if (options_.workers == auto_workers) {
    work_.notify_all();  // one alone might be a thread that is not wanted at present
  } else {
    work_.notify_one();
  }
  return taken;
}

// Under the lock. At the epoch's end nothing more can be read ahead, which says nothing about the workers.
void LoaderEngine::Impl::adjust_workers() {
  if (claimed_ >= end_) return;
  wanted_workers_ = worker_count_.observe(ready_count_, depth_);
  spawn_workers();
  work_.notify_all();
}

// Under the lock. Threads that are not wanted any more sleep.
void LoaderEngine::Impl::spawn_workers() {
  while (static_cast<int64_t>(workers_.size()) < wanted_workers_)
    workers_.emplace_back([this, id = static_cast<int64_t>(workers_.size())] { work(id); });
}

bool LoaderEngine::Impl::next(std::span<at::Tensor> fields) {
  const auto at_end = [&] {
    const std::lock_guard lock(mutex_);
    return taken_ >= end_;
  };
  std::optional<MadeBatch> taken;
  if (!at_end()) {
    const auto start = Clock::now();
    taken = take();
    waited_ns_.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count(),
                         std::memory_order_relaxed);
  }
  if (!taken) {
    if (running_epoch_ >= 0) {
      after_epoch_ = running_epoch_ + 1;
      after_position_ = 0;
      running_epoch_ = -1;
      leave();
    }
    return false;
  }
  if (taken->error) {
    leave();
    running_epoch_ = -1;
    std::rethrow_exception(taken->error);
  }
  std::vector<at::Tensor> tensors = maker_.hand_over(std::move(*taken));
  samples_.fetch_add(tensors.front().size(0), std::memory_order_relaxed);
  handed_over_.fetch_add(1, std::memory_order_relaxed);
  std::move(tensors.begin(), tensors.end(), fields.begin());
  after_epoch_ = running_epoch_;
  after_position_ = plan_->position_after(taken_ - 1);
  if (after_position_ == length_ || (is_stream() && at_end())) {
    ++after_epoch_;
    after_position_ = 0;
  }
  return true;
}

MadeBatch LoaderEngine::Impl::make(Claim& claim) noexcept {
  MadeBatch made;
  made.error = claim.error;
  try {
    if (!made.error) {
      std::vector<int64_t> own;
      const Places places{indices_of(claim, own), options_.seed, claim.epoch, claim.range.first};
      made = maker_.make(places, claim.pulled.get(), {run_, claim.run});
    }
    if (claim.pulled) {
      const std::lock_guard turn(stream_mutex_);
      spare_.push_back(std::move(claim.pulled));
    }
  } catch (...) {  // out of memory
    made.error = std::current_exception();
  }
  made.ready = true;
  return made;
}

// A part of the epoch's order; or `own`, where Uneven::pad begins again, and for a stream, whose samples are numbered
// as they come.
std::span<const int64_t> LoaderEngine::Impl::indices_of(const Claim& claim, std::vector<int64_t>& own) const {
  const auto [first, count] = claim.range;
  if (claim.pulled) {
    own.resize(claim.pulled->count);
    std::iota(own.begin(), own.end(), first);
    return own;
  }
  if (first + count <= length_) return {claim.order->data() + first, static_cast<std::size_t>(count)};
  for (int64_t k = 0; k < count; ++k) own.push_back((*claim.order)[static_cast<std::size_t>((first + k) % length_)]);
  return own;
}

LoaderStats LoaderEngine::Impl::stats() const {
  LoaderStats stats;
  stats.batches = handed_over_.load(std::memory_order_relaxed);
  stats.samples = samples_.load(std::memory_order_relaxed);
  stats.wait_seconds = 1e-9 * static_cast<double>(waited_ns_.load(std::memory_order_relaxed));
  maker_.add_to(stats);
  const std::lock_guard lock(mutex_);
  stats.workers = wanted_workers_;
  if (asked_ > 0) stats.occupancy = static_cast<double>(found_ready_) / static_cast<double>(asked_ * depth_);
  return stats;
}

LoaderEngine::LoaderEngine(std::unique_ptr<const BatchReader> reader, std::vector<FieldLayout> layout, int64_t size,
                           std::shared_ptr<const Sampler> sampler, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(std::move(reader), std::move(layout), size, std::move(sampler), options)) {}
LoaderEngine::~LoaderEngine() = default;

void LoaderEngine::set_epoch(int64_t epoch, int64_t first_batch) { impl_->set_epoch(epoch, first_batch); }
int64_t LoaderEngine::epoch() const { return impl_->epoch(); }
int64_t LoaderEngine::batches_per_epoch() const { return impl_->batches(); }
LoaderState LoaderEngine::state() const { return impl_->state(); }
void LoaderEngine::load_state(const LoaderState& state) { impl_->load_state(state); }
void LoaderEngine::start() { impl_->start(); }
bool LoaderEngine::next(std::span<at::Tensor> fields) { return impl_->next(fields); }
LoaderStats LoaderEngine::stats() const { return impl_->stats(); }

}  // namespace saturate::data::detail
