// SPDX-License-Identifier: Apache-2.0
#include "saturate/trace/trace_stragglers.hpp"

#include "collective_event.hpp"
#include "saturate/error.hpp"
#include "saturate/trace/communication_time.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <map>
#include <utility>

namespace saturate {
namespace {

struct RankCall {
  std::string name;
  int64_t ns = 0;
};

struct RankStep {
  int64_t ns = 0, compute_ns = 0;
  std::vector<RankCall> calls;
};

using RankSteps = std::map<int64_t, RankStep>;  // by the step's number

enum class CallSource { none, c10d, gloo, device };

CallSource call_source(const Trace& trace, const TraceEvent& event) {
  if (trace::is_collective_kernel(trace, event)) return CallSource::device;
  if (trace::is_gloo_range(trace, event)) return CallSource::gloo;
  // record_param_comms lies inside of one of these.
  if (trace::is_c10d_operator(trace, event) && trace.text(event.name).starts_with("c10d::")) return CallSource::c10d;
  return CallSource::none;
}

bool is_of_all(const Trace& trace, const TraceEvent& event, std::size_t ranks) {
  const TraceDetails* const details = trace.details_of(event);
  if (details == nullptr || details->group_size <= 0) return true;
  return details->group_size == static_cast<int64_t>(ranks) || details->group_size == trace.world_size;
}

RankSteps steps_of_rank(const Timeline& timeline, std::size_t ranks) {
  const Trace& trace = timeline.trace();
  const std::vector<TraceStep>& steps = timeline.steps();
  const CommunicationTime time = communication_time(timeline);
  RankSteps result;
  std::vector<RankStep*> places;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const int64_t number = steps[i].number >= 0 ? steps[i].number : static_cast<int64_t>(i);
    RankStep& step = result[number];
    step.ns += steps[i].end_ns - steps[i].begin_ns;
    step.compute_ns += time.steps[i].compute_ns;
    places.push_back(&step);
  }
  CallSource source = CallSource::none;
  for (const TraceEvent& event : trace.events) source = std::max(source, call_source(trace, event));
  std::size_t at = 0;
  for (const TraceEvent& event : trace.events) {
    if (source == CallSource::none || call_source(trace, event) != source || !is_of_all(trace, event, ranks)) continue;
    while (at < steps.size() && steps[at].end_ns <= event.start_ns) ++at;
    if (at == steps.size()) break;
    if (event.start_ns < steps[at].begin_ns) continue;
    places[at]->calls.push_back({trace::collective_name(trace, event), event.duration_ns});
  }
  return result;
}

// Rank numbers as the traces tell them, or their places when one does not.
std::vector<int> numbers_of_ranks(const std::vector<const Timeline*>& timelines) {
  std::vector<int> numbers;
  bool told = true;
  for (const Timeline* const timeline : timelines) {
    if (timeline == nullptr) throw ConfigError("trace_stragglers: a timeline is null; give one for each rank's trace");
    told = told && timeline->trace().rank >= 0;
  }
  for (std::size_t i = 0; i < timelines.size(); ++i) {
    numbers.push_back(told ? timelines[i]->trace().rank : static_cast<int>(i));
    if (std::count(numbers.begin(), numbers.end(), numbers.back()) > 1) {
      throw ConfigError("trace_stragglers: two traces say that they are of rank " + std::to_string(numbers.back()) +
                        " (" + timelines[i]->trace().name + " is one); give one trace for each rank, of one run");
    }
  }
  return numbers;
}

// One collective, as it was on each rank.
void compare_calls(const std::vector<const RankCall*>& calls, int64_t tolerance_ns, TraceStragglers& found) {
  int64_t least = std::numeric_limits<int64_t>::max(), second = least;
  std::size_t last = 0;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    if (calls[rank]->ns < least) {
      second = std::exchange(least, calls[rank]->ns);
      last = rank;
    } else {
      second = std::min(second, calls[rank]->ns);
    }
  }
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    found.ranks[rank].collective_ns += calls[rank]->ns;
    found.ranks[rank].waiting_ns += calls[rank]->ns - least;
  }
  ++found.collectives;
  if (second - least < std::max<int64_t>(tolerance_ns, 1)) return;
  ++found.ranks[last].last;
  found.ranks[last].held_up_ns += second - least;
}

void compare_steps(const std::vector<const RankStep*>& steps, int64_t tolerance_ns, TraceStragglers& found) {
  ++found.steps;
  for (std::size_t rank = 0; rank < steps.size(); ++rank) {
    found.ranks[rank].step_ns += steps[rank]->ns;
    found.ranks[rank].compute_ns += steps[rank]->compute_ns;
  }
  for (std::size_t i = 0; i < steps[0]->calls.size(); ++i) {
    std::vector<const RankCall*> calls;
    for (const RankStep* const step : steps) {
      if (i >= step->calls.size() || step->calls[i].name != steps[0]->calls[i].name) return;
      calls.push_back(&step->calls[i]);
    }
    compare_calls(calls, tolerance_ns, found);
  }
}

std::string milliseconds_a_step(int64_t ns, int64_t steps) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f ms", static_cast<double>(ns) * 1e-6 / static_cast<double>(steps));
  return text;
}

std::string percent_of(int64_t part, int64_t whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%",
                whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0.0);
  return text;
}

double share_of(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

void judge(const TraceStragglersOptions& options, TraceStragglers& found) {
  if (found.steps == 0) {
    found.verdict = "no step is in all traces: record the same steps on every rank";
    return;
  }
  if (found.collectives == 0) {
    found.verdict = "no collective is in all traces: who waits for whom cannot be told";
    return;
  }
  const RankTime& most =
      *std::max_element(found.ranks.begin(), found.ranks.end(),
                        [](const RankTime& a, const RankTime& b) { return a.held_up_ns < b.held_up_ns; });
  int64_t waiting = 0, step = 0;
  for (const RankTime& rank : found.ranks) {
    waiting += rank.waiting_ns;
    step += rank.step_ns;
  }
  const std::string all = std::to_string(found.collectives) + " collectives";
  const std::string ranks_wait = "a rank waits " + percent_of(waiting, step) + " of its step for others on average";
  if (share_of(most.last, found.collectives) >= options.share_of_collectives &&
      share_of(most.held_up_ns, most.step_ns) >= options.share_of_step) {
    found.straggler = most.rank;
    found.verdict = "rank " + std::to_string(most.rank) + " holds the others up: last at " + std::to_string(most.last) +
                    " of " + all + ", " + milliseconds_a_step(most.held_up_ns, found.steps) + " a step (" +
                    percent_of(most.held_up_ns, most.step_ns) + " of it) after the second last; " + ranks_wait;
  } else if (share_of(waiting, step) >= options.share_of_step) {
    found.verdict = "the ranks wait for one another, but for no single one: " + ranks_wait + ", and rank " +
                    std::to_string(most.rank) + ", for which they wait most, is last at " + std::to_string(most.last) +
                    " of " + all + "; work is uneven from step to step (lengths of samples, loading)";
  } else {
    found.verdict = "no rank holds the others up: " + ranks_wait + ", over " + all;
  }
}

}  // namespace

TraceStragglers trace_stragglers(const std::vector<const Timeline*>& timelines, const TraceStragglersOptions& options) {
  if (timelines.size() < 2) {
    throw ConfigError("trace_stragglers: " + std::to_string(timelines.size()) +
                      " traces; give those of at least two ranks of one run");
  }
  TraceStragglers found;
  for (const int number : numbers_of_ranks(timelines)) found.ranks.push_back({.rank = number});
  std::vector<RankSteps> ranks;
  for (const Timeline* const timeline : timelines) ranks.push_back(steps_of_rank(*timeline, timelines.size()));
  for (const auto& [number, first] : ranks[0]) {
    std::vector<const RankStep*> steps;
    for (const RankSteps& rank : ranks) {
      const auto place = rank.find(number);
      if (place != rank.end()) steps.push_back(&place->second);
    }
    if (steps.size() == ranks.size()) compare_steps(steps, options.tolerance_ns, found);
  }
  judge(options, found);
  return found;
}

}  // namespace saturate
