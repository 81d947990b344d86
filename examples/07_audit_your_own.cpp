// SPDX-License-Identifier: Apache-2.0
// Points the audit at a workload of your own: a model, a loss and a source of data are all it needs.
// Expected: a table with a verdict for each tactic, audit.json and audit.html beside the program, and raw rounds that
// give the same verdicts again. Which tactics are kept is up to the machine.
#include <torch/torch.h>

#include <iostream>

#include "saturate/saturate.hpp"

namespace st = saturate;

// begin audit
struct RegressorImpl : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(64, 512));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(512, 1));

  torch::Tensor forward(torch::Tensor x) { return st::call(out, torch::relu(st::call(in, x))); }
};
TORCH_MODULE(Regressor);

int main() {
  torch::manual_seed(0);
  const torch::Tensor x = torch::randn({8192, 64}), y = x.square().mean(1, /*keepdim=*/true);

  const auto workload = st::audit::make_workload(
      {.name = "regressor", .description = "Two linear layers on 8192 rows", .batch_size = 256},
      [] { return Regressor(); },  // called for every arm, after torch::manual_seed
      st::MSE{}, st::data::TensorSource(x, y));

  // Short rounds, so that the example ends soon; a real audit takes the defaults.
  st::audit::Audit audit(workload, st::audit::standard_tactics(workload),
                         {.rounds = 5, .seconds_per_round = 0.05, .budget_seconds = 60});
  const st::audit::AuditReport report = audit.run();
  report.print_table(std::cout);
  report.save("audit.json");
  report.write_html("audit.html");
  // end audit

  const auto again = st::audit::AuditReport::load("audit.json");
  for (const std::string& difference : again.check()) std::cout << "differs: " << difference << "\n";
  int64_t measured = 0;
  for (const auto& tactic : again.tactics) measured += tactic.verdict.rounds > 0;
  std::cout << measured << " of " << again.tactics.size() << " tactics measured\n";
  return again.check().empty() && measured >= 1 ? 0 : 1;
}
