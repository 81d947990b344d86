// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/peaks.hpp"

#include "saturate/error.hpp"
#include "src/observe/triad_loops.hpp"

#include <torch/torch.h>

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <ftw.h>
#include <glob.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace {

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;

/// A cache folder that is gone afterwards.
class PeaksFolder {
 public:
  PeaksFolder() {
    char name[] = "/tmp/saturate-peaks-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~PeaksFolder() {
    ::nftw(
        path_.c_str(), [](const char* path, const struct stat*, int, FTW*) { return std::remove(path); }, 16,
        FTW_DEPTH | FTW_PHYS);
  }
  PeaksFolder(const PeaksFolder&) = delete;
  PeaksFolder& operator=(const PeaksFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string only_file() const {
    glob_t found{};
    std::string path;
    if (::glob((path_ + "/*").c_str(), 0, nullptr, &found) == 0) path = found.gl_pathv[0];
    CHECK(found.gl_pathc <= 1);
    ::globfree(&found);
    return path;
  }

 private:
  std::string path_;
};

st::PeakOptions quick(const std::string& folder) {
  return {.precisions = {"float32"}, .seconds = 0.05, .cache_folder = folder};
}

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("peaks: the triad computes what it is named for, and nothing beyond") {
  for (const int64_t n : {0, 1, 7, 16384, 100003}) {
    const auto b = torch::rand({n}), c = torch::rand({n});
    auto out = torch::full({n + 1}, -1.0f);
    st::triad_loops::best().triad(n, 3, b.const_data_ptr<float>(), c.const_data_ptr<float>(),
                                  out.mutable_data_ptr<float>());
    CHECK(torch::allclose(out.narrow(0, 0, n), b + 3 * c));
    CHECK(out[n].item<float>() == -1.0f);
  }
}

TEST_CASE("peaks: measured once, then read from the file") {
  const PeaksFolder folder;
  const st::Peaks first = st::measure_peaks(quick(folder.path()));
  CHECK_FALSE(first.from_cache);
  CHECK(first.device == "cpu");
  CHECK(first.flops("float32").value() > 1e8);  // any machine that runs LibTorch
  CHECK_FALSE(first.flops("float64"));
  CHECK(first.memory_bandwidth > 1e7);
  CHECK(first.host_to_device_pinned == 0);
  CHECK(first.notes.empty());
  CHECK_THAT(first.machine, ContainsSubstring("LibTorch 2."));
  CHECK(folder.only_file() == st::detail::peaks_file(folder.path(), first.machine));

  const st::Peaks second = st::measure_peaks(quick(folder.path()));
  CHECK(second.from_cache);
  CHECK((second.gemm == first.gemm));
  CHECK(second.memory_bandwidth == first.memory_bandwidth);
  CHECK(second.machine == first.machine);
  CHECK_THAT(second.table(), ContainsSubstring("measured before"));
}

TEST_CASE("peaks: a cache that cannot be used is measured anew, and says why") {
  const PeaksFolder folder;
  const st::Peaks first = st::measure_peaks(quick(folder.path()));
  const std::string path = folder.only_file(), good = content_of(path);
  const auto again_after = [&](const std::string& content) {
    std::ofstream(path) << content;
    const st::Peaks peaks = st::measure_peaks(quick(folder.path()));
    CHECK_FALSE(peaks.from_cache);
    CHECK(st::measure_peaks(quick(folder.path())).from_cache);  // and mended
    REQUIRE(peaks.notes.size() == 1);
    return peaks.notes.front();
  };
  CHECK_THAT(again_after(good.substr(0, good.size() / 2)), ContainsSubstring("is damaged"));
  CHECK_THAT(again_after(""), ContainsSubstring("is damaged"));
  CHECK_THAT(again_after("[]"), ContainsSubstring("is damaged"));
  std::string negative = good;
  const auto at = negative.find("\"flops\": ") + 9;
  negative.insert(at, "-");
  CHECK_THAT(again_after(negative), ContainsSubstring("flops is no rate"));
  std::string other = good;
  other.replace(other.find("\"version\": 1"), 12, "\"version\": 9");
  CHECK_THAT(again_after(other), ContainsSubstring("another version"));
  std::string stranger = good;
  stranger.replace(stranger.find("LibTorch 2"), 10, "LibTorch 1");
  CHECK_THAT(again_after(stranger), ContainsSubstring("another machine"));
}

TEST_CASE("peaks: a precision that the file lacks is measured; the number of threads is part of the key") {
  const PeaksFolder folder;
  (void)st::measure_peaks(quick(folder.path()));
  st::PeakOptions more = quick(folder.path());
  more.precisions = {"float32", "float64"};
  const st::Peaks peaks = st::measure_peaks(more);
  CHECK_FALSE(peaks.from_cache);
  CHECK(peaks.flops("float64").value() > 0);
  CHECK(st::measure_peaks(quick(folder.path())).from_cache);  // holds more than is asked for
  const int threads = at::get_num_threads();
  at::set_num_threads(threads + 1);
  const st::Peaks others = st::measure_peaks(quick(folder.path()));
  at::set_num_threads(threads);
  CHECK_FALSE(others.from_cache);
  CHECK(others.machine != peaks.machine);
}

TEST_CASE("peaks: without the cache nothing is read or written; where it cannot be written a note says so") {
  const PeaksFolder folder;
  st::PeakOptions options = quick(folder.path());
  options.use_cache = false;
  CHECK_FALSE(st::measure_peaks(options).from_cache);
  CHECK(folder.only_file().empty());
  options.use_cache = true;
  options.cache_folder = folder.path() + "/file/below";
  std::ofstream(folder.path() + "/file") << "in the way";
  const st::Peaks peaks = st::measure_peaks(options);
  CHECK(peaks.flops("float32"));
  REQUIRE(peaks.notes.size() == 1);
  CHECK_THAT(peaks.notes.front(), ContainsSubstring("not kept"));
}

TEST_CASE("peaks: the folder is the environment's") {
  const auto value_of = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string cache = value_of("XDG_CACHE_HOME"), home = value_of("HOME");
  ::setenv("XDG_CACHE_HOME", "/somewhere", 1);
  ::setenv("HOME", "/home/me", 1);
  CHECK_THAT(st::detail::peaks_file("", "m"), Catch::Matchers::StartsWith("/somewhere/saturate/peaks-"));
  CHECK_THAT(st::detail::peaks_file("/mine", "m"), Catch::Matchers::StartsWith("/mine/peaks-"));
  CHECK(st::detail::peaks_file("/mine", "m") != st::detail::peaks_file("/mine", "n"));
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  CHECK_THAT(st::detail::peaks_file("", "m"), Catch::Matchers::StartsWith("/home/me/.cache/saturate/peaks-"));
  ::unsetenv("XDG_CACHE_HOME");
  ::unsetenv("HOME");
  CHECK_THROWS_AS(st::detail::peaks_file("", "m"), st::ConfigError);
  if (!cache.empty()) ::setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  if (!home.empty()) ::setenv("HOME", home.c_str(), 1);
}

TEST_CASE("peaks: options that cannot work are refused") {
  CHECK_THROWS_AS(st::measure_peaks({.precisions = {"float8"}}), st::ConfigError);
  CHECK_THROWS_AS(st::measure_peaks({.precisions = {"tf32"}}), st::ConfigError);  // of a GPU
  CHECK_THROWS_AS(st::measure_peaks({.seconds = 0}), st::ConfigError);
  CHECK_THROWS_AS(st::measure_peaks({.device = c10::Device(c10::kMeta)}), st::ConfigError);
  if (!at::hasCUDA()) CHECK_THROWS_AS(st::measure_peaks({.device = c10::Device(c10::kCUDA)}), st::ConfigError);
}
