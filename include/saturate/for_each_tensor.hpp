// SPDX-License-Identifier: Apache-2.0
// The one customization point through which tensors inside values are seen: tuples, pairs, vectors, arrays, optionals
// and users' structs.
//
//   struct Tokens { at::Tensor ids, mask; };
//   template <class Visitor> void for_each_tensor(Tokens& t, Visitor&& visit) { visit(t.ids); visit(t.mask); }
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace saturate {
namespace detail {

template <class T>
concept TupleLike = requires {
  std::tuple_size<std::remove_cvref_t<T>>::value;
};

template <class T>
inline constexpr bool is_vector = false;
template <class T, class A>
inline constexpr bool is_vector<std::vector<T, A>> = true;
template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <class T, class Visitor>
concept UserVisitable = requires(T& value, Visitor& visitor) {
  for_each_tensor(value, visitor);
};

template <class T, class Visitor>
void visit_each(T& value, Visitor& visitor) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::derived_from<Plain, at::Tensor>) {
    visitor(value);
  } else if constexpr (is_vector<Plain>) {
    for (auto& item : value) visit_each(item, visitor);
  } else if constexpr (is_optional<Plain>) {
    if (value) visit_each(*value, visitor);
  } else if constexpr (TupleLike<Plain>) {
    std::apply([&](auto&... item) { (visit_each(item, visitor), ...); }, value);
  } else if constexpr (UserVisitable<T, Visitor>) {
    for_each_tensor(value, visitor);  // found by argument-dependent lookup
  }
  // Anything else holds no tensors: numbers, strings, flags travel along untouched.
}

}  // namespace detail

/// Calls `visitor(tensor)` for every tensor inside `value`, in declaration order; `value` may be const.
template <class T, class Visitor>
void visit_tensors(T& value, Visitor&& visitor) {
  detail::visit_each(value, visitor);
}

}  // namespace saturate
