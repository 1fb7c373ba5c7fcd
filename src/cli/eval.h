// `spindle eval`: how much sparse attention changes what a model says, measured against dense
// attention on forks of the same state. Thread-safety: call from one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/eval_inputs.h"
#include "config/load_options.h"
#include "config/option_table.h"
#include "eval/gates.h"
#include "eval/summary.h"

namespace spindle::cli {

// Lists are separated by commas.
struct EvalOptions {
  config::LoadOptions load;
  std::vector<std::string> texts;  // files, or "stories": made-up ones; none: the same
  std::string contexts = "4096";
  std::string algorithms = "quest,shadowkv";
  std::string budgets = "25%,12.5%,6%,3%";
  std::string prefills;      // none
  uint32_t num_windows = 8;  // 0: no forced runs
  uint32_t num_steps = 128;
  std::string tasks = "copy,kv-retrieve,passkey";  // "none"
  uint32_t num_samples = 8;                        // per family and context
  uint32_t generated_tokens = 0;                   // of their contexts
  uint32_t num_free_steps = 0;                     // greedy tokens per window
  uint32_t sink_tokens = 4;
  uint32_t recent_tokens = 64;
  uint32_t mass_stride = 4;
  uint32_t seed = 1;
  std::string output;  // folder for report.json and report.md; empty: none
  bool gates = false;
};

// Borrows the options.
void AddEvalOptions(config::OptionTable& table, EvalOptions& options);

struct EvalOutcome {
  eval::EvalSummary summary;
  std::vector<eval::GateResult> gates;  // empty unless asked for
  std::string report;                   // Markdown, to be printed

  [[nodiscard]] bool passed() const;
};

// Loads the model and runs what the options say; writes the report's files.
// ERRORS: kInvalidArgument naming the option and its range; kResourceExhausted (memory of KV or
// indexes); those of the model, texts and files.
[[nodiscard]] absl::StatusOr<EvalOutcome> Eval(const EvalOptions& options,
                                               const MeasuredModel& measured,
                                               const MeasureProgress& progress);

}  // namespace spindle::cli
