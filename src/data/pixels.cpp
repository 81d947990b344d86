// SPDX-License-Identifier: Apache-2.0
#include "pixels.hpp"

#include "saturate/error.hpp"

#include <string>

namespace saturate::data::detail {

void check_size(const ImageSize& size, const char* kind) {
  const bool sides = size.width > 0 && size.height > 0 && size.width <= longest_side && size.height <= longest_side;
  if (sides && size.width * size.height <= most_pixels) return;
  throw DataError(std::string(kind) + " of " + std::to_string(size.width) + " x " + std::to_string(size.height) +
                  " pixels: the most is " + std::to_string(most_pixels) + ", and " + std::to_string(longest_side) +
                  " a side");
}

}  // namespace saturate::data::detail
