// SPDX-License-Identifier: Apache-2.0
// Every rule at three severities, the lowest of them below its threshold, and beside a near miss.
#include "saturate/diagnosis/diagnose.hpp"
#include "saturate/error.hpp"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;

namespace {

// All numbers of a rule beyond any doubt.
st::Facts clear_facts(const st::DiagnosisRule& rule) {
  st::Facts facts;
  for (const st::Evidence& evidence : rule.evidence) facts.*evidence.fact = evidence.clear;
  return facts;
}

double beyond(const st::Evidence& evidence, double share) {
  return evidence.threshold + share * (evidence.clear - evidence.threshold);
}

bool speaks(const st::DiagnosisRule& rule, const st::Facts& facts) {
  return st::diagnose(facts).find(rule.id) != nullptr;
}

// A step that nothing is wrong with, on one GPU.
st::Facts healthy() {
  return {.steps = 20,
          .step_seconds = 0.1,
          .training = 1,
          .devices = 1,
          .busy_share = 0.97,
          .kernels_per_step = 400,
          .small_kernel_share = 0.4,
          .launch_bound_share = 0.02,
          .late_launch_share = 0.03,
          .own_code_share = 0.01,
          .host_syncs_per_step = 0,
          .sync_stall_share = 0,
          .pageable_copy_share = 0,
          .driver_allocations_per_step = 0,
          .driver_allocation_share = 0,
          .allocator_retries = 0,
          .data_wait_share = 0.01,
          .loader_ceiling_ratio = 2,
          .compute_share = 0.55,
          .bandwidth_share = 0.3,
          .fp32_gemm_share = 0.02,
          .low_precision_speedup = 8,
          .layout_conversion_share = 0.01,
          .dtype_conversion_share = 0.03,
          .optimizer_share = 0.04,
          .optimizer_ops_per_parameter = 0.2,
          .memory_peak_share = 0.8,
          .sixteen_bit = 1,
          .nonfinite_share = 0.001,
          .ranks = 8,
          .exposed_communication_share = 0.03,
          .communication_overlap_share = 0.9,
          .collectives_per_step = 10,
          .bytes_per_collective = 25e6,
          .bus_bandwidth_share = 0.8,
          .scaling_efficiency = 0.95,
          .straggler_share = 0.02,
          .cores = 16,
          .intra_op_threads = 16,
          .threads_per_core = 1,
          .runnable_per_core = 0.4,
          .involuntary_switches_per_second = 20};
}

st::Facts healthy_on_cpu() {
  st::Facts facts = healthy();
  facts.devices = 0;
  facts.ranks = 1;
  facts.small_kernel_share = facts.late_launch_share = facts.launch_bound_share = std::nullopt;
  facts.low_precision_speedup = 1.02;
  facts.fp32_gemm_share = 0.7;
  facts.small_op_share = 0.1;
  return facts;
}

// One fault in a healthy step: what differs from it.
struct Fault {
  std::string rule;
  st::Facts below, mild, severe;  // over healthy()
  st::Facts near_miss;            // looks like it, and is none
  bool on_cpu = false;
};

const std::vector<Fault>& faults() {
  using F = st::Facts;
  static const std::vector<Fault> all{
      {"nonfinite", F{.nonfinite_share = 0.01}, F{.nonfinite_share = 0.05}, F{.nonfinite_share = 1},
       F{.sixteen_bit = 0, .nonfinite_share = 0.5}},
      {"serial-all-reduce", F{.exposed_communication_share = 0.06, .communication_overlap_share = 0.05},
       F{.exposed_communication_share = 0.15, .communication_overlap_share = 0.05, .scaling_efficiency = 0.8},
       F{.exposed_communication_share = 0.6, .communication_overlap_share = 0, .scaling_efficiency = 0.4},
       F{.ranks = 1, .exposed_communication_share = 0.3, .communication_overlap_share = 0}},
      {"exposed-communication", F{.exposed_communication_share = 0.1, .communication_overlap_share = 0.5},
       F{.exposed_communication_share = 0.2, .communication_overlap_share = 0.5, .scaling_efficiency = 0.75},
       F{.exposed_communication_share = 0.6, .communication_overlap_share = 0.3, .scaling_efficiency = 0.3},
       F{.exposed_communication_share = 0.2, .communication_overlap_share = 0.5, .scaling_efficiency = 0.96}},
      {"small-buckets",
       F{.exposed_communication_share = 0.04,
         .collectives_per_step = 60,
         .bytes_per_collective = 2e5,
         .bus_bandwidth_share = 0.2},
       F{.exposed_communication_share = 0.08,
         .collectives_per_step = 60,
         .bytes_per_collective = 2e5,
         .bus_bandwidth_share = 0.2},
       F{.exposed_communication_share = 0.5,
         .collectives_per_step = 200,
         .bytes_per_collective = 5e4,
         .bus_bandwidth_share = 0.05},
       F{.exposed_communication_share = 0.08, .collectives_per_step = 2, .bytes_per_collective = 2e5}},
      {"straggler", F{.straggler_share = 0.08}, F{.straggler_share = 0.15}, F{.straggler_share = 0.6},
       F{.ranks = 1, .straggler_share = 0.6}},
      {"data", F{.data_wait_share = 0.04}, F{.data_wait_share = 0.1}, F{.data_wait_share = 0.7},
       F{.data_wait_share = 0.02, .loader_ceiling_ratio = 0.9}},
      {"pageable-copies", F{.pageable_copy_share = 0.02}, F{.pageable_copy_share = 0.06}, F{.pageable_copy_share = 0.4},
       F{.devices = 0, .pageable_copy_share = 0.1}},
      {"host-sync", F{.host_syncs_per_step = 1, .sync_stall_share = 0.02},
       F{.host_syncs_per_step = 1, .sync_stall_share = 0.06}, F{.host_syncs_per_step = 40, .sync_stall_share = 0.5},
       F{.host_syncs_per_step = 2, .sync_stall_share = 0.001}},
      {"small-launches", F{.small_kernel_share = 0.9, .launch_bound_share = 0.06, .late_launch_share = 0.6},
       F{.small_kernel_share = 0.8, .launch_bound_share = 0.15, .late_launch_share = 0.5},
       F{.small_kernel_share = 0.98, .launch_bound_share = 0.7, .late_launch_share = 0.95},
       F{.small_kernel_share = 0.95, .launch_bound_share = 0.01, .late_launch_share = 0.02}},
      {"own-code", F{.own_code_share = 0.1}, F{.own_code_share = 0.2}, F{.own_code_share = 0.6},
       F{.own_code_share = 0.14, .data_wait_share = 0.04}},
      {"fp32-gemm", F{.fp32_gemm_share = 0.1}, F{.fp32_gemm_share = 0.25, .low_precision_speedup = 4},
       F{.fp32_gemm_share = 0.8}, F{.fp32_gemm_share = 0.8, .low_precision_speedup = 1.2}},
      {"layout", F{.layout_conversion_share = 0.04}, F{.layout_conversion_share = 0.08},
       F{.layout_conversion_share = 0.4}, F{.layout_conversion_share = 0.049, .dtype_conversion_share = 0.07}},
      {"dtype-conversions", F{.dtype_conversion_share = 0.06}, F{.dtype_conversion_share = 0.12},
       F{.dtype_conversion_share = 0.4}, F{.layout_conversion_share = 0.04, .dtype_conversion_share = 0.079}},
      {"unfused-optimizer", F{.optimizer_share = 0.06, .optimizer_ops_per_parameter = 12},
       F{.optimizer_share = 0.12, .optimizer_ops_per_parameter = 12},
       F{.optimizer_share = 0.5, .optimizer_ops_per_parameter = 14},
       F{.optimizer_share = 0.3, .optimizer_ops_per_parameter = 0.1}},
      {"memory-full", F{.compute_share = 0.2, .memory_peak_share = 0.85},
       F{.compute_share = 0.3, .memory_peak_share = 0.93}, F{.compute_share = 0.05, .memory_peak_share = 0.99},
       F{.compute_share = 0.55, .memory_peak_share = 0.99}},
      {"allocator-retries", F{.driver_allocation_share = 0.005, .allocator_retries = 0.1},
       F{.driver_allocation_share = 0.04, .allocator_retries = 0.2},
       F{.driver_allocations_per_step = 10, .driver_allocation_share = 0.3, .allocator_retries = 2},
       F{.driver_allocation_share = 0.004, .allocator_retries = 0.01}},
      {"driver-allocations", F{.driver_allocations_per_step = 1, .driver_allocation_share = 0.01},
       F{.driver_allocations_per_step = 2, .driver_allocation_share = 0.05},
       F{.driver_allocations_per_step = 30, .driver_allocation_share = 0.4},
       F{.driver_allocations_per_step = 0.1, .driver_allocation_share = 0.05}},
      {"latency", F{.samples_per_step = 1, .training = 0, .compute_share = 0.05, .bandwidth_share = 0.35},
       F{.samples_per_step = 4, .training = 0, .compute_share = 0.1, .bandwidth_share = 0.5},
       F{.samples_per_step = 1, .training = 0, .compute_share = 0.01, .bandwidth_share = 0.85},
       F{.training = 1, .compute_share = 0.1, .bandwidth_share = 0.5}},
      {"oversubscription", F{.runnable_per_core = 1.1}, F{.runnable_per_core = 1.5},
       F{.runnable_per_core = 4, .involuntary_switches_per_second = 20000},
       F{.runnable_per_core = 1, .involuntary_switches_per_second = 20000}},
      {"few-threads", F{.threads_per_core = 0.7}, F{.threads_per_core = 0.5}, F{.threads_per_core = 0.06},
       F{.threads_per_core = 0.5, .runnable_per_core = 0.95}, true},
      {"many-threads", F{.small_op_share = 0.4}, F{.small_op_share = 0.55}, F{.small_op_share = 0.9},
       F{.intra_op_threads = 16, .small_op_share = 0.44}, true},
      {"small-operators", F{.intra_op_threads = 1, .threads_per_core = 1, .small_op_share = 0.4},
       F{.intra_op_threads = 1, .threads_per_core = 1, .small_op_share = 0.55},
       F{.intra_op_threads = 1, .threads_per_core = 1, .small_op_share = 0.95},
       F{.devices = 1, .intra_op_threads = 1, .small_op_share = 0.95}, true},
  };
  return all;
}

st::Facts with(const Fault& fault, const st::Facts& change) {
  st::Facts facts = fault.on_cpu ? healthy_on_cpu() : healthy();
  facts.take(change);
  return facts;
}

std::vector<std::string> found(const st::Facts& facts) { return st::diagnose(facts).faults(); }

// As GitHub makes them of headings.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char letter : heading) {
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_' || letter == '-') {
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    } else if (letter == ' ') {
      anchor += '-';
    }
  }
  return anchor;
}

std::set<std::string> anchors_in(const std::string& path) {
  std::ifstream file(path);
  INFO(path);
  REQUIRE(file.good());
  std::set<std::string> anchors{""};
  for (std::string line; std::getline(file, line);) {
    const std::size_t level = line.find_first_not_of('#');
    if (level > 0 && level != std::string::npos && line[level] == ' ')
      anchors.insert(anchor_of(line.substr(level + 1)));
  }
  return anchors;
}

}  // namespace

TEST_CASE("rules: each has a fault in this file, and each fault a rule") {
  std::set<std::string> of_rules, of_faults;
  for (const st::DiagnosisRule& rule : st::diagnosis_rules()) CHECK(of_rules.insert(std::string(rule.id)).second);
  for (const Fault& fault : faults()) CHECK(of_faults.insert(fault.rule).second);
  CHECK(of_rules == of_faults);
}

TEST_CASE("rules: a fault is named first from mild on, alone, and the surer and the dearer the worse it is") {
  for (const Fault& fault : faults()) {
    INFO(fault.rule);
    const st::Diagnosis mild = st::diagnose(with(fault, fault.mild)), severe = st::diagnose(with(fault, fault.severe));
    CHECK(mild.faults() == std::vector<std::string>{fault.rule});
    REQUIRE(severe.verdicts[0].rule == fault.rule);
    REQUIRE(mild.verdicts[0].rule == fault.rule);
    CHECK(severe.verdicts[0].confidence > mild.verdicts[0].confidence);
    CHECK(severe.verdicts[0].gain >= mild.verdicts[0].gain);
    CHECK(mild.verdicts[0].gain > 0);
  }
}

TEST_CASE("rules: silent below the threshold, and about near misses") {
  for (const Fault& fault : faults()) {
    INFO(fault.rule);
    CHECK(found(with(fault, fault.below)).empty());
    CHECK(found(with(fault, fault.near_miss)).empty());
  }
}

TEST_CASE("rules: healthy steps have no fault") {
  CHECK(found(healthy()).empty());
  CHECK(found(healthy_on_cpu()).empty());
  CHECK(found(st::Facts{}).empty());
}

TEST_CASE("rules: each number alone can silence its rule, at its threshold and not beyond") {
  for (const st::DiagnosisRule& rule : st::diagnosis_rules()) {
    const st::Facts clear = clear_facts(rule);
    INFO(rule.id);
    CHECK(st::diagnose(clear).find(rule.id)->confidence == Catch::Approx(1));
    for (const st::Evidence& evidence : rule.evidence) {
      INFO(evidence.in_words());
      st::Facts facts = clear;
      facts.*evidence.fact = evidence.threshold;
      CHECK(speaks(rule, facts) == (evidence.need == st::Need::supports));
      facts.*evidence.fact = beyond(evidence, 0.01);
      CHECK(speaks(rule, facts));
      facts.*evidence.fact = std::nullopt;
      CHECK(speaks(rule, facts) == (evidence.need != st::Need::must));
    }
  }
}

TEST_CASE("rules: a rule without a number that it needs says which") {
  const st::Diagnosis diagnosis = st::diagnose({.devices = 1, .host_syncs_per_step = 3});
  const auto unjudged = [&](std::string_view rule) -> std::vector<std::string> {
    for (const st::UnjudgedRule& row : diagnosis.unjudged) {
      if (row.rule == rule) return row.missing;
    }
    return {};
  };
  CHECK(unjudged("host-sync") == std::vector<std::string>{"sync_stall_share"});
  CHECK(unjudged("few-threads").empty());  // there is a device: whatever the rest is, it is silent
  CHECK_THAT(diagnosis.text(), ContainsSubstring("not judged, for want of numbers:") &&
                                   ContainsSubstring("host-sync (sync_stall_share)"));
}

TEST_CASE("rules: pages and sections that tactics name are there, and codes are saturate's or LibTorch's") {
  for (const st::DiagnosisRule& rule : st::diagnosis_rules()) {
    INFO(rule.id);
    CHECK(!rule.tactics.empty());
    CHECK(!rule.evidence.empty());
    for (const st::RuleTactic& tactic : rule.tactics) {
      INFO(tactic.code << ": " << tactic.what);
      if (!tactic.code.empty()) CHECK((!tactic.docs.empty() || tactic.code.starts_with("at::")));
      if (tactic.docs.empty()) continue;
      const std::string docs(tactic.docs);
      const std::size_t hash = docs.find('#');
      const auto anchors = anchors_in(std::string(SATURATE_SOURCE_DIR) + "/" + docs.substr(0, hash));
      CHECK(anchors.count(hash == std::string::npos ? "" : docs.substr(hash + 1)) == 1);
    }
  }
}

TEST_CASE("symptom_rows: a row a rule, with its thresholds, links and what is by hand") {
  const std::string rows = st::symptom_rows();
  CHECK(static_cast<std::size_t>(std::count(rows.begin(), rows.end(), '\n')) == st::diagnosis_rules().size() + 2);
  CHECK_THAT(rows, ContainsSubstring("(`pageable-copies`) | ") &&
                       ContainsSubstring("`pageable_copy_share` above 3 %") &&
                       ContainsSubstring("[`saturate::ChannelsLast{}`](policies.md#memory-format)") &&
                       ContainsSubstring("by hand: a CUDA graph of the step"));
}
