// SPDX-License-Identifier: Apache-2.0
// A data source of your own: here a file of sensor records, 8 readings and a value each, read where it lies. The loader
// gives it threads, order, batches and resume; it only says what a sample is and writes one into its place.
// Expected: the loss falls below 0.02 (the readings carry noise of 0.05, new in every epoch).
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "saturate/saturate.hpp"

namespace st = saturate;

struct SensorRecord {
  float readings[8];
  float value;
};

// begin source
struct SensorLog {
  static constexpr std::size_t fields = 2;
  int file;
  int64_t records;

  int64_t size() const { return records; }
  std::array<st::data::FieldLayout, fields> layout() const { return {{{at::kFloat, {8}}, {at::kFloat, {1}}}}; }
  void read(const st::data::SampleAt& at, std::array<std::byte*, fields> out) const {
    SensorRecord record;
    if (::pread(file, &record, sizeof record, at.index * sizeof record) != sizeof record)
      throw st::DataError("sensor log: record " + std::to_string(at.index) + " cannot be read");
    st::data::SampleRandom random(at);  // the same noise whatever thread reads the sample
    for (float& reading : record.readings) reading += static_cast<float>(random.uniform(-0.05, 0.05));
    std::memcpy(out[0], record.readings, sizeof record.readings);
    std::memcpy(out[1], &record.value, sizeof record.value);
  }
};
static_assert(st::data::Source<SensorLog>);
// end source

std::FILE* recorded(int64_t records) {
  std::FILE* file = std::tmpfile();
  st::data::SampleRandom random(0, 0);
  for (int64_t n = 0; n < records; ++n) {
    SensorRecord record{};
    for (int k = 0; k < 8; ++k) {
      record.readings[k] = static_cast<float>(random.uniform(-1, 1));
      record.value += record.readings[k] * static_cast<float>(k % 3 - 1);
    }
    std::fwrite(&record, sizeof record, 1, file);
  }
  std::fflush(file);
  return file;
}

int main() {
  constexpr int64_t records = 4096;
  std::FILE* file = recorded(records);
  st::data::PrefetchLoader loader(SensorLog{::fileno(file), records},
                                  {.batch_size = 64, .shuffle = true, .seed = 1, .workers = 2});
  torch::manual_seed(0);
  torch::nn::Linear net(8, 1);
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.02}), st::MSE{});
  const st::FitResult result = trainer.fit(loader, {.epochs = 8, .log_every = 64});
  std::cout << result.windows << " steps, loss " << result.loss << "\n";
  std::fclose(file);
  return result.loss < 0.02 ? 0 : 1;
}
