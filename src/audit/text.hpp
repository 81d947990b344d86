// SPDX-License-Identifier: Apache-2.0
// Numbers and sentences as the audit's table, page and reasons show them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::audit::text {

/// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

/// About 3 significant digits: 0.110, 1.23, 11.9, 3712. "nan" for what is no number.
std::string number(double value);
/// Like number(), with thin thousands: 12,345.
std::string thousands(double value);
/// A ratio: two decimals (0.11, 1.23), one from 100 on; three where two would hide a difference from 1 (0.997).
std::string ratio(double value);
/// ratio(value) with its sign of multiplication: 1.23×.
std::string times(double value);
/// 0.9 ms, 34 ms, 1.20 s.
std::string seconds(double value);
/// 512 KiB, 1.2 GiB; "unknown" for 0.
std::string bytes(int64_t value);
/// 3 %, 0.4 %.
std::string percent(double share);
/// "a, b and c".
std::string join(const std::vector<std::string>& words, std::string_view last = " and ");
/// The first line of a message, so that a C++ backtrace below it does not fill the table.
std::string first_line(std::string_view message);

}  // namespace saturate::audit::text
