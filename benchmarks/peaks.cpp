// SPDX-License-Identifier: Apache-2.0
// Are the measured peaks what this machine can do? Prints them, and compares float32 matrix products and the triad with
// the best of 20 runs by hand, in turns: a call of measure_peaks, then four runs of each by hand, five times over. Ends
// with 1 when the median call is further than 5 % from the best by hand. Needs a machine with nothing else to do: what
// else runs slows either side.
//
//   bench_peaks [--no-check]
#include "saturate/observe/peaks.hpp"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "rounds.hpp"

namespace {

namespace st = saturate;

constexpr int rounds = 5, runs_a_round = 4;
constexpr double allowed = 0.05;

/// Arrays that no cache holds, and one thread for each part of them.
class HandLoops {
 public:
  HandLoops() : a_(new float[elements]), b_(new float[elements]), c_(new float[elements]) {
    on_threads([&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) a_[i] = 0, b_[i] = 1, c_[i] = 2;
    });
  }
  double triad_rate() {
    return 12.0 * elements / bench::seconds_of([&] {
             on_threads([a = a_.get(), b = b_.get(), c = c_.get()](int64_t begin, int64_t end) {
               for (int64_t i = begin; i < end; ++i) a[i] = b[i] + 3.0f * c[i];
             });
           });
  }
  double copy_rate() {
    return 8.0 * elements / bench::seconds_of([&] {
             on_threads([a = a_.get(), b = b_.get()](int64_t begin, int64_t end) {
               for (int64_t i = begin; i < end; ++i) a[i] = b[i];
             });
           });
  }

 private:
  static constexpr int64_t elements = int64_t{112} << 20;

  template <class Loop>
  static void on_threads(const Loop& loop) {
    const int64_t count = at::get_num_threads();
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < count; ++t) {
      threads.emplace_back([&loop, t, count] { loop(elements * t / count, elements * (t + 1) / count); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::unique_ptr<float[]> a_, b_, c_;
};

double mm_rate(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  const double n = static_cast<double>(a.size(0));
  return 2 * n * n * n / bench::seconds_of([&] { at::mm_out(out, a, b); });
}

struct Compared {
  const char* name;
  double unit;
  std::vector<double> calls;  // of measure_peaks
  double by_hand = 0;         // best

  bool print() {
    std::sort(calls.begin(), calls.end());
    const double ratio = calls[calls.size() / 2] / by_hand;
    const bool good = std::abs(ratio - 1) <= allowed;
    std::printf("%-8s measured %.2f to %.2f, by hand at best %.2f: ratio of the median %.3f, %s\n", name,
                calls.front() / unit, calls.back() / unit, by_hand / unit, ratio,
                good ? "within 5 %" : "further than 5 % apart");
    return good;
  }
};

}  // namespace

int main(int argc, char** argv) {
  std::printf("%s\n", st::measure_peaks({.use_cache = false}).table().c_str());
  if (argc > 1 && std::string_view(argv[1]) == "--no-check") return 0;
  const at::Tensor a = torch::randn({2048, 2048}), b = torch::randn({2048, 2048});
  at::Tensor out = torch::empty({2048, 2048});
  HandLoops loops;
  Compared gemm{"GFLOP/s", 1e9, {}}, triad{"GB/s", 1e9, {}};
  double copy = 0;
  (void)mm_rate(a, b, out);
  for (int round = 0; round < rounds; ++round) {
    const st::Peaks peaks = st::measure_peaks({.precisions = {"float32"}, .seconds = 2.4, .use_cache = false});
    gemm.calls.push_back(peaks.flops("float32").value());
    triad.calls.push_back(peaks.memory_bandwidth);
    for (int run = 0; run < runs_a_round; ++run) {
      gemm.by_hand = std::max(gemm.by_hand, mm_rate(a, b, out));
      // OpenMP's threads spin for a while after a product, on cores that the loops need.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      triad.by_hand = std::max(triad.by_hand, loops.triad_rate());
      copy = std::max(copy, loops.copy_rate());
    }
  }
  const bool gemm_good = gemm.print(), triad_good = triad.print();
  std::printf("a copy by hand, for comparison: %.2f GB/s read and written\n", copy / 1e9);
  return gemm_good && triad_good ? 0 : 1;
}
