// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/report.hpp"

#include <algorithm>
#include <iomanip>
#include <limits>
#include <ostream>

#include "saturate/error.hpp"
#include "text.hpp"

namespace saturate::audit {
namespace {

double median_speed(const std::vector<RoundResult>& rounds) {
  std::vector<double> speeds;
  for (const RoundResult& round : rounds) speeds.push_back(round.samples_per_second());
  return speeds.empty() ? 0 : median(speeds);
}

int64_t highest_peak(const std::vector<RoundResult>& rounds) {
  int64_t peak = 0;
  for (const RoundResult& round : rounds) peak = std::max(peak, round.peak_bytes);
  return peak;
}

// Everything but the text of a reason may differ by nothing: the same rounds give the same bits.
std::string difference(const TacticResult& stored) {
  Verdict again;
  try {
    again = judge(stored.raw, stored.rules);
  } catch (const Error& e) {
    return stored.id + ": the raw rounds cannot be judged: " + e.what();
  }
  const Verdict& v = stored.verdict;
  if (again.outcome == v.outcome && again.ratio == v.ratio && again.ci == v.ci && again.reason == v.reason) return {};
  return stored.id + ": says \"" + v.reason + "\", but its raw rounds give \"" + again.reason + "\"";
}

std::string in_words(const TacticResult& result) {
  return text::ratio(result.verdict.ratio) + "x (CI " + text::ratio(result.verdict.ci.low) + " to " +
         text::ratio(result.verdict.ci.high) + ")";
}

std::size_t width_of(const std::string& s) {  // code points, near enough to columns for what is printed here
  return static_cast<std::size_t>(std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

using Row = std::vector<std::string>;

void print_rows(std::ostream& out, const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      line += "  " + rows[r][i];
      if (i + 1 < rows[r].size()) line.append(widths[i] - width_of(rows[r][i]), ' ');
    }
    out << line << '\n';
    if (r == 0) out << "  " << std::string(width_of(line) - 2, '-') << '\n';
  }
}

Row verdict_row(const TacticResult& result) {
  const Verdict& v = result.verdict;
  const bool measured = v.rounds > 0;
  return {result.title,
          to_string(v.outcome),
          measured ? text::ratio(v.ratio) + "x" : "-",
          measured ? text::ratio(v.ci.low) + " to " + text::ratio(v.ci.high) : "-",
          std::to_string(v.rounds),
          v.cause()};
}

void print_head(std::ostream& out, const AuditReport& report) {
  const Machine& m = report.machine;
  const Baseline& b = report.baseline;
  out << "Audit of " << report.workload << (report.date.empty() ? "" : ", ") << report.date << '\n'
      << "  " << m.cpu << ", " << m.logical_cores << " cores, " << m.threads << " threads, LibTorch " << m.libtorch
      << '\n'
      << "  baseline: " << text::thousands(b.samples_per_second()) << " samples/s, step "
      << text::seconds(b.step_seconds(0.5)) << " (95 % within " << text::seconds(b.step_seconds(0.95)) << "), "
      << text::percent(b.data_wait_share()) << " waiting for data, peak memory " << text::bytes(b.peak_bytes())
      << ", loss " << text::number(b.final_loss()) << " after " << text::thousands(static_cast<double>(b.samples()))
      << " samples\n";
  if (report.loader_ceiling) {
    out << "  loader alone: " << text::thousands(report.loader_ceiling->samples_per_second) << " samples/s, "
        << text::number(report.loader_ceiling->samples_per_second / b.samples_per_second())
        << " times what training takes"
        << (report.loader_ceiling->cause.empty() ? "" : ". " + report.loader_ceiling->cause) << '\n';
  } else if (!report.loader_error.empty()) {
    out << "  loader alone: it threw: " << report.loader_error << '\n';
  }
  for (const BatchPoint& p : report.batch_curve) {
    out << "  batch size " << p.batch_size << ": "
        << (p.error.empty() ? text::thousands(p.samples_per_second()) + " samples/s" : p.error) << '\n';
  }
  if (const BatchPoint* fastest = report.fastest_batch(); fastest != nullptr && !fastest->lr_advice.empty()) {
    out << "    " << fastest->lr_advice << '\n';
  }
  for (const MemoryPoint& p : report.memory_curve) {
    out << "  " << to_string(p);
    if (p.counts()) out << ", peak " << text::bytes(p.peak_bytes()) << " of " << text::bytes(p.baseline_peak_bytes());
    out << '\n';
  }
  if (!report.memory_note.empty()) out << "  memory against time: " << report.memory_note << '\n';
}

// What is to be switched on for speed.
Recommendation fastest(const std::vector<TacticResult>& tactics, const std::optional<TacticResult>& together) {
  const TacticResult* best = nullptr;
  for (const TacticResult& tactic : tactics) {
    if (tactic.verdict.kept() && (best == nullptr || tactic.verdict.ratio > best->verdict.ratio)) best = &tactic;
  }
  if (best == nullptr) return {{}, 1, {1, 1}, "Nothing that was tried pays here: leave the workload as it is."};
  Recommendation pick{{best->id}, best->verdict.ratio, best->verdict.ci, {}};
  const std::string alone = best->title + " alone, " + in_words(*best);
  if (!together) {
    pick.text = "Switch on " + best->title + ": " + in_words(*best) + ".";
  } else if (together->verdict.kept() && together->verdict.ratio >= best->verdict.ratio) {
    std::vector<std::string> titles;
    for (const std::string& id : together->members) {
      const auto at = std::find_if(tactics.begin(), tactics.end(), [&](const TacticResult& t) { return t.id == id; });
      titles.push_back(at == tactics.end() ? id : at->title);
    }
    pick = {together->members, together->verdict.ratio, together->verdict.ci, {}};
    pick.text = "Switch on " + text::join(titles) + ", together " + in_words(*together) + ".";
  } else if (together->verdict.kept()) {
    pick.text = "Together those that paid give " + in_words(*together) + ", less than the best of them: switch on " +
                alone + ".";
  } else {
    pick.text = "Together those that paid were " + together->verdict.reason + ". Switch on " + alone + ".";
  }
  return pick;
}

}  // namespace

double Baseline::samples_per_second() const { return median_speed(rounds); }

double Baseline::step_seconds(double q) const {
  std::vector<double> steps;
  double seconds = 0;
  int64_t count = 0;
  for (const RoundResult& round : rounds) {
    steps.insert(steps.end(), round.step_seconds.begin(), round.step_seconds.end());
    seconds += round.seconds;
    count += round.steps;
  }
  if (!steps.empty()) return quantile(steps, q);
  return count > 0 ? seconds / static_cast<double>(count) : 0;
}

double Baseline::data_wait_share() const {
  double wait = 0, seconds = 0;
  for (const RoundResult& round : rounds) {
    wait += round.data_wait_seconds;
    seconds += round.seconds;
  }
  return seconds > 0 ? wait / seconds : 0;
}

int64_t Baseline::peak_bytes() const { return std::max(warmup.peak_bytes, highest_peak(rounds)); }

int64_t Baseline::samples() const {
  int64_t samples = warmup.samples;
  for (const RoundResult& round : rounds) samples += round.samples;
  return samples;
}

double Baseline::final_loss() const {
  return rounds.empty() ? std::numeric_limits<double>::quiet_NaN() : rounds.back().mean_loss();
}

double BatchPoint::samples_per_second() const { return median_speed(rounds); }
int64_t BatchPoint::peak_bytes() const { return highest_peak(rounds); }

const TacticResult* AuditReport::find(std::string_view id) const {
  if (together && id == together->id) return &*together;
  const auto at = std::find_if(tactics.begin(), tactics.end(), [&](const TacticResult& t) { return t.id == id; });
  return at == tactics.end() ? nullptr : &*at;
}

const BatchPoint* AuditReport::fastest_batch() const {
  const auto slower = [](const BatchPoint& a, const BatchPoint& b) {
    return a.samples_per_second() < b.samples_per_second();
  };
  return batch_curve.empty() ? nullptr : &*std::max_element(batch_curve.begin(), batch_curve.end(), slower);
}

void AuditReport::rejudge() {
  for (TacticResult& tactic : tactics) tactic.verdict = judge(tactic.raw, tactic.rules);
  if (together) together->verdict = judge(together->raw, together->rules);
  recommendation = recommend(tactics, together, memory_curve);
}

std::vector<std::string> AuditReport::check() const {
  std::vector<std::string> found;
  for (const TacticResult& tactic : tactics) found.push_back(difference(tactic));
  if (together) found.push_back(difference(*together));
  const Recommendation again = recommend(tactics, together, memory_curve);
  if (again.tactics != recommendation.tactics || again.text != recommendation.text) {
    found.push_back("the recommendation says \"" + recommendation.text + "\", but the verdicts give \"" + again.text +
                    "\"");
  }
  std::erase(found, "");
  return found;
}

void AuditReport::print_table(std::ostream& out) const {
  print_head(out, *this);
  out << '\n';
  std::vector<Row> rows = {{"tactic", "verdict", "speed", "95 % CI", "rounds", "reason"}};
  if (!tactics.empty() && tactics.front().rules.confidence != 0.95) rows[0][3] = "CI";
  for (const TacticResult& tactic : tactics) rows.push_back(verdict_row(tactic));
  if (together) rows.push_back(verdict_row(*together));
  print_rows(out, rows);
  out << '\n' << recommendation.text << '\n';
  for (const std::string& id : recommendation.tactics) {
    const TacticResult* tactic = find(id);
    if (tactic != nullptr && !tactic->how_to_apply.empty()) out << "  " << tactic->how_to_apply << '\n';
  }
}

Recommendation recommend(const std::vector<TacticResult>& tactics, const std::optional<TacticResult>& together,
                         const std::vector<MemoryPoint>& memory_curve) {
  Recommendation pick = fastest(tactics, together);
  const std::string advice = memory_advice(memory_curve);
  if (!advice.empty()) pick.text += " " + advice;
  return pick;
}

}  // namespace saturate::audit
