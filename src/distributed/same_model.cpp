// SPDX-License-Identifier: Apache-2.0
#include "same_model.hpp"

#include "saturate/error.hpp"

#include <ATen/core/Formatting.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <cstddef>
#include <sstream>

namespace saturate::distributed::detail {
namespace {

constexpr std::size_t broadcast_at_once = std::size_t{250} << 20;  // bytes, as Python's does

/// One line a parameter and buffer.
std::string lines_of(const torch::nn::Module& module) {
  std::ostringstream text;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    text << "parameter " << item.key() << " " << tensor.sizes() << " " << tensor.scalar_type()
         << (tensor.requires_grad() ? "" : " frozen") << "\n";
  }
  for (const auto& item : module.named_buffers()) {
    text << "buffer " << item.key() << " " << item.value().sizes() << " " << item.value().scalar_type() << "\n";
  }
  return text.str();
}

std::string nth_line(const std::string& text, std::size_t number) {
  std::istringstream lines(text);
  std::string line;
  for (std::size_t i = 0; i <= number; ++i) {
    if (!std::getline(lines, line)) return "nothing";
  }
  return line;
}

}  // namespace

void require_same_model(const torch::nn::Module& module, const ProcessGroup& group, const std::string& who) {
  const auto texts = group.gather_text(lines_of(module));
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    std::size_t number = 0;
    while (nth_line(texts[0], number) == nth_line(texts[rank], number)) ++number;
    throw StateError(c10::str(who, ": the model of rank ", rank,
                              " is not that of rank 0: ", nth_line(texts[rank], number), " in place of ",
                              nth_line(texts[0], number), ". Every rank makes the same model"));
  }
}

void broadcast_from_first(const std::vector<at::Tensor>& tensors, const ProcessGroup& group) {
  if (tensors.empty() || group.world_size() == 1) return;
  const at::NoGradGuard no_grad;
  group.run("broadcast of rank 0's weights or buffers",
            [&] { c10d::broadcast_coalesced(group.c10d(), tensors, broadcast_at_once, /*rank=*/0); });
}

void broadcast_model(const torch::nn::Module& module, const ProcessGroup& group) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& parameter : module.parameters()) tensors.push_back(parameter.detach());
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer.detach());
  broadcast_from_first(tensors, group);
}

}  // namespace saturate::distributed::detail
