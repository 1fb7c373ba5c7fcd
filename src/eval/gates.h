// The bounds that sparse attention has to keep on the default model (SmolLM2-135M), as pass or
// fail. They were calibrated once on curves of an independent fp32 implementation;
// docs/evaluation.md says what each means. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/summary.h"

namespace spindle::eval {

struct GateResult {
  std::string gate;   // "kl", "top1" …
  std::string what;   // "quest@12.5% at 4096"
  std::string value;  // as measured, with its unit
  std::string bound;
  bool passed = false;
};

// Positions that a forced run needs for its figures to be worth a gate.
inline constexpr uint64_t kGatePositions = 8192;

// … and one that only compares sparse prefill.
inline constexpr uint64_t kPrefillGatePositions = 256;

// Samples that a task family needs for its retention to be worth a gate.
inline constexpr uint32_t kGateSamples = 100;

// One result per gate that the run has figures for; a failed one where it has none at all. Gates of
// curves apply to contexts of at least 4,096 tokens; what a run did not measure is no result.
[[nodiscard]] std::vector<GateResult> CheckGates(const EvalSummary& summary);

}  // namespace spindle::eval
