// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/idx_source.hpp"

#include "saturate/data/normalize.hpp"
#include "saturate/error.hpp"

#include <torch/torch.h>
#include <zlib.h>

#include <unistd.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>

using namespace saturate::data;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

const std::string fashion = "/usr/share/datasets/fashion-mnist";

/// A folder that is gone when the test is over.
class Folder {
 public:
  Folder() { REQUIRE(::mkdtemp(path_.data()) != nullptr); }
  ~Folder() {
    for (const std::string& file : files_) ::unlink(file.c_str());
    ::rmdir(path_.c_str());
  }

  std::string plain(const std::string& name, const std::string& bytes) const {
    std::ofstream(add(name), std::ios::binary) << bytes;
    return files_.back();
  }
  std::string gzip(const std::string& name, const std::string& bytes) const {
    gzFile file = gzopen(add(name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return files_.back();
  }
  const std::string& path() const { return path_; }

 private:
  const std::string& add(const std::string& name) const {
    files_.push_back(path_ + "/" + name);
    return files_.back();
  }
  std::string path_ = "/tmp/saturate_idx_XXXXXX";
  mutable std::vector<std::string> files_;
};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string number(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string bytes_from_0(int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result.push_back(static_cast<char>(i));
  return result;
}

// Three images of 2 x 4 with the pixels 0 .. 23 and the labels 0 .. 2.
const std::string images = number(0x803) + number(3) + number(2) + number(4) + bytes_from_0(24);
const std::string labels = number(0x801) + number(3) + bytes_from_0(3);

void refuses(const std::string& bad, const std::string& words, const std::function<void()>& construct) {
  INFO(bad << ", " << words);
  REQUIRE_THROWS_MATCHES(construct(), saturate::DataError,
                         MessageMatches(ContainsSubstring(bad) && ContainsSubstring(words)));
}

}  // namespace

TEST_CASE("IdxSource reads plain and gzip files alike", "[data]") {
  const Folder folder;
  for (const bool zipped : {false, true}) {
    const auto write = [&](const std::string& name, const std::string& bytes) {
      return zipped ? folder.gzip(name, bytes) : folder.plain(name, bytes);
    };
    const IdxSource source(write("images", images), write("labels", labels), {.mean = 0.25, .std = 0.5});
    REQUIRE(source.size() == 3);
    REQUIRE(source.layout()[0].shape == std::vector<int64_t>{1, 2, 4});
    REQUIRE(source.images().equal(torch::arange(24, at::kByte).view({3, 2, 4})));
    auto image = torch::empty({2, 1, 2, 4});
    auto label = torch::empty({2}, at::kLong);
    const std::vector<int64_t> indices{2, 0};
    source.gather(indices, {static_cast<std::byte*>(image.mutable_data_ptr()),
                            static_cast<std::byte*>(label.mutable_data_ptr())});
    const auto picked = source.images().index_select(0, torch::tensor(indices)).unsqueeze(1);
    REQUIRE(image.equal(picked.to(at::kFloat).div(255).sub(0.25).div(0.5)));
    REQUIRE(label.equal(torch::tensor(indices)));
  }
}

TEST_CASE("IdxSource hands out raw pixels, for normalize_u8", "[data]") {
  const Folder folder;
  const IdxSource source(folder.plain("images", images), folder.plain("labels", labels), {.raw = true});
  REQUIRE(source.layout()[0].dtype == at::kByte);
  auto image = torch::empty({1, 2, 4}, at::kByte);
  int64_t label = -1;
  source.read(1, {static_cast<std::byte*>(image.mutable_data_ptr()), reinterpret_cast<std::byte*>(&label)});
  REQUIRE(image.equal(torch::arange(8, 16, at::kByte).view({1, 2, 4})));
  REQUIRE(label == 1);
}

TEST_CASE("bad idx files are refused, and the file is named", "[data]") {
  const Folder folder;
  const std::string good_images = folder.gzip("good_images", images), good_labels = folder.gzip("good_labels", labels);
  const std::string good_gzip = contents(good_images);
  const auto bad_images = [&](const std::string& name, const std::string& file, const std::string& words) {
    const std::string path = folder.plain(name, file);
    refuses(path, words, [&] { IdxSource(path, good_labels); });
    refuses(path, words, [&] { IdxSource(good_images, path); });
  };
  const auto bad_zip = [&](const std::string& name, const std::string& file, const std::string& words) {
    const std::string path = folder.plain(name, file);
    refuses(path, words, [&] { IdxSource(path, good_labels); });
    refuses(path, words, [&] { load_idx(path); });
  };
  refuses(folder.path() + "/none", "No such file", [&] { IdxSource(folder.path() + "/none", good_labels); });
  refuses(folder.path() + "/none", "No such file", [&] { IdxSource(good_images, folder.path() + "/none"); });
  refuses(folder.path(), "is a folder", [&] { IdxSource(folder.path(), good_labels); });
  bad_images("empty", "", "truncated");
  bad_images("short_header", images.substr(0, 3), "truncated");
  bad_images("text", "hello, this is no idx file", "no idx file");
  bad_images("unknown_type", number(0x703) + images.substr(4), "no idx file");
  bad_images("floats", number(0xd01) + number(1) + number(0), "magic number");
  bad_zip("cut_gzip", good_gzip.substr(0, good_gzip.size() - 9), "truncated");
  bad_zip("cut_checksum", good_gzip.substr(0, good_gzip.size() - 1), "truncated");
  std::string damaged = good_gzip;
  damaged[damaged.size() - 6] ^= 1;  // of the checksum
  bad_zip("damaged", damaged, "damaged");

  const auto bad = [&](const std::string& name, const std::string& file, const std::string& words) {
    const std::string path = folder.plain(name, file);
    refuses(path, words, [&] { IdxSource(path, good_labels); });
    refuses(path, words, [&] { load_idx(path); });
    const std::string zipped = folder.gzip(name + ".gz", file);
    refuses(zipped, words, [&] { IdxSource(zipped, good_labels); });
  };
  bad("truncated", images.substr(0, images.size() - 1), "truncated");
  bad("trailing", images + "x", "trailing data");
  bad("no_images", number(0x803) + number(0) + number(2) + number(4), "empty");
  bad("endless", number(0x803) + number(0xffffffff) + number(0xffffffff) + number(0xffffffff) + "abc", "truncated");
  bad("large", number(0x803) + number(1000000) + number(1000) + number(1000) + "abc", "truncated");
  const std::string trailing = folder.plain("behind_gzip", good_gzip + "junk");
  refuses(trailing, "damaged", [&] { IdxSource(trailing, good_labels); });

  refuses(good_labels, "magic number 0x801; images have 0x803", [&] { IdxSource(good_labels, good_labels); });
  refuses(good_images, "magic number 0x803; labels have 0x801", [&] { IdxSource(good_images, good_images); });
  const std::string two = folder.plain("two_labels", number(0x801) + number(2) + bytes_from_0(2));
  refuses(two, "holds 2 labels, but " + good_images + " holds 3 images", [&] { IdxSource(good_images, two); });
}

TEST_CASE("IdxSource refuses a std that cannot be divided by", "[data]") {
  for (const double std : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    REQUIRE_THROWS_AS(IdxSource("none", "none", {.std = std}), saturate::ConfigError);
  }
}

TEST_CASE("load_idx turns big-endian values of every type", "[data]") {
  const Folder folder;
  const auto load = [&](uint32_t magic, const std::string& data) {
    return load_idx(folder.plain("file", number(magic) + number(2) + data));
  };
  REQUIRE(load(0x901, "\x01\xff").equal(torch::tensor({1, -1}, at::kChar)));
  REQUIRE(load(0xb01, std::string("\x01\x02\xff\xfe", 4)).equal(torch::tensor({258, -2}, at::kShort)));
  REQUIRE(load(0xc01, number(70000) + number(0xfffffffe)).equal(torch::tensor({70000, -2}, at::kInt)));
  REQUIRE(load(0xd01, number(0x3fc00000) + number(0xc0000000)).equal(torch::tensor({1.5f, -2.0f})));
  REQUIRE(load(0xe01, number(0x3ff80000) + number(0) + number(0xc0000000) + number(0))
              .equal(torch::tensor({1.5, -2.0}, at::kDouble)));
}

TEST_CASE("a gzip file of two members is one file", "[data]") {
  const Folder folder;
  const std::string both =
      contents(folder.gzip("a", images.substr(0, 20))) + contents(folder.gzip("b", images.substr(20)));
  REQUIRE(load_idx(folder.plain("both", both)).equal(torch::arange(24, at::kByte).view({3, 2, 4})));
}

TEST_CASE("fashion_mnist reads the packaged files", "[data]") {
  if (::access(fashion.c_str(), F_OK) != 0) SKIP("needs the package dataset-fashion-mnist");
  const IdxSource train = IdxSource::fashion_mnist(Split::train), test = IdxSource::fashion_mnist(Split::test);
  REQUIRE(train.size() == 60000);
  REQUIRE(test.size() == 10000);
  REQUIRE(train.labels().bincount().equal(torch::full({10}, 6000, at::kLong)));
  const double mean = train.images().to(at::kFloat).mean().item<double>() / 255;
  REQUIRE(std::abs(mean - 0.2860) < 1e-4);  // the published mean
}

TEST_CASE("fashion_mnist says how to get the files when they are missing", "[data]") {
  refuses("/nowhere/train-images", "apt-get install dataset-fashion-mnist",
          [] { IdxSource::fashion_mnist(Split::train, {}, "/nowhere"); });
}

TEST_CASE("normalize_u8 gives the bits of the operators, in every memory order", "[data]") {
  const auto pixels = torch::arange(256, at::kByte).repeat({3}).view({4, 3, 8, 8});
  const auto by_hand = [](const at::Tensor& u8) { return u8.to(at::kFloat).div(255).sub(0.2860).div(0.3530); };
  const at::Tensor orders[] = {pixels, pixels.to(at::MemoryFormat::ChannelsLast), pixels.transpose(0, 3),
                               pixels.slice(2, 1, 7, 2), pixels.slice(0, 0, 0)};
  for (const auto& u8 : orders) {
    const auto values = normalize_u8(u8, 0.2860, 0.3530);
    REQUIRE(values.equal(by_hand(u8)));
    REQUIRE(values.scalar_type() == at::kFloat);
  }
  REQUIRE(normalize_u8(orders[1], 0, 1).is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST_CASE("normalize_u8 refuses other dtypes, other places and a std of zero", "[data]") {
  const auto pixels = torch::zeros({2}, at::kByte);
  REQUIRE_THROWS_AS(normalize_u8(pixels, 0, 0), saturate::ConfigError);
  REQUIRE_THROWS_AS(normalize_u8(pixels, std::nan(""), 1), saturate::ConfigError);
  REQUIRE_THROWS_AS(normalize_u8(pixels.to(at::kFloat), 0, 1), saturate::DataError);
  REQUIRE_THROWS_AS(normalize_u8(torch::zeros({2}, at::TensorOptions(at::kByte).device(at::kMeta)), 0, 1),
                    saturate::DataError);
  REQUIRE_THROWS_AS(normalize_u8(at::Tensor(), 0, 1), saturate::DataError);
}
