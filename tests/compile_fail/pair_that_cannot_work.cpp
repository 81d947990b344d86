// SPDX-License-Identifier: Apache-2.0
// expect: saturate: two of these policies cannot work together
#include "saturate/trainer/callback.hpp"

struct Parts {
  using axis = saturate::axis::accumulation;
  std::int64_t micro_batches() const { return 4; }
};
struct Recorded {
  using axis = saturate::axis::capture;
  using excludes = saturate::Excludes<Parts>;
  template <class Step>
  void run(Step step) {
    step();
  }
};
saturate::detail::CheckPack<Recorded, Parts> check;
