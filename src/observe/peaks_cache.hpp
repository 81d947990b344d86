// SPDX-License-Identifier: Apache-2.0
// Peaks in a file, one for each machine.
#pragma once

#include "saturate/observe/peaks.hpp"

#include <optional>
#include <string>

namespace saturate::detail {

struct CachedPeaks {
  std::optional<Peaks> peaks;  // nothing: not there, or not to be used
  std::string note;            // why a file that is there is not used
};

/// Never throws.
CachedPeaks read_peaks(const std::string& path, const std::string& machine);
/// Makes the folder. @throws Error naming the path.
void write_peaks(const std::string& path, const Peaks& peaks);

}  // namespace saturate::detail
