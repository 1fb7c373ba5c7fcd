// What `spindle kv sim` replays, cache group by cache group: synthetic selections, as they are
// drawn or as a server reads them, or those of a recorded trace. Internal to the command.
// Thread-safety: value types; the functions are pure but for files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/kv_sim.h"
#include "cli/kv_sim_report.h"
#include "kv/kv_geometry.h"
#include "kv/sim/recorded_run.h"

namespace spindle::cli {

// Pages of the cyclic scan, one more than a group of 32 mandatory pages has frames at ratio 5.
inline constexpr uint32_t kCyclicPages = 193;

// Why a trace does not say everything.
inline constexpr const char* kCutTrace =
    "cut: more than its limit, or than the recorder could write";

// Moved, never copied: it points into itself.
struct PageWorkload {
  PageWorkload() = default;
  PageWorkload(PageWorkload&&) = default;
  PageWorkload& operator=(PageWorkload&&) = default;

  std::string title;
  std::vector<KvSimFact> facts;
  kv::sim::RecordedRun run;
  std::vector<const kv::sim::RecordedGroup*> groups;  // of the run: those that selected pages
  kv::KvGeometry geometry;
  bool is_recorded = false;
};

// Draws the selections that the options ask for. `progress` gets fractions in [0, 1].
// ERRORS: kInvalidArgument naming the option and its range.
[[nodiscard]] absl::StatusOr<PageWorkload> MakeSyntheticWorkload(
    const KvSimOptions& options, const std::function<void(double)>& progress);

// `bytes`: of a page-access trace. ERRORS: those of LoadRecordedRun; kInvalidArgument (no page).
[[nodiscard]] absl::StatusOr<PageWorkload> LoadRecordedWorkload(const KvSimOptions& options,
                                                                const std::string& bytes);

// Writes synthetic selections as a page-access trace, seeds as requests.
// ERRORS: those of AccessTraceWriter; kResourceExhausted (more than a trace may hold).
[[nodiscard]] absl::Status SaveWorkload(const KvSimOptions& options, const PageWorkload& workload);

}  // namespace spindle::cli
