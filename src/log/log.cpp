// SPDX-License-Identifier: Apache-2.0
// Compiled without LibTorch's include folder: see log.hpp.
#include "saturate/log.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace saturate::log {
namespace {

struct State {
  std::mutex mutex;
  std::set<std::string, std::less<>> seen;
  Sink sink = nullptr;
  void* context = nullptr;
};

State& state() {
  static State instance;
  return instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::trace: return spdlog::level::trace;
    case Level::debug: return spdlog::level::debug;
    case Level::info: return spdlog::level::info;
    case Level::warn: return spdlog::level::warn;
    case Level::error: return spdlog::level::err;
    case Level::off: break;
  }
  return spdlog::level::off;
}

// To stderr, so that a program's own output stays clean. Made on first use and never destroyed, because objects with
// static lifetime may still log while the process ends.
spdlog::logger& logger() {
  static auto* instance = [] {
    auto made = new spdlog::logger("saturate", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("[%H:%M:%S] %n %^%l%$: %v");
    const char* wanted = std::getenv("SATURATE_LOG");
    made->set_level(wanted ? spdlog::level::from_str(wanted) : spdlog::level::info);
    return made;
  }();
  return *instance;
}

void print(Level level, std::string_view message) {
  if (!logger().should_log(to_spdlog(level))) return;
  logger().log(to_spdlog(level), message);
  const std::lock_guard lock(state().mutex);
  if (state().sink != nullptr) state().sink(level, message, state().context);
}

}  // namespace

void set_level(Level level) { logger().set_level(to_spdlog(level)); }

Level level() {
  switch (logger().level()) {
    case spdlog::level::trace: return Level::trace;
    case spdlog::level::debug: return Level::debug;
    case spdlog::level::info: return Level::info;
    case spdlog::level::warn: return Level::warn;
    case spdlog::level::off: return Level::off;
    default: return Level::error;
  }
}

void debug(std::string_view message) { print(Level::debug, message); }
void info(std::string_view message) { print(Level::info, message); }
void warn(std::string_view message) { print(Level::warn, message); }
void error(std::string_view message) { print(Level::error, message); }

bool warn_once(std::string_view key, std::string_view message) {
  {
    const std::lock_guard lock(state().mutex);
    if (!state().seen.emplace(key).second) return false;
  }
  warn(message);
  return true;
}

void set_sink(Sink sink, void* context) {
  const std::lock_guard lock(state().mutex);
  state().sink = sink;
  state().context = context;
}

}  // namespace saturate::log
