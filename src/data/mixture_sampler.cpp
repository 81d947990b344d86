// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/mixture_source.hpp"

#include "saturate/data/sample_at.hpp"
#include "saturate/error.hpp"

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <sstream>

namespace saturate::data {
namespace {

// Shares are integers, so that the sequence is the same on every machine, and exact however long it gets. Their sum
// stays so far below 2^63 that what each source is behind by fits.
constexpr double share_limit = 0x1p50;
constexpr int64_t longest_epoch = int64_t{1} << 32;

void check_weights(const std::vector<double>& weights, std::size_t sources) {
  if (weights.size() != sources) {
    throw ConfigError("MixtureOptions: there are " + std::to_string(weights.size()) + " weights for " +
                      std::to_string(sources) + " sources; each source has one");
  }
  for (std::size_t s = 0; s < sources; ++s) {
    if (weights[s] > 0 && std::isfinite(weights[s])) continue;
    throw ConfigError("MixtureOptions: the weight of source " + std::to_string(s) + " is " +
                      std::to_string(weights[s]) +
                      "; it must be positive and finite. Leave out a source that is not "
                      "wanted");
  }
}

/// Whole numbers stay what they are.
std::vector<int64_t> shares_of(const std::vector<double>& weights) {
  double largest = 0, sum = 0;
  for (const double weight : weights) largest = std::max(largest, weight);
  bool whole = true;
  for (const double weight : weights) {
    whole = whole && weight == std::floor(weight);
    sum += weight / largest;
  }
  whole = whole && largest * sum <= share_limit;
  std::vector<int64_t> shares;
  for (std::size_t s = 0; s < weights.size(); ++s) {
    const double scaled = weights[s] / largest / sum * share_limit;
    shares.push_back(whole ? static_cast<int64_t>(weights[s]) : std::llround(scaled));
    if (shares.back() > 0) continue;
    throw ConfigError("MixtureOptions: the weight of source " + std::to_string(s) + " is " +
                      std::to_string(weights[s]) + ", too small beside the others to be ever chosen");
  }
  return shares;
}

/// Gives the source of one position after the other.
class Turns {
 public:
  explicit Turns(const std::vector<int64_t>& shares)
      : shares_(shares), total_(std::accumulate(shares.begin(), shares.end(), int64_t{0})), behind_(shares.size()) {}

  std::size_t next() {
    std::size_t chosen = 0;
    for (std::size_t s = 0; s < shares_.size(); ++s) {
      behind_[s] += shares_[s];
      if (behind_[s] > behind_[chosen]) chosen = s;
    }
    behind_[chosen] -= total_;
    return chosen;
  }

 private:
  const std::vector<int64_t>& shares_;
  int64_t total_;
  std::vector<int64_t> behind_;  // total * (weight * (p + 1) - taken)
};

int64_t epoch_length(const std::vector<int64_t>& sizes, const std::vector<int64_t>& shares, const MixtureStop& stop) {
  if (stop.rule == MixtureStop::Rule::samples) {
    if (stop.count >= 1 && stop.count <= longest_epoch) return stop.count;
    throw ConfigError("MixtureStop: samples is " + std::to_string(stop.count) + "; an epoch has 1 to 2^32 of them");
  }
  const bool first = stop.rule == MixtureStop::Rule::first_exhausted;
  Turns turns(shares);
  std::vector<int64_t> taken(sizes.size());
  for (int64_t length = 0, left = static_cast<int64_t>(sizes.size()); length <= longest_epoch; ++length) {
    if (!first && left == 0) return length;
    const std::size_t s = turns.next();
    if (first && taken[s] == sizes[s]) return length;
    left -= ++taken[s] == sizes[s];
  }
  throw ConfigError(
      "MixtureOptions: an epoch would have more than 2^32 samples until the mixture stops; raise the "
      "smallest weights, or stop after MixtureStop::samples(n)");
}

/// The order in which one source's samples come, pass after pass.
class Passes {
 public:
  Passes(int64_t size, bool shuffle, uint64_t seed, int64_t epoch, std::size_t source)
      : size_(size), shuffle_(shuffle), seed_(SampleRandom(seed, source).next()), epoch_(epoch) {}

  int64_t next() {
    if (at_ == static_cast<int64_t>(order_.size())) begin_pass();
    return order_[static_cast<std::size_t>(at_++)];
  }

 private:
  void begin_pass() {
    order_ = epoch_order(size_, shuffle_, SampleRandom(seed_, pass_++).next(), epoch_);
    at_ = 0;
  }

  int64_t size_;
  bool shuffle_;
  uint64_t seed_;
  int64_t epoch_;
  uint64_t pass_ = 0;
  int64_t at_ = 0;
  std::vector<int64_t> order_;
};

std::string text_of(const FieldLayout& field) {
  std::ostringstream text;
  text << c10::toString(field.dtype) << " [";
  for (std::size_t d = 0; d < field.shape.size(); ++d) text << (d == 0 ? "" : ", ") << field.shape[d];
  text << "]";
  if (field.memory_format != at::MemoryFormat::Contiguous) text << " " << field.memory_format;
  return text.str();
}

template <class T>
void list(std::ostringstream& text, const std::vector<T>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) text << (i == 0 ? "" : ",") << values[i];
}

}  // namespace

MixtureSampler::MixtureSampler(std::vector<int64_t> sizes, MixtureOptions options)
    : sizes_(std::move(sizes)), options_(std::move(options)) {
  check_weights(options_.weights, sizes_.size());
  for (std::size_t s = 0; s < sizes_.size(); ++s) {
    if (sizes_[s] < 1)
      throw ConfigError("MixtureSampler: source " + std::to_string(s) + " has " + std::to_string(sizes_[s]) +
                        " samples; a source of a mixture has at least one");
  }
  shares_ = shares_of(options_.weights);
  length_ = epoch_length(sizes_, shares_, options_.stop);
}

void MixtureSampler::check_size(int64_t size) const {
  const int64_t total = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0});
  if (size == total) return;
  throw ConfigError("MixtureSampler: the source has " + std::to_string(size) +
                    " samples, and the mixture was made of " + std::to_string(total) +
                    "; use the sampler of this very source");
}

int64_t MixtureSampler::length(int64_t size) const {
  check_size(size);
  return length_;
}

std::vector<int64_t> MixtureSampler::order(int64_t size, uint64_t seed, int64_t epoch) const {
  check_size(size);
  if (epoch < 0) throw ConfigError("MixtureSampler: epoch is " + std::to_string(epoch) + "; epochs count from 0");
  Turns turns(shares_);
  std::vector<Passes> passes;
  std::vector<int64_t> starts;
  for (int64_t total = 0; const int64_t samples : sizes_) {
    passes.emplace_back(samples, options_.shuffle, seed, epoch, passes.size());
    starts.push_back(total);
    total += samples;
  }
  std::vector<int64_t> sequence(static_cast<std::size_t>(length_));
  for (int64_t& index : sequence) {
    const std::size_t s = turns.next();
    index = starts[s] + passes[s].next();
  }
  return sequence;
}

std::string MixtureSampler::name() const {
  std::ostringstream text;
  text << "mixture of " << sizes_.size() << " (sizes ";
  list(text, sizes_);
  text << ", shares ";
  list(text, shares_);
  text << ", " << length_ << " samples, " << (options_.shuffle ? "shuffled" : "ascending") << ")";
  return text.str();
}

namespace detail {

void require_same_layout(std::span<const FieldLayout> first, std::span<const FieldLayout> layout, std::size_t source) {
  for (std::size_t f = 0; f < first.size(); ++f) {
    if (first[f].dtype == layout[f].dtype && first[f].shape == layout[f].shape &&
        first[f].memory_format == layout[f].memory_format) {
      continue;
    }
    throw ConfigError("MixtureSource: field " + std::to_string(f) + " of source " + std::to_string(source) + " is " +
                      text_of(layout[f]) + ", of source 0 " + text_of(first[f]) +
                      "; samples of one batch need the same layout");
  }
}

void check_mixture_index(int64_t index, int64_t size) {
  if (index >= 0 && index < size) return;
  throw DataError("sample " + std::to_string(index) + " does not exist; there are " + std::to_string(size));
}

}  // namespace detail
}  // namespace saturate::data
