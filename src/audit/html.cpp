// SPDX-License-Identifier: Apache-2.0
// audit.html, section by section, in the order in which a reader asks: how much, what to do, why.
#include <algorithm>
#include <cmath>

#include "charts.hpp"
#include "page_style.hpp"
#include "saturate/audit/report.hpp"
#include "svg.hpp"
#include "text.hpp"
#include "write_file.hpp"

namespace saturate::audit {
namespace {

using text::format;

std::string count_of(double value) { return text::thousands(value); }

std::string paragraph(const std::string& words, const char* css = "lead") {
  return std::string("<p class=\"") + css + "\">" + escape(words) + "</p>\n";
}
std::string heading(const std::string& words) { return "<h2>" + escape(words) + "</h2>\n"; }

// The candidate whose rounds measured the recommended set.
const TacticResult* measured(const AuditReport& report) {
  if (report.recommendation.tactics.empty()) return nullptr;
  if (report.together && report.together->members == report.recommendation.tactics) return &*report.together;
  return report.find(report.recommendation.tactics.front());
}

std::vector<const TacticResult*> candidates(const AuditReport& report) {
  std::vector<const TacticResult*> all;
  for (const TacticResult& tactic : report.tactics) all.push_back(&tactic);
  std::stable_sort(all.begin(), all.end(), [](auto* a, auto* b) { return a->verdict.ratio > b->verdict.ratio; });
  if (report.together) all.insert(all.begin(), &*report.together);
  return all;
}

std::string head(const AuditReport& report) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>" +
         escape("Audit of " + report.workload) + "</title>\n<style>" + kPageStyle +
         "</style>\n</head>\n<body>\n<main>\n";
}

std::string title(const AuditReport& report) {
  std::string under = report.machine.cpu + ", " + std::to_string(report.machine.logical_cores) + " cores";
  if (!report.machine.accelerator.empty()) under += ", " + report.machine.accelerator;
  if (!report.date.empty()) under += " · " + report.date;
  std::string html = "<header>\n<h1>" + escape("Audit of " + report.workload) + "</h1>\n";
  if (!report.description.empty()) html += "<p>" + escape(report.description) + "</p>\n";
  return html + "<p>" + escape(under) + "</p>\n</header>\n";
}

std::string hero_nothing(const AuditReport& report) {
  return "<section class=\"hero flat\">\n<div class=\"words\">\n<h2>Nothing pays here: leave it as it is</h2>\n<p>" +
         escape(std::to_string(report.tactics.size()) +
                " tactics were tried, each against the unchanged workload. None made training reliably faster with the "
                "same loss on this machine. The reasons are below.") +
         "</p>\n</div>\n</section>\n";
}

std::string hero_words(const AuditReport& report, const TacticResult& best) {
  std::vector<double> before, after;
  for (const AbRound& round : best.raw.rounds) {
    before.push_back(round.baseline.timed.samples_per_second());
    after.push_back(round.candidate.timed.samples_per_second());
  }
  const std::size_t changes = report.recommendation.tactics.size();
  std::string words = changes == 1 ? "with one change" : "with " + std::to_string(changes) + " changes";
  if (!before.empty()) {
    words = count_of(median(before)) + " → " + count_of(median(after)) + " samples per second, " + words;
  }
  words += format(": an hour of training now takes %.0f minutes.", 60 / report.recommendation.ratio);
  return words;
}

std::string hero(const AuditReport& report) {
  const TacticResult* best = measured(report);
  if (best == nullptr) return hero_nothing(report);
  const Verdict& v = best->verdict;
  const std::string loss =
      "The model learns as before: mean loss " + text::number(v.candidate_loss) + " with and " +
      text::number(v.baseline_loss) + " without, over the same " + count_of(static_cast<double>(v.loss_samples)) +
      " samples. With " + format("%g", best->rules.confidence * 100) + " % confidence the true speed-up lies between " +
      text::times(report.recommendation.ci.low) + " and " + text::times(report.recommendation.ci.high) + ".";
  return "<section class=\"hero\">\n<div class=\"big\">" + text::times(report.recommendation.ratio) +
         "</div>\n<div class=\"words\">\n<h2>as fast on this machine</h2>\n<p>" + escape(hero_words(report, *best)) +
         "</p>\n<p>" + escape(loss) + "</p>\n</div>\n</section>\n";
}

std::string apply_steps(const AuditReport& report) {
  if (report.recommendation.tactics.empty()) return {};
  std::string html = heading("What to change") + paragraph(report.recommendation.text) + "<ul class=\"steps\">\n";
  for (const std::string& id : report.recommendation.tactics) {
    const TacticResult* tactic = report.find(id);
    if (tactic == nullptr) continue;
    html += "<li class=\"card\"><h3>" + escape(tactic->title) + "</h3>\n" + paragraph(tactic->what, "");
    if (!tactic->how_to_apply.empty()) html += "<pre>" + escape(tactic->how_to_apply) + "</pre>\n";
    html += "<p class=\"alone\">" + escape(text::times(tactic->verdict.ratio) + " on its own") + "</p></li>\n";
  }
  return html + "</ul>\n";
}

std::string tile(const std::string& number, const std::string& unit, const std::string& name, const std::string& what) {
  return "<div class=\"card tile\"><b>" + escape(number) + " <small>" + escape(unit) + "</small></b><span>" +
         escape(name) + "</span>" + paragraph(what, "") + "</div>\n";
}

std::string tiles(const AuditReport& report) {
  const Baseline& b = report.baseline;
  const double typical = b.step_seconds(0.5), slow = b.step_seconds(0.95);
  std::string html = heading("Where you started") +
                     paragraph("The workload as it is, before anything was switched on.") + "<div class=\"tiles\">\n";
  html += tile(count_of(b.samples_per_second()), "samples/s", "Speed",
               "Training samples taken in each second. Higher is better.");
  html += tile(text::seconds(typical), "", "A typical step", "Half of all optimizer steps are quicker than this.");
  html += tile(text::seconds(slow), "", "A slow step",
               "One step in twenty takes longer." +
                   std::string(slow > 1.5 * typical ? " Far above the typical one: something gets in the way." : ""));
  html += tile(text::percent(b.data_wait_share()), "", "Waiting for data",
               b.data_wait_share() >= 0.1
                   ? "Time in which training stood still because no batch was ready. Worth a look."
                   : "Time in which training stood still because no batch was ready. Little to win here.");
  html += tile(text::bytes(b.peak_bytes()), "", "Peak memory", "The most that was in use at once.");
  html += tile(text::number(b.final_loss()), "", "Loss",
               "Mean of the last round, after " + count_of(static_cast<double>(b.samples())) + " samples.");
  return html + "</div>\n";
}

std::string worth(const AuditReport& report) {
  if (report.tactics.empty()) return {};
  return heading("What each tactic is worth") +
         paragraph(
             "Each ran alone against the unchanged workload, turn and turn about. Right of the dashed line is "
             "faster. A tactic is kept only when its whole interval lies right of the line and the loss agrees.") +
         "<div class=\"card\">\n" + ratio_chart(candidates(report)) +
         "<div class=\"legend\"><span class=\"good\"><i></i>kept</span><span class=\"bad\"><i></i>rejected</span>"
         "<span class=\"faint\"><i></i>one round</span><span class=\"dash\"><i></i>confidence interval of the "
         "median</span></div>\n</div>\n";
}

std::string loader_card(const AuditReport& report) {
  if (!report.loader_ceiling) {
    return report.loader_error.empty()
               ? ""
               : "<div class=\"card\"><h3>Can the loader keep up?</h3>\n" +
                     paragraph("It could not be measured: " + report.loader_error, "note") + "</div>\n";
  }
  const double loader = report.loader_ceiling->samples_per_second, training = report.baseline.samples_per_second();
  const double room = loader / training;
  const std::string words =
      room >= 2
          ? "Alone it delivers " + text::number(room) + " times what training takes: data is not what holds it back."
      : room >= 1.1 ? "Alone it delivers " + text::times(room) +
                          " what training takes: enough for now, the next speed-up may run into it."
                    : "It delivers hardly more than training takes: a faster loader comes first.";
  const std::string cause = report.loader_ceiling->cause.empty() ? "" : " " + report.loader_ceiling->cause + ".";
  return "<div class=\"card\"><h3>Can the loader keep up?</h3>\n" + paragraph(words + cause, "note") + "<p></p>\n" +
         loader_chart(loader, training) + "</div>\n";
}

std::string batch_card(const AuditReport& report) {
  if (report.batch_curve.empty()) return {};
  std::string html = "<div class=\"card\"><h3>Batch size</h3>\n" +
                     paragraph(
                         "Samples per second of the unchanged workload at other batch sizes. Another size is "
                         "another training run: the learning rate has to follow it.",
                         "note") +
                     batch_chart(report);
  for (const BatchPoint& point : report.batch_curve) {
    if (!point.error.empty()) html += paragraph(std::to_string(point.batch_size) + ": " + point.error, "note");
  }
  const BatchPoint* fastest = report.fastest_batch();
  if (fastest != nullptr && !fastest->lr_advice.empty()) html += paragraph(fastest->lr_advice, "note");
  return html + "</div>\n";
}

std::string limits(const AuditReport& report) {
  const std::string cards = loader_card(report) + batch_card(report);
  if (cards.empty()) return {};
  return heading("What else limits the speed") + "<div class=\"two\">\n" + cards + "</div>\n";
}

std::string memory_row(const MemoryPoint& point) {
  const bool any = point.counts();
  return "<tr><td class=\"name\">" + escape(point.label) + "</td><td class=\"num\" data-label=\"peak\">" +
         (any ? text::bytes(point.peak_bytes()) : "–") + "</td><td class=\"num\" data-label=\"memory\">" +
         (any ? text::times(point.memory()) : "–") + "</td><td class=\"num\" data-label=\"time\">" +
         (any ? text::times(1 / point.speed()) : "–") + "</td><td>" +
         escape(point.error.empty() ? point.how_to_apply : point.error) + "</td></tr>\n";
}

std::string memory_card(const AuditReport& report) {
  if (!report.memory_note.empty()) {
    return "<div class=\"card\"><h3>Memory against time</h3>\n" + paragraph(report.memory_note, "note") + "</div>\n";
  }
  if (report.memory_curve.empty()) return {};
  const std::string chart = memory_chart(report.memory_curve), advice = memory_advice(report.memory_curve);
  std::string html =
      "<div class=\"card\"><h3>Memory against time</h3>\n" +
      paragraph(
          "Parts of the forward pass run a second time in backward instead of being kept; what is learned stays "
          "the same. Each point ran in turns with the plain step. Peak memory is the most that the tensors of a "
          "step took at once: activations, gradients, the batch and temporaries, without parameters and "
          "optimizer state.",
          "note") +
      "<p></p>\n" + chart;
  if (!chart.empty()) {
    html +=
        "<div class=\"legend\"><span class=\"ring\"><i></i>unchanged workload</span><span class=\"accent\"><i></i>"
        "nothing measured beats it in both</span><span class=\"none\"><i></i>beaten by another</span><span "
        "class=\"dash\"><i></i>lowest to highest round</span></div>\n";
  }
  html +=
      "<p></p>\n<table>\n<thead><tr><th>Way</th><th class=\"num\">Peak</th><th class=\"num\">Memory</th>"
      "<th class=\"num\">Time</th><th>How to apply</th></tr></thead>\n<tbody>\n";
  for (const MemoryPoint& point : report.memory_curve) html += memory_row(point);
  return html + "</tbody>\n</table>\n" + (advice.empty() ? "" : paragraph(advice, "note")) + "</div>\n";
}

// "60.1 MiB activations, 12 MiB parameters", the most first.
std::string in_kinds(const MemoryByKind& memory) {
  std::vector<MemoryKind> kinds;
  for (std::size_t i = 0; i < memory_kinds; ++i) {
    if (memory.bytes[i] > 0) kinds.push_back(static_cast<MemoryKind>(i));
  }
  std::stable_sort(kinds.begin(), kinds.end(), [&](MemoryKind a, MemoryKind b) { return memory[a] > memory[b]; });
  std::vector<std::string> words;
  for (const MemoryKind kind : kinds) words.push_back(text::bytes(memory[kind]) + " " + to_string(kind));
  return words.empty() ? "nothing" : text::join(words);
}

// The parts that hold most of the activations: where recomputing frees most.
std::string largest_parts(const MemoryReport& memory) {
  std::vector<const ModuleMemory*> parts;
  for (const ModuleMemory& part : memory.modules) {
    if (!part.name.empty() && part.own_activations > 0) parts.push_back(&part);
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](auto* a, auto* b) { return a->own_activations > b->own_activations; });
  std::vector<std::string> words;
  for (const ModuleMemory* part : parts) {
    if (words.size() == 3) break;
    words.push_back(part->name + " (" + text::bytes(part->own_activations) + ")");
  }
  return words.empty() ? "" : " Of the parts, the most is kept by " + text::join(words) + ".";
}

std::string phase_row(const PhaseMemory& phase) {
  return "<tr><td class=\"name\">" + escape(phase.name) + "</td><td class=\"num\" data-label=\"time\">" +
         (phase.seconds > 0 ? escape(text::seconds(phase.seconds)) : "–") +
         "</td><td class=\"num\" data-label=\"peak\">" + (phase.peak_bytes > 0 ? text::bytes(phase.peak_bytes) : "–") +
         "</td><td>" + escape(in_kinds(phase.at_end)) + "</td></tr>\n";
}

std::string step_card(const AuditReport& report) {
  const std::string begin = "<div class=\"card\"><h3>One step of the unchanged workload</h3>\n";
  if (!report.step_memory || report.step_memory->devices.empty()) {
    return report.step_memory_error.empty()
               ? ""
               : begin + paragraph("It could not be measured: " + report.step_memory_error, "note") + "</div>\n";
  }
  const MemoryReport& memory = *report.step_memory;
  std::string html = begin +
                     paragraph("All tensors on " + memory.memory().device + " along one step. At the peak: " +
                                   in_kinds(memory.memory().at_peak) + "." + largest_parts(memory),
                               "note") +
                     "<p></p>\n" + memory.to_svg() +
                     "<p></p>\n<table>\n<thead><tr><th>Phase</th><th class=\"num\">Time</th><th class=\"num\">Peak</th>"
                     "<th>At its end</th></tr></thead>\n<tbody>\n";
  for (const PhaseMemory& phase : memory.phases) html += phase_row(phase);
  return html + "</tbody>\n</table>\n</div>\n";
}

std::string memory(const AuditReport& report) {
  const std::string cards = memory_card(report) + step_card(report);
  if (cards.empty()) return {};
  return heading("What limits memory") + "<div class=\"stack\">\n" + cards + "</div>\n";
}

std::string learning_rate(const AuditReport& report) {
  const std::string chart = report.lr_curve ? lr_chart(*report.lr_curve) : std::string();
  if (chart.empty()) return {};
  return heading("The learning rate") + paragraph(report.lr_curve->title) + "<div class=\"card\">\n" + chart +
         "</div>\n";
}

std::string table_row(const TacticResult& tactic) {
  const Verdict& v = tactic.verdict;
  const bool any = v.rounds > 0;
  return "<tr><td class=\"name\">" + escape(tactic.title) + "</td><td class=\"verdict\">" + badge(v) +
         "</td><td class=\"num\" data-label=\"speed\">" + (any ? text::times(v.ratio) : "–") +
         "</td><td class=\"num\" data-label=\"loss\">" +
         escape(any ? text::number(v.candidate_loss) + " / " + text::number(v.baseline_loss) : "–") +
         "</td><td class=\"num\" data-label=\"rounds\">" + std::to_string(v.rounds) + "</td><td>" + escape(v.cause()) +
         (tactic.raw.note.empty() ? "" : "<br/>" + escape(tactic.raw.note)) + "</td></tr>\n";
}

std::string reasons(const AuditReport& report) {
  if (report.tactics.empty()) return {};
  std::string html =
      heading("Every verdict, and why") +
      "<div class=\"card\">\n<table>\n<thead><tr><th>Tactic</th><th>Verdict</th><th class=\"num\">Speed</th>"
      "<th class=\"num\">Loss, with / without</th><th class=\"num\">Rounds</th><th>Reason</th></tr></thead>\n<tbody>\n";
  for (const TacticResult* tactic : candidates(report)) html += table_row(*tactic);
  return html + "</tbody>\n</table>\n</div>\n";
}

std::string mini(const TacticResult& tactic) {
  std::string html = "<div class=\"card mini\"><h3>" + escape(tactic.title) + " " + badge(tactic.verdict) + "</h3>\n" +
                     paragraph(tactic.what, "reason");
  const std::string rounds = rounds_chart(tactic), loss = loss_chart(tactic);
  if (!rounds.empty()) html += "<h4>Samples per second, round by round</h4>\n" + rounds;
  if (!loss.empty()) html += "<h4>Loss along the samples</h4>\n" + loss;
  if (rounds.empty() && loss.empty()) html += paragraph(tactic.verdict.reason, "reason");
  if (!tactic.how_to_apply.empty()) html += "<h4>How to apply</h4>\n<pre>" + escape(tactic.how_to_apply) + "</pre>\n";
  return html + "</div>\n";
}

std::string rounds(const AuditReport& report) {
  if (report.tactics.empty()) return {};
  std::string html = heading("The rounds behind the verdicts") +
                     paragraph(
                         "In each round both arms ran one right after the other, and who went first alternated. A "
                         "pair shares whatever else the machine was doing, so compare within a pair.") +
                     "<div class=\"legend\"><span class=\"ring\"><i></i>unchanged workload</span><span class=\"good\">"
                     "<i></i>with the tactic, kept</span><span class=\"bad\"><i></i>with the tactic, rejected</span>"
                     "</div>\n<p></p>\n<div class=\"minis\">\n";
  for (const TacticResult* tactic : candidates(report)) html += mini(*tactic);
  return html + "</div>\n";
}

std::string method(const AuditReport& report) {
  if (report.tactics.empty()) return {};
  const Rules& rules = report.tactics.front().rules;
  return heading("How this was measured") + "<div class=\"card\">\n" +
         paragraph(
             format("Every comparison starts both arms afresh from the same seed, warms both up, and then runs them "
                    "in turns: %lld timed steps of the unchanged workload a round (a slower candidate gets fewer), "
                    "after %lld untimed ones. Speed is "
                    "samples per second; a round's ratio is candidate over baseline, and the verdict rests on the "
                    "median of these ratios.",
                    static_cast<long long>(report.steps_per_round), static_cast<long long>(report.settle_steps)),
             "") +
         paragraph(
             format(
                 "The interval comes from %lld bootstrap draws with a fixed seed. A tactic is kept when at least "
                 "%lld rounds were run, the whole %g %% interval lies above 1, the median gains at least %s, and "
                 "the mean losses over the same samples agree within %s or what the tactic states. The raw rounds are "
                 "in audit.json; the verdicts can be recomputed from them.",
                 static_cast<long long>(rules.resamples), static_cast<long long>(rules.min_rounds),
                 rules.confidence * 100, text::percent(rules.min_gain).c_str(),
                 text::percent(rules.loss_tolerance).c_str()),
             "") +
         "</div>\n";
}

std::string machine_block(const AuditReport& report) {
  const Machine& m = report.machine;
  std::string html = heading("The machine") + "<div class=\"card\">\n<dl>\n";
  const auto entry = [&](const char* name, const std::string& value) {
    if (!value.empty()) html += std::string("<dt>") + name + "</dt><dd>" + escape(value) + "</dd>\n";
  };
  entry("Processor", m.cpu);
  entry("Cores",
        std::to_string(m.logical_cores) + ", of which training uses " + std::to_string(m.threads) + " threads");
  entry("Instructions", m.isa.empty() ? "none of those that speed up training" : text::join(m.isa, ", "));
  entry("Memory", text::bytes(m.memory_bytes));
  entry("Accelerator", m.accelerator.empty() ? "none" : m.accelerator);
  entry("Kernel", m.kernel);
  entry("LibTorch", m.libtorch);
  entry("Date", report.date);
  entry("The audit took",
        text::seconds(report.elapsed_seconds) + " of at most " + text::seconds(report.budget_seconds));
  return html + "</dl>\n</div>\n";
}

}  // namespace

std::string AuditReport::to_html() const {
  return head(*this) + title(*this) + hero(*this) + apply_steps(*this) + tiles(*this) + worth(*this) + limits(*this) +
         memory(*this) + learning_rate(*this) + reasons(*this) + rounds(*this) + method(*this) + machine_block(*this) +
         "<footer>Made by saturate. This page is whole in itself: it loads nothing and sends "
         "nothing.</footer>\n</main>\n"
         "</body>\n</html>\n";
}

void AuditReport::write_html(const std::string& path) const { write_file(path, to_html()); }

}  // namespace saturate::audit
