#include "app/synthetic_selection.h"

#include <memory>
#include <string>
#include <utility>

#include "base/hash.h"
#include "kv/sim/selection_generator.h"
#include "sparse/replay/replay_algorithm.h"

namespace spindle::app {

absl::StatusOr<engine::SparseDecode> MakeSyntheticDecode(
    const config::SyntheticSelection& selection,
    const kv::KvGeometry& geometry,
    uint32_t max_model_len) {
  engine::SparseDecode decode;
  if (selection.profile.empty()) {
    return decode;
  }
  sparse::PageSchedule schedule;
  schedule.page_tokens = geometry.page_tokens();
  schedule.num_pages = (max_model_len + schedule.page_tokens - 1) / schedule.page_tokens;
  schedule.num_steps = sparse::kDrawnScheduleSteps;
  schedule.num_layers = geometry.num_layers;
  schedule.num_kv_heads = geometry.num_kv_heads;
  schedule.pages_per_step = selection.pages;
  if (selection.pages > schedule.num_pages) {
    return absl::InvalidArgumentError(
        "--kv-synthetic-pages must be at most " + std::to_string(schedule.num_pages) +
        " (pages of --max-model-len), got " + std::to_string(selection.pages));
  }
  schedule.pages =
      kv::sim::DrawSelections({.profile = *kv::sim::FindSelectionProfile(selection.profile),
                               .num_pages = schedule.num_pages,
                               .selected_pages = selection.pages},
                              schedule.num_steps,
                              schedule.num_layers * schedule.num_kv_heads);
  decode.method = Sha256()
                      .Field("synthetic selection")
                      .Field(selection.profile)
                      .Number(selection.pages)
                      .Number(max_model_len)
                      .Finish();
  auto algorithm = std::make_shared<const sparse::ReplayAlgorithm>(std::move(schedule));
  decode.algorithm = algorithm->name();
  decode.mandatory_pages = algorithm->max_pages();
  // The schedule alone decides: no sink, no window, no length from which on it begins.
  decode.policy = std::make_shared<const sparse::SparsePolicy>(
      std::move(algorithm),
      sparse::SparseSettings{.sink_tokens = 0, .recent_tokens = 0, .min_context = 0});
  return decode;
}

}  // namespace spindle::app
