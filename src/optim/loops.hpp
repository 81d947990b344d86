// SPDX-License-Identifier: Apache-2.0
// The inner loops of the optimizers and of the scaler on the CPU, over `n` elements, for float and double. Apart from
// the rest because
// they are compiled for vectors, one set for each instruction set, and without errno of std::sqrt, which LibTorch's
// precompiled header cannot be. All sets give the same bits.
#pragma once

#include <cstdint>

namespace saturate::optim::loops {

// Coefficients. `sign` -1 maximizes.

template <class T>
struct Adam {
  T one_minus_beta1, beta2, one_minus_beta2, eps, sign;
  T coupled_decay;  // added to the gradient
  T shrink;         // of the parameter: decoupled decay
  T step;           // lr / (1 - beta1^t)
  T correction2;    // factor of the root of the second moment
};
template <class T>
struct Adagrad {
  T lr, eps, weight_decay, sign;
};
template <class T>
struct SGD {
  T lr, momentum, one_minus_dampening, weight_decay, sign;
  bool nesterov;
};
template <class T>
struct RMSprop {
  T lr, alpha, one_minus_alpha, eps, weight_decay, momentum, sign;
};
template <class T>
struct Lion {
  T lr, shrink, one_minus_beta1, one_minus_beta2, sign;
};
template <class T>
struct LAMB {
  T one_minus_beta1, beta2, one_minus_beta2, eps, weight_decay, sign;
  T correction1, correction2;  // factors of the first moment, and of the root of the second
};
template <class T>
struct LARS {
  T lr, weight_decay, momentum, sign;
};
struct Squares {
  double first, second;
};

/// Pointers that may be null: what the options do without.
template <class T>
struct Loops {
  void (*adam)(const Adam<T>&, int64_t n, T* p, const T* grad, T* exp_avg, T* exp_avg_sq, T* largest);
  void (*adagrad)(const Adagrad<T>&, int64_t n, T* p, const T* grad, T* sum);
  void (*sgd)(const SGD<T>&, int64_t n, T* p, const T* grad, T* buffer);
  void (*rmsprop)(const RMSprop<T>&, int64_t n, T* p, const T* grad, T* square_avg, T* grad_avg, T* buffer);
  void (*lion)(const Lion<T>&, int64_t n, T* p, const T* grad, T* exp_avg);
  /// Updates the moments; gives |p|^2 and |u|^2.
  Squares (*lamb_moments)(const LAMB<T>&, int64_t n, const T* p, const T* grad, T* exp_avg, T* exp_avg_sq);
  /// p -= lr * u.
  void (*lamb_step)(const LAMB<T>&, T lr, int64_t n, T* p, const T* exp_avg, const T* exp_avg_sq);
  /// |p|^2 and |grad|^2.
  Squares (*lars_squares)(int64_t n, const T* p, const T* grad);
  void (*lars)(const LARS<T>&, int64_t n, T* p, const T* grad, T* buffer);
  /// Bits of float32 to bits of bfloat16 (rounding.hpp); `first` is the place of the first element.
  void (*round_at_random)(int64_t n, const float* from, uint16_t* to, uint64_t key, uint64_t first);
  /// In float64.
  double (*sum_of_squares)(int64_t n, const T* x);
  /// values *= factor; whether one of them was inf or NaN before.
  bool (*multiply_and_check)(int64_t n, T factor, T* values);
};

/// The fastest set that this machine runs. T: float or double.
template <class T>
const Loops<T>& best();
template <>
const Loops<float>& best<float>();
template <>
const Loops<double>& best<double>();
/// The set for the instructions that all machines of this kind have.
template <class T>
const Loops<T>& portable();
template <>
const Loops<float>& portable<float>();
template <>
const Loops<double>& portable<double>();

}  // namespace saturate::optim::loops
