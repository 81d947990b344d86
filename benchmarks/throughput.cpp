// SPDX-License-Identifier: Apache-2.0
// How fast a model trains under a set of policies, on the CPU or a GPU:
//
//   throughput --model cnn|gpt --policies keep_pages,channels_last,prefetch=1
//
// prints samples/s (cnn) or tokens/s (gpt), p50 and p95 of a step, and peak memory.
#include "models.hpp"
#include "rounds.hpp"
#include "saturate/audit/workload.hpp"
#include "saturate/data/idx_source.hpp"
#include "saturate/data/tensor_source.hpp"
#include "saturate/error.hpp"
#include "saturate/host_memory.hpp"
#include "saturate/observe/timing.hpp"

#include <ATen/Parallel.h>
#include <torch/version.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

namespace {

namespace st = saturate;

struct Arguments {
  std::string model = "cnn", policies = "none", device, data;
  int64_t batch_size = 0, batches = 200, warmup = 20;
  bool rounds_from_stdin = false;
  std::string side = "saturate";
};

// Real text that every Debian has: windows of 129 bytes, of which the first 128 are the input and the last 128 the
// target.
st::data::TensorSource<2> text_source(std::string folder) {
  if (folder.empty()) folder = "/usr/share/common-licenses";
  std::string text;
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(stream), {});
  }
  constexpr int64_t context = bench::GptImpl::context;
  const int64_t windows = (static_cast<int64_t>(text.size()) - 1) / context;
  if (windows < 64)
    throw st::DataError("'" + folder + "' holds too little text; name a folder of text files with --data");
  const at::Tensor bytes = torch::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kByte).to(at::kLong);
  return st::data::TensorSource<2>(bytes.narrow(0, 0, windows * context).view({windows, context}).clone(),
                                   bytes.narrow(0, 1, windows * context).view({windows, context}).clone());
}

std::unique_ptr<st::audit::Runner> make_runner(const Arguments& arguments, const st::audit::PolicySettings& settings) {
  st::audit::WorkloadOptions options{.name = arguments.model};
  if (!arguments.device.empty()) options.device = c10::Device(arguments.device);
  if (arguments.model == "cnn") {
    options.batch_size = arguments.batch_size > 0 ? arguments.batch_size : 128;
    const auto source = arguments.data.empty()
                            ? st::data::IdxSource::fashion_mnist(st::data::Split::train)
                            : st::data::IdxSource::fashion_mnist(st::data::Split::train, {}, arguments.data);
    return st::audit::make_runner(
        options, [] { return bench::Cnn(); }, st::CrossEntropy{.ignore_index = std::nullopt}, source, settings);
  }
  options.batch_size = arguments.batch_size > 0 ? arguments.batch_size : 16;
  return st::audit::make_runner(
      options, [] { return bench::Gpt(); }, st::CrossEntropy{.ignore_index = std::nullopt}, text_source(arguments.data),
      settings);
}

void report(const st::audit::RoundResult& round, bool tokens) {
  st::Quantiles steps;
  for (const double seconds : round.step_seconds) steps.add(seconds);
  const double scale = tokens ? static_cast<double>(bench::GptImpl::context) : 1.0;
  std::printf("%s/s       %.0f\n", tokens ? "tokens" : "samples", round.samples_per_second() * scale);
  std::printf("step p50        %.2f ms\nstep p95        %.2f ms\n", steps.p50() * 1e3, steps.p95() * 1e3);
  std::printf("data wait       %.1f %%\n", 100 * round.data_wait_seconds / round.seconds);
  std::printf("peak memory     %.1f MiB of tensors\n", static_cast<double>(round.peak_bytes) / (1 << 20));
  std::printf("loss            %.4f\n", round.mean_loss());
}

int run(const Arguments& arguments) {
  const auto settings = st::audit::PolicySettings::parse(arguments.policies);
  if (settings.keep_pages) st::host_memory::keep_pages();
  if (settings.threads > 0) at::set_num_threads(static_cast<int>(settings.threads));
  const auto runner = make_runner(arguments, settings);
  runner->run(arguments.warmup);
  if (!arguments.rounds_from_stdin) {
    std::printf("%s, policies %s, %d threads\n", arguments.model.c_str(), settings.to_string().c_str(),
                at::get_num_threads());
    report(runner->run(arguments.batches), arguments.model == "gpt");
    return 0;
  }
  bench::print_info(arguments.side, "policies " + settings.to_string() + ", fused AdamW, " +
                                        std::to_string(at::get_num_threads()) + " threads, LibTorch " TORCH_VERSION);
  bench::serve_rounds([&](int64_t) {
    const auto round = runner->run(arguments.batches);
    bench::print_sample(arguments.side, round.seconds, round.samples);
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"Trains a model under a set of policies and says how fast it goes."};
  app.add_option("--model", arguments.model, "cnn (Fashion-MNIST) or gpt (bytes of text)")
      ->check(CLI::IsMember({"cnn", "gpt"}))
      ->capture_default_str();
  app.add_option("--policies", arguments.policies,
                 "tf32,bf16,fp16,channels_last,keep_pages,torch_adamw,accumulate=K,recompute=all,recompute=every-N,"
                 "prefetch=WORKERS,threads=N,clip=MAX_NORM,clip_value=V,adaptive_clip=FACTOR,skip_spikes,warmup_cosine="
                 "WARMUP:TOTAL,ema=DECAY")
      ->capture_default_str();
  app.add_option("--device", arguments.device, "cpu or cuda (default: cuda when there is a GPU)");
  app.add_option("--data", arguments.data, "folder of the idx files (cnn) or of text files (gpt)");
  app.add_option("--batch-size", arguments.batch_size, "samples a step (default: 128 for cnn, 16 for gpt)");
  app.add_option("--batches", arguments.batches, "timed steps")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--warmup", arguments.warmup, "steps before")->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_flag("--rounds-from-stdin", arguments.rounds_from_stdin, "answer each line 'round' with one JSON sample");
  app.add_option("--side", arguments.side, "name of the samples")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "throughput: %s\n", error.what());
    return 1;
  }
}
