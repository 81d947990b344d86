// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/tar_shards.hpp"

#include "saturate/data/stage.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"
#include "unit/data/tar_support.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <fcntl.h>
#include <sys/resource.h>

#include <clocale>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace saturate::test;
using saturate::ConfigError;
using saturate::DataError;
using saturate::data::Record;
using saturate::data::TarShards;

namespace {

using Samples = std::vector<std::pair<std::string, Parts>>;

const std::string fixtures = SATURATE_SOURCE_DIR "/tests/unit/data/tars/";

std::string pixels(std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i);
  return text;
}

Samples all(const TarShards& shards) {
  Samples samples;
  Record record;
  for (int64_t i = 0; i < shards.size(); ++i) {
    shards.read(i, record);
    samples.emplace_back(shards.key(i), parts_of(record));
  }
  return samples;
}

Samples all(const std::string& path) { return all(TarShards(path, {.keep_index = false})); }

std::string error_of(const std::string& path) {
  return message_of<DataError>([&] { TarShards(path, {.keep_index = false}); });
}

bool says(const std::string& message, const std::string& text) { return message.find(text) != message.npos; }

// What make.py puts into the tars.
Samples packed(bool with_long_name) {
  Samples samples = {{"a", {{"jpg", pixels(768)}, {"cls", "3"}}},
                     {"dir/22.0/1", {{"1.png", "png"}, {"txt", "text"}}},
                     {"empty", {{"bin", ""}, {"txt", "x"}}}};
  if (with_long_name) samples.push_back({std::string(120, 'l') + "/" + std::string(90, 'm'), {{"json", "[1]"}}});
  samples.push_back({"naïve-日本", {{"txt", "日本"}}});
  samples.push_back({"z", {{"jpg", pixels(512)}}});
  return samples;
}

struct Warnings {
  Warnings() {
    saturate::log::set_sink([](saturate::log::Level, std::string_view message,
                               void* self) { static_cast<Warnings*>(self)->lines.emplace_back(message); },
                            this);
  }
  ~Warnings() { saturate::log::set_sink(nullptr, nullptr); }
  bool any(const std::string& text) const {
    for (const std::string& line : lines) {
      if (says(line, text)) return true;
    }
    return false;
  }
  std::vector<std::string> lines;
};

}  // namespace

TEST_CASE("tars of every writer and format give the same samples", "[tar_shards]") {
  const auto name = GENERATE(as<std::string>{}, "gnu_tar-gnu", "gnu_tar-oldgnu", "gnu_tar-pax", "gnu_tar-ustar",
                             "gnu_tar-v7", "python-gnu", "python-pax", "python-ustar", "libarchive-gnutar",
                             "libarchive-pax", "libarchive-paxr", "libarchive-ustar", "libarchive-v7tar");
  CAPTURE(name);
  CHECK(all(fixtures + name + ".tar") == packed(!name.ends_with("v7") && !name.ends_with("v7tar")));
}

TEST_CASE("keys do not depend on the locale of the program", "[tar_shards]") {
  const std::string before = std::setlocale(LC_ALL, nullptr);
  const auto locale = GENERATE(as<std::string>{}, "C", "C.UTF-8");
  if (std::setlocale(LC_ALL, locale.c_str()) == nullptr) SKIP("no locale " << locale);
  for (const char* name : {"gnu_tar-gnu", "gnu_tar-pax", "libarchive-pax"}) {
    CHECK(all(fixtures + name + ".tar") == packed(true));
  }
  std::setlocale(LC_ALL, before.c_str());
}

TEST_CASE("names are split as WebDataset splits them", "[tar_shards]") {
  const TempFolder folder;
  const auto path = write_file(folder / "t.tar", tar({{"/some/path/22.0/1.1.png", "a"},
                                                      {"./x.JPG", "b"},
                                                      {"./x.Seg.Png", "c"},
                                                      {".hidden", "-"},
                                                      {"d/.hidden.jpg", "-"},
                                                      {"nodot", "-"},
                                                      {"d.d/nodot", "-"},
                                                      {"__meta__/info.json", "-"},
                                                      {"__info__", "-"},
                                                      {"d/__x__/k.txt", "d"},
                                                      {"__x.txt", "e"},
                                                      {"end.", "f"}}));
  CHECK(all(path) == Samples{{"/some/path/22.0/1", {{"1.png", "a"}}},
                             {"./x", {{"jpg", "b"}, {"seg.png", "c"}}},
                             {"d/__x__/k", {{"txt", "d"}}},
                             {"__x", {{"txt", "e"}}},
                             {"end", {{"", "f"}}}});
}

TEST_CASE("members that are no regular files are passed over", "[tar_shards]") {
  const TempFolder folder;
  std::string bytes = tar_member("a.jpg", "a");
  for (const char type : {'1', '2', '3', '4', '5', '6'})
    bytes += tar_member(std::string("x") + type + ".jpg", "", type);
  const auto path = write_file(folder / "t.tar", bytes + tar_member("b.jpg", "b") + end_blocks);
  CHECK(all(path) == Samples{{"a", {{"jpg", "a"}}}, {"b", {{"jpg", "b"}}}});
}

TEST_CASE("parts that do not make whole samples are errors that name shard and member", "[tar_shards]") {
  const TempFolder folder;
  const auto twice = write_file(folder / "twice.tar", tar({{"base.jpg", "1"}, {"base.json", "2"}, {"base.jpg", "3"}}));
  CHECK(says(error_of(twice), twice));
  CHECK(says(error_of(twice), "base.jpg"));
  const auto upper = write_file(folder / "upper.tar", tar({{"base.jpg", "1"}, {"base.JPG", "3"}}));
  CHECK(says(error_of(upper), "base.JPG"));
  const auto apart = write_file(folder / "apart.tar", tar({{"0.a", "1"}, {"1.a", "2"}, {"0.b", "3"}, {"1.b", "4"}}));
  CHECK(says(error_of(apart), apart));
  CHECK(says(error_of(apart), "0.b"));
  CHECK(says(error_of(apart), "--sort=name"));
  CHECK_FALSE(exists(apart + ".index"));
}

TEST_CASE("one key in two shards makes two samples", "[tar_shards]") {
  const TempFolder folder;
  write_file(folder / "s-0.tar", tar({{"k.txt", "first"}, {"l.txt", "second"}}));
  write_file(folder / "s-1.tar", tar({{"k.txt", "third"}}));
  const TarShards shards(folder / "s-{0..1}.tar");
  CHECK(shards.shard_sizes() == std::vector<int64_t>{2, 1});
  CHECK(all(shards) == Samples{{"k", {{"txt", "first"}}}, {"l", {{"txt", "second"}}}, {"k", {{"txt", "third"}}}});
  CHECK(shards.describe(2) == folder / "s-1.tar" + ", sample 'k'");
  CHECK(shards.paths() == std::vector<std::string>{folder / "s-0.tar", folder / "s-1.tar"});
  Record record;
  CHECK_THROWS_AS(shards.read(3, record), DataError);
  CHECK_THROWS_AS(shards.read(-1, record), DataError);
}

TEST_CASE("a tar may end in many ways", "[tar_shards]") {
  const TempFolder folder;
  const Samples expected = {{"a", {{"jpg", "aaa"}, {"cls", "1"}}}, {"b", {{"jpg", "bbb"}, {"cls", "2"}}}};
  const std::string whole = tar({{"a.jpg", "aaa"}, {"a.cls", "1"}, {"b.jpg", "bbb"}, {"b.cls", "2"}});
  const std::string members = whole.substr(0, whole.size() - 1024);
  const auto ends = [&](const std::string& bytes) { return all(write_file(folder / "t.tar", bytes)) == expected; };
  CHECK(ends(members));                           // no end blocks
  CHECK(ends(members + std::string(512, '\0')));  // one of the two
  CHECK(ends(whole + std::string(9000, '\0')));   // many
  CHECK(ends(whole + "trailing garbage"));
  CHECK(ends(whole + std::string(2048, 'x')));
  CHECK(ends(whole + tar({{"later.jpg", "after the end"}})));  // another tar
  // Without the zeros after the last byte it was cut: nobody knows what is missing.
  CHECK_THROWS_WITH(ends(members.substr(0, members.size() - 511)),
                    Catch::Matchers::ContainsSubstring("more members may be missing"));
}

TEST_CASE("a cut shard gives every complete sample, then the error", "[tar_shards]") {
  const TempFolder folder;
  const std::string whole = tar({{"a.jpg", "aaa"}, {"b.jpg", "bbb"}, {"b.cls", "1"}, {"c.jpg", pixels(900)}});
  const std::string members = whole.substr(0, whole.size() - 1024);
  const auto path = folder / "cut.tar";
  const Warnings warnings;
  struct Cut {
    std::size_t at;
    int64_t whole;
  };
  // In the last payload; at its header's end; in the last header; in and before the payload of b.cls.
  const auto cut =
      GENERATE(Cut{4 * 1024 - 300, 2}, Cut{4 * 1024 - 512, 2}, Cut{3 * 1024 + 100, 1}, Cut{2 * 1024 + 512, 1});
  CAPTURE(cut.at);
  write_file(path, members.substr(0, cut.at));
  const TarShards shards(path);
  REQUIRE(shards.size() == cut.whole + 1);
  Record record;
  shards.read(0, record);
  CHECK(parts_of(record) == Parts{{"jpg", "aaa"}});
  if (cut.whole > 1) {
    shards.read(1, record);
    CHECK(parts_of(record) == Parts{{"jpg", "bbb"}, {"cls", "1"}});
  }
  const std::string message = message_of<DataError>([&] { shards.read(cut.whole, record); });
  CHECK(says(message, path));
  CHECK(says(message, shards.key(cut.whole)));
  CHECK_FALSE(exists(path + ".index"));
  CHECK(warnings.any(path));
}

TEST_CASE("a damaged header in the middle is no silent end", "[tar_shards]") {
  const TempFolder folder;
  std::string bytes = tar({{"a.jpg", "aaa"}, {"b.jpg", "bbb"}, {"c.jpg", "ccc"}});
  bytes[2048 + 3] ^= 1;  // the header of c.jpg
  const auto path = write_file(folder / "t.tar", bytes);
  const TarShards shards(path);
  REQUIRE(shards.size() == 2);  // c's name cannot be trusted, so b may lack parts
  Record record;
  shards.read(0, record);
  CHECK_THROWS_AS(shards.read(1, record), DataError);
  CHECK_FALSE(exists(path + ".index"));
}

TEST_CASE("sizes in the base-256 form are read, and one beyond the file is an error of its sample", "[tar_shards]") {
  CHECK(all(fixtures + "base256.tar") == Samples{{"a", {{"jpg", pixels(768)}}}, {"b", {{"jpg", "b"}}}});
  const TarShards huge(fixtures + "huge.tar");
  REQUIRE(huge.size() == 2);
  Record record;
  huge.read(0, record);
  CHECK(parts_of(record) == Parts{{"jpg", "abc"}});
  CHECK(says(message_of<DataError>([&] { huge.read(1, record); }), "1099511627776"));
}

TEST_CASE("sparse members are refused, and named", "[tar_shards]") {
  const auto name = GENERATE(as<std::string>{}, "sparse-gnu", "sparse-pax-0.0", "sparse-pax-0.1", "sparse-pax-1.0");
  CHECK(says(error_of(fixtures + name + ".tar"), name == "sparse-gnu" ? "hole.bin" : "part.bin"));
  CHECK(says(error_of(fixtures + name + ".tar"), "sparse"));
}

TEST_CASE("files that are no shards are refused, and named", "[tar_shards]") {
  const TempFolder folder;
  const auto refused = [&](const std::string& bytes, const std::string& why) {
    const auto path = write_file(folder / "t.tar", bytes);
    return says(error_of(path), path) && says(error_of(path), why);
  };
  CHECK(refused("", "is empty"));
  CHECK(refused("no tar at all", "no tar archive"));
  CHECK(refused(std::string(5000, 'x'), "no tar archive"));
  CHECK(refused(end_blocks, "no samples"));
  CHECK(refused(tar({{"nodot", "1"}, {".x", "2"}}), "nodot"));
  CHECK(refused("\x1f\x8b\x08 gzip", "TarStream"));
  CHECK(refused("\x28\xb5\x2f\xfd zstd", "TarStream"));
  CHECK(refused("BZh91AY", "bzip2"));
  CHECK(says(error_of(folder / "missing.tar"), folder / "missing.tar"));
  CHECK(says(error_of(folder.path()), "is a folder"));
  CHECK_THROWS_AS(TarShards(std::vector<std::string>{}), ConfigError);
  CHECK_THROWS_AS(TarShards("t.tar", {.threads = -1}), ConfigError);
  CHECK_THROWS_AS(TarShards("t.tar", {.open_files = 0}), ConfigError);
  CHECK_THROWS_AS(TarShards("t-{0..1.tar"), ConfigError);
}

TEST_CASE("the first bad shard is the one that is named, however many threads look", "[tar_shards]") {
  const TempFolder folder;
  for (int i = 0; i < 8; ++i) {
    write_file(folder / ("s-" + std::to_string(i) + ".tar"), i == 0 ? "bad" : tar({{"k.txt", std::to_string(i)}}));
  }
  const auto threads = GENERATE(1, 4);
  CHECK(says(message_of<DataError>([&] { TarShards(folder / "s-{0..7}.tar", {.threads = threads}); }), "s-0.tar"));
  write_file(folder / "s-0.tar", tar({{"k.txt", "0"}}));
  const TarShards shards(folder / "s-{0..7}.tar", {.threads = threads});
  const Samples samples = all(shards);
  REQUIRE(samples.size() == 8);
  for (std::size_t i = 0; i < 8; ++i) CHECK(samples[i].second.at("txt") == std::to_string(i));
}

TEST_CASE("the index is kept beside the shard, used again, and made again when it does not fit", "[tar_shards]") {
  const TempFolder folder;
  const auto path = write_file(folder / "t.tar", tar({{"a.jpg", "aaa"}, {"a.cls", "1"}, {"b.jpg", "bbb"}}));
  const Samples expected = {{"a", {{"jpg", "aaa"}, {"cls", "1"}}}, {"b", {{"jpg", "bbb"}}}};
  CHECK(all(TarShards(path)) == expected);
  const std::string good = read_file(path + ".index");
  REQUIRE(good.size() > 64);

  // An index that says something else and fits is believed: it is read, and the tar's headers are not.
  std::string bytes = read_file(path);
  struct ::stat before {};
  REQUIRE(::stat(path.c_str(), &before) == 0);
  const ::timespec times[2] = {before.st_atim, before.st_mtim};
  std::string renamed = bytes;
  renamed.replace(1024 * 2, 512, tar_member("c.jpg", "").substr(0, 512));
  write_file(path, renamed);
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  CHECK(TarShards(path).key(1) == "b");

  // Another time of change: it is made again, and is right.
  write_file(path, bytes);
  const ::timespec later[2] = {{before.st_atim.tv_sec, 0}, {before.st_mtim.tv_sec + 5, 7}};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), later, 0) == 0);
  CHECK(all(TarShards(path)) == expected);
  const std::string current = read_file(path + ".index");
  CHECK(current != good);

  // Every single damaged byte, and every length, is noticed and repaired.
  for (std::size_t i = 0; i < current.size(); ++i) {
    std::string damaged = current;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x40);
    write_file(path + ".index", damaged);
    REQUIRE(all(TarShards(path)) == expected);
    REQUIRE(read_file(path + ".index") == current);
  }
  for (std::size_t i = 0; i < current.size(); i += 7) {
    write_file(path + ".index", current.substr(0, i));
    REQUIRE(all(TarShards(path)) == expected);
    REQUIRE(read_file(path + ".index") == current);
  }
  write_file(path + ".index", current + "x");
  CHECK(all(TarShards(path)) == expected);
  CHECK(read_file(path + ".index") == current);

  // Of another shard, with the same size and time.
  const auto other = write_file(folder / "other.tar", tar({{"x.jpg", "aaa"}, {"y.cls", "1"}, {"y.jpg", "bbbb"}}) + "1");
  TarShards{other};
  write_file(path + ".index", read_file(other + ".index"));
  CHECK(all(TarShards(path)) == expected);
}

TEST_CASE("where no index can be kept, shards are read all the same", "[tar_shards]") {
  const TempFolder folder;
  const auto path = write_file(folder / "t.tar", tar({{"a.jpg", "aaa"}}));
  CHECK(all(TarShards(path, {.keep_index = false})).size() == 1);
  CHECK_FALSE(exists(path + ".index"));
  make_folder(path + ".index");  // the index cannot get its name
  const Warnings warnings;
  CHECK(all(TarShards(path)) == Samples{{"a", {{"jpg", "aaa"}}}});
  CHECK(warnings.any("index"));
  CHECK(all(TarShards(path)).size() == 1);
  CHECK(warnings.lines.size() == 1);
}

TEST_CASE("a shard that shrinks, changes or vanishes in an epoch is an error that names it", "[tar_shards]") {
  const TempFolder folder;
  const std::string bytes = tar({{"a.jpg", pixels(5000)}, {"b.jpg", pixels(5000)}});
  const auto path = write_file(folder / "t.tar", bytes);
  const auto other = write_file(folder / "other.tar", bytes);
  const TarShards shards(std::vector<std::string>{path, other});
  Record record;
  shards.read(0, record);
  const auto error = [&](int64_t i) { return message_of<DataError>([&] { shards.read(i, record); }); };
  SECTION("shrinks") {
    REQUIRE(::truncate(path.c_str(), 8000) == 0);
    CHECK(says(error(1), path + ", sample 'b'"));
    CHECK(says(error(1), "8000"));
  }
  SECTION("is written over") {
    const ::timespec later[2] = {{1, 0}, {1, 0}};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), later, 0) == 0);
    CHECK(says(error(0), path + ", sample 'a'"));
  }
  SECTION("vanishes before it is opened") {
    REQUIRE(::unlink(other.c_str()) == 0);
    CHECK(says(error(3), other + ", sample 'b'"));
    shards.read(1, record);  // the others go on
    CHECK(parts_of(record).at("jpg") == pixels(5000));
  }
  SECTION("vanishes while it is open: the open file is what it was") {
    REQUIRE(::unlink(path.c_str()) == 0);
    shards.read(1, record);
    CHECK(parts_of(record).at("jpg") == pixels(5000));
  }
}

TEST_CASE("many shards are read with few open files, by many threads", "[tar_shards]") {
  const TempFolder folder;
  constexpr int64_t count = 40;
  std::vector<std::string> paths;
  for (int64_t i = 0; i < count; ++i) {
    Members members;
    for (int64_t k = 0; k < 5; ++k) members.emplace_back(std::to_string(k) + ".txt", std::to_string(i * 5 + k));
    paths.push_back(write_file(folder / ("s" + std::to_string(i) + ".tar"), tar(members)));
  }
  const TarShards shards(paths, {.open_files = 3});
  const auto open_files = [] {
    int open = 0;
    for (int file = 0; file < 1024; ++file) open += ::fcntl(file, F_GETFD) >= 0;
    return open;
  };
  const int before = open_files();
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const TarShards copy = shards;
      Record record;
      for (int64_t i = 0; i < 2000; ++i) {
        const int64_t sample = (i * 37 + t * 11) % copy.size();
        copy.read(sample, record);
        wrong[static_cast<std::size_t>(t)] += parts_of(record) != Parts{{"txt", std::to_string(sample)}};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4));
  CHECK(open_files() <= before + 3);
}

TEST_CASE("parts far apart are read one by one, and neighbours together", "[tar_shards]") {
  const TempFolder folder;
  const auto path = write_file(folder / "t.tar", tar({{"k.a", pixels(1000)},
                                                      {"k.b", ""},
                                                      {"k.c", pixels(70000)},
                                                      {".between", std::string(9000, '-')},
                                                      {"k.d", pixels(10)}}));
  const TarShards shards(path);
  Record record;
  const auto before = saturate::data::detail::stage_totals();
  shards.read(0, record);
  const auto after = saturate::data::detail::stage_totals();
  CHECK(parts_of(record) == Parts{{"a", pixels(1000)}, {"b", ""}, {"c", pixels(70000)}, {"d", pixels(10)}});
  const int64_t bytes = after.bytes - before.bytes;
  CHECK(bytes >= 71010);
  CHECK(bytes < 71010 + 4096);  // headers between neighbours, and not what lies far between
  CHECK(after.nanoseconds[0] > before.nanoseconds[0]);
}
