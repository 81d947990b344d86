// SPDX-License-Identifier: Apache-2.0
// A source that does not say how many tensors a batch has.
// expect: saturate: a source needs `static constexpr std::size_t fields`
#include "saturate/data/prefetch_loader.hpp"

struct Countless {
  int64_t size() const { return 10; }
  std::array<saturate::data::FieldLayout, 2> layout() const { return {}; }
  void read(int64_t, std::array<std::byte*, 2>) const {}
};

int main() { saturate::data::PrefetchLoader loader(Countless{}, {.batch_size = 4}); }
