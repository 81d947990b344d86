// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/tar_stream.hpp"

#include "archive_reader.hpp"
#include "member_name.hpp"
#include "saturate/data/sample_at.hpp"
#include "saturate/data/sampler.hpp"
#include "saturate/data/shard_list.hpp"
#include "saturate/data/stage.hpp"
#include "saturate/error.hpp"

#include <cstring>
#include <exception>
#include <optional>
#include <utility>

namespace saturate::data {
namespace {

using detail::ArchiveReader;
using detail::Member;
using detail::MemberName;
using detail::SampleRules;

void check(const std::vector<std::string>& paths, const TarStreamOptions& options) {
  if (paths.empty()) throw ConfigError("TarStream: the list of shards is empty");
  if (options.buffer < 0) {
    throw ConfigError("TarStreamOptions: buffer is " + std::to_string(options.buffer) +
                      "; it counts samples, 0 for none");
  }
}

// The samples of one shard.
class ShardPass {
 public:
  explicit ShardPass(const std::string& path) : reader_(path, ArchiveReader::Kind::any_tar), rules_(path) {
    const StageScope timed(Stage::read);
    more_ = advance();
    if (!more_) throw DataError(path + ": holds no samples");
  }

  // An error comes in place of the sample that is not complete.
  bool next(Record& out, std::string& where) {
    if (!more_) return false;
    const StageScope timed(Stage::read);
    out.storage.clear();
    out.label.reset();
    ends_.clear();
    key_ = rules_.key();
    where = reader_.path() + ", sample '" + key_ + "'";
    try {
      do {
        take(out.storage);
        more_ = advance();
      } while (more_ && place_ == SampleRules::Place::same_sample);
    } catch (const detail::ArchiveDamage& damage) {
      throw DataError(where + std::string(damage.what()).substr(reader_.path().size()));
    }
    set_parts(out);
    return true;
  }

 private:
  struct End {
    std::size_t bytes, extension;  // where they end in the storage
  };

  // To the next member that belongs to a sample.
  bool advance() {
    while (reader_.next(member_)) {
      place_ = rules_.place(member_.path, name_);
      if (place_ != SampleRules::Place::no_sample) return true;
    }
    return false;
  }

  // The extension goes behind the bytes, so that a record outlives the stream it came from.
  void take(std::vector<std::byte>& storage) {
    reader_.append_data(member_, storage);
    count_bytes(static_cast<int64_t>(member_.size));
    const std::size_t bytes = storage.size();
    const auto* const text = reinterpret_cast<const std::byte*>(name_.extension.data());
    storage.insert(storage.end(), text, text + name_.extension.size());
    ends_.push_back({bytes, storage.size()});
  }

  void set_parts(Record& out) const {
    out.parts.clear();
    const std::byte* const data = out.storage.data();
    std::size_t begin = 0;
    for (const End& end : ends_) {
      out.parts.push_back({{reinterpret_cast<const char*>(data) + end.bytes, end.extension - end.bytes},
                           {data + begin, end.bytes - begin}});
      begin = end.extension;
    }
  }

  ArchiveReader reader_;
  SampleRules rules_;
  Member member_;  // the next one, whose data has not been read
  MemberName name_;
  SampleRules::Place place_ = SampleRules::Place::no_sample;
  bool more_ = false;
  std::string key_;
  std::vector<End> ends_;
};

// One shard after the other.
class Pass final : public RecordStream {
 public:
  explicit Pass(std::vector<std::string> shards) : shards_(std::move(shards)) {}

  bool next(Record& out, std::string& where) override {
    try {
      for (; next_shard_ < shards_.size() || shard_; shard_.reset()) {
        if (!shard_) shard_.emplace(shards_[next_shard_++]);
        if (shard_->next(out, where)) return true;
      }
      return false;
    } catch (...) {
      shard_.reset();
      next_shard_ = shards_.size();
      throw;
    }
  }

 private:
  std::vector<std::string> shards_;
  std::size_t next_shard_ = 0;
  std::optional<ShardPass> shard_;
};

// Gives a random one of the samples that it holds, and puts the next one of the pass in its place.
class ShuffledPass final : public RecordStream {
 public:
  ShuffledPass(std::vector<std::string> shards, int64_t buffer, SampleRandom random)
      : pass_(std::move(shards)), limit_(static_cast<std::size_t>(buffer)), random_(random) {}

  bool next(Record& out, std::string& where) override {
    while (!ended_ && held_.size() < limit_) fetch();
    if (held_.empty()) {
      if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
      return false;
    }
    const auto chosen = static_cast<std::size_t>(random_.below(held_.size()));
    std::swap(held_[chosen], held_.back());
    std::swap(out, held_.back().record);
    std::swap(where, held_.back().where);
    spare_ = std::move(held_.back());
    held_.pop_back();
    return true;
  }

 private:
  struct Held {
    Record record;
    std::string where;
  };

  // An error waits until the samples before it have been given.
  void fetch() {
    Held next = std::move(spare_);
    spare_ = {};
    try {
      if (pass_.next(next.record, next.where)) {
        held_.push_back(std::move(next));
        return;
      }
    } catch (...) {
      error_ = std::current_exception();
    }
    ended_ = true;
  }

  Pass pass_;
  std::size_t limit_;
  SampleRandom random_;
  std::vector<Held> held_;
  Held spare_;  // memory that is used again
  std::exception_ptr error_;
  bool ended_ = false;
};

}  // namespace

TarStream::TarStream(const std::string& pattern, TarStreamOptions options) : TarStream(shard_list(pattern), options) {}

TarStream::TarStream(std::vector<std::string> paths, TarStreamOptions options)
    : paths_(std::move(paths)), options_(options) {
  check(paths_, options_);
}

std::vector<std::string> TarStream::shards_of(const StreamPart& part) const {
  const auto shards = static_cast<int64_t>(paths_.size());
  if (part.ranks < 1 || part.rank < 0 || part.rank >= part.ranks) {
    throw ConfigError("TarStream: rank " + std::to_string(part.rank) + " of " + std::to_string(part.ranks) +
                      "; ranks count from 0 and are below their number");
  }
  if (shards < part.ranks) {
    throw ConfigError("TarStream: " + std::to_string(shards) + " shards cannot be shared by " +
                      std::to_string(part.ranks) + " ranks; pack the data into at least as many shards as ranks");
  }
  const auto order = epoch_order(shards, options_.shuffle_shards, part.seed, part.epoch);
  std::vector<std::string> mine;
  for (int64_t i = part.rank; i < shards; i += part.ranks) {
    mine.push_back(paths_[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])]);
  }
  return mine;
}

std::unique_ptr<RecordStream> TarStream::open(const StreamPart& part) const {
  auto shards = shards_of(part);
  if (options_.buffer < 2) return std::make_unique<Pass>(std::move(shards));
  // Below 0, where no sample has its position: the samples' own random numbers are others.
  const int64_t position = -1 - part.rank - (part.ranks << 24);
  return std::make_unique<ShuffledPass>(std::move(shards), options_.buffer,
                                        SampleRandom(SampleAt(0, part.seed, part.epoch, position)));
}

}  // namespace saturate::data
