// SPDX-License-Identifier: Apache-2.0
// The inner loops of the optimizers on the CPU, over `n` elements, for float and double. Apart from the rest because
// they are compiled for vectors, without errno of std::sqrt, which LibTorch's precompiled header cannot be.
#pragma once

#include <cstdint>

namespace saturate::optim::loops {

template <class T>
struct Adam {
  T one_minus_beta1, beta2, one_minus_beta2, eps, sign;  // sign -1 maximizes
  T coupled_decay;                                       // added to the gradient
  T shrink;                                              // of the parameter: decoupled decay
  T step;                                                // lr / (1 - beta1^t)
  T correction2;                                         // factor of the root of the second moment
};
/// `largest` null: not amsgrad.
template <class T>
void adam(const Adam<T>& c, int64_t n, T* p, const T* grad, T* exp_avg, T* exp_avg_sq, T* largest);

template <class T>
struct Adagrad {
  T lr, eps, weight_decay, sign;
};
template <class T>
void adagrad(const Adagrad<T>& c, int64_t n, T* p, const T* grad, T* sum);

template <class T>
struct SGD {
  T lr, momentum, one_minus_dampening, weight_decay, sign;
  bool nesterov;
};
/// `buffer` null: no momentum.
template <class T>
void sgd(const SGD<T>& c, int64_t n, T* p, const T* grad, T* buffer);

template <class T>
struct RMSprop {
  T lr, alpha, one_minus_alpha, eps, weight_decay, momentum, sign;
};
/// `grad_avg` null: not centered; `buffer` null: no momentum.
template <class T>
void rmsprop(const RMSprop<T>& c, int64_t n, T* p, const T* grad, T* square_avg, T* grad_avg, T* buffer);

template <class T>
struct Lion {
  T lr, shrink, one_minus_beta1, one_minus_beta2, sign;
};
template <class T>
void lion(const Lion<T>& c, int64_t n, T* p, const T* grad, T* exp_avg);

template <class T>
struct LAMB {
  T one_minus_beta1, beta2, one_minus_beta2, eps, weight_decay, sign;
  T correction1, correction2;  // factors of the first moment, and of the root of the second
};
struct Squares {
  double first, second;
};
/// Updates the moments; gives |p|^2 and |u|^2.
template <class T>
Squares lamb_moments(const LAMB<T>& c, int64_t n, const T* p, const T* grad, T* exp_avg, T* exp_avg_sq);
/// p -= lr * u.
template <class T>
void lamb_step(const LAMB<T>& c, T lr, int64_t n, T* p, const T* exp_avg, const T* exp_avg_sq);

template <class T>
struct LARS {
  T lr, weight_decay, momentum, sign;
};
/// |p|^2 and |grad|^2.
template <class T>
Squares lars_squares(int64_t n, const T* p, const T* grad);
/// `buffer` null: no momentum.
template <class T>
void lars(const LARS<T>& c, int64_t n, T* p, const T* grad, T* buffer);

/// Bits of float32 to bits of bfloat16 (rounding.hpp); `first` is the place of the first element.
void round_at_random(int64_t n, const float* from, uint16_t* to, uint64_t key, uint64_t first);

}  // namespace saturate::optim::loops
