// SPDX-License-Identifier: Apache-2.0
// Logging of saturate: levels and the format of spdlog, behind three functions. spdlog's headers and LibTorch's cannot
// meet in one translation unit (each brings another fmt), so spdlog stays in src/log.cpp.
#pragma once

#include <string_view>

namespace saturate::log {

enum class Level { trace, debug, info, warn, error, off };

/// The lowest level that is printed (default: info). The environment variable SATURATE_LOG sets the first value:
/// one of trace, debug, info, warn, error, off.
void set_level(Level level);
Level level();

void debug(std::string_view message);
void info(std::string_view message);
void warn(std::string_view message);
void error(std::string_view message);

/// Warns the first time `key` is seen in this process; later calls with the same key are silent.
/// @return whether the message was printed.
bool warn_once(std::string_view key, std::string_view message);

/// Receives every printed message besides the terminal; one at a time, an empty function removes it. For tests and for
/// programs with a log of their own. Called under a lock: it must not log itself.
using Sink = void (*)(Level level, std::string_view message, void* context);
void set_sink(Sink sink, void* context);

}  // namespace saturate::log
