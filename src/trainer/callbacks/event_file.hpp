// SPDX-License-Identifier: Apache-2.0
// The bytes of TensorBoard's event files, without protobuf or TensorFlow: three messages and a frame. Formats:
//   tensorboard/compat/proto/event.proto, summary.proto
//   TFRecord: length (u64), masked CRC of the length (u32), data, masked CRC of the data (u32), all little-endian
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace saturate::detail {

/// CRC-32C (Castagnoli), as in RFC 3720.
uint32_t crc32c(std::string_view data);

/// The mask that TFRecord puts over a CRC, because the CRC of data that holds its own CRC is weak.
uint32_t masked_crc32c(std::string_view data);

/// `data` in a TFRecord frame.
std::string tf_record(std::string_view data);

/// The event that opens a file. @param time seconds since 1970
std::string version_event(double time);

/// An event with one scalar.
std::string scalar_event(double time, int64_t step, std::string_view tag, float value);

}  // namespace saturate::detail
