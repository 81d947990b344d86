// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/token_source.hpp"

#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/stage.hpp"
#include "saturate/error.hpp"

#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

using namespace saturate::data;
using at::ScalarType;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using saturate::ConfigError;
using saturate::DataError;

namespace {

/// Files in a folder that goes with the test.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/saturate_tokens_XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~Folder() {
    for (const std::string& file : files_) std::remove(file.c_str());
    ::rmdir(path_.c_str());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }

  /// `header` bytes of 0xff, the values at type T, then `rest`.
  template <class T>
  std::string write(const std::string& name, const std::vector<int64_t>& values, std::size_t header = 0,
                    const std::string& rest = {}) {
    std::string bytes(header, '\xff');
    for (const int64_t value : values) {
      const auto narrow = static_cast<T>(value);
      bytes.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
    }
    files_.push_back(path_ + "/" + name);
    std::ofstream(files_.back(), std::ios::binary) << bytes << rest;
    return files_.back();
  }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

/// `count` numbers below `bound`, no two neighbours the same, none like the place it is at.
std::vector<int64_t> some_tokens(int64_t count, int64_t bound, int64_t salt = 0) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < count; ++i) values.push_back((i * 7919 + 13 + salt * 101) * 104729 % bound);
  return values;
}

struct Pair {
  at::Tensor inputs, targets;
};

Pair gathered(const TokenSource& source, std::vector<int64_t> indices) {
  const int64_t n = static_cast<int64_t>(indices.size()), length = source.layout()[0].shape[0];
  Pair pair{at::full({n, length}, -1, at::kLong), at::full({n, length}, -1, at::kLong)};
  source.gather(indices, {static_cast<std::byte*>(pair.inputs.mutable_data_ptr()),
                          static_cast<std::byte*>(pair.targets.mutable_data_ptr())});
  return pair;
}

at::Tensor part(const std::vector<int64_t>& tokens, int64_t first, int64_t count) {
  return torch::tensor(std::vector<int64_t>(tokens.begin() + first, tokens.begin() + first + count), at::kLong);
}

template <class T>
void check_type(ScalarType dtype, int64_t bound, int64_t length) {
  Folder folder;
  const int64_t count = 5 * length + std::min<int64_t>(3, length);  // and a rest
  auto tokens = some_tokens(count, bound);
  tokens[1] = bound - 1;  // a value with the highest bit set: it must not become negative
  const std::size_t header = 4 * sizeof(T);
  const TokenSource source(folder.write<T>("tokens.bin", tokens, header),
                           {.dtype = dtype, .sequence_length = length, .header_bytes = static_cast<int64_t>(header)});
  REQUIRE(source.size() == 5);
  REQUIRE(source.tokens() == count);
  const auto [inputs, targets] = gathered(source, {3, 0, 4});
  for (const auto& [row, index] : {std::pair{0, 3}, {1, 0}, {2, 4}}) {
    REQUIRE(inputs[row].equal(part(tokens, index * length, length)));
    REQUIRE(targets[row].equal(part(tokens, index * length + 1, length)));
  }
}

void refused(const std::string& path, TokenOptions options, const std::string& words) {
  REQUIRE_THROWS_MATCHES(TokenSource(path, options), DataError,
                         MessageMatches(ContainsSubstring(path) && ContainsSubstring(words)));
}

}  // namespace

TEST_CASE("TokenSource cuts sequences and their shifted targets from all three types", "[data]") {
  for (const int64_t length : {1, 2, 7, 64, 129}) {
    check_type<uint8_t>(ScalarType::Byte, 1 << 8, length);
    check_type<uint16_t>(ScalarType::UInt16, 1 << 16, length);
    check_type<uint32_t>(ScalarType::UInt32, int64_t{1} << 32, length);
  }
}

TEST_CASE("TokenSource says int64 sequences and counts the last one only with its target", "[data]") {
  Folder folder;
  const auto layout = TokenSource(folder.write<uint16_t>("a", some_tokens(9, 100)), {.sequence_length = 4}).layout();
  for (const FieldLayout& field : layout) REQUIRE((field.dtype == at::kLong && field.shape == std::vector<int64_t>{4}));
  const auto count = [&](int64_t tokens, int64_t stride) {
    const auto path = folder.write<uint16_t>("b", some_tokens(tokens, 100));
    return TokenSource(path, {.sequence_length = 4, .stride = stride}).size();
  };
  REQUIRE(count(5, 0) == 1);
  REQUIRE(count(8, 0) == 1);  // tokens 4 to 7 are a sequence without its last target
  REQUIRE(count(9, 0) == 2);
  REQUIRE(count(9, 1) == 5);
  REQUIRE(count(9, 3) == 2);
  REQUIRE(count(9, 100) == 1);
}

TEST_CASE("TokenSource overlaps sequences by a smaller stride", "[data]") {
  Folder folder;
  const auto tokens = some_tokens(50, 1000);
  const TokenSource source(folder.write<uint16_t>("a", tokens), {.sequence_length = 8, .stride = 3});
  REQUIRE(source.size() == (50 - 9) / 3 + 1);
  const auto [inputs, targets] = gathered(source, {13, 5});
  REQUIRE(inputs[0].equal(part(tokens, 39, 8)));
  REQUIRE(targets[1].equal(part(tokens, 16, 8)));
}

TEST_CASE("TokenSource never joins two files", "[data]") {
  Folder folder;
  const std::vector<std::vector<int64_t>> tokens{some_tokens(14, 999, 1), some_tokens(6, 999, 2),
                                                 some_tokens(11, 999, 3)};
  std::vector<std::string> paths;
  for (const auto& values : tokens) paths.push_back(folder.write<uint16_t>(std::to_string(paths.size()), values));
  const TokenSource source(paths, {.sequence_length = 5});
  REQUIRE(source.size() == 2 + 1 + 2);
  REQUIRE(source.tokens() == 31);
  const auto [inputs, targets] = gathered(source, {4, 1, 2, 0, 3});
  const std::pair<std::size_t, int64_t> places[] = {{2, 5}, {0, 5}, {1, 0}, {0, 0}, {2, 0}};
  for (int64_t row = 0; row < 5; ++row) {
    const auto [file, first] = places[row];
    REQUIRE(inputs[row].equal(part(tokens[file], first, 5)));
    REQUIRE(targets[row].equal(part(tokens[file], first + 1, 5)));
  }
}

TEST_CASE("TokenSource reads through a loader, and counts the files' bytes", "[data]") {
  Folder folder;
  const auto tokens = some_tokens(4001, 50257);
  const TokenSource source(folder.write<uint16_t>("a", tokens), {.sequence_length = 40, .vocabulary = 50257});
  PrefetchLoader loader(source, {.batch_size = 16, .shuffle = true, .workers = 2});
  const auto order = epoch_order(100, true, 0, 0);
  int64_t k = 0;
  for (auto& batch : loader) {
    for (int64_t row = 0; row < batch.size(); ++row, ++k) {
      const int64_t first = order[static_cast<std::size_t>(k)] * 40;
      REQUIRE(batch.data()[row].equal(part(tokens, first, 40)));
      REQUIRE(batch.target()[row].equal(part(tokens, first + 1, 40)));
    }
  }
  REQUIRE(k == 100);
  const int64_t before = saturate::data::detail::stage_totals().bytes;
  gathered(source, {1, 2, 3});
  REQUIRE(saturate::data::detail::stage_totals().bytes - before == 3 * 41 * 2);
}

TEST_CASE("TokenSource names the token that is beyond the vocabulary", "[data]") {
  Folder folder;
  auto tokens = some_tokens(41, 100);
  tokens[40] = 100;  // the last target of the last sequence
  const auto path = folder.write<uint16_t>("a", tokens);
  const auto check = [&](TokenOptions options) { return gathered(TokenSource(path, options), {3, 0}); };
  REQUIRE_THROWS_MATCHES(check({.sequence_length = 10, .vocabulary = 100}), DataError,
                         MessageMatches(ContainsSubstring(path) && ContainsSubstring("token 40 is 100") &&
                                        ContainsSubstring("vocabulary of 100")));
  REQUIRE_NOTHROW(check({.sequence_length = 10, .vocabulary = 101}));
  REQUIRE_NOTHROW(check({.sequence_length = 10}));
  REQUIRE_NOTHROW(check({.sequence_length = 10, .vocabulary = 1 << 20}));  // more than the type can hold
  // Only what is read is checked, and the first of several is named.
  REQUIRE_NOTHROW(gathered(TokenSource(path, {.sequence_length = 10, .vocabulary = 100}), {0, 1, 2}));
  tokens[33] = 5000;
  folder.write<uint16_t>("a", tokens, 6);
  REQUIRE_THROWS_MATCHES(check({.sequence_length = 10, .header_bytes = 6, .vocabulary = 100}), DataError,
                         MessageMatches(ContainsSubstring("token 33 is 5000")));
}

TEST_CASE("TokenSource throws when a file was made shorter, and reads on in what is left", "[data]") {
  Folder folder;
  const auto tokens = some_tokens(100000, 999);
  const auto path = folder.write<uint16_t>("a", tokens), other = folder.write<uint16_t>("b", tokens);
  const TokenSource source({other, path}, {.sequence_length = 99});
  const int64_t per_file = source.size() / 2;
  REQUIRE(::truncate(path.c_str(), 2 * 1000) == 0);
  REQUIRE_NOTHROW(gathered(source, {per_file, per_file + 9, per_file - 1}));
  REQUIRE_THROWS_MATCHES(gathered(source, {0, per_file + 10, 1}), DataError,
                         MessageMatches(ContainsSubstring(path) && ContainsSubstring("had 200000 bytes, now 2000")));
  REQUIRE_THROWS_AS(gathered(source, {2 * per_file - 1}), DataError);

  PrefetchLoader loader(source, {.batch_size = 16, .workers = 2});
  const auto epoch = [&] {
    for (auto& batch : loader) (void)batch;
  };
  REQUIRE_THROWS_MATCHES(epoch(), DataError,
                         MessageMatches(ContainsSubstring(path) && ContainsSubstring(std::to_string(per_file + 10))));
}

TEST_CASE("TokenSource goes on with a file that was deleted, and shares it between copies", "[data]") {
  Folder folder;
  const auto tokens = some_tokens(21, 999);
  const auto path = folder.write<uint16_t>("a", tokens);
  auto source = std::make_unique<TokenSource>(path, TokenOptions{.sequence_length = 10});
  const TokenSource copy = *source;
  source.reset();
  std::remove(path.c_str());
  REQUIRE(gathered(copy, {1}).inputs[0].equal(part(tokens, 10, 10)));
}

TEST_CASE("TokenSource refuses files that it cannot cut, naming the file", "[data]") {
  Folder folder;
  const TokenOptions options{.sequence_length = 4};
  refused(folder.path() + "/missing.bin", options, "does not exist");
  refused(folder.path(), options, "is a folder");
  refused("/dev/null", options, "no regular file");
  refused(folder.write<uint16_t>("empty", {}), options, "is empty");
  refused(folder.write<uint16_t>("short", some_tokens(4, 9)), options, "holds 4 tokens");
  refused(folder.write<uint16_t>("odd", some_tokens(9, 9), 0, "x"), options, "holds 19 bytes");
  refused(folder.write<uint16_t>("header", some_tokens(9, 9)), {.sequence_length = 4, .header_bytes = 20},
          "header alone takes 20");
  refused(folder.write<uint32_t>("wide", some_tokens(9, 9), 0, "xy"),
          {.dtype = ScalarType::UInt32, .sequence_length = 4}, "holds 38 bytes");
  const auto good = folder.write<uint16_t>("good", some_tokens(9, 9));
  REQUIRE_THROWS_AS(TokenSource({good, folder.path() + "/empty"}, options), DataError);
  REQUIRE_THROWS_AS(gathered(TokenSource(good, options), {2}), DataError);
  REQUIRE_THROWS_AS(gathered(TokenSource(good, options), {-1}), DataError);
}

TEST_CASE("TokenOptions that cannot work are refused with their value", "[data]") {
  Folder folder;
  const auto path = folder.write<uint16_t>("a", some_tokens(9, 9));
  const auto check = [&](TokenOptions options, const char* words) {
    REQUIRE_THROWS_MATCHES(TokenSource(path, options), ConfigError, MessageMatches(ContainsSubstring(words)));
  };
  check({}, "sequence_length is 0");
  check({.sequence_length = -3}, "sequence_length is -3");
  check({.sequence_length = INT64_MAX}, "sequence_length is 9223372036854775807");
  check({.sequence_length = 4, .stride = -1}, "stride is -1");
  check({.sequence_length = 4, .header_bytes = 3}, "header_bytes is 3");
  check({.sequence_length = 4, .header_bytes = -2}, "header_bytes is -2");
  check({.sequence_length = 4, .vocabulary = -1}, "vocabulary is -1");
  check({.dtype = ScalarType::Int, .sequence_length = 4}, "dtype is Int");
  REQUIRE_THROWS_AS(TokenSource(std::vector<std::string>{}, {.sequence_length = 4}), ConfigError);
}
