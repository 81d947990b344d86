// SPDX-License-Identifier: Apache-2.0
// The charts of audit.html; each is a piece of HTML around inline SVG.
#pragma once

#include <string>
#include <vector>

#include "saturate/audit/report.hpp"

namespace saturate::audit {

/// One row for each candidate: median speed ratio, confidence whiskers, and a faint dot for each round.
std::string ratio_chart(const std::vector<const TacticResult*>& candidates);

/// Samples per second of both arms, round by round, joined in pairs.
std::string rounds_chart(const TacticResult& candidate);

/// Mean loss of both arms along the samples. Empty when no loss was reported.
std::string loss_chart(const TacticResult& candidate);

/// Samples per second over the batch size.
std::string batch_chart(const AuditReport& report);

/// Time of a step over its peak memory, both against the plain step; the points that nothing beats are joined. Empty
/// when no point counts.
std::string memory_chart(const std::vector<MemoryPoint>& curve);

/// The learning rate over the steps. Empty when there is nothing to draw.
std::string lr_chart(const LrCurve& curve);

/// What the loader delivers against what training takes.
std::string loader_chart(double loader, double training);

/// "kept", "rejected" or "not measured" as a coloured word.
std::string badge(const Verdict& verdict);

/// The CSS class that colours a candidate by its verdict: good, bad or none.
const char* tone(const Verdict& verdict);

}  // namespace saturate::audit
