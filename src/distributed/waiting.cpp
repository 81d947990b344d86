// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/waiting.hpp"

namespace saturate::distributed {
namespace {

struct ThreadWaits {
  int depth = 0;
  double seconds = 0;
};
ThreadWaits& waits_of_thread() {
  thread_local ThreadWaits waits;
  return waits;
}

}  // namespace

Waiting::Waiting(Clock::time_point since) : since_(since) { ++waits_of_thread().depth; }

Waiting::~Waiting() {
  ThreadWaits& waits = waits_of_thread();
  if (--waits.depth == 0) waits.seconds += std::chrono::duration<double>(Clock::now() - since_).count();
}

double Waiting::seconds() { return waits_of_thread().seconds; }

}  // namespace saturate::distributed
