// SPDX-License-Identifier: Apache-2.0
// Precompiled once for the library, the tests, the examples and the programs.
#include <torch/torch.h>
