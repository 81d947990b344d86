// SPDX-License-Identifier: Apache-2.0
// How long this thread has waited for other ranks. ProcessGroup and Ddp take it down; StragglerReport leaves it out.
#pragma once

#include <chrono>

namespace saturate::distributed {

/// While it lives, this thread waits for other ranks. Nested ones count once.
class Waiting {
 public:
  using Clock = std::chrono::steady_clock;

  /// @param since when it began to wait.
  explicit Waiting(Clock::time_point since = Clock::now());
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  /// Of this thread so far.
  static double seconds();

 private:
  Clock::time_point since_;
};

}  // namespace saturate::distributed
