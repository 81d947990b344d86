// SPDX-License-Identifier: Apache-2.0
// The inner loops of TokenSource, compiled for vectors, one set for each instruction set. All sets give the same
// values.
#pragma once

#include <cstdint>

namespace saturate::data::token_loops {

/// T: uint8_t, uint16_t, uint32_t.
template <class T>
struct Loops {
  /// inputs[i] = tokens[i], targets[i] = tokens[i + 1], for i in [0, n).
  void (*widen)(int64_t n, const T* tokens, int64_t* inputs, int64_t* targets);
  /// The largest of n > 0 tokens.
  T (*largest)(int64_t n, const T* tokens);
};

/// The fastest set that this machine runs.
template <class T>
const Loops<T>& best();
template <>
const Loops<uint8_t>& best<uint8_t>();
template <>
const Loops<uint16_t>& best<uint16_t>();
template <>
const Loops<uint32_t>& best<uint32_t>();

}  // namespace saturate::data::token_loops
