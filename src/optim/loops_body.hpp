// SPDX-License-Identifier: Apache-2.0
// The bodies of loops.hpp, in a namespace without a name: included by one file for each instruction set, and nothing of
// one may be linked into another. For the same reason no function of the standard library is called that is not built
// in.
#pragma once

#include "loops.hpp"

#include <cmath>
#include <cstring>
#include <limits>

namespace saturate::optim::loops {
namespace {

template <class T, bool amsgrad>
void adam_loop(const Adam<T>& c, int64_t n, T* __restrict p, const T* __restrict grad, T* __restrict exp_avg,
               T* __restrict exp_avg_sq, T* __restrict largest) {
  for (int64_t i = 0; i < n; ++i) {
    const T g = c.sign * grad[i] + c.coupled_decay * p[i];
    const T m = exp_avg[i] + c.one_minus_beta1 * (g - exp_avg[i]);
    T v = c.beta2 * exp_avg_sq[i] + c.one_minus_beta2 * (g * g);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    if constexpr (amsgrad) {
      v = largest[i] > v ? largest[i] : v;
      largest[i] = v;
    }
    p[i] = c.shrink * p[i] - c.step * m / (c.correction2 * std::sqrt(v) + c.eps);
  }
}

template <class T>
void adagrad_loop(const Adagrad<T>& c, int64_t n, T* __restrict p, const T* __restrict grad, T* __restrict sum) {
  for (int64_t i = 0; i < n; ++i) {
    const T g = c.sign * grad[i] + c.weight_decay * p[i];
    const T total = sum[i] + g * g;
    sum[i] = total;
    p[i] -= c.lr * g / (std::sqrt(total) + c.eps);
  }
}

template <class T, bool nesterov>
void sgd_loop(const SGD<T>& c, int64_t n, T* __restrict p, const T* __restrict grad, T* __restrict buffer) {
  for (int64_t i = 0; i < n; ++i) {
    const T g = c.sign * grad[i] + c.weight_decay * p[i];
    const T m = c.momentum * buffer[i] + c.one_minus_dampening * g;
    buffer[i] = m;
    p[i] -= c.lr * (nesterov ? g + c.momentum * m : m);
  }
}

template <class T>
void sgd_loop(const SGD<T>& c, int64_t n, T* __restrict p, const T* __restrict grad) {
  for (int64_t i = 0; i < n; ++i) p[i] -= c.lr * (c.sign * grad[i] + c.weight_decay * p[i]);
}

template <class T, bool centered, bool has_momentum>
void rmsprop_loop(const RMSprop<T>& c, int64_t n, T* __restrict p, const T* __restrict grad, T* __restrict square_avg,
                  T* __restrict grad_avg, T* __restrict buffer) {
  for (int64_t i = 0; i < n; ++i) {
    const T g = c.sign * grad[i] + c.weight_decay * p[i];
    const T square = c.alpha * square_avg[i] + c.one_minus_alpha * (g * g);
    square_avg[i] = square;
    T variance = square;
    if constexpr (centered) {
      const T mean = grad_avg[i] + c.one_minus_alpha * (g - grad_avg[i]);
      grad_avg[i] = mean;
      variance = square - mean * mean;
      variance = variance < 0 ? T(0) : variance;  // a NaN stays
    }
    T step = g / (std::sqrt(variance) + c.eps);
    if constexpr (has_momentum) {
      step += c.momentum * buffer[i];
      buffer[i] = step;
    }
    p[i] -= c.lr * step;
  }
}

template <class T>
void lion_loop(const Lion<T>& c, int64_t n, T* __restrict p, const T* __restrict grad, T* __restrict exp_avg) {
  for (int64_t i = 0; i < n; ++i) {
    const T g = c.sign * grad[i], m = exp_avg[i];
    const T mixed = m + c.one_minus_beta1 * (g - m);
    const T up = mixed > 0 ? c.lr : T(0), down = mixed < 0 ? c.lr : T(0);
    p[i] = c.shrink * p[i] - (up - down);
    exp_avg[i] = m + c.one_minus_beta2 * (g - m);
  }
}

template <class T>
void moments(const LAMB<T>& c, int64_t n, const T* __restrict grad, T* __restrict exp_avg, T* __restrict exp_avg_sq) {
  for (int64_t i = 0; i < n; ++i) {
    const T g = c.sign * grad[i];
    exp_avg[i] += c.one_minus_beta1 * (g - exp_avg[i]);
    exp_avg_sq[i] = c.beta2 * exp_avg_sq[i] + c.one_minus_beta2 * (g * g);
  }
}

template <class T>
void directions(const LAMB<T>& c, int64_t n, const T* __restrict p, const T* __restrict exp_avg,
                const T* __restrict exp_avg_sq, T* __restrict u) {
  for (int64_t i = 0; i < n; ++i) {
    u[i] = c.correction1 * exp_avg[i] / (c.correction2 * std::sqrt(exp_avg_sq[i]) + c.eps) + c.weight_decay * p[i];
  }
}

template <class T>
void subtract(T lr, int64_t n, T* __restrict p, const T* __restrict u) {
  for (int64_t i = 0; i < n; ++i) p[i] -= lr * u[i];
}

template <class T>
void lars_loop(const LARS<T>& c, int64_t n, T* __restrict p, const T* __restrict grad, T* __restrict buffer) {
  for (int64_t i = 0; i < n; ++i) {
    const T m = c.momentum * buffer[i] + c.lr * (c.sign * grad[i] + c.weight_decay * p[i]);
    buffer[i] = m;
    p[i] -= m;
  }
}

template <class T>
void lars_loop(const LARS<T>& c, int64_t n, T* __restrict p, const T* __restrict grad) {
  for (int64_t i = 0; i < n; ++i) p[i] -= c.lr * (c.sign * grad[i] + c.weight_decay * p[i]);
}

// In float64 and in eight lanes, which become vector code although the compiler may not reorder a sum.
template <class T>
double sum_of_squares(int64_t n, const T* x) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t k = 0; k < 8; ++k) lanes[k] += static_cast<double>(x[i + k]) * static_cast<double>(x[i + k]);
  }
  for (; i < n; ++i) lanes[0] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

constexpr int64_t piece = 512;  // LAMB's directions of so many elements stay in the first cache

template <class T>
void adam(const Adam<T>& c, int64_t n, T* p, const T* grad, T* exp_avg, T* exp_avg_sq, T* largest) {
  if (largest != nullptr) return adam_loop<T, true>(c, n, p, grad, exp_avg, exp_avg_sq, largest);
  adam_loop<T, false>(c, n, p, grad, exp_avg, exp_avg_sq, largest);
}

template <class T>
void adagrad(const Adagrad<T>& c, int64_t n, T* p, const T* grad, T* sum) {
  adagrad_loop(c, n, p, grad, sum);
}

template <class T>
void sgd(const SGD<T>& c, int64_t n, T* p, const T* grad, T* buffer) {
  if (buffer == nullptr) return sgd_loop(c, n, p, grad);
  c.nesterov ? sgd_loop<T, true>(c, n, p, grad, buffer) : sgd_loop<T, false>(c, n, p, grad, buffer);
}

template <class T>
void rmsprop(const RMSprop<T>& c, int64_t n, T* p, const T* grad, T* square_avg, T* grad_avg, T* buffer) {
  const bool centered = grad_avg != nullptr, has_momentum = buffer != nullptr;
  if (centered && has_momentum) return rmsprop_loop<T, true, true>(c, n, p, grad, square_avg, grad_avg, buffer);
  if (centered) return rmsprop_loop<T, true, false>(c, n, p, grad, square_avg, grad_avg, buffer);
  if (has_momentum) return rmsprop_loop<T, false, true>(c, n, p, grad, square_avg, grad_avg, buffer);
  rmsprop_loop<T, false, false>(c, n, p, grad, square_avg, grad_avg, buffer);
}

template <class T>
void lion(const Lion<T>& c, int64_t n, T* p, const T* grad, T* exp_avg) {
  lion_loop(c, n, p, grad, exp_avg);
}

template <class T>
Squares lamb_moments(const LAMB<T>& c, int64_t n, const T* p, const T* grad, T* exp_avg, T* exp_avg_sq) {
  T u[piece];
  Squares sum{0, 0};
  for (int64_t i = 0; i < n; i += piece) {
    const int64_t size = n - i < piece ? n - i : piece;
    moments(c, size, grad + i, exp_avg + i, exp_avg_sq + i);
    directions(c, size, p + i, exp_avg + i, exp_avg_sq + i, u);
    sum.first += sum_of_squares(size, p + i);
    sum.second += sum_of_squares(size, u);
  }
  return sum;
}

template <class T>
void lamb_step(const LAMB<T>& c, T lr, int64_t n, T* p, const T* exp_avg, const T* exp_avg_sq) {
  T u[piece];
  for (int64_t i = 0; i < n; i += piece) {
    const int64_t size = n - i < piece ? n - i : piece;
    directions(c, size, p + i, exp_avg + i, exp_avg_sq + i, u);
    subtract(lr, size, p + i, u);
  }
}

template <class T>
Squares lars_squares(int64_t n, const T* p, const T* grad) {
  return {sum_of_squares(n, p), sum_of_squares(n, grad)};
}

template <class T>
void lars(const LARS<T>& c, int64_t n, T* p, const T* grad, T* buffer) {
  buffer != nullptr ? lars_loop(c, n, p, grad, buffer) : lars_loop(c, n, p, grad);
}

void round_at_random(int64_t n, const float* from, uint16_t* to, uint64_t key, uint64_t first) {
  // A block stays within 32 bits of counting; what is above goes into the key.
  const auto low_key = static_cast<uint32_t>(key), high_key = static_cast<uint32_t>((key >> 32) ^ (first >> 32));
  const auto* bits = reinterpret_cast<const unsigned char*>(from);
  for (int64_t i = 0; i < n; ++i) {
    uint32_t x;
    std::memcpy(&x, bits + 4 * i, 4);
    // Two rounds of a 32-bit mixer (Wellons, "lowbias32").
    uint32_t noise = static_cast<uint32_t>(first + static_cast<uint64_t>(i)) ^ low_key;
    noise = (noise ^ (noise >> 16)) * 0x7feb352du;
    noise = (noise ^ (noise >> 15)) * 0x846ca68bu;
    noise = (noise ^ (noise >> 16)) + high_key;
    noise = (noise ^ (noise >> 16)) * 0x7feb352du;
    noise = (noise ^ (noise >> 15)) * 0x846ca68bu;
    noise = noise >> 16;
    constexpr uint32_t exponent = 0x7f800000u;
    const bool finite = (x & exponent) != exponent;
    const uint32_t rounded = finite ? x + noise : x | (((x & 0xffffu) != 0) ? 0x10000u : 0u);  // a NaN stays one
    const bool overflows = finite && (rounded & exponent) == exponent;
    to[i] = static_cast<uint16_t>((overflows ? x : rounded) >> 16);
  }
}

// Without the sign bit, floating-point numbers are ordered as their bits are, and infinity comes after all finite ones.
template <class Bits, class T>
bool scale_and_look(int64_t n, T factor, T* __restrict values, Bits infinity) {
  constexpr Bits all_but_sign = std::numeric_limits<Bits>::max();
  Bits largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, &values[i], sizeof bits);
    bits &= all_but_sign;
    largest = bits > largest ? bits : largest;
    values[i] *= factor;
  }
  return largest >= infinity;
}

bool multiply_and_check(int64_t n, float factor, float* values) {
  return scale_and_look<int32_t>(n, factor, values, 0x7f800000);
}
bool multiply_and_check(int64_t n, double factor, double* values) {
  return scale_and_look<int64_t>(n, factor, values, 0x7ff0000000000000);
}

template <class T>
constexpr Loops<T> all_loops{.adam = adam<T>,
                             .adagrad = adagrad<T>,
                             .sgd = sgd<T>,
                             .rmsprop = rmsprop<T>,
                             .lion = lion<T>,
                             .lamb_moments = lamb_moments<T>,
                             .lamb_step = lamb_step<T>,
                             .lars_squares = lars_squares<T>,
                             .lars = lars<T>,
                             .round_at_random = round_at_random,
                             .sum_of_squares = sum_of_squares<T>,
                             .multiply_and_check = multiply_and_check};

}  // namespace
}  // namespace saturate::optim::loops
