#include "cli/kv_sim_workload.h"

#include <algorithm>
#include <memory>
#include <span>

#include <fmt/format.h>

#include "base/status_macros.h"
#include "kv/sim/selection_trace.h"
#include "kv/trace/access_trace.h"
#include "sparse/replay/replay_algorithm.h"
#include "sparse/run_builder.h"

namespace spindle::cli {
namespace {

using kv::sim::RecordedGroup;
using kv::sim::SelectionProfile;
using kv::sim::SelectionTrace;

constexpr uint32_t kCyclicRounds = 10;
constexpr uint32_t kMaxScanPages = 1U << 22;
constexpr uint32_t kDefaultPages = 2048;
// Elements of a KV row, for pages of 16 tokens.
constexpr uint32_t kHeadDim = 64;

// The options that synthetic selections are made from, with defaults filled in.
struct Sizes {
  uint32_t num_pages = 0;
  uint32_t num_steps = 0;
  uint32_t warmup_steps = 0;
};

absl::Status CheckGroups(const KvSimOptions& options, const Sizes& sizes) {
  if (options.selected_pages > sizes.num_pages) {
    return absl::InvalidArgumentError("--selected must be in 1..--pages " +
                                      std::to_string(sizes.num_pages) + ", got " +
                                      std::to_string(options.selected_pages));
  }
  const uint64_t groups = uint64_t{options.num_seeds} * options.num_layers * options.num_heads;
  if (groups > kv::sim::kMaxRecordedAccesses / sizes.num_steps / options.selected_pages) {
    return absl::InvalidArgumentError(
        "--seeds times --layers times --heads times --steps times --selected must be at most " +
        std::to_string(kv::sim::kMaxRecordedAccesses));
  }
  return absl::OkStatus();
}

absl::Status CheckServed(const KvSimOptions& options, const Sizes& sizes, uint32_t page_tokens) {
  const uint64_t max_tokens = uint64_t{sizes.num_pages} * page_tokens;
  if (uint64_t{options.served_prompt_tokens} + sizes.num_steps > max_tokens) {
    return absl::InvalidArgumentError(fmt::format(
        "--served-prompt and --steps must not exceed the {} tokens of --pages together, got {} "
        "and {}",
        max_tokens,
        options.served_prompt_tokens,
        sizes.num_steps));
  }
  return absl::OkStatus();
}

// The pages that the groups of one request read on a server with --kv-synthetic-selection.
void AppendServedGroups(const KvSimOptions& options,
                        const SelectionProfile& profile,
                        const Sizes& sizes,
                        uint64_t seed,
                        PageWorkload* workload) {
  const uint32_t page_tokens = workload->geometry.page_tokens();
  sparse::PageSchedule schedule;
  schedule.page_tokens = page_tokens;
  schedule.num_pages = sizes.num_pages;
  schedule.num_steps = std::min(sizes.num_steps, sparse::kDrawnScheduleSteps);
  schedule.num_layers = options.num_layers;
  schedule.num_kv_heads = options.num_heads;
  schedule.pages_per_step = options.selected_pages;
  schedule.pages = kv::sim::DrawSelections({.profile = profile,
                                            .num_pages = sizes.num_pages,
                                            .selected_pages = options.selected_pages,
                                            .seed = seed},
                                           schedule.num_steps,
                                           options.num_layers * options.num_heads);
  const sparse::ReplayAlgorithm algorithm(std::move(schedule));
  sparse::Selection selection;
  std::vector<uint32_t> pages;
  sparse::SelectWorkspace workspace(*kernels::BestKernels());
  for (RecordedGroup& group :
       std::span(workload->run.groups).last(size_t{options.num_layers} * options.num_heads)) {
    for (uint32_t step = 0; step < sizes.num_steps; ++step) {
      selection.Clear();
      algorithm.Select({.position = options.served_prompt_tokens + step,
                        .decode_step = step,
                        .layer = LayerIdx(group.layer),
                        .head = KvHeadIdx(group.head)},
                       workspace,
                       &selection);
      pages.clear();
      sparse::AppendPages(workload->geometry, selection.tiles, &pages);
      group.selections.Append(pages);
    }
  }
}

void AppendDrawnGroups(const KvSimOptions& options,
                       const SelectionProfile& profile,
                       const Sizes& sizes,
                       uint64_t seed,
                       PageWorkload* workload) {
  const size_t num_groups = size_t{options.num_layers} * options.num_heads;
  uint64_t stream = 0;
  for (RecordedGroup& group : std::span(workload->run.groups).last(num_groups)) {
    group.selections = kv::sim::MakeSyntheticTrace({.profile = profile,
                                                    .num_pages = sizes.num_pages,
                                                    .selected_pages = options.selected_pages,
                                                    .seed = seed,
                                                    .stream = stream++},
                                                   sizes.num_steps,
                                                   sizes.warmup_steps);
  }
}

// Every (layer, head) of a request per seed.
absl::Status DrawProfile(const KvSimOptions& options,
                         const SelectionProfile& profile,
                         const Sizes& sizes,
                         const std::function<void(double)>& progress,
                         PageWorkload* workload) {
  SPINDLE_RETURN_IF_ERROR(CheckGroups(options, sizes));
  const bool is_served = options.served_prompt_tokens > 0;
  if (is_served) {
    SPINDLE_RETURN_IF_ERROR(CheckServed(options, sizes, workload->geometry.page_tokens()));
  }
  for (uint32_t seed = 0; seed < options.num_seeds; ++seed) {
    for (uint32_t layer = 0; layer < options.num_layers; ++layer) {
      for (uint32_t head = 0; head < options.num_heads; ++head) {
        RecordedGroup& group = workload->run.groups.emplace_back();
        group.request = seed;
        group.layer = static_cast<uint16_t>(layer);
        group.head = static_cast<uint8_t>(head);
        group.selections = SelectionTrace(sizes.num_pages, sizes.warmup_steps);
      }
    }
    (is_served ? AppendServedGroups : AppendDrawnGroups)(options, profile, sizes, seed, workload);
    progress(static_cast<double>(seed + 1) / options.num_seeds);
  }
  return absl::OkStatus();
}

absl::Status MakeScan(const KvSimOptions& options, const Sizes& sizes, PageWorkload* workload) {
  if (uint64_t{sizes.num_steps} * options.selected_pages > kMaxScanPages) {
    return absl::InvalidArgumentError("--steps times --selected of a scan must be at most " +
                                      std::to_string(kMaxScanPages));
  }
  workload->run.groups.emplace_back().selections =
      kv::sim::MakeScanTrace(sizes.num_steps, options.selected_pages);
  return absl::OkStatus();
}

KvSimFact LayersAndHeads(const kv::KvGeometry& geometry) {
  return {"layers x KV heads",
          fmt::format("{} x {}", geometry.num_layers, geometry.num_kv_heads),
          {{"layers", geometry.num_layers}, {"kv_heads", geometry.num_kv_heads}}};
}

void FindGroups(PageWorkload* workload) {
  for (const RecordedGroup& group : workload->run.groups) {
    if (group.selections.num_accesses() > 0) {
      workload->groups.push_back(&group);
    }
  }
}

}  // namespace

absl::StatusOr<PageWorkload> MakeSyntheticWorkload(const KvSimOptions& options,
                                                   const std::function<void(double)>& progress) {
  const bool is_scan = options.synthetic == "scan";
  const bool is_cyclic = options.synthetic == "cyclic";
  const auto profile = kv::sim::FindSelectionProfile(options.synthetic);
  if (!is_scan && !is_cyclic && !profile.has_value()) {
    return absl::InvalidArgumentError(
        "--synthetic must be one of sticky, medium, loose, scan, cyclic, got '" +
        options.synthetic + "'");
  }
  Sizes sizes;
  sizes.num_pages =
      options.num_pages != 0 ? options.num_pages : (is_cyclic ? kCyclicPages : kDefaultPages);
  sizes.num_steps = options.num_steps == 0 ? kv::sim::kTableSteps : options.num_steps;
  sizes.warmup_steps = options.warmup_steps.value_or(is_scan ? 0 : kv::sim::kTableWarmupSteps);
  if (sizes.warmup_steps >= sizes.num_steps && !is_cyclic) {
    return absl::InvalidArgumentError("--warmup must be below --steps " +
                                      std::to_string(sizes.num_steps) + ", got " +
                                      std::to_string(sizes.warmup_steps));
  }
  PageWorkload workload;
  workload.title = "synthetic selection: " + options.synthetic;
  workload.geometry.num_layers = options.num_layers;
  workload.geometry.num_kv_heads = options.num_heads;
  workload.geometry.head_dim = kHeadDim;
  if (profile.has_value()) {
    SPINDLE_RETURN_IF_ERROR(DrawProfile(options, *profile, sizes, progress, &workload));
  } else if (is_scan) {
    SPINDLE_RETURN_IF_ERROR(MakeScan(options, sizes, &workload));
  } else {
    workload.run.groups.emplace_back().selections =
        kv::sim::MakeCyclicTrace(sizes.num_pages, kCyclicRounds);
  }
  FindGroups(&workload);
  const SelectionTrace& first = workload.groups.front()->selections;
  const uint32_t num_seeds = profile.has_value() ? options.num_seeds : 1;
  workload.facts = {{"pages", std::to_string(first.num_pages()), {{"pages", first.num_pages()}}},
                    {"selected per step",
                     std::to_string(first.max_step_pages()),
                     {{"selected_pages", first.max_step_pages()}}},
                    {"steps",
                     fmt::format("{}, {} not counted", first.num_steps(), first.warmup_steps()),
                     {{"steps", first.num_steps()}, {"warmup_steps", first.warmup_steps()}}},
                    {"seeds", std::to_string(num_seeds), {{"seeds", num_seeds}}}};
  if (workload.groups.size() > 1) {
    workload.facts.push_back(LayersAndHeads(workload.geometry));
  }
  if (options.served_prompt_tokens > 0) {
    workload.facts.push_back(
        {"as served",
         fmt::format("after a prompt of {} tokens", options.served_prompt_tokens),
         {{"served_prompt_tokens", options.served_prompt_tokens}}});
  }
  return workload;
}

absl::StatusOr<PageWorkload> LoadRecordedWorkload(const KvSimOptions& options,
                                                  const std::string& bytes) {
  const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  PageWorkload workload;
  SPINDLE_ASSIGN_OR_RETURN(
      workload.run,
      kv::sim::LoadRecordedRun({data, bytes.size()}, options.warmup_steps.value_or(0)));
  const kv::sim::RecordedRun& run = workload.run;
  const kv::KvGeometry& geometry = run.header.geometry;
  const bool is_synthetic = run.header.algorithm.starts_with("synthetic");
  workload.title = (is_synthetic ? "synthetic selection, recorded: " : "recorded selection: ") +
                   run.header.algorithm;
  workload.is_recorded = true;
  workload.geometry = geometry;
  KvSimFact ending{"trace", "whole", {{"trace", "whole"}}};
  if (run.ending == kv::AccessTraceReader::Ending::kLimit) {
    ending = {"trace", kCutTrace, {{"trace", "cut"}}};
  } else if (run.ending == kv::AccessTraceReader::Ending::kTorn) {
    ending = {"trace", "torn: the recorder was stopped", {{"trace", "torn"}}};
  }
  workload.facts = {
      LayersAndHeads(geometry),
      {"page",
       fmt::format("{} tokens, {} bytes", geometry.page_tokens(), geometry.page_bytes()),
       {{"page_tokens", geometry.page_tokens()}, {"page_bytes", geometry.page_bytes()}}},
      {"requests, groups, steps",
       fmt::format("{}, {}, {}", run.num_requests, run.groups.size(), run.num_steps),
       {{"requests", run.num_requests}, {"groups", run.groups.size()}, {"steps", run.num_steps}}},
      std::move(ending)};
  FindGroups(&workload);
  if (workload.groups.empty()) {
    return absl::InvalidArgumentError(options.trace_path + ": no page was selected in it");
  }
  return workload;
}

absl::Status SaveWorkload(const KvSimOptions& options, const PageWorkload& workload) {
  kv::AccessTraceHeader header;
  header.geometry = workload.geometry;
  header.algorithm = "synthetic " + options.synthetic;
  SPINDLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<kv::AccessTraceWriter> writer,
      kv::AccessTraceWriter::Create(options.save_trace_path, header, kv::kMaxAccessTraceBytes));
  const uint32_t num_steps = workload.groups.front()->selections.num_steps();
  for (uint32_t step = 0; step < num_steps; ++step) {
    for (const RecordedGroup* group : workload.groups) {
      SPINDLE_RETURN_IF_ERROR(writer->Append({.step = step,
                                              .request = static_cast<uint16_t>(group->request),
                                              .layer = group->layer,
                                              .head = group->head,
                                              .kind = kv::AccessKind::kSelect,
                                              .ids = group->selections.step(step),
                                              .hit_bits = {}}));
    }
  }
  SPINDLE_RETURN_IF_ERROR(writer->Finish());
  if (writer->num_dropped_records() > 0) {
    return absl::ResourceExhaustedError(options.save_trace_path + ": cut at " +
                                        std::to_string(kv::kMaxAccessTraceBytes) + " bytes");
  }
  return absl::OkStatus();
}

}  // namespace spindle::cli
