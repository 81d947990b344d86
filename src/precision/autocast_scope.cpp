// SPDX-License-Identifier: Apache-2.0
#include "saturate/precision/autocast_scope.hpp"

#include "saturate/error.hpp"

#include <ATen/autocast_mode.h>
#include <c10/util/StringUtil.h>

namespace saturate {

AutocastScope::AutocastScope(c10::DeviceType device, c10::ScalarType dtype, bool enabled)
    : device_(device),
      previous_dtype_(at::autocast::get_autocast_dtype(device)),
      previous_enabled_(at::autocast::is_autocast_enabled(device)),
      previous_cache_(at::autocast::is_autocast_cache_enabled()) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf) {
    throw ConfigError(c10::str("AutocastScope: dtype is ", dtype, "; autocast runs in bfloat16 or half"));
  }
  at::autocast::set_autocast_dtype(device_, dtype);
  at::autocast::set_autocast_enabled(device_, enabled);
  at::autocast::set_autocast_cache_enabled(true);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(previous_cache_);
  at::autocast::set_autocast_enabled(device_, previous_enabled_);
  at::autocast::set_autocast_dtype(device_, previous_dtype_);
}

}  // namespace saturate
