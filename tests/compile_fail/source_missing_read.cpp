// SPDX-License-Identifier: Apache-2.0
// A source that writes no sample.
// expect: saturate: a source needs `void read(int64_t index, std::array<std::byte*, fields> out) const`
#include "saturate/data/prefetch_loader.hpp"

struct Unreadable {
  static constexpr std::size_t fields = 2;
  int64_t size() const { return 10; }
  std::array<saturate::data::FieldLayout, fields> layout() const { return {}; }
};

int main() { saturate::data::PrefetchLoader loader(Unreadable{}, {.batch_size = 4}); }
