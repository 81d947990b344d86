// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/tar_stream.hpp"

#include "saturate/data/tar_shards.hpp"
#include "saturate/error.hpp"
#include "unit/data/tar_support.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

using namespace saturate::test;
using saturate::ConfigError;
using saturate::DataError;
using saturate::data::Record;
using saturate::data::RecordStreamSource;
using saturate::data::StreamPart;
using saturate::data::TarShards;
using saturate::data::TarStream;

namespace {

const std::string fixtures = SATURATE_SOURCE_DIR "/tests/unit/data/tars/";

bool says(const std::string& message, const std::string& text) { return message.find(text) != message.npos; }

struct Read {
  std::vector<std::string> where;
  std::vector<Parts> parts;
  std::string error;
};

Read all(const RecordStreamSource& source, const StreamPart& part = {}) {
  Read result;
  const auto stream = source.open(part);
  Record record;
  std::string where;
  try {
    while (stream->next(record, where)) {
      result.where.push_back(where);
      result.parts.push_back(parts_of(record));
    }
  } catch (const DataError& error) {
    result.error = error.what();
    CHECK_FALSE(stream->next(record, where));  // it is at its end
  }
  return result;
}

std::string compressed(const std::string& bytes, const char* filter) {
  std::string out(bytes.size() + 4096, '\0');
  std::size_t used = 0;
  ::archive* const archive = archive_write_new();
  ::archive_entry* const entry = archive_entry_new();
  archive_entry_set_pathname(entry, "x");
  archive_entry_set_filetype(entry, AE_IFREG);
  REQUIRE(archive_write_add_filter_by_name(archive, filter) == ARCHIVE_OK);
  REQUIRE(archive_write_set_format_raw(archive) == ARCHIVE_OK);
  archive_write_set_bytes_in_last_block(archive, 1);
  REQUIRE(archive_write_open_memory(archive, out.data(), out.size(), &used) == ARCHIVE_OK);
  REQUIRE(archive_write_header(archive, entry) == ARCHIVE_OK);
  REQUIRE(archive_write_data(archive, bytes.data(), bytes.size()) == static_cast<la_ssize_t>(bytes.size()));
  REQUIRE(archive_write_close(archive) == ARCHIVE_OK);
  archive_entry_free(entry);
  archive_write_free(archive);
  return out.substr(0, used);
}

// Shards s0.tar, s1.tar, ...; sample texts count from 0 through all of them.
std::vector<std::string> numbered(const TempFolder& folder, int shards, int samples) {
  std::vector<std::string> paths;
  for (int s = 0; s < shards; ++s) {
    Members members;
    for (int i = 0; i < samples; ++i) {
      members.emplace_back("k" + std::to_string(i) + ".txt", std::to_string(s * samples + i));
    }
    paths.push_back(write_file(folder / ("s" + std::to_string(s) + ".tar"), tar(members)));
  }
  return paths;
}

std::vector<int> numbers(const RecordStreamSource& source, const StreamPart& part = {}) {
  std::vector<int> result;
  for (const Parts& parts : all(source, part).parts) result.push_back(std::stoi(parts.at("txt")));
  return result;
}

std::vector<int> up_to(int count) {
  std::vector<int> result;
  for (int i = 0; i < count; ++i) result.push_back(i);
  return result;
}

}  // namespace

TEST_CASE("a stream gives what random access gives, in the order of the shards", "[tar_stream]") {
  const auto name = GENERATE(as<std::string>{}, "gnu_tar-gnu", "gnu_tar-oldgnu", "gnu_tar-pax", "gnu_tar-ustar",
                             "gnu_tar-v7", "python-gnu", "python-pax", "libarchive-pax", "libarchive-v7tar", "base256");
  CAPTURE(name);
  const TarShards shards(fixtures + name + ".tar", {.keep_index = false});
  const Read read = all(TarStream(fixtures + name + ".tar"));
  REQUIRE(static_cast<int64_t>(read.parts.size()) == shards.size());
  Record record;
  for (int64_t i = 0; i < shards.size(); ++i) {
    shards.read(i, record);
    CHECK(read.parts[static_cast<std::size_t>(i)] == parts_of(record));
    CHECK(read.where[static_cast<std::size_t>(i)] == shards.describe(i));
  }
  CHECK(read.error.empty());
}

TEST_CASE("compressed shards and pipes are read", "[tar_stream]") {
  const TempFolder folder;
  const std::string bytes = tar({{"a.txt", std::string(300000, 'a')}, {"b.txt", "b"}});
  const std::vector<Parts> expected = {{{"txt", std::string(300000, 'a')}}, {{"txt", "b"}}};
  for (const char* filter : {"gzip", "bzip2", "xz", "zstd", "lz4"}) {
    CAPTURE(filter);
    const auto path = write_file(folder / "t.tar", compressed(bytes, filter));
    CHECK(all(TarStream(path)).parts == expected);
    const std::string packed = read_file(path);
    const Read cut = all(TarStream(write_file(folder / "cut.tar", packed.substr(0, packed.size() / 2))));
    CHECK(cut.parts.size() < 2);
    CHECK(says(cut.error, "cut.tar"));
  }
  const auto pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::thread writer([&] { write_file(pipe, bytes); });
  const Read read = all(TarStream(pipe));
  writer.join();
  CHECK(read.parts == expected);
}

TEST_CASE("a stream refuses what random access refuses", "[tar_stream]") {
  const TempFolder folder;
  const auto error = [&](const std::string& bytes) {
    return all(TarStream(write_file(folder / "t.tar", bytes))).error;
  };
  CHECK(says(error(tar({{"base.jpg", "1"}, {"base.json", "2"}, {"base.jpg", "3"}})), "base.jpg"));
  CHECK(says(error(tar({{"0.a", "1"}, {"1.a", "2"}, {"0.b", "3"}, {"1.b", "4"}})), "0.b"));
  CHECK(says(error(""), "is empty"));
  CHECK(says(error("no tar"), "no tar archive"));
  CHECK(says(error(end_blocks), "no samples"));
  CHECK(says(error(compressed("no tar in here", "gzip")), "t.tar"));
  CHECK(says(all(TarStream(fixtures + "sparse-gnu.tar")).error, "sparse"));
  CHECK(says(all(TarStream(fixtures + "sparse-pax-1.0.tar")).error, "sparse"));
  CHECK(says(all(TarStream(folder / "missing.tar")).error, "missing.tar"));
  const Read huge = all(TarStream(fixtures + "huge.tar"));
  CHECK(huge.parts == std::vector<Parts>{{{"jpg", "abc"}}});
  CHECK(says(huge.error, "sample 'b'"));
}

TEST_CASE("an error comes after every complete sample, with a shuffle buffer too", "[tar_stream]") {
  const TempFolder folder;
  numbered(folder, 1, 20);
  const std::string bytes = read_file(folder / "s0.tar");
  const auto path = write_file(folder / "cut.tar", bytes.substr(0, 1024 * 15 + 513));
  const auto buffer = GENERATE(0, 4, 100);
  const Read read = all(TarStream(path, {.buffer = buffer}));
  CHECK(read.parts.size() == 15);
  CHECK(says(read.error, path));
  CHECK(says(read.error, "k15"));
}

TEST_CASE("without shuffling the order is that of the shards", "[tar_stream]") {
  const TempFolder folder;
  CHECK(numbers(TarStream(numbered(folder, 3, 5))) == up_to(15));
}

TEST_CASE("the order is a function of seed, epoch and ranks", "[tar_stream]") {
  const TempFolder folder;
  const auto paths = numbered(folder, 6, 10);
  const TarStream stream(paths, {.shuffle_shards = true, .buffer = 16});
  const auto first = numbers(stream, {.seed = 3, .epoch = 1});
  CHECK(numbers(TarStream(paths, {.shuffle_shards = true, .buffer = 16}), {.seed = 3, .epoch = 1}) == first);
  CHECK(numbers(stream, {.seed = 3, .epoch = 2}) != first);
  CHECK(numbers(stream, {.seed = 4, .epoch = 1}) != first);
  CHECK(first != up_to(60));
  auto sorted = first;
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted == up_to(60));
  // No sample comes `buffer` places early or more.
  const TarStream buffered(paths, {.buffer = 16});
  const auto mixed = numbers(buffered, {.seed = 3});
  for (int i = 0; i < 60; ++i) CHECK(mixed[static_cast<std::size_t>(i)] < i + 16);
  CHECK(mixed != up_to(60));
  // The buffer draws by seed, epoch, rank and number of ranks: with one shard each, nothing else differs.
  const TarStream alike(std::vector<std::string>(3, paths[0]), {.buffer = 8});
  std::set<std::vector<int>> orders;
  const StreamPart parts[] = {{.seed = 1, .ranks = 3},
                              {.seed = 2, .ranks = 3},
                              {.seed = 1, .epoch = 1, .ranks = 3},
                              {.seed = 1, .rank = 1, .ranks = 3}};
  for (const StreamPart& part : parts) orders.insert(numbers(alike, part));
  CHECK(orders.size() == 4);
}

TEST_CASE("ranks share the shards, and together give every sample once", "[tar_stream]") {
  const TempFolder folder;
  const auto paths = numbered(folder, 3, 4);
  const auto shuffle = GENERATE(false, true);
  const TarStream stream(paths, {.shuffle_shards = shuffle, .buffer = shuffle ? 5 : 0});
  CHECK(stream.shards_of({.seed = 1, .rank = 0, .ranks = 2}).size() == 2);
  CHECK(stream.shards_of({.seed = 1, .rank = 1, .ranks = 2}).size() == 1);
  for (int64_t ranks = 1; ranks <= 3; ++ranks) {
    std::vector<int> together;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto mine = numbers(stream, {.seed = 1, .epoch = 2, .rank = rank, .ranks = ranks});
      together.insert(together.end(), mine.begin(), mine.end());
    }
    std::sort(together.begin(), together.end());
    CHECK(together == up_to(12));
  }
  CHECK(says(message_of<ConfigError>([&] { stream.open({.ranks = 4}); }), "3 shards"));
  CHECK_THROWS_AS(stream.open({.rank = 2, .ranks = 2}), ConfigError);
  CHECK_THROWS_AS(stream.open({.rank = -1}), ConfigError);
  CHECK_THROWS_AS(stream.open({.ranks = 0}), ConfigError);
  CHECK_THROWS_AS(TarStream(paths, {.buffer = -1}), ConfigError);
  CHECK_THROWS_AS(TarStream(std::vector<std::string>{}), ConfigError);
}

TEST_CASE("records outlive the pass they came from", "[tar_stream]") {
  const TempFolder folder;
  numbered(folder, 2, 3);
  const TarStream stream(folder / "s{0..1}.tar", {.buffer = 2});
  std::vector<Record> records(6);
  {
    const auto pass = stream.open({});
    std::string where;
    for (Record& record : records) REQUIRE(pass->next(record, where));
    Record more;
    CHECK_FALSE(pass->next(more, where));
  }
  std::set<std::string> seen;
  for (const Record& record : records) seen.insert(parts_of(record).at("txt"));
  CHECK(seen.size() == 6);
}
