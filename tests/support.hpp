// SPDX-License-Identifier: Apache-2.0
// Small models, data and spies that the tests share.
#pragma once

#include "saturate/clip/clip_grad_norm.hpp"
#include "saturate/log.hpp"
#include "saturate/marks.hpp"

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

namespace support {

using Batch = std::pair<at::Tensor, at::Tensor>;

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t in = 6, int64_t out = 4)
      : first(register_module("first", torch::nn::Linear(in, 8))),
        second(register_module("second", torch::nn::Linear(8, out))) {}
  at::Tensor forward(const at::Tensor& x) { return saturate::call(second, torch::tanh(saturate::call(first, x))); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Mlp);

struct ConvImpl : torch::nn::Module {
  ConvImpl()
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)))),
        head(register_module("head", torch::nn::Linear(4, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return head(torch::relu(conv(x)).mean({2, 3})); }
  torch::nn::Conv2d conv;
  torch::nn::Linear head;
};
TORCH_MODULE(Conv);

template <class Net = Mlp, class... Args>
Net seeded(int64_t seed, at::ScalarType dtype = at::kFloat, Args&&... args) {
  torch::manual_seed(seed);
  Net net(std::forward<Args>(args)...);
  net->to(dtype);
  return net;
}

/// [N, 6] inputs and class indices below 4; every `ignore_every`-th target is -100 (0: none).
inline Batch classes(int64_t n, int64_t seed, at::ScalarType dtype = at::kFloat, int64_t ignore_every = 0) {
  torch::manual_seed(seed);
  Batch batch{torch::randn({n, 6}, dtype), torch::randint(4, {n})};
  for (int64_t i = 0; ignore_every > 0 && i < n; i += ignore_every) batch.second[i] = -100;
  return batch;
}

inline std::vector<Batch> split(const Batch& batch, const std::vector<int64_t>& sizes) {
  std::vector<Batch> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.emplace_back(batch.first.narrow(0, begin, size), batch.second.narrow(0, begin, size));
    begin += size;
  }
  return parts;
}

inline std::vector<at::Tensor> clones(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

/// Bit for bit, NaN included.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}
inline bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return true;
}

/// Largest |a - b| / max(|b|) over all tensors.
inline double relative_error(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double scale = std::max(b[i].abs().max().item<double>(), 1e-30);
    worst = std::max(worst, (a[i] - b[i]).abs().max().item<double>() / scale);
  }
  return worst;
}

/// On the clipping axis: keeps a copy of the window's gradients.
struct SpyGradients {
  using axis = saturate::axis::clipping;
  std::vector<at::Tensor>* seen;
  saturate::ClipResult clip(std::vector<at::Tensor>& gradients) const {
    *seen = clones(gradients);
    return {};
  }
};

/// Collects what is logged while it lives.
class LogCapture {
 public:
  LogCapture() { saturate::log::set_sink(&LogCapture::take, this); }
  ~LogCapture() { saturate::log::set_sink(nullptr, nullptr); }
  bool contains(const std::string& text) const {
    for (const std::string& line : lines) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  }
  std::vector<std::string> lines;

 private:
  static void take(saturate::log::Level, std::string_view message, void* self) {
    static_cast<LogCapture*>(self)->lines.emplace_back(message);
  }
};

}  // namespace support
