// SPDX-License-Identifier: Apache-2.0
// The owner of the precompiled header needs one source file.
