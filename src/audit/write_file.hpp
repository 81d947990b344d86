// SPDX-License-Identifier: Apache-2.0
// Whole files in one piece.
#pragma once

#include <string>
#include <string_view>

namespace saturate::audit {

/// Writes a temporary file beside `path` and renames it: a reader sees the old file or the new one, never a part.
/// @throws Error naming the path; the temporary file is gone then.
void write_file(const std::string& path, std::string_view content);

}  // namespace saturate::audit
