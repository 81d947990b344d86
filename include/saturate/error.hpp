// SPDX-License-Identifier: Apache-2.0
// The exceptions of saturate. Every one says what was wrong, which value, and what to do, and is thrown before any
// state changes.
#pragma once

#include <stdexcept>
#include <string>

namespace saturate {

/// Root of the family: `catch (const saturate::Error&)` catches everything that saturate itself throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A setting or an argument that cannot work (a negative learning rate, a batch size of 0).
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// Data that cannot be read or does not fit (a truncated file, a wrong magic number). Names the file.
class DataError : public Error {
 public:
  using Error::Error;
};

/// Saved state that does not fit what it is loaded into (a missing name, another shape). Nothing has been changed.
class StateError : public Error {
 public:
  using Error::Error;
};

/// Another process that trains with this one did not answer in time, or is gone: names what was running. The process
/// group is of no use afterwards: end the process, so that its launcher starts it again.
class DistributedError : public Error {
 public:
  using Error::Error;
};

/// A value that is not finite, where the caller asked to be told by an exception. Nothing has been changed.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

}  // namespace saturate
