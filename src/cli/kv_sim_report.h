// What `spindle kv sim` found, and how it is shown: a table that lines up, JSON, an SVG plot.
// Thread-safety: value types and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "kv/sim/page_policy.h"

namespace spindle::cli {

// One capacity, or one ratio.
struct KvSimColumn {
  std::string label;  // head of the column
  double x = 0;       // on the plot: mean pages per group, or units; 0: sizes as recorded
  std::optional<double> ratio = {};
};

// Something about what was simulated.
struct KvSimFact {
  using Value = std::variant<uint64_t, double, std::string>;

  std::string label;  // in the table, with
  std::string text = {};
  std::vector<std::pair<std::string, Value>> values =
      {};  // in JSON: names, one figure or word each
};

// What a replay with recorded sizes sees beside what the trace says.
struct KvSimComparison {
  uint64_t pages = 0;  // of which the trace says whether they were resident
  uint64_t differences = 0;
};

struct KvSimReport {
  std::string title;    // of the table and the plot
  std::string x_label;  // of the plot
  std::vector<KvSimFact> facts;
  std::vector<KvSimColumn> columns;
  std::vector<std::string> policies;                   // names
  std::vector<std::vector<kv::sim::HitCount>> counts;  // [policies][columns]
  // [policies][columns][layers]; empty for request traces.
  std::vector<std::vector<std::vector<kv::sim::HitCount>>> layer_counts;
  std::vector<std::pair<double, double>> exact_curve;  // (pages, hit ratio %) of exact LRU
  uint64_t page_bytes = 0;                             // of the recorded model; 0 = unknown
  std::optional<KvSimComparison> comparison;           // unset: sizes are not the recorded ones
};

// Names end in no colon; per cents with one decimal.
[[nodiscard]] std::string RenderTable(const KvSimReport& report);
[[nodiscard]] std::string RenderJson(const KvSimReport& report);

// Miss ratios over capacity.
[[nodiscard]] std::string RenderPlot(const KvSimReport& report);

// Replaces the file. ERRORS: kUnavailable with path and reason.
[[nodiscard]] absl::Status WriteTextFile(const std::string& path, const std::string& text);

}  // namespace spindle::cli
