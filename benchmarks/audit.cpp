// SPDX-License-Identifier: Apache-2.0
// The main job: audits the training of a CNN on Fashion-MNIST on this machine, and trains it with what paid.
//
//   saturate-audit [--data FOLDER] [--epochs N] [--out FOLDER]
//   saturate-audit --recompute audit.json     the verdicts again, from the raw rounds
#include "models.hpp"
#include "saturate/audit/engine.hpp"
#include "saturate/audit/workload.hpp"
#include "saturate/data/idx_source.hpp"
#include "saturate/host_memory.hpp"
#include "saturate/trainer/callbacks/progress.hpp"

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <string>

namespace {

namespace st = saturate;
using st::data::IdxSource;
using st::data::Split;

struct Arguments {
  std::string data = "/usr/share/datasets/fashion-mnist", out = "out", recompute;
  int64_t epochs = 1, batch_size = 128, rounds = 8;
  double seconds_per_round = 0.8, budget = 200;
};

std::string today() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", std::localtime(&now));
  return text;
}

int recompute(const std::string& path) {
  auto report = st::audit::AuditReport::load(path);
  const auto differences = report.check();
  report.rejudge();
  report.print_table(std::cout);
  for (const std::string& difference : differences) std::cout << "differs: " << difference << "\n";
  std::cout << (differences.empty() ? "Every verdict is what the raw rounds give.\n" : "");
  return differences.empty() ? 0 : 1;
}

// Trains with what the audit recommends, and says what the model is worth on the test images.
void train(const Arguments& arguments, const std::vector<std::string>& tactics) {
  const auto has = [&](const char* id) { return std::find(tactics.begin(), tactics.end(), id) != tactics.end(); };
  std::string names;
  for (const std::string& tactic : tactics) {
    names += (names.empty() ? "" : ", ") + tactic;
    if (tactic.starts_with("threads-")) at::set_num_threads(std::stoi(tactic.substr(8)));
  }
  if (has("keep-pages")) st::host_memory::keep_pages();
  std::cout << "\nTraining " << arguments.epochs << (arguments.epochs == 1 ? " epoch" : " epochs") << " with "
            << (names.empty() ? "the baseline" : names) << "\n";
  const int64_t parts = has("accumulate") ? 4 : 1;
  torch::manual_seed(0);
  bench::Cnn net;
  st::Trainer trainer(
      net, st::audit::detail::make_adamw(net->parameters(), 1e-3, has("fused-adamw")), st::CrossEntropy{},
      st::audit::RuntimePrecision(has("bf16") ? st::audit::Precision::bf16 : st::audit::Precision::fp32),
      st::audit::RuntimeMemoryFormat{has("channels-last")}, st::Accumulate{parts}, st::Progress{});
  st::data::PrefetchLoader<IdxSource> loader(
      IdxSource::fashion_mnist(Split::train, {}, arguments.data),
      {.batch_size = arguments.batch_size / parts, .shuffle = true, .workers = has("prefetch") ? 1 : 0});
  st::data::PrefetchLoader<IdxSource> test(IdxSource::fashion_mnist(Split::test, {}, arguments.data),
                                           {.batch_size = 500});
  const auto result = trainer.fit(loader, {.epochs = arguments.epochs, .log_every = 100});
  const auto metrics = trainer.evaluate(test);
  std::printf("%.0f samples/s; test loss %.4f, accuracy %.4f\n", static_cast<double>(result.samples) / result.seconds,
              metrics.at("loss"), metrics.at("accuracy"));
}

int run(const Arguments& arguments) {
  if (!arguments.recompute.empty()) return recompute(arguments.recompute);
  const auto source = IdxSource::fashion_mnist(Split::train, {}, arguments.data);
  std::filesystem::create_directories(arguments.out);
  const auto workload = st::audit::make_workload(
      {.name = "Fashion-MNIST CNN",
       .description = "Two convolutions and two linear layers (421,642 parameters) on 60,000 images of 28 x 28, AdamW",
       .batch_size = arguments.batch_size},
      [] { return bench::Cnn(); }, st::CrossEntropy{}, source);
  st::audit::Audit audit(workload, st::audit::standard_tactics(workload),
                         {.rounds = arguments.rounds,
                          .seconds_per_round = arguments.seconds_per_round,
                          .budget_seconds = arguments.budget,
                          .date = today()});
  const auto report = audit.run();
  report.print_table(std::cout);
  report.save(arguments.out + "/audit.json");
  report.write_html(arguments.out + "/audit.html");
  std::cout << "\nWritten: " << arguments.out << "/audit.json and " << arguments.out << "/audit.html\n";
  if (arguments.epochs > 0) train(arguments, report.recommendation.tactics);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{
      "Measures what each training tactic is worth for a CNN on Fashion-MNIST on this machine, one at a time in "
      "interleaved rounds against a recorded baseline, then together those that paid."};
  app.add_option("--data", arguments.data, "folder of the gzip idx files")->capture_default_str();
  app.add_option("--epochs", arguments.epochs, "epochs to train with what paid, after the audit (0: none)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--out", arguments.out, "folder for audit.json and audit.html")->capture_default_str();
  app.add_option("--batch-size", arguments.batch_size, "samples a step, a multiple of 4")->capture_default_str();
  app.add_option("--rounds", arguments.rounds, "interleaved rounds a tactic")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seconds-per-round", arguments.seconds_per_round, "timed part of one arm's round")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--budget", arguments.budget, "seconds for the whole audit, training excluded")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--recompute", arguments.recompute,
                 "judge the raw rounds of an audit.json again; exit 1 on a difference");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "saturate-audit: %s\n", error.what());
    return 1;
  }
}
