// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/shard_writer.hpp"

#include "saturate/data/tar_shards.hpp"
#include "saturate/error.hpp"
#include "unit/data/tar_support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <span>
#include <string>
#include <vector>

using namespace saturate::test;
using saturate::ConfigError;
using saturate::StateError;
using saturate::data::Record;
using saturate::data::ShardWriter;
using saturate::data::ShardWriterOptions;
using saturate::data::TarShards;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

void add(ShardWriter& writer, const std::string& key, const Parts& parts) {
  std::vector<Record::Part> list;
  for (const auto& [extension, content] : parts) list.push_back({extension, bytes_of(content)});
  writer.add(key, list);
}

std::vector<std::string> files_in(const std::string& path) {
  std::vector<std::string> names;
  ::DIR* const folder = ::opendir(path.c_str());
  while (const ::dirent* const entry = ::readdir(folder)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  return names;
}

bool says(const std::string& message, const std::string& text) { return message.find(text) != message.npos; }

void pack(const std::string& pattern, int samples, ShardWriterOptions options) {
  ShardWriter writer(pattern, options);
  for (int i = 0; i < samples; ++i) add(writer, std::to_string(i), {{"txt", std::to_string(i)}});
  writer.finish();
}

}  // namespace

TEST_CASE("what is written reads back, whatever the names", "[shard_writer]") {
  const TempFolder folder;
  const std::vector<std::pair<std::string, Parts>> samples = {
      {"a", {{"cls", "3"}, {"jpg", std::string(1000, '\xff')}}},
      {"dir.d/b", {{"seg.png", ""}, {"txt", "b"}}},
      {std::string(120, 'l') + "/" + std::string(140, 'm'), {{"json", "{}"}}},
      {"naïve-日本", {{"txt", "日本"}}},
      {"no utf-8: \xff\xfe", {{"txt", "x"}}}};
  ShardWriter writer(folder / "w-%03d.tar");
  for (const auto& [key, parts] : samples) add(writer, key, parts);
  CHECK(writer.samples() == 5);
  CHECK(writer.finish() == std::vector<std::string>{folder / "w-000.tar"});
  CHECK(writer.bytes() == static_cast<int64_t>(read_file(folder / "w-000.tar").size()));
  CHECK(files_in(folder.path()) == std::vector<std::string>{"w-000.tar", "w-000.tar.index"});
  const std::string index = read_file(folder / "w-000.tar.index");
  const TarShards shards(folder / "w-000.tar");
  REQUIRE(shards.size() == 5);
  Record record;
  for (int64_t i = 0; i < 5; ++i) {
    shards.read(i, record);
    CHECK(shards.key(i) == samples[static_cast<std::size_t>(i)].first);
    CHECK(parts_of(record) == samples[static_cast<std::size_t>(i)].second);
  }
  // The index that the writer left is the one that a reader makes.
  ::unlink((folder / "w-000.tar.index").c_str());
  TarShards{folder / "w-000.tar"};
  CHECK(read_file(folder / "w-000.tar.index") == index);
}

TEST_CASE("the same samples give the same bytes", "[shard_writer]") {
  const TempFolder folder;
  pack(folder / "a%d.tar", 20, {});
  pack(folder / "b%d.tar", 20, {.write_index = false});
  CHECK(read_file(folder / "a0.tar") == read_file(folder / "b0.tar"));
  CHECK_FALSE(exists(folder / "b0.tar.index"));
  CHECK(read_file(folder / "a0.tar").substr(108, 8).find_first_not_of("0 \0", 0, 3) == std::string::npos);  // owner
  CHECK(read_file(folder / "a0.tar").substr(136, 11) == "00000000000");  // time of change
}

TEST_CASE("shards are closed at their bounds", "[shard_writer]") {
  const TempFolder folder;
  pack(folder / "n-%02d.tar", 10, {.max_samples = 4});
  CHECK(TarShards(folder / "n-{00..02}.tar").shard_sizes() == std::vector<int64_t>{4, 4, 2});
  pack(folder / "b-%02d.tar", 10, {.max_bytes = 4 * 1024 + 1024});  // 1024 a sample, and 1024 at the end
  CHECK(TarShards(folder / "b-{00..02}.tar").shard_sizes() == std::vector<int64_t>{4, 4, 2});
  CHECK(read_file(folder / "b-00.tar").size() == 5 * 1024);
  pack(folder / "one-%d.tar", 3, {.max_bytes = 1});  // each sample is larger: alone
  CHECK(TarShards(folder / "one-{0..2}.tar").shard_sizes() == std::vector<int64_t>{1, 1, 1});
  ShardWriter long_names(folder / "long-%d.tar", {.max_bytes = 20000});
  for (int i = 0; i < 40; ++i) add(long_names, std::to_string(i) + std::string(200, 'x'), {{"txt", "x"}});
  for (const std::string& path : long_names.finish()) CHECK(read_file(path).size() <= 20000);
}

TEST_CASE("samples that would not read back are refused before anything is written", "[shard_writer]") {
  const TempFolder folder;
  ShardWriter writer(folder / "w-%d.tar");
  const auto refused = [&](const std::string& key, const Parts& parts) {
    return says(message_of<ConfigError>([&] { add(writer, key, parts); }), "ShardWriter: sample '");
  };
  CHECK(refused("a.b", {{"jpg", "x"}}));
  CHECK(refused("", {{"jpg", "x"}}));
  CHECK(refused("dir/", {{"jpg", "x"}}));
  CHECK(refused("a", {}));
  CHECK(refused("a", {{"JPG", "x"}}));
  CHECK(refused("a", {{"a/b", "x"}}));
  CHECK(refused("__meta__/a", {{"jpg", "x"}}));
  CHECK(refused(std::string("a\0b", 3), {{"jpg", "x"}}));
  const std::string text = "x";
  CHECK_THROWS_AS(writer.add("a", {{"jpg", bytes_of(text)}, {"jpg", bytes_of(text)}}), ConfigError);
  CHECK_THROWS_AS(writer.finish(), ConfigError);
  CHECK(files_in(folder.path()).empty());
  add(writer, "a", {{"jpg", "good"}});
  CHECK(refused("a", {{"jpg", "again"}}));
  add(writer, "b", {{"jpg", "good"}});
  writer.finish();
  CHECK_THROWS_AS(add(writer, "c", {{"jpg", "late"}}), StateError);
  CHECK(TarShards(folder / "w-0.tar").size() == 2);
}

TEST_CASE("patterns and options that cannot work are refused", "[shard_writer]") {
  const TempFolder folder;
  for (const char* pattern :
       {"w.tar", "w-%s.tar", "w-%06d-%d.tar", "w-%", "w-%99999d.tar", "%d/w.tar", "w-%%d.tar", ""}) {
    CHECK_THROWS_AS(ShardWriter(folder / pattern), ConfigError);
  }
  CHECK_THROWS_AS(ShardWriter(folder / "w-%d.tar", {.max_samples = -1}), ConfigError);
  CHECK_THROWS_AS(ShardWriter(folder / "w-%d.tar", {.max_bytes = 0}), ConfigError);
  ShardWriter lost(folder / "missing/w-%d.tar");
  CHECK(says(message_of<saturate::Error>([&] { add(lost, "a", {{"txt", "x"}}); }), "missing/w-0.tar"));
}

TEST_CASE("shards that are there stay, unless they are to be replaced", "[shard_writer]") {
  const TempFolder folder;
  pack(folder / "w-%02d.tar", 10, {.max_samples = 2});
  const std::string before = read_file(folder / "w-00.tar");
  CHECK(says(message_of<ConfigError>([&] { ShardWriter(folder / "w-%02d.tar"); }), "w-00.tar"));
  ::unlink((folder / "w-00.tar").c_str());
  CHECK(says(message_of<ConfigError>([&] { ShardWriter(folder / "w-%02d.tar"); }), "w-01.tar"));
  pack(folder / "other-%02d.tar", 1, {});
  pack(folder / "w-%02d.tar", 4, {.max_samples = 2, .overwrite = true});
  CHECK(files_in(folder.path()) == std::vector<std::string>{"other-00.tar", "other-00.tar.index", "w-00.tar",
                                                            "w-00.tar.index", "w-01.tar", "w-01.tar.index"});
  CHECK(read_file(folder / "w-00.tar") == before);
}

TEST_CASE("without finish the shard that is not complete is dropped", "[shard_writer]") {
  const TempFolder folder;
  {
    ShardWriter writer(folder / "w-%d.tar", {.max_samples = 2});
    for (int i = 0; i < 3; ++i) add(writer, std::to_string(i), {{"txt", "x"}});
  }
  CHECK(files_in(folder.path()) == std::vector<std::string>{"w-0.tar", "w-0.tar.index"});
}

TEST_CASE("a writer that is killed leaves whole shards under final names, and nothing else there", "[shard_writer]") {
  const TempFolder folder;
  const ::pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ShardWriter writer(folder / "w-%03d.tar", {.max_samples = 3});
    const std::string big(200'000, 'x');
    for (int i = 0;; ++i) {
      add(writer, std::to_string(i), {{"txt", big}});
      if (i == 10) ::kill(::getpid(), SIGKILL);
    }
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  int whole = 0;
  for (const std::string& name : files_in(folder.path())) {
    if (!name.ends_with(".tar")) continue;
    CHECK(TarShards(folder / name).size() == 3);
    ++whole;
  }
  CHECK(whole == 3);
  CHECK_FALSE(exists(folder / "w-003.tar"));
  // The temporary file that is left does not stand in the way of the next run.
  pack(folder / "w-%03d.tar", 6, {.max_samples = 3, .overwrite = true});
  CHECK(TarShards(folder / "w-{000..001}.tar").size() == 6);
}

TEST_CASE("a full disk is an error that names the shard, and leaves nothing", "[shard_writer]") {
  const TempFolder folder;
  const ::pid_t child = ::fork();  // the limit is the process's
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const ::rlimit limit{100'000, 100'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int result = 1;
    try {
      ShardWriter writer(folder / "w-%d.tar");
      const std::string big(3'000'000, 'x');
      try {
        add(writer, "a", {{"txt", big}});
        writer.finish();
      } catch (const saturate::Error& error) {
        result = says(error.what(), folder / "w-0.tar") && says(error.what(), "large") ? 0 : 2;
      }
      try {
        add(writer, "b", {{"txt", "x"}});
        result = 3;
      } catch (const StateError&) {
      }
    } catch (...) {
      result = 4;
    }
    ::_exit(result);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(files_in(folder.path()).empty());
}
