// SPDX-License-Identifier: Apache-2.0
#include "batch_maker.hpp"

#include "saturate/data/stage.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <ATen/Context.h>

#include <chrono>
#include <utility>

namespace saturate::data::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t most_warnings = 20;  // bad samples that the log names

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "something that is no std::exception was thrown";
  }
}

/// Adds to the totals what this thread spends while it lives.
class Timed {
 public:
  Timed(std::atomic<int64_t>& all, std::atomic<int64_t>& read, std::atomic<int64_t>& decode,
        std::atomic<int64_t>& bytes)
      : all_(all), read_(read), decode_(decode), bytes_(bytes), before_(stage_totals()), start_(Clock::now()) {}
  ~Timed() {
    const StageTotals& now = stage_totals();
    const auto add = [](std::atomic<int64_t>& total, int64_t part) {
      total.fetch_add(part, std::memory_order_relaxed);
    };
    add(all_, std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count());
    const auto stage = [&](Stage s) {
      return now.nanoseconds[static_cast<std::size_t>(s)] - before_.nanoseconds[static_cast<std::size_t>(s)];
    };
    add(read_, stage(Stage::read));
    add(decode_, stage(Stage::decode));
    add(bytes_, now.bytes - before_.bytes);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  std::atomic<int64_t>&all_, &read_, &decode_, &bytes_;
  StageTotals before_;
  Clock::time_point start_;
};

}  // namespace

void WrittenRows::bad(const std::string& sample) {
  const std::string message = sample + " could not be read: " + message_of(std::current_exception());
  if (on_bad_sample == OnBadSample::fail) std::throw_with_nested(DataError(message));
  ++skipped;
  last_skipped = message;
}

BatchMaker::BatchMaker(std::unique_ptr<const BatchReader> reader, std::vector<FieldLayout> layout,
                       const LoaderOptions& options, int64_t slot_samples, int64_t slots)
    : reader_(std::move(reader)),
      layout_(std::move(layout)),
      on_bad_sample_(options.on_bad_sample),
      transform_(options.transform),
      pinned_(!options.device.is_cpu() || (options.pin_memory && at::hasCUDA())) {
  if (!options.device.is_cpu()) transfer_.emplace(options.device);
  slots_ = std::make_shared<SlotPool>(layout_, slot_samples, slots);
}

MadeBatch BatchMaker::make(const Places& places, const Pulled* pulled, const Wanted& wanted) noexcept {
  MadeBatch result;
  try {
    const Timed timed(worker_ns_, read_ns_, decode_ns_, bytes_);
    WrittenRows rows{.on_bad_sample = on_bad_sample_, .with_places = transform_ != nullptr};
    if (pinned_) {
      into_pinned(places, pulled, wanted, rows, result);
    } else {
      into_slot(places, pulled, wanted, rows, result);
    }
    count(rows);
  } catch (...) {
    result.error = std::current_exception();
  }
  result.ready = true;
  return result;
}

void BatchMaker::read(const Places& places, const Pulled* pulled, std::byte* const* out, const Wanted& wanted,
                      WrittenRows& rows) {
  if (pulled != nullptr) {
    reader_->read(*pulled, places, out, wanted, rows);
  } else {
    reader_->read(places, out, wanted, rows);
  }
  if (rows.count == 0 && rows.skipped > 0) {
    count(rows);
    throw DataError(
        "PrefetchLoader: all " + std::to_string(rows.skipped) +
        " samples of a batch are bad, so there is nothing to hand over; the last one: " + rows.last_skipped);
  }
}

void BatchMaker::into_slot(const Places& places, const Pulled* pulled, const Wanted& wanted, WrittenRows& rows,
                           MadeBatch& result) {
  SlotPool::Handle slot = slots_->acquire();
  std::vector<std::byte*> out(layout_.size());
  for (std::size_t f = 0; f < out.size(); ++f) out[f] = slots_->field(*slot, f);
  read(places, pulled, out.data(), wanted, rows);
  result.tensors = slots_->as_tensors(std::move(slot), layout_, rows.count);
  if (transform_ && wanted) transform_(result.tensors, rows.places);
}

void BatchMaker::into_pinned(const Places& places, const Pulled* pulled, const Wanted& wanted, WrittenRows& rows,
                             MadeBatch& result) {
  std::vector<at::Tensor> host = pinned_batch(layout_, static_cast<int64_t>(places.indices.size()));
  std::vector<std::byte*> out(layout_.size());
  for (std::size_t f = 0; f < out.size(); ++f) out[f] = static_cast<std::byte*>(host[f].mutable_data_ptr());
  read(places, pulled, out.data(), wanted, rows);
  if (!wanted) return;
  if (rows.count < static_cast<int64_t>(places.indices.size())) {
    for (at::Tensor& tensor : host) tensor = tensor.narrow(0, 0, rows.count);
  }
  if (transfer_) {
    result.copied.emplace(transfer_->copy(host, transform_, rows.places));
  } else {
    result.tensors = std::move(host);
    if (transform_) transform_(result.tensors, rows.places);
  }
}

std::vector<at::Tensor> BatchMaker::hand_over(MadeBatch made) const {
  if (!made.copied) return std::move(made.tensors);
  transfer_->hand_over(*made.copied);
  return std::move(made.copied->tensors);
}

void BatchMaker::count(const WrittenRows& rows) {
  if (rows.skipped == 0) return;
  const int64_t before = skipped_.fetch_add(rows.skipped, std::memory_order_relaxed);
  if (before < most_warnings) {
    const int64_t others = rows.skipped - 1;
    log::warn("PrefetchLoader: left out: " + rows.last_skipped +
              (others > 0 ? ", and " + std::to_string(others) + " more of its batch" : "") +
              (before + rows.skipped >= most_warnings ? "; further ones are counted only" : ""));
  }
  const std::lock_guard lock(mutex_);
  last_skipped_ = rows.last_skipped;
}

void BatchMaker::add_to(LoaderStats& stats) const {
  const auto seconds = [](const std::atomic<int64_t>& ns) {
    return 1e-9 * static_cast<double>(ns.load(std::memory_order_relaxed));
  };
  stats.skipped_samples = skipped_.load(std::memory_order_relaxed);
  stats.slot_allocations = slots_->allocations();
  stats.worker_seconds = seconds(worker_ns_);
  stats.read_seconds = seconds(read_ns_);
  stats.decode_seconds = seconds(decode_ns_);
  stats.bytes = bytes_.load(std::memory_order_relaxed);
  if (transfer_) stats.copy_seconds = transfer_->seconds();
  const std::lock_guard lock(mutex_);
  stats.last_skipped = last_skipped_;
}

}  // namespace saturate::data::detail
