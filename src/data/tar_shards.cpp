// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/tar_shards.hpp"

#include "descriptor_cache.hpp"
#include "saturate/data/shard_list.hpp"
#include "saturate/data/stage.hpp"
#include "saturate/error.hpp"
#include "tar_index.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

namespace saturate::data {
namespace {

using detail::TarIndex;

// Headers and padding between the parts of a sample are read along with them up to here: one call instead of two.
constexpr uint64_t widest_gap = 4096;
constexpr int most_threads = 8;

void check(const std::vector<std::string>& paths, const TarShardsOptions& options) {
  if (paths.empty()) throw ConfigError("TarShards: the list of shards is empty");
  if (options.threads < 0) {
    throw ConfigError("TarShardsOptions: threads is " + std::to_string(options.threads) + "; 0 chooses, or 1 and more");
  }
  if (options.open_files < 1) {
    throw ConfigError("TarShardsOptions: open_files is " + std::to_string(options.open_files) + "; at least 1");
  }
}

int thread_count(std::size_t shards, int wanted) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads = wanted > 0 ? wanted : std::min(cores, most_threads);
  return static_cast<int>(std::min<std::size_t>(shards, static_cast<std::size_t>(threads)));
}

// The error of the first shard that has one, whichever thread meets it.
std::vector<TarIndex> open_indexes(const std::vector<std::string>& paths, const TarShardsOptions& options) {
  std::vector<TarIndex> indexes(paths.size());
  std::vector<std::exception_ptr> errors(paths.size());
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    for (std::size_t i = next++; i < paths.size() && !failed; i = next++) {
      try {
        indexes[i] = detail::open_tar_index(paths[i], options.keep_index);
      } catch (...) {
        errors[i] = std::current_exception();
        failed = true;
      }
    }
  };
  std::vector<std::thread> threads;
  try {
    for (int i = 1; i < thread_count(paths.size(), options.threads); ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads to be had: those that run do it all
  }
  work();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return indexes;
}

// Calls range(first, last, begin, end) for parts [first, last) that one read of the bytes [begin, end) brings.
template <class Range>
void for_each_range(std::span<const TarIndex::Part> parts, Range range) {
  for (std::size_t first = 0; first < parts.size();) {
    uint64_t end = parts[first].offset + parts[first].size;
    std::size_t last = first + 1;
    while (last < parts.size() && parts[last].offset - end <= widest_gap) {
      end = parts[last].offset + parts[last].size;
      ++last;
    }
    range(first, last, parts[first].offset, end);
    first = last;
  }
}

}  // namespace

struct TarShards::State {
  State(std::vector<std::string> names, const TarShardsOptions& options)
      : paths(std::move(names)),
        shards(open_indexes(paths, options)),
        files(paths.size(), static_cast<std::size_t>(options.open_files)) {
    begins.push_back(0);
    for (const TarIndex& shard : shards) begins.push_back(begins.back() + shard.size());
  }

  struct Place {
    std::size_t shard;
    int64_t sample;
  };
  Place place(int64_t index) const {
    if (index < 0 || index >= begins.back()) {
      throw DataError("sample " + std::to_string(index) + " does not exist; the " + std::to_string(paths.size()) +
                      " tar shards hold " + std::to_string(begins.back()));
    }
    const auto after = std::upper_bound(begins.begin(), begins.end(), index);
    const auto shard = static_cast<std::size_t>(after - begins.begin()) - 1;
    return {shard, index - begins[shard]};
  }

  std::string describe(Place at) const {
    return paths[at.shard] + ", sample '" + std::string(shards[at.shard].key(at.sample)) + "'";
  }
  [[noreturn]] void fail(Place at, const std::string& why) const { throw DataError(describe(at) + ": " + why); }

  std::shared_ptr<const detail::Descriptor> open(Place at) const {
    auto file = files.get(at.shard, paths[at.shard]);
    if (!file) fail(at, std::string("the shard cannot be opened: ") + std::strerror(errno));
    struct ::stat status {};
    if (::fstat(file->get(), &status) != 0) fail(at, std::string("the shard cannot be read: ") + std::strerror(errno));
    const detail::FileStamp& known = shards[at.shard].stamp;
    if (const auto now = detail::FileStamp::of(status); now != known) {
      fail(at, now.bytes == known.bytes
                   ? std::string("the shard has been written to since it was opened")
                   : "the shard has changed since it was opened: it had " + std::to_string(known.bytes) +
                         " bytes, and has " + std::to_string(now.bytes));
    }
    return file;
  }

  void read_range(Place at, int file, std::byte* out, uint64_t begin, uint64_t end) const {
    for (uint64_t here = begin; here < end;) {
      const ssize_t got = ::pread(file, out + (here - begin), end - here, static_cast<off_t>(here));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(at, std::string("cannot be read: ") + std::strerror(errno));
      if (got == 0) fail(at, "the shard ends at byte " + std::to_string(here) + ", within the sample");
      here += static_cast<uint64_t>(got);
    }
  }

  std::vector<std::string> paths;
  std::vector<TarIndex> shards;
  std::vector<int64_t> begins;  // and one more, where the last one ends
  mutable detail::DescriptorCache files;
};

TarShards::TarShards(const std::string& pattern, TarShardsOptions options) : TarShards(shard_list(pattern), options) {}

TarShards::TarShards(std::vector<std::string> paths, TarShardsOptions options) {
  check(paths, options);
  state_ = std::make_shared<const State>(std::move(paths), options);
}

int64_t TarShards::size() const { return state_->begins.back(); }

void TarShards::read(int64_t index, Record& out) const {
  const State& state = *state_;
  const State::Place at = state.place(index);
  const TarIndex& shard = state.shards[at.shard];
  if (!shard.damage.empty() && at.sample + 1 == shard.size()) state.fail(at, shard.damage);
  const auto parts = shard.parts_of(at.sample);
  uint64_t bytes = 0;
  for_each_range(parts, [&](std::size_t, std::size_t, uint64_t begin, uint64_t end) { bytes += end - begin; });
  // Never made smaller: growing again would fill it with zeros.
  if (out.storage.size() < bytes) out.storage.resize(static_cast<std::size_t>(bytes));
  out.parts.clear();
  out.label.reset();
  const StageScope timed(Stage::read);
  const auto file = state.open(at);
  std::byte* to = out.storage.data();
  for_each_range(parts, [&](std::size_t first, std::size_t last, uint64_t begin, uint64_t end) {
    state.read_range(at, file->get(), to, begin, end);
    for (std::size_t i = first; i < last; ++i) {
      const TarIndex::Part& part = parts[i];
      out.parts.push_back({shard.extensions[part.extension], {to + (part.offset - begin), part.size}});
    }
    to += end - begin;
  });
  count_bytes(static_cast<int64_t>(bytes));
}

std::string TarShards::describe(int64_t index) const { return state_->describe(state_->place(index)); }

std::vector<int64_t> TarShards::shard_sizes() const {
  std::vector<int64_t> sizes;
  for (const TarIndex& shard : state_->shards) sizes.push_back(shard.size());
  return sizes;
}

std::string TarShards::key(int64_t index) const {
  const State::Place at = state_->place(index);
  return std::string(state_->shards[at.shard].key(at.sample));
}

const std::vector<std::string>& TarShards::paths() const { return state_->paths; }

}  // namespace saturate::data
