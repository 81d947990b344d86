// SPDX-License-Identifier: Apache-2.0
// Sequences for language models, cut from files of token numbers that are mapped into memory:
//
//   st::data::TokenSource source("train.bin", {.sequence_length = 1024, .vocabulary = 50257});  // uint16, as nanoGPT
//   st::data::PrefetchLoader loader(source, {.batch_size = 32, .shuffle = true});
#pragma once

#include "saturate/data/source.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace saturate::data {
namespace detail {
class TokenFiles;
}

/// What the files hold and how they are cut.
struct TokenOptions {
  at::ScalarType dtype = at::ScalarType::UInt16;  ///< in the file: UInt16, UInt32 (little-endian), or Byte
  int64_t sequence_length = 0;                    ///< L, tokens of an input; positive
  int64_t stride = 0;                             ///< tokens from one sequence's start to the next's; 0: L
  int64_t header_bytes = 0;                       ///< skipped at the start of each file; a multiple of the width
  int64_t vocabulary = 0;                         ///< a token that is not below is an error; 0: not checked
};

/// Inputs int64 [L], tokens i * stride .. i * stride + L - 1, and targets int64 [L], the same shifted by one: each
/// sequence takes L + 1 tokens, and with the default stride every token but the first of a file is a target once. No
/// sequence spans two files; a rest too short for one is left out.
///
/// Copies share the mapped files. Nothing is read before it is asked for. A file that is made shorter later is an
/// error when the missing part is read.
class TokenSource {
 public:
  static constexpr std::size_t fields = 2;

  /// @throws ConfigError on options that cannot work. @throws DataError naming the file: missing, empty, a folder,
  /// shorter than its header, not a whole number of tokens, too short for one sequence.
  TokenSource(std::vector<std::string> paths, TokenOptions options);
  TokenSource(std::string path, TokenOptions options);

  /// Sequences, over all files.
  int64_t size() const;
  std::array<FieldLayout, fields> layout() const;
  void read(int64_t index, std::array<std::byte*, fields> out) const { gather({&index, 1}, out); }
  /// @throws DataError naming the file: made shorter, or a token beyond the vocabulary with its place.
  void gather(std::span<const int64_t> indices, std::array<std::byte*, fields> out) const;

  /// Tokens of all files, those that no sequence takes included.
  int64_t tokens() const;
  const TokenOptions& options() const { return options_; }

 private:
  TokenOptions options_;
  std::shared_ptr<const detail::TokenFiles> files_;
};

static_assert(GatheringSource<TokenSource>);

}  // namespace saturate::data
