// SPDX-License-Identifier: Apache-2.0
// The bodies of token_loops.hpp, in a namespace without a name: included by one file for each instruction set, and
// nothing of one may be linked into another.
#pragma once

#include "token_loops.hpp"

namespace saturate::data::token_loops {
namespace {

template <class T>
void widen(int64_t n, const T* __restrict tokens, int64_t* __restrict inputs, int64_t* __restrict targets) {
  for (int64_t i = 0; i < n; ++i) inputs[i] = static_cast<int64_t>(tokens[i]);
  for (int64_t i = 0; i < n; ++i) targets[i] = static_cast<int64_t>(tokens[i + 1]);
}

template <class T>
T largest(int64_t n, const T* __restrict tokens) {
  T most = 0;
  for (int64_t i = 0; i < n; ++i) most = tokens[i] > most ? tokens[i] : most;
  return most;
}

template <class T>
constexpr Loops<T> all_loops{widen<T>, largest<T>};

}  // namespace
}  // namespace saturate::data::token_loops
