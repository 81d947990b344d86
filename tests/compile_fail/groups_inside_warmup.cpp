// SPDX-License-Identifier: Apache-2.0
// expect: saturate: put Warmup into PerGroup, a schedule for each group, and not around it
#include "saturate/schedule/sequence.hpp"
#include "saturate/schedule/warmup.hpp"

const saturate::Warmup schedule{10, saturate::PerGroup{}};
