// SPDX-License-Identifier: Apache-2.0
#include "event_file.hpp"

#include <array>
#include <bit>

namespace saturate::detail {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[byte] = crc;
  }
  return table;
}

template <class Word>
std::string little_endian(Word word) {
  std::string bytes(sizeof(Word), '\0');
  for (auto& byte : bytes) {
    byte = static_cast<char>(word & 0xFF);
    word = static_cast<Word>(word >> 8);
  }
  return bytes;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7F) | 0x80);
  return bytes + static_cast<char>(value);
}

// A field's first byte: its number and how its value is stored. Field numbers here are all below 16.
enum class Wire { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };
std::string key(int field, Wire wire) { return std::string(1, static_cast<char>(field << 3 | static_cast<int>(wire))); }

std::string bytes_field(int field, std::string_view bytes) {
  return key(field, Wire::bytes) + varint(bytes.size()) + std::string(bytes);
}
std::string int_field(int field, int64_t value) {
  return key(field, Wire::varint) + varint(static_cast<uint64_t>(value));
}
std::string double_field(int field, double value) {
  return key(field, Wire::fixed64) + little_endian(std::bit_cast<uint64_t>(value));
}
std::string float_field(int field, float value) {
  return key(field, Wire::fixed32) + little_endian(std::bit_cast<uint32_t>(value));
}

}  // namespace

uint32_t crc32c(std::string_view data) {
  static constexpr auto table = make_table();
  uint32_t crc = 0xFFFFFFFFu;
  for (const char letter : data) crc = (crc >> 8) ^ table[(crc ^ static_cast<uint8_t>(letter)) & 0xFF];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view data) {
  const uint32_t crc = crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

std::string tf_record(std::string_view data) {
  const std::string length = little_endian(static_cast<uint64_t>(data.size()));
  return length + little_endian(masked_crc32c(length)) + std::string(data) + little_endian(masked_crc32c(data));
}

std::string version_event(double time) {
  return double_field(1, time) + bytes_field(3, "brain.Event:2");  // Event.wall_time, Event.file_version
}

std::string scalar_event(double time, int64_t step, std::string_view tag, float value) {
  const std::string point = bytes_field(1, tag) + float_field(2, value);        // Summary.Value.tag, .simple_value
  const std::string summary = bytes_field(1, point);                            // Summary.value
  return double_field(1, time) + int_field(2, step) + bytes_field(5, summary);  // Event.wall_time, .step, .summary
}

}  // namespace saturate::detail
