// SPDX-License-Identifier: Apache-2.0
// saturate's PrefetchLoader against torch::data's loader on Fashion-MNIST in memory, as float32 tensors: batches of
// 128, shuffled, 0 and 2 workers, one epoch a round and side, in one process. loader [FOLDER]
#include <torch/data.h>
#include <torch/version.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>

#include "rounds.hpp"
#include "saturate/data/idx_source.hpp"
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/tensor_source.hpp"

namespace {

constexpr int64_t batch_size = 128;
constexpr int64_t prefetch = 8;  // batches ahead, for both sides

struct Data {
  at::Tensor images;  // float32 [N, 1, 28, 28]
  at::Tensor labels;  // int64 [N]
};

Data load(const std::string& folder) {
  const auto source = saturate::data::IdxSource::fashion_mnist(saturate::data::Split::train, {.raw = true}, folder);
  return {source.images().to(at::kFloat).div_(255).unsqueeze(1).contiguous(), source.labels().to(at::kLong)};
}

class TorchDataset : public torch::data::Dataset<TorchDataset> {
 public:
  explicit TorchDataset(Data data) : data_(std::move(data)) {}
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<int64_t>(index);
    return {data_.images[i], data_.labels[i]};
  }
  torch::optional<std::size_t> size() const override { return data_.labels.size(0); }

 private:
  Data data_;
};

// An epoch that lost or repeated samples would be a fast one.
void require_all(int64_t seen, const Data& data) {
  if (seen != data.labels.size(0)) throw std::runtime_error("loader: an epoch of " + std::to_string(seen));
}

template <class Loader, class Count>
void take_round(const std::string& side, Loader& loader, const Data& data, Count count) {
  int64_t seen = 0;
  const double seconds = bench::seconds_of([&] {
    for (auto& batch : loader) seen += count(batch);
  });
  require_all(seen, data);
  bench::print_sample(side, seconds, seen);
}

auto ours(const Data& data, int64_t workers) {
  return saturate::data::PrefetchLoader(
      saturate::data::TensorSource(data.images, data.labels),
      saturate::data::LoaderOptions{
          .batch_size = batch_size, .shuffle = true, .workers = workers, .prefetch = prefetch});
}

auto theirs(const Data& data, std::size_t workers) {
  return torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      TorchDataset(data).map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions().batch_size(batch_size).workers(workers).max_jobs(workers == 0 ? 0 : prefetch));
}

}  // namespace

int main(int argc, char** argv) try {
  const Data data = load(argc > 1 ? argv[1] : "/usr/share/datasets/fashion-mnist");
  auto ours_0 = ours(data, 0);
  auto ours_2 = ours(data, 2);
  auto theirs_0 = theirs(data, 0);
  auto theirs_2 = theirs(data, 2);
  const auto count_ours = [](const auto& batch) { return batch.size(); };
  const auto count_theirs = [](const auto& batch) { return batch.target.size(0); };

  bench::print_info("saturate", "PrefetchLoader over TensorSource, float32, batch 128, shuffled");
  bench::print_info("torch", "torch::data of LibTorch " TORCH_VERSION ", Stack, RandomSampler, batch 128");
  bench::serve_rounds([&](int64_t) {
    take_round("saturate_0", ours_0, data, count_ours);
    take_round("torch_0", *theirs_0, data, count_theirs);
    take_round("saturate_2", ours_2, data, count_ours);
    take_round("torch_2", *theirs_2, data, count_theirs);
  });
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "loader: %s\n", error.what());
  return 1;
}
