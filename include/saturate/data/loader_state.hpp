// SPDX-License-Identifier: Apache-2.0
// Where a loader stands, to go on from in another process: save loader.state().text() beside the weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace saturate::data {

/// After the last batch that was handed over; what was read ahead of it does not count. A few numbers, whatever the
/// size of the source.
struct LoaderState {
  int64_t epoch = 0;
  int64_t position = 0;  ///< samples of the epoch's sequence that were handed over, on all ranks together
  uint64_t seed = 0;
  int64_t length = 0;   ///< samples an epoch; -1 for a stream
  int64_t ranks = 1;    ///< a stream needs the same number again; sources with an index do not
  std::string sampler;  ///< its name

  /// One line of text.
  std::string text() const;
  /// @throws DataError when that is no text of a state.
  static LoaderState parse(std::string_view text);

  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

}  // namespace saturate::data
