// SPDX-License-Identifier: Apache-2.0
// Which marked part of a model an operator belongs to, in forward and in backward.
#pragma once

#include "saturate/marks.hpp"

#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace saturate::detail {

struct BackwardNode {
  std::string name;  // "LogBackward0"
  int64_t sequence_number = -1;
};

/// While one lives, every thread knows which autograd node it is running.
class BackwardNodes {
 public:
  BackwardNodes();
  ~BackwardNodes();
  BackwardNodes(const BackwardNodes&) = delete;
  BackwardNodes& operator=(const BackwardNodes&) = delete;

  /// The innermost node this thread is in; nullptr: none, so this is no backward.
  static const BackwardNode* innermost();

 private:
  at::CallbackHandle handle_;
};

/// Autograd numbers its nodes as they are made, so the part that was being run when a number came up owns the node.
class PartTracker final : public marks::Observer {
 public:
  void enter(const std::vector<std::string>& names, const torch::nn::Module& module) override;
  void leave(const std::vector<std::string>& names, const torch::nn::Module& module) noexcept override;

  /// Name of the innermost part of what this thread runs now; "" outside of all.
  std::string current() const;
  std::string owner_of(int64_t sequence_number) const;

 private:
  void note();

  mutable std::mutex mutex_;
  std::map<int64_t, std::string> owners_;  // from each number on
  std::vector<std::string> inside_;
};

}  // namespace saturate::detail
