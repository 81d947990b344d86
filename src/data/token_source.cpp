// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/token_source.hpp"

#include "mapped_file.hpp"
#include "saturate/data/stage.hpp"
#include "saturate/data/tensor_source.hpp"
#include "saturate/error.hpp"
#include "token_loops.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace saturate::data {
namespace detail {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read in place, and they are little-endian");

int64_t width_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Byte: return 1;
    case at::ScalarType::UInt16: return 2;
    case at::ScalarType::UInt32: return 4;
    default:
      throw ConfigError(std::string("TokenOptions: dtype is ") + c10::toString(dtype) +
                        "; token files hold UInt16, UInt32 or Byte");
  }
}

[[noreturn]] void refuse(const std::string& option, int64_t value, const std::string& what) {
  throw ConfigError("TokenOptions: " + option + " is " + std::to_string(value) + "; " + what);
}

TokenOptions checked(TokenOptions options) {
  const int64_t width = width_of(options.dtype);
  constexpr int64_t longest = std::numeric_limits<int64_t>::max() / 64;  // so that no number of bytes overflows
  if (options.sequence_length < 1 || options.sequence_length > longest)
    refuse("sequence_length", options.sequence_length, "it is the number of tokens of an input, 1 or more");
  if (options.stride < 0 || options.stride > longest)
    refuse("stride", options.stride, "it is the number of tokens from one sequence to the next; 0: sequence_length");
  if (options.header_bytes < 0 || options.header_bytes % width != 0)
    refuse("header_bytes", options.header_bytes, "tokens of " + std::to_string(width) + " bytes begin at a multiple");
  if (options.vocabulary < 0)
    refuse("vocabulary", options.vocabulary, "it is the number of different tokens; 0: not checked");
  if (options.stride == 0) options.stride = options.sequence_length;
  return options;
}

}  // namespace

/// The files, and which sequences are in which.
class TokenFiles {
 public:
  TokenFiles(std::vector<std::string> paths, const TokenOptions& options)
      : options_(options), width_(width_of(options.dtype)) {
    if (paths.empty()) throw ConfigError("TokenSource: there are no files");
    for (std::string& path : paths) add(std::move(path));
  }

  int64_t size() const { return first_.back(); }
  int64_t tokens() const { return tokens_; }

  template <class T>
  void gather(std::span<const int64_t> indices, int64_t* inputs, int64_t* targets) const {
    const int64_t length = options_.sequence_length;
    const auto& loops = token_loops::best<T>();
    require(indices);
    for (std::size_t k = 0; k < indices.size(); ++k, inputs += length, targets += length) {
      const auto* tokens = static_cast<const T*>(place(indices[k]));
      if (k + 1 < indices.size()) __builtin_prefetch(place(indices[k + 1]));
      if (options_.vocabulary != 0) check(loops, tokens, indices[k]);
      loops.widen(length, tokens, inputs, targets);
    }
    count_bytes(static_cast<int64_t>(indices.size()) * sequence_bytes());
  }

 private:
  void add(std::string path) {
    auto file = std::make_shared<const MappedFile>(std::move(path));
    const auto fail = [&](const std::string& why) { throw DataError(file->path() + ": " + why); };
    const int64_t bytes = file->size() - options_.header_bytes;
    if (bytes < 0) {
      fail("has " + std::to_string(file->size()) + " bytes, and its header alone takes " +
           std::to_string(options_.header_bytes));
    }
    if (bytes % width_ != 0) {
      fail("holds " + std::to_string(bytes) + " bytes of tokens, which is no multiple of the " +
           std::to_string(width_) + " that a token takes: another dtype, or a file that was cut short");
    }
    const int64_t tokens = bytes / width_;
    if (tokens <= options_.sequence_length) {
      fail("holds " + std::to_string(tokens) + " tokens; a sequence of " + std::to_string(options_.sequence_length) +
           " takes one more than its length");
    }
    tokens_ += tokens;
    first_.push_back(first_.back() + (tokens - options_.sequence_length - 1) / options_.stride + 1);
    files_.push_back(std::move(file));
  }

  std::size_t file_of(int64_t index) const {
    if (files_.size() == 1) return 0;
    return static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), index) - first_.begin() - 1);
  }
  int64_t sequence_bytes() const { return (options_.sequence_length + 1) * width_; }
  int64_t offset(int64_t index, std::size_t file) const {
    return options_.header_bytes + (index - first_[file]) * options_.stride * width_;
  }
  const void* place(int64_t index) const {
    const std::size_t file = file_of(index);
    return files_[file]->begin() + offset(index, file);
  }

  // Asks for each file once: how far the farthest sequence goes.
  void require(std::span<const int64_t> indices) const {
    thread_local std::vector<int64_t> end;
    end.assign(files_.size(), 0);
    for (const int64_t index : indices) {
      const std::size_t file = file_of(index);
      end[file] = std::max(end[file], offset(index, file) + sequence_bytes());
    }
    for (std::size_t f = 0; f < files_.size(); ++f) {
      if (end[f] != 0) files_[f]->require(end[f]);
    }
  }

  template <class T>
  void check(const token_loops::Loops<T>& loops, const T* tokens, int64_t index) const {
    const int64_t count = options_.sequence_length + 1;
    const auto allowed = static_cast<uint64_t>(options_.vocabulary);
    if (allowed > std::numeric_limits<T>::max() || loops.largest(count, tokens) < allowed) return;
    const T* bad = std::find_if(tokens, tokens + count, [&](T token) { return token >= allowed; });
    const std::size_t file = file_of(index);
    const int64_t position = (index - first_[file]) * options_.stride + (bad - tokens);
    throw DataError(files_[file]->path() + ": token " + std::to_string(position) + " is " + std::to_string(*bad) +
                    ", beyond the vocabulary of " + std::to_string(options_.vocabulary) +
                    ": another tokenizer, another dtype, or a header that was not skipped");
  }

  TokenOptions options_;
  int64_t width_;
  int64_t tokens_ = 0;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<int64_t> first_{0};  // sequences before each file, and all
};

}  // namespace detail

TokenSource::TokenSource(std::vector<std::string> paths, TokenOptions options)
    : options_(detail::checked(options)),
      files_(std::make_shared<const detail::TokenFiles>(std::move(paths), options_)) {}

TokenSource::TokenSource(std::string path, TokenOptions options)
    : TokenSource(std::vector<std::string>{std::move(path)}, options) {}

int64_t TokenSource::size() const { return files_->size(); }
int64_t TokenSource::tokens() const { return files_->tokens(); }

std::array<FieldLayout, TokenSource::fields> TokenSource::layout() const {
  const FieldLayout sequence{at::kLong, {options_.sequence_length}};
  return {sequence, sequence};
}

void TokenSource::gather(std::span<const int64_t> indices, std::array<std::byte*, fields> out) const {
  detail::check_indices(indices, size());
  const StageScope timed(Stage::read);
  auto* inputs = reinterpret_cast<int64_t*>(out[0]);
  auto* targets = reinterpret_cast<int64_t*>(out[1]);
  switch (options_.dtype) {
    case at::ScalarType::Byte: return files_->gather<uint8_t>(indices, inputs, targets);
    case at::ScalarType::UInt16: return files_->gather<uint16_t>(indices, inputs, targets);
    default: return files_->gather<uint32_t>(indices, inputs, targets);
  }
}

}  // namespace saturate::data
