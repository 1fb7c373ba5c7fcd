#include "cli/kv_sim.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/read_file.h"
#include "base/status_macros.h"
#include "cli/kv_sim_flags.h"
#include "cli/kv_sim_report.h"
#include "cli/kv_sim_workload.h"
#include "config/option_table.h"
#include "kv/fast/frame_pool.h"
#include "kv/sim/page_policy.h"
#include "kv/sim/prefix_sim.h"
#include "kv/sim/recorded_run.h"
#include "kv/sim/request_trace.h"
#include "kv/sim/selection_trace.h"
#include "kv/sim/stack_distance.h"
#include "kv/trace/access_trace.h"

namespace spindle::cli {
namespace {

using kv::sim::HitCount;
using kv::sim::PolicyKind;
using kv::sim::PolicySpec;
using kv::sim::RecordedGroup;
using kv::sim::SelectionTrace;

using Progress = std::function<void(double)>;

constexpr const char* kPagePolicies =
    "lru,bucketed,bucketed:16,bucketed:8,fifo,random,clock,slru,arc,belady";
constexpr const char* kPrefixPolicies = "fifo,bucketed,lru,server,belady";
constexpr const char* kDefaultRatios = "0,1,2,3,4,5,6,7,8";
constexpr const char* kDefaultUnits = "2000,8000,32000";
constexpr const char* kRecorded = "recorded";
constexpr uint32_t kCurvePoints = 200;
constexpr double kMaxRatio = 1000;
constexpr uint32_t kMaxSeeds = 1000;
constexpr uint32_t kMaxLayers = 1000;
constexpr uint32_t kMaxHeads = 128;
constexpr uint32_t kMaxPages = 1U << 22;
constexpr uint32_t kMaxSteps = 1U << 20;

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string OrDefault(const std::string& text, const char* fallback) {
  return text.empty() ? fallback : text;
}

absl::Status InOption(const char* option, const absl::Status& status) {
  return absl::Status(status.code(), std::string(option) + ": " + std::string(status.message()));
}

absl::StatusOr<std::vector<uint32_t>> ParseCapacities(const std::string& list) {
  std::vector<uint32_t> capacities;
  for (const std::string& text : Split(list)) {
    const absl::StatusOr<uint64_t> capacity = config::ParseUint(text, 1, uint64_t{1} << 28);
    if (!capacity.ok()) {
      return InOption("--capacity", capacity.status());
    }
    capacities.push_back(static_cast<uint32_t>(*capacity));
  }
  return capacities;
}

// How many frames each group has.
struct PageColumn {
  std::optional<double> ratio;
  uint32_t capacity = 0;  // without a ratio; 0 = as recorded
};

// Whole runs, as budgets are given in the server.
uint32_t CapacityOf(const PageColumn& column, const SelectionTrace& trace) {
  if (!column.ratio.has_value()) {
    return column.capacity;
  }
  const double mandatory =
      static_cast<double>(trace.num_accesses()) / std::max(1U, trace.num_steps());
  const auto runs =
      static_cast<uint32_t>(std::ceil(mandatory * (1.0 + *column.ratio) / kv::kRunFrames));
  return std::max(1U, runs) * kv::kRunFrames;
}

void AddOverlap(PageWorkload* workload) {
  std::vector<std::string> percents;
  KvSimFact fact{"overlap with the last 1, 12, 16 steps, %"};
  for (const uint32_t window : {1U, 12U, 16U}) {
    double shared = 0;
    double accesses = 0;
    for (const RecordedGroup* group : workload->groups) {
      const auto counted = static_cast<double>(group->selections.num_counted_accesses());
      shared += counted * kv::sim::OverlapWithWindow(group->selections, window);
      accesses += counted;
    }
    const double overlap = accesses > 0 ? shared / accesses : 0.0;
    percents.push_back(fmt::format("{:.1f}", 100.0 * overlap));
    fact.values.emplace_back(fmt::format("overlap_{}_steps", window), overlap);
  }
  fact.text = fmt::format("{}", fmt::join(percents, ", "));
  workload->facts.push_back(std::move(fact));
}

absl::StatusOr<std::vector<PageColumn>> PageColumns(const KvSimOptions& options,
                                                    const PageWorkload& workload) {
  std::vector<PageColumn> columns;
  if (options.capacities == kRecorded) {
    if (!workload.is_recorded) {
      return absl::InvalidArgumentError("--capacity recorded needs a recorded trace");
    }
    if (std::all_of(workload.groups.begin(), workload.groups.end(), [](const RecordedGroup* group) {
          return group->changes.empty();
        })) {
      return absl::InvalidArgumentError(options.trace_path + ": no sizes were recorded in it");
    }
    columns.emplace_back();
    return columns;
  }
  const bool is_cyclic = options.synthetic == "cyclic";
  if (!options.capacities.empty() || (options.ratios.empty() && is_cyclic)) {
    const std::string cyclic =
        fmt::format("{},{},{}", kCyclicPages - 9, kCyclicPages - 1, kCyclicPages + 7);
    SPINDLE_ASSIGN_OR_RETURN(const std::vector<uint32_t> capacities,
                             ParseCapacities(OrDefault(options.capacities, cyclic.c_str())));
    for (const uint32_t capacity : capacities) {
      columns.push_back({std::nullopt, capacity});
    }
    return columns;
  }
  for (const std::string& text : Split(OrDefault(options.ratios, kDefaultRatios))) {
    const absl::StatusOr<double> ratio = config::ParseNumber(text, 0, kMaxRatio);
    if (!ratio.ok()) {
      return InOption("--ratio", ratio.status());
    }
    columns.push_back({*ratio, 0});
  }
  return columns;
}

KvSimColumn Describe(const PageColumn& column, const PageWorkload& workload) {
  double pages = 0;
  for (const RecordedGroup* group : workload.groups) {
    pages += CapacityOf(column, group->selections);
  }
  pages /= static_cast<double>(workload.groups.size());
  if (column.ratio.has_value()) {
    return {fmt::format("r={:g} ({:.0f})", *column.ratio, pages), pages, column.ratio};
  }
  return {column.capacity == 0 ? kRecorded : std::to_string(column.capacity), pages};
}

// Hit ratio of exact LRU by pages per group, where all groups have equally many.
std::vector<std::pair<double, double>> ExactCurve(const PageWorkload& workload) {
  std::vector<kv::sim::MissRatioCurve> curves;
  uint32_t low = 1;
  uint32_t high = 1;
  for (const RecordedGroup* group : workload.groups) {
    curves.push_back(kv::sim::ComputeMissRatioCurve(group->selections));
    low = std::max(low, curves.back().min_capacity());
    high = std::max(high, curves.back().max_useful_capacity());
  }
  std::vector<std::pair<double, double>> points;
  const uint32_t step = std::max(1U, (high - std::min(low, high)) / kCurvePoints);
  for (uint32_t capacity = low; capacity < high + step; capacity += step) {
    HitCount count;
    for (const kv::sim::MissRatioCurve& curve : curves) {
      count += curve.At(capacity);
    }
    points.emplace_back(capacity, 100.0 * count.ratio());
  }
  return points;
}

absl::StatusOr<std::vector<PolicySpec>> PagePolicies(const KvSimOptions& options,
                                                     bool replay_sizes) {
  std::vector<PolicySpec> specs;
  for (const std::string& text :
       Split(OrDefault(options.policies, replay_sizes ? "bucketed" : kPagePolicies))) {
    const absl::StatusOr<PolicySpec> spec = kv::sim::ParsePolicy(text);
    if (!spec.ok()) {
      return InOption("--policy", spec.status());
    }
    if (replay_sizes && spec->kind != PolicyKind::kBucketed) {
      return absl::InvalidArgumentError("--capacity recorded: --policy must be bucketed, got " +
                                        text);
    }
    specs.push_back(*spec);
  }
  return specs;
}

// Recorded sizes through the fast tier, by layer; notes how far what it does is what the trace
// says.
absl::StatusOr<std::vector<HitCount>> Replay(const PageWorkload& workload, KvSimReport* report) {
  std::vector<HitCount> counts(workload.geometry.num_layers);
  KvSimComparison& comparison = report->comparison.emplace();
  for (size_t group = 0; group < workload.run.groups.size(); ++group) {
    SPINDLE_ASSIGN_OR_RETURN(const kv::sim::ReplayResult result,
                             kv::sim::ReplayRecordedSizes(workload.run, group));
    counts[workload.run.groups[group].layer] += result.count;
    comparison.pages += result.compared;
    comparison.differences += result.differences;
  }
  return counts;
}

// The policy with the frames of a column, by layer.
absl::StatusOr<std::vector<HitCount>> SimulateColumn(const PolicySpec& spec,
                                                     const PageColumn& column,
                                                     const PageWorkload& workload) {
  std::vector<HitCount> counts(workload.geometry.num_layers);
  for (const RecordedGroup* group : workload.groups) {
    SPINDLE_ASSIGN_OR_RETURN(
        const HitCount of_group,
        kv::sim::Simulate(spec, CapacityOf(column, group->selections), group->selections));
    counts[group->layer] += of_group;
  }
  return counts;
}

absl::Status SimulatePages(const KvSimOptions& options,
                           PageWorkload workload,
                           const Progress& progress,
                           KvSimReport* report) {
  AddOverlap(&workload);
  report->title = workload.title;
  report->x_label = "pages per group";
  report->facts = workload.facts;
  report->page_bytes = workload.is_recorded ? workload.geometry.page_bytes() : 0;
  SPINDLE_ASSIGN_OR_RETURN(const std::vector<PageColumn> columns, PageColumns(options, workload));
  const bool replay_sizes = !columns.front().ratio.has_value() && columns.front().capacity == 0;
  SPINDLE_ASSIGN_OR_RETURN(const std::vector<PolicySpec> specs,
                           PagePolicies(options, replay_sizes));
  for (const PageColumn& column : columns) {
    report->columns.push_back(Describe(column, workload));
  }
  if (!options.plot_path.empty() || options.json) {
    report->exact_curve = ExactCurve(workload);
  }
  const double total = static_cast<double>(specs.size() * columns.size());
  double done = 0;
  for (const PolicySpec& spec : specs) {
    report->policies.push_back(kv::sim::PolicyName(spec));
    std::vector<HitCount>& row = report->counts.emplace_back();
    std::vector<std::vector<HitCount>>& layers = report->layer_counts.emplace_back();
    for (const PageColumn& column : columns) {
      SPINDLE_ASSIGN_OR_RETURN(
          std::vector<HitCount> by_layer,
          replay_sizes ? Replay(workload, report) : SimulateColumn(spec, column, workload));
      HitCount& total_count = row.emplace_back();
      for (const HitCount& of_layer : by_layer) {
        total_count += of_layer;
      }
      layers.push_back(std::move(by_layer));
      progress(0.5 + 0.5 * ++done / total);
    }
  }
  return absl::OkStatus();
}

absl::Status SimulateRequests(const KvSimOptions& options,
                              const std::string& text,
                              const Progress& progress,
                              KvSimReport* report) {
  absl::StatusOr<kv::sim::RequestTrace> trace = kv::sim::ParseRequestTrace(text);
  if (!trace.ok()) {
    return InOption(options.trace_path.c_str(), trace.status());
  }
  if (trace->units.empty()) {
    return absl::InvalidArgumentError(options.trace_path + ": no request in it");
  }
  SPINDLE_ASSIGN_OR_RETURN(const std::vector<uint32_t> capacities,
                           ParseCapacities(OrDefault(options.capacities, kDefaultUnits)));
  report->title = "prefix cache: " + options.trace_path;
  report->x_label = "units of 512 tokens";
  const double ceiling = kv::sim::PrefixHitCeiling(*trace);
  report->facts = {
      {"requests", std::to_string(trace->requests.size()), {{"requests", trace->requests.size()}}},
      {"units of 512 tokens, distinct",
       fmt::format("{}, {}", trace->units.size(), trace->num_units),
       {{"units", trace->units.size()}, {"distinct_units", trace->num_units}}},
      {"hit ratio without bound, %",
       fmt::format("{:.1f}", 100.0 * ceiling),
       {{"unbounded_hit_ratio", ceiling}}}};
  if (trace->is_cut) {
    report->facts.push_back({"trace", kCutTrace, {{"trace", "cut"}}});
  }
  for (const uint32_t capacity : capacities) {
    report->columns.push_back({std::to_string(capacity), static_cast<double>(capacity)});
  }
  const std::vector<std::string> names = Split(OrDefault(options.policies, kPrefixPolicies));
  const double total = static_cast<double>(names.size() * capacities.size());
  double done = 0;
  for (const std::string& name : names) {
    const absl::StatusOr<kv::sim::PrefixPolicy> policy = kv::sim::ParsePrefixPolicy(name);
    if (!policy.ok()) {
      return InOption("--policy", policy.status());
    }
    report->policies.push_back(name);
    std::vector<HitCount>& row = report->counts.emplace_back();
    for (const uint32_t capacity : capacities) {
      const absl::StatusOr<HitCount> count =
          kv::sim::SimulatePrefixCache(*policy, capacity, *trace);
      if (!count.ok()) {
        return InOption("--capacity", count.status());
      }
      row.push_back(*count);
      progress(++done / total);
    }
  }
  return absl::OkStatus();
}

absl::Status Run(const KvSimOptions& options, const Progress& progress, KvSimReport* report) {
  if (options.trace_path.empty() == options.synthetic.empty()) {
    return absl::InvalidArgumentError("give one of --trace FILE and --synthetic PROFILE");
  }
  if (!options.capacities.empty() && !options.ratios.empty()) {
    return absl::InvalidArgumentError("give one of --capacity and --ratio");
  }
  if (options.synthetic.empty()) {
    SPINDLE_ASSIGN_OR_RETURN(const std::string bytes,
                             ReadFile(options.trace_path, kv::sim::kMaxTraceBytes));
    const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
    const bool has_pages = kv::LooksLikeAccessTrace({data, bytes.size()});
    SPINDLE_RETURN_IF_ERROR(
        CheckFlags(options.flags, has_pages ? KvSimInput::kPageTrace : KvSimInput::kRequestTrace));
    if (!has_pages) {
      return SimulateRequests(options, bytes, progress, report);
    }
    SPINDLE_ASSIGN_OR_RETURN(PageWorkload workload, LoadRecordedWorkload(options, bytes));
    return SimulatePages(options, std::move(workload), progress, report);
  }
  SPINDLE_RETURN_IF_ERROR(CheckFlags(options.flags,
                                     options.synthetic == "scan"     ? KvSimInput::kScan
                                     : options.synthetic == "cyclic" ? KvSimInput::kCyclic
                                                                     : KvSimInput::kDrawn));
  SPINDLE_ASSIGN_OR_RETURN(
      PageWorkload workload,
      MakeSyntheticWorkload(options, [&progress](double part) { progress(0.5 * part); }));
  if (!options.save_trace_path.empty()) {
    SPINDLE_RETURN_IF_ERROR(SaveWorkload(options, workload));
  }
  return SimulatePages(options, std::move(workload), progress, report);
}

}  // namespace

void AddKvSimOptions(config::OptionTable& table, KvSimOptions& options) {
  table.NamePositional("TRACE", "the same as --trace");
  table.Text(
      "trace", "FILE", &options.trace_path, "page-access trace, or request trace (JSON lines)");
  table.Text("synthetic",
             "PROFILE",
             &options.synthetic,
             "instead of a trace: sticky, medium, loose, scan or cyclic selections");
  table.Text("policy",
             "LIST",
             &options.policies,
             std::string("with commas; of page selections ") + kPagePolicies +
                 " (bucketed:RANGE/QUANTUM), of request traces " + kPrefixPolicies);
  table.Text("capacity",
             "LIST",
             &options.capacities,
             "pages per group, or units of 512 tokens; 'recorded' replays the server's sizes");
  table.Text("ratio",
             "LIST",
             &options.ratios,
             std::string("buffering pages per mandatory page; default ") + kDefaultRatios);
  table.Uint32(
      "seeds", &options.num_seeds, 1, kMaxSeeds, "synthetic selections: this many, from seed 0 on");
  table.Uint32("layers",
               &options.num_layers,
               1,
               kMaxLayers,
               "layers per seed, each with selections of its own");
  table.Uint32("heads", &options.num_heads, 1, kMaxHeads, "KV heads per layer, likewise");
  table.Uint32("served-prompt",
               &options.served_prompt_tokens,
               0,
               kMaxPages,
               "pages that a server with --kv-synthetic-selection reads behind a prompt of so many "
               "tokens; --pages are those of its --max-model-len; 0: selections as drawn");
  table.Uint32("pages", &options.num_pages, 0, kMaxPages, "of synthetic selections; 0: 2048");
  table.Uint32("selected", &options.selected_pages, 1, kMaxPages, "pages per synthetic step");
  table.Uint32("steps", &options.num_steps, 0, kMaxSteps, "synthetic steps; 0: 400");
  table.OptionalUint32("warmup",
                       &options.warmup_steps,
                       0,
                       kMaxSteps,
                       "first steps that are not counted; default: 100 synthetic, 0 recorded");
  table.Switch("json", &options.json, "print JSON");
  table.Text("plot", "FILE", &options.plot_path, "write miss ratios over capacity as SVG");
  AddKvServingSimOptions(table, options.serving);
  table.Text("save-trace",
             "FILE",
             &options.save_trace_path,
             "write the synthetic selections as a page-access trace");
}

absl::StatusOr<std::string> KvSim(const KvSimOptions& options, const Progress& progress) {
  if (options.serving.requests_per_second > 0) {
    if (!options.trace_path.empty()) {
      return absl::InvalidArgumentError("--serve needs --synthetic, not a trace");
    }
    SPINDLE_RETURN_IF_ERROR(CheckFlags(options.flags, KvSimInput::kServing));
    return KvServingSim(options.serving, OrDefault(options.synthetic, "medium"), options.json);
  }
  KvSimReport report;
  SPINDLE_RETURN_IF_ERROR(Run(options, progress, &report));
  if (!options.plot_path.empty()) {
    SPINDLE_RETURN_IF_ERROR(WriteTextFile(options.plot_path, RenderPlot(report)));
  }
  return options.json ? RenderJson(report) : RenderTable(report);
}

}  // namespace spindle::cli
