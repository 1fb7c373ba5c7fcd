// The report of an evaluation, for programs and for people. Thread-safety: pure functions.
#pragma once

#include <span>
#include <string>

#include "eval/gates.h"
#include "eval/summary.h"

namespace spindle::eval {

// Everything, one JSON object (docs/evaluation.md names the fields).
[[nodiscard]] std::string RenderJson(const EvalSummary& summary, std::span<const GateResult> gates);

// Tables of forced runs, the heads that lose most, tasks, and gates where there are any.
[[nodiscard]] std::string RenderMarkdown(const EvalSummary& summary,
                                         std::span<const GateResult> gates);

}  // namespace spindle::eval
