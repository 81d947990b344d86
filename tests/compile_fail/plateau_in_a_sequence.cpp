// SPDX-License-Identifier: Apache-2.0
// expect: saturate: a schedule that changes by what it observes cannot stand in a list of schedules
// expect: docs/schedules.md#plateau
#include "saturate/schedule/reduce_lr_on_plateau.hpp"
#include "saturate/schedule/sequence.hpp"

const saturate::Sequence schedule{.schedules = {saturate::ReduceLrOnPlateau()}, .milestones = {}};
