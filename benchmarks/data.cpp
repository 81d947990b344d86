// SPDX-License-Identifier: Apache-2.0
// The data pipeline against what limits it. One comparison a process:
//
//   data images FOLDER SIZE WORKERS  JPEG tar shards of make_images.py, to normalised random crops, with WORKERS
//   (1,2,...)
//                                    threads; and libjpeg-turbo alone on all cores, with the same crop and
//                                    normalisation
//   data gather                      rows of memory in random order; and one copy of the same bytes
//   data tokens FOLDER               sequences of a token file in random order; and a copy of the bytes that come out
//   data resume                      the first batch of an epoch; and of one that goes on at batch 10,000
//   data memory WORKERS              memory that a source of 1,000,000 samples and its loader take, slots aside
#include <ATen/ATen.h>
#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rounds.hpp"
#include "saturate/data/image_source.hpp"
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/tar_shards.hpp"
#include "saturate/data/tensor_source.hpp"
#include "saturate/data/token_source.hpp"
#include "saturate/observe/memory_meter.hpp"

namespace {

using namespace saturate::data;

constexpr int64_t batch_size = 128;
constexpr std::array<double, 3> mean{0.485, 0.456, 0.406}, deviation{0.229, 0.224, 0.225};

// An epoch that lost or repeated samples would be a fast one.
void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

template <class Loader>
void take_epoch(const std::string& side, Loader& loader, int64_t expected) {
  int64_t seen = 0;
  const double seconds = bench::seconds_of([&] {
    for (auto& batch : loader) seen += batch.size();
  });
  require(seen == expected, side + ": an epoch of " + std::to_string(seen));
  bench::print_sample(side, seconds, seen);
}

// --- images ---

/// Interleaved RGB to three planes, one row: value * scale + shift.
__attribute__((target_clones("avx2", "default"))) void normalize_row(const uint8_t* __restrict from, int64_t width,
                                                                     const float* scale, const float* shift,
                                                                     float* __restrict red, float* __restrict green,
                                                                     float* __restrict blue) {
  for (int64_t x = 0; x < width; ++x) {
    red[x] = static_cast<float>(from[3 * x]) * scale[0] + shift[0];
    green[x] = static_cast<float>(from[3 * x + 1]) * scale[1] + shift[1];
    blue[x] = static_cast<float>(from[3 * x + 2]) * scale[2] + shift[2];
  }
}

/// libjpeg-turbo on all cores over JPEGs in memory: no files, no loader, no hand-over.
class Limit {
 public:
  Limit(const TarShards& shards, int crop) : crop_(crop), threads_(std::thread::hardware_concurrency()) {
    Record record;
    for (int64_t index = 0; index < shards.size(); ++index) {
      shards.read(index, record);
      const Record::Part* image = record.find("jpg");
      require(image != nullptr, "sample without jpg");
      jpegs_.emplace_back(image->bytes.begin(), image->bytes.end());
    }
    for (std::size_t c = 0; c < 3; ++c) {
      scale_[c] = static_cast<float>(1 / (255 * deviation[c]));
      shift_[c] = static_cast<float>(-mean[c] / deviation[c]);
    }
    slots_.resize(threads_);
    for (auto& slot : slots_) slot.resize(static_cast<std::size_t>(batch_size * 3 * crop * crop));
  }

  void take_epoch(int64_t epoch) {
    const auto order = epoch_order(static_cast<int64_t>(jpegs_.size()), true, 0, epoch);
    std::atomic<std::size_t> next_batch{0}, seen{0};
    const double seconds = bench::seconds_of([&] {
      std::vector<std::thread> threads;
      for (auto& slot : slots_) {
        threads.emplace_back([&] { work(order, epoch, next_batch, seen, slot.data()); });
      }
      for (auto& thread : threads) thread.join();
    });
    require(seen == order.size(), "limit: an epoch of " + std::to_string(seen));
    bench::print_sample("limit", seconds, static_cast<int64_t>(seen));
  }

 private:
  void work(const std::vector<int64_t>& order, int64_t epoch, std::atomic<std::size_t>& next_batch,
            std::atomic<std::size_t>& seen, float* slot) const {
    const std::unique_ptr<void, int (*)(tjhandle)> decoder(tjInitDecompress(), tjDestroy);
    std::vector<uint8_t> pixels;
    const auto samples = static_cast<std::size_t>(batch_size);
    for (std::size_t first; (first = next_batch++ * samples) < order.size();) {
      const std::size_t end = std::min(order.size(), first + samples);
      for (std::size_t k = first; k < end; ++k) {
        const SampleAt at(order[k], 0, epoch, static_cast<int64_t>(k));
        decode(decoder.get(), at, pixels, slot + (k - first) * static_cast<std::size_t>(3 * crop_ * crop_));
      }
      seen += end - first;
    }
  }

  void decode(tjhandle decoder, const SampleAt& at, std::vector<uint8_t>& pixels, float* out) const {
    const auto& jpeg = jpegs_[static_cast<std::size_t>(at.index)];
    const auto* bytes = reinterpret_cast<const unsigned char*>(jpeg.data());
    int width = 0, height = 0, sampling = 0, colors = 0;
    require(tjDecompressHeader3(decoder, bytes, jpeg.size(), &width, &height, &sampling, &colors) == 0, "bad header");
    pixels.resize(static_cast<std::size_t>(3 * width * height));
    require(tjDecompress2(decoder, bytes, jpeg.size(), pixels.data(), width, 0, height, TJPF_RGB, 0) == 0, "bad JPEG");
    SampleRandom random(at);
    const auto left = static_cast<int>(random.below(static_cast<uint64_t>(width - crop_ + 1)));
    const auto top = static_cast<int>(random.below(static_cast<uint64_t>(height - crop_ + 1)));
    const bool flip = random.uniform() < 0.5;
    for (int y = 0; y < crop_; ++y) {
      uint8_t* row = pixels.data() + 3 * ((top + y) * width + left);
      if (flip) {
        for (int a = 0, b = crop_ - 1; a < b; ++a, --b) std::swap_ranges(row + 3 * a, row + 3 * a + 3, row + 3 * b);
      }
      float* to = out + y * crop_;
      normalize_row(row, crop_, scale_.data(), shift_.data(), to, to + crop_ * crop_, to + 2 * crop_ * crop_);
    }
  }

  int crop_;
  unsigned threads_;
  std::vector<std::vector<std::byte>> jpegs_;
  std::array<float, 3> scale_, shift_;
  std::vector<std::vector<float>> slots_;
};

ImageOptions image_options(int64_t crop) {
  ImageOptions options;
  options.height = options.width = crop;
  options.crop = Crop::random;
  options.flip = 0.5;
  options.mean.assign(mean.begin(), mean.end());
  options.std.assign(deviation.begin(), deviation.end());
  return options;
}

std::vector<int64_t> numbers_of(const std::string& list) {
  std::vector<int64_t> numbers;
  std::istringstream text(list);
  for (std::string number; std::getline(text, number, ',');) numbers.push_back(std::stoll(number));
  return numbers;
}

void images(const std::string& folder, int64_t size, const std::string& workers) {
  const int64_t crop = size * 7 / 8, last = size == 64 ? 9 : 7;
  const auto shards = std::make_shared<TarShards>(folder + "/" + std::to_string(size) + "/shards/{000..00" +
                                                  std::to_string(last) + "}.tar");
  const ImageSource source(shards, image_options(crop));
  std::map<std::string, std::unique_ptr<PrefetchLoader<ImageSource>>> loaders;
  for (const int64_t count : numbers_of(workers)) {
    loaders["saturate_" + std::to_string(count)] = std::make_unique<PrefetchLoader<ImageSource>>(
        source, LoaderOptions{.batch_size = batch_size, .shuffle = true, .workers = count});
  }
  Limit limit(*shards, static_cast<int>(crop));
  bench::print_info("saturate", "PrefetchLoader over ImageSource and TarShards, batch 128, shuffled as a whole");
  bench::print_info("limit", "libjpeg-turbo, same crop and normalisation, JPEGs in memory, a thread for each core");
  bench::serve_rounds([&](int64_t n) {
    for (auto& [side, loader] : loaders) take_epoch(side, *loader, source.size());
    limit.take_epoch(n);
  });
}

// --- memory to memory ---

/// Loaders with 0, 1 and 2 workers, and the copy of `bytes` bytes, which are the ones that an epoch delivers: into as
/// much memory, or batch by batch into the memory of one batch, which then stays in the cache, as a loader's slots do.
template <class S>
void against_copy(const S& source, const std::string& what, LoaderOptions options, bool by_batch) {
  int64_t sample_bytes = 0;
  for (const FieldLayout& field : source.layout()) sample_bytes += field.bytes();
  const auto bytes = static_cast<std::size_t>(sample_bytes * source.size());
  const std::size_t stretch = by_batch ? static_cast<std::size_t>(sample_bytes * options.batch_size) : bytes;
  std::vector<std::byte> from(bytes, std::byte{1}), to(stretch, std::byte{2});
  std::map<std::string, std::unique_ptr<PrefetchLoader<S>>> loaders;
  for (const int64_t workers : {0, 1, 2}) {
    options.workers = workers;
    loaders["saturate_" + std::to_string(workers)] = std::make_unique<PrefetchLoader<S>>(source, options);
  }
  bench::print_info("saturate", what);
  bench::print_info("copy", "memcpy of " + std::to_string(bytes >> 20) + (by_batch ? " MiB, batch by batch" : " MiB"));
  bench::serve_rounds([&](int64_t) {
    for (auto& [side, loader] : loaders) take_epoch(side, *loader, source.size());
    const double seconds = bench::seconds_of([&] {
      for (std::size_t at = 0; at < bytes; at += stretch)
        std::memcpy(to.data(), from.data() + at, std::min(stretch, bytes - at));
    });
    require(to.front() == std::byte{1}, "copy: nothing was copied");
    bench::print_sample("copy", seconds, source.size());
  });
}

void gather() {
  const at::Tensor pixels = at::ones({60000, 1, 28, 28}), labels = at::zeros({60000}, at::kLong);
  against_copy(TensorSource(pixels, labels),
               "PrefetchLoader over TensorSource, rows of 3,136 bytes, batch 128, shuffled",
               {.batch_size = batch_size, .shuffle = true}, false);
}

void tokens(const std::string& folder) {
  const std::string path = folder + "/tokens.bin";
  constexpr int64_t count = int64_t{1} << 24;
  if (!std::ifstream(path)) {
    SampleRandom random(0, 0);
    std::vector<uint16_t> values(count);
    for (uint16_t& value : values) value = static_cast<uint16_t>(random.below(50257));
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(values.data()), 2 * count);
    require(file.flush().good(), path + " cannot be written");
  }
  against_copy(TokenSource(path, {.sequence_length = 1024, .vocabulary = 50257}),
               "PrefetchLoader over TokenSource, uint16, sequences of 1024, vocabulary checked, batch 32, shuffled",
               {.batch_size = 32, .shuffle = true}, true);
}

// --- resume ---

/// 2,560,000 samples of nothing, which remember the first position of the sequence that was read.
struct Watched {
  static constexpr std::size_t fields = 2;
  std::shared_ptr<std::atomic<int64_t>> first = std::make_shared<std::atomic<int64_t>>(INT64_MAX);

  int64_t size() const { return 20000 * batch_size; }
  std::array<FieldLayout, fields> layout() const { return {FieldLayout{at::kFloat, {1}}, FieldLayout{at::kLong, {}}}; }
  void read(const SampleAt& at, std::array<std::byte*, fields> out) const {
    int64_t least = first->load();
    while (at.position < least && !first->compare_exchange_weak(least, at.position)) {
    }
    std::memset(out[0], 0, sizeof(float));
    std::memcpy(out[1], &at.index, sizeof at.index);
  }
};

constexpr int64_t resumed_batch = 10000;

int64_t first_target(PrefetchLoader<Watched>& loader) {
  return (*loader.begin()).target().const_data_ptr<int64_t>()[0];
}

/// What a process that ended left behind: the state after batch 9,999, or before an epoch's first batch.
std::string saved(const LoaderOptions& options, int64_t epoch, bool in_the_middle) {
  PrefetchLoader loader(Watched{}, options);
  loader.set_epoch(epoch, in_the_middle ? resumed_batch - 1 : 0);
  if (in_the_middle) first_target(loader);
  return loader.state().text();
}

/// Time from the saved state to the batch that comes next, in a new loader. Both sides go the same ways.
void take_resume(const std::string& side, const LoaderOptions& options, int64_t epoch, bool in_the_middle) {
  const std::string state = saved(options, epoch, in_the_middle);
  const Watched watched;
  PrefetchLoader loader(watched, options);
  int64_t target = -1;
  const double seconds = bench::seconds_of([&] {
    loader.load_state(LoaderState::parse(state));
    target = first_target(loader);
  });
  const int64_t position = in_the_middle ? resumed_batch * batch_size : 0;
  require(target == epoch_order(watched.size(), true, 0, epoch)[static_cast<std::size_t>(position)],
          side + ": another sample");
  const int64_t again = std::max(int64_t{0}, position - watched.first->load());
  bench::print_sample(side, seconds, 1, ", \"count\": " + std::to_string(again));
}

void resume() {
  const LoaderOptions options{.batch_size = batch_size, .shuffle = true};
  bench::print_info("start", "time to the first batch of an epoch of 20,000 batches, new loader");
  bench::print_info("resumed", "time to batch 10,000 of one, from its saved state, new loader");
  bench::serve_rounds([&](int64_t n) {  // in turns first
    const bool in_the_middle = n % 2 == 0;
    for (const bool middle : {in_the_middle, !in_the_middle})
      take_resume(middle ? "resumed" : "start", options, n + 1, middle);
  });
}

// --- memory ---

void memory(int64_t workers) {
  const std::string side = "workers_" + std::to_string(workers);
  constexpr int64_t samples = 1000000;
  at::empty({1 << 20}).fill_(1).sum();  // LibTorch's own threads and buffers
  const int64_t before = saturate::resident_bytes();
  const TensorSource source(at::ones({samples, 16}), at::zeros({samples}, at::kLong));
  PrefetchLoader loader(source, {.batch_size = batch_size, .shuffle = true, .workers = workers, .prefetch = 16});
  int64_t slot_bytes = 0;
  for (const FieldLayout& field : source.layout()) slot_bytes += field.bytes() * batch_size;
  bench::print_info(side, "source of 1,000,000 samples and its loader after an epoch, slots aside");
  bench::serve_rounds([&](int64_t) {
    int64_t seen = 0, batches = 0, taken = 0;
    const double seconds = bench::seconds_of([&] {
      for (auto& batch : loader) {
        seen += batch.size();
        if (++batches == 7000) taken = saturate::resident_bytes() - before;
      }
    });
    require(seen == samples, "memory: an epoch of " + std::to_string(seen));
    taken -= loader.stats().slot_allocations * slot_bytes;
    bench::print_sample(side, seconds, seen, ", \"count\": " + std::to_string(taken));
  });
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto is = [&](const char* name, std::size_t count) {
    return arguments.size() == count && arguments[0] == name;
  };
  if (is("images", 4)) {
    images(arguments[1], std::stoll(arguments[2]), arguments[3]);
  } else if (is("gather", 1)) {
    gather();
  } else if (is("tokens", 2)) {
    tokens(arguments[1]);
  } else if (is("resume", 1)) {
    resume();
  } else if (is("memory", 2)) {
    memory(std::stoll(arguments[1]));
  } else {
    std::fprintf(stderr, "data: images FOLDER SIZE WORKERS | gather | tokens FOLDER | resume | memory WORKERS\n");
    return 2;
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "data: %s\n", error.what());
  return 1;
}
