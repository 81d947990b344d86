// SPDX-License-Identifier: Apache-2.0
#include "saturate/recompute/compress_saved.hpp"

#include "bytes_text.hpp"
#include "saturate/error.hpp"
#include "saved_store.hpp"

#include <c10/util/StringUtil.h>

#include <limits>

namespace saturate {
namespace {

/// float32 in, 16 bits stored. What it launches runs in the order of the stream, so every copy has arrived.
class Narrow final : public detail::SavedPlace {
 public:
  explicit Narrow(at::ScalarType dtype) : dtype_(dtype) {}

  bool takes(const at::Tensor& tensor) const override {
    return tensor.scalar_type() == at::kFloat && tensor.requires_grad() && tensor.storage().nbytes() % 4 == 0;
  }
  std::unique_ptr<detail::Transfer> send(const at::Tensor& bytes) override {
    return std::make_unique<detail::Transfer>(bytes, bytes.view(at::kFloat).to(dtype_));
  }
  std::unique_ptr<detail::Transfer> fetch(const at::Tensor& stored, c10::Device) override {
    return std::make_unique<detail::Transfer>(stored, stored.to(at::kFloat).view(at::kByte));
  }
  bool worth_fetching_ahead() const override { return false; }
  std::string what_it_takes(int64_t min_bytes) const override {
    return c10::str("is a float32 activation that holds min_bytes (", detail::bytes_text(min_bytes), ") or more");
  }

 private:
  at::ScalarType dtype_;
};

}  // namespace

void CompressOptions::validate() const {
  if (dtype != at::kBFloat16 && dtype != at::kHalf) {
    throw ConfigError(c10::str("CompressSaved: dtype is ", c10::toString(dtype),
                               "; saved tensors are kept in at::kBFloat16 or at::kHalf"));
  }
  if (min_bytes < 0) throw ConfigError(c10::str("CompressSaved: min_bytes is ", min_bytes, "; give 0 or more"));
}

CompressSaved::CompressSaved(const CompressOptions& options) {
  options.validate();
  store_ = std::make_shared<detail::SavedStore>(
      detail::SavedStore::Settings{"CompressSaved", options.min_bytes, std::numeric_limits<int64_t>::max()},
      std::make_unique<Narrow>(options.dtype));
}

void CompressSaved::attach(const torch::nn::Module& model, c10::Device) { store_->attach(model); }

SavedCounts CompressSaved::counts() const { return store_->counts(); }

}  // namespace saturate
