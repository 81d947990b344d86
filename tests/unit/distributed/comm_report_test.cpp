// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/comm_report.hpp"

#include "distributed_support.hpp"
#include "saturate/distributed/compress.hpp"
#include "saturate/distributed/ddp.hpp"
#include "saturate/distributed/distributed_data_parallel.hpp"
#include "saturate/error.hpp"
#include "saturate/loss.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"

#include <torch/nn/modules/linear.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <thread>

namespace {

namespace st = saturate;
namespace dist = st::distributed;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinAbs;
using dist::BucketTimes;
using dist::WindowTimes;
using std::chrono::milliseconds;
using support::RankChecks;

BucketTimes bucket(std::size_t index, double launched, double issued, double done, int64_t elements = 1000) {
  return {.index = index,
          .bytes = 4 * elements,
          .gradient_bytes = 4 * elements,
          .elements = elements,
          .launched = launched,
          .issued = issued,
          .done = done};
}

WindowTimes window(double backward_end, std::vector<BucketTimes> buckets, double step = 0) {
  WindowTimes times;
  times.begin_is_known = true;
  times.backward_end = backward_end;
  times.step = step;
  times.buckets = std::move(buckets);
  return times;
}

/// Whether a text is one JSON value, and nothing else.
class JsonText {
 public:
  static bool valid(const std::string& text) {
    JsonText json{text.c_str()};
    return json.value() && *json.at_ == 0;
  }

 private:
  explicit JsonText(const char* text) : at_(text) {}
  bool take(char wanted) {
    if (*at_ != wanted) return false;
    ++at_;
    return true;
  }
  bool string() {
    if (!take('"')) return false;
    for (; *at_ != 0 && *at_ != '"'; ++at_) {
      if (static_cast<unsigned char>(*at_) < 0x20 || (*at_ == '\\' && *++at_ == 0)) return false;
    }
    return take('"');
  }
  bool number() {
    char* end = nullptr;
    const bool starts = *at_ == '-' || std::isdigit(static_cast<unsigned char>(*at_));  // no nan, no inf
    std::strtod(at_, &end);
    if (!starts || end == at_) return false;
    at_ = end;
    return true;
  }
  template <class Item>
  bool list(char open, char close, Item&& item) {
    if (!take(open)) return false;
    if (take(close)) return true;
    do {
      if (!item()) return false;
    } while (take(','));
    return take(close);
  }
  bool value() {
    if (*at_ == '{') return list('{', '}', [&] { return string() && take(':') && value(); });
    if (*at_ == '[') return list('[', ']', [&] { return value(); });
    return *at_ == '"' ? string() : number();
  }
  const char* at_;
};

std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// --- ranks ----------------------------------------------------------------------------------------------------------

using Future = dist::CommHook::Future;

/// Reduces nothing; its future is completed by `complete`.
class Pretend : public dist::CommHook {
 public:
  Future reduce(dist::Bucket& bucket, double) override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    complete(future, bucket.gradients);
    return future;
  }
  virtual void complete(const Future& future, const at::Tensor& gradients) { future->markCompleted(gradients); }
  std::string name() const override { return "pretend"; }
};

/// Blocks backward.
class SleepsInside final : public Pretend {
  void complete(const Future& future, const at::Tensor& gradients) override {
    std::this_thread::sleep_for(milliseconds(20));
    future->markCompleted(gradients);
  }
};

/// Comes back at once, and is done later.
class SleepsOutside final : public Pretend {
 public:
  ~SleepsOutside() override {
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void complete(const Future& future, const at::Tensor& gradients) override {
    threads_.emplace_back([future, gradients] {
      std::this_thread::sleep_for(milliseconds(20));
      future->markCompleted(gradients);
    });
  }
  std::vector<std::thread> threads_;
};

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(6, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64),
                               torch::nn::Tanh(), torch::nn::Linear(64, 4));
}

dist::DdpOptions with_hook(std::shared_ptr<dist::CommHook> hook) {
  return {.bucket_bytes = 4000, .first_bucket_bytes = 1000, .hook = std::move(hook)};
}

/// Windows of two micro-batches each. @return the last gradients.
std::vector<at::Tensor> run_windows(const dist::ProcessGroup& group, const std::shared_ptr<dist::CommHook>& hook,
                                    int windows, RankChecks* check = nullptr) {
  auto net = make_net();
  dist::DistributedDataParallel ddp(*net, group, with_hook(hook));
  auto* measured = dynamic_cast<dist::MeasuredHook*>(hook.get());
  for (int i = 0; i < windows; ++i) {
    net->zero_grad();
    for (const bool last : {false, true}) {
      const auto micro_step = ddp.micro_step(last);
      const at::Tensor loss = net->forward(support::classes(8, 10 * i + group.rank()).first).pow(2).sum();
      if (last && measured != nullptr) measured->before_backward();
      loss.backward();
    }
    ddp.finish();
  }
  if (check != nullptr && measured != nullptr) {
    const auto last = measured->windows().back();
    std::vector<int64_t> bytes;
    for (const auto& of : last.buckets) bytes.push_back(of.gradient_bytes);
    (*check)(bytes == ddp.bucket_bytes() && bytes.size() > 1, "buckets are not the reducer's");
  }
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad().clone());
  return gradients;
}

const support::RankEntry adds_up("comm report adds up", [](const dist::ProcessGroup& group, RankChecks& check) {
  const auto hook = std::make_shared<dist::MeasuredHook>();
  const auto ours = run_windows(group, hook, 6, &check), plain = run_windows(group, nullptr, 6);
  for (std::size_t i = 0; i < ours.size(); ++i)
    check(support::same_bits(ours[i], plain[i]), "measuring changes gradients");
  const auto windows = hook->windows();
  check(windows.size() == 6, std::to_string(windows.size()) + " windows, not 6");
  for (const WindowTimes& times : windows) {
    const double sum = times.overlapped() + times.exposed();
    check(std::abs(sum - times.communication()) < 1e-9 && times.overlapped() >= 0, "overlapped + exposed");
    check(times.begin_is_known && times.backward_end > 0, "backward");
    for (const BucketTimes& of : times.buckets) {
      check(0 <= of.launched && of.launched <= of.issued && of.issued <= times.backward_end, "launch inside backward");
      check(of.done >= of.launched && of.bytes == of.gradient_bytes, "done");
    }
  }
  // From one backward's end to the next; what is still on its way then is exposed.
  check(windows[0].step == 0 && windows[5].step + windows[5].exposed() >= windows[5].communication(), "step");
  const auto report = dist::comm_report(*hook);
  check(report.windows == 4 && report.ranks == group.world_size() && report.hook == "all_reduce", report.text());
  check(std::abs(report.overlapped + report.exposed - report.communication) < 1e-12, "sums of the report");
  check(report.bytes == 4 * (6 * 64 + 64 + 64 * 64 + 64 + 64 * 4 + 4), "bytes");
  const double factor = 2.0 * (report.ranks - 1) / report.ranks;
  check(std::abs(report.bus_bandwidth - factor * static_cast<double>(report.bytes) / report.communication) < 1, "bus");
  const std::string trace = dist::comm_trace(windows, "all_reduce", group.rank());
  check(JsonText::valid(trace), "the trace is no JSON: " + trace);
});

const support::RankEntry pretended("comm report sleeps", [](const dist::ProcessGroup& group, RankChecks& check) {
  const auto at_once = std::make_shared<dist::MeasuredHook>(std::make_shared<Pretend>());
  run_windows(group, at_once, 4);
  for (const WindowTimes& times : at_once->windows()) {
    check(times.exposed() == times.inside_hook(), "a hook that is done at once is exposed after backward");
    for (const BucketTimes& of : times.buckets) check(of.done <= times.backward_end, "done after backward");
  }

  const auto inside = std::make_shared<dist::MeasuredHook>(std::make_shared<SleepsInside>());
  run_windows(group, inside, 4);
  for (const WindowTimes& times : inside->windows()) {
    const double slept = 0.020 * static_cast<double>(times.buckets.size());
    check(times.inside_hook() >= slept && times.exposed() >= slept, "sleep inside the hook is not exposed");
  }
  const std::string verdict = dist::comm_report(*inside).verdict();
  check(verdict.find("communication-bound") == 0 && verdict.find("inside the hook") != std::string::npos, verdict);

  const auto outside = std::make_shared<dist::MeasuredHook>(std::make_shared<SleepsOutside>());
  run_windows(group, outside, 8);
  double exposed = 0;
  for (const WindowTimes& times : outside->windows()) {
    exposed = std::max(exposed, times.exposed());
    check(times.buckets.back().done - times.buckets.back().launched >= 0.020, "the sleep is not seen");
  }
  check(exposed >= 0.010, "a sleep after backward is not exposed: " + std::to_string(exposed));
});

const support::RankEntry wraps("comm report wraps", [](const dist::ProcessGroup& group, RankChecks& check) {
  auto inner = std::make_shared<dist::Bf16Compress>();
  const auto hook = std::make_shared<dist::MeasuredHook>(inner, dist::MeasuredHookOptions{.keep = 3});
  auto net = make_net();
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                      st::Ddp(group, with_hook(hook)));
  for (int i = 0; i < 6; ++i) trainer.step(support::classes(8, 10 * i + group.rank()));
  check(hook->name() == "bf16_compress" && hook->state().type == "bf16_compress", "another name");
  check(&hook->inner() == inner.get(), "another hook");
  const auto windows = hook->windows();
  check(windows.size() == 3 && windows.back().number == 5, "the last three windows are kept");
  const auto report = dist::comm_report(*hook, dist::Link{1e-6, 1e9}, {.skip = 0});
  check(2 * report.bytes == report.gradient_bytes, "bytes sent are those of bfloat16");
  check(report.predictions.size() == 2 && report.predictions[1].change == "no compression", report.text());
  hook->clear();
  check(hook->windows().empty(), "cleared");
});

}  // namespace

TEST_CASE("comm_report: what is exposed, by hand") {
  // Overlapping buckets count once; 2 ms of the hook and what comes after 10 ms are exposed.
  const auto times = window(0.010, {bucket(0, 0.002, 0.003, 0.006), bucket(1, 0.005, 0.006, 0.008),
                                    bucket(2, 0.009, 0.009, 0.014), bucket(3, 0.0095, 0.0095, 0.016)});
  CHECK_THAT(times.communication(), WithinAbs(0.006 + 0.007, 1e-12));
  CHECK_THAT(times.inside_hook(), WithinAbs(0.002, 1e-12));
  CHECK_THAT(times.exposed(), WithinAbs(0.002 + 0.006, 1e-12));
  CHECK_THAT(times.overlapped(), WithinAbs(0.005, 1e-12));
  CHECK(times.bytes() == 16000);
  // All of it after backward (a static graph's first window).
  const auto late = window(0.010, {bucket(0, 0.010, 0.011, 0.015)});
  CHECK_THAT(late.exposed(), WithinAbs(0.005, 1e-12));
  CHECK(late.overlapped() == 0);
  // All of it hidden.
  CHECK(window(0.010, {bucket(0, 0.002, 0.002, 0.004)}).exposed() == 0);
}

TEST_CASE("comm_report: verdict and predictions, by hand") {
  // 2 buckets of 1 MB at 100 MB/s, two ranks: 10 ms each. Launched at 5 and 10 ms, when backward ends.
  const int64_t elements = 250'000;
  const auto one =
      window(0.010, {bucket(0, 0.005, 0.005, 0.015, elements), bucket(1, 0.010, 0.010, 0.025, elements)}, 0.030);
  const auto report = dist::comm_report({one, one, one}, "all_reduce", 0, 2, dist::Link{0, 100e6}, {.skip = 1});
  CHECK(report.windows == 2);
  CHECK_THAT(report.communication, WithinAbs(0.020, 1e-12));
  CHECK_THAT(report.exposed, WithinAbs(0.015, 1e-12));
  CHECK_THAT(report.exposed_share(), WithinAbs(0.5, 1e-9));
  CHECK_THAT(report.algorithm_bandwidth, WithinAbs(100e6, 1));
  CHECK_THAT(report.bus_bandwidth, WithinAbs(100e6, 1));
  CHECK_THAT(report.buckets[0].hidden, WithinAbs(0.5, 1e-9));
  REQUIRE(report.predictions.size() == 2);
  CHECK_THAT(report.predictions[0].exposed, WithinAbs(0.015, 1e-9));  // the model holds
  // Half the bytes: 5 ms each; the last is done at 15 ms. The step is 15 + 5 ms.
  CHECK(report.predictions[1].bytes == 1'000'000);
  CHECK_THAT(report.predictions[1].exposed, WithinAbs(0.005, 1e-9));
  CHECK_THAT(report.predictions[1].share, WithinAbs(0.25, 1e-9));
  CHECK(report.verdict() ==
        "communication-bound: 50 % of the step is exposed all-reduce; 16-bit compression (Bf16Compress, Fp16Compress) "
        "would make it 25 %");
  CHECK_THAT(report.text(), ContainsSubstring("100 % of the measured 0.100 GB/s"));
}

TEST_CASE("comm_report: other verdicts") {
  const auto report = [](const WindowTimes& times, int ranks = 2, std::optional<dist::Link> link = {}) {
    return dist::comm_report({times}, "all_reduce", 0, ranks, link, {.skip = 0}).verdict();
  };
  CHECK(report(window(0.010, {bucket(0, 0.001, 0.001, 0.009)}, 0.02)) ==
        "compute-bound: 100 % of communication is hidden, 0.0 % of the step is exposed");
  CHECK_THAT(report(window(0.010, {bucket(0, 0.010, 0.010, 0.020)})),
             ContainsSubstring("50 % of backward is exposed") && ContainsSubstring("lower bucket_bytes"));
  CHECK_THAT(report(window(0.010, {bucket(0, 0.001, 0.008, 0.008)}, 0.02)), ContainsSubstring("inside the hook"));
  CHECK_THAT(
      report(window(0.010, {bucket(0, 0.009, 0.009, 0.015), bucket(1, 0.01, 0.01, 0.02)}), 2, dist::Link{2e-3, 1e9}),
      ContainsSubstring("raise bucket_bytes"));
  CHECK(dist::comm_report(std::vector<WindowTimes>(), "all_reduce", 0, 1).verdict() ==
        "one process: nothing is reduced");
}

TEST_CASE("comm_report: windows with other buckets do not count, and none is an error") {
  const auto first = window(0.010, {bucket(0, 0.010, 0.010, 0.020, 10)}),
             later = window(0.010, {bucket(0, 0, 0, 0.02)});
  CHECK(dist::comm_report({first, later, first, later}, "all_reduce", 0, 2, {}, {.skip = 0}).windows == 2);
  CHECK_THROWS_AS(dist::comm_report({first, first}, "all_reduce", 0, 2), st::StateError);
  CHECK_THROWS_AS(dist::comm_report({first}, "all_reduce", 0, 2, dist::Link{0, 0}, {.skip = 0}), st::ConfigError);
  CHECK_THROWS_AS(dist::comm_report({first}, "all_reduce", 0, 2, {}, {.skip = -1}), st::ConfigError);
  CHECK_THROWS_AS(dist::MeasuredHook(nullptr, {.keep = 0}), st::ConfigError);
  CHECK_THROWS_AS(dist::MeasuredHook(std::make_shared<dist::MeasuredHook>()), st::ConfigError);
}

TEST_CASE("comm_trace: valid JSON with backward and every bucket") {
  auto one = window(0.010, {bucket(0, 0.002, 0.003, 0.006), bucket(1, 0.009, 0.009, 0.014)});
  one.start = 0.5;
  const std::string trace = dist::comm_trace({one, one}, "odd \"name\"\n", 3);
  CHECK(JsonText::valid(trace));
  CHECK_FALSE(JsonText::valid(trace.substr(0, trace.size() - 1)));
  CHECK_FALSE(JsonText::valid("{\"a\":nan}"));
  CHECK(count_of(trace, "\"name\":\"backward\",\"ph\":\"X\"") == 2);
  CHECK(count_of(trace, "\"gradient_bytes\":4000") == 4);
  CHECK(count_of(trace, "\"name\":\"bucket 1\"") == 1);
  CHECK(count_of(trace, "\"pid\":3") == count_of(trace, "\"ph\""));
  CHECK_THAT(trace, ContainsSubstring("\"ts\":502000.0"));
}

TEST_CASE("comm_report: numbers of ranks add up, and measuring changes nothing", "[multi]") {
  support::check_ranks(GENERATE(2, 3), "comm report adds up");
}

TEST_CASE("comm_report: a hook that sleeps is exposed, one that is done at once is not", "[multi]") {
  support::check_ranks(2, "comm report sleeps");
}

TEST_CASE("comm_report: the hook inside does everything else", "[multi]") {
  support::check_ranks(2, "comm report wraps");
}
