// `spindle kv sim`: replays page selections or request traces under several replacement policies
// and reports what each would have held. Thread-safety: call from one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "cli/kv_serving_sim.h"
#include "config/option_table.h"

namespace spindle::cli {

// Lists are separated by commas. 0 and empty mean the default of the kind of trace.
struct KvSimOptions {
  std::string trace_path;  // of a page-access or a request trace; or
  std::string synthetic;   // sticky, medium, loose, scan or cyclic
  std::string policies;
  std::string capacities;  // pages per group, or units of 512 tokens; "recorded" for page traces
  std::string ratios;      // buffering pages per mandatory page, instead of capacities
  uint32_t num_seeds = 3;
  uint32_t num_layers = 1;            // per seed, and
  uint32_t num_heads = 1;             // per layer: groups with a stream of random numbers each
  uint32_t served_prompt_tokens = 0;  // 0: selections as they are drawn
  uint32_t num_pages = 0;
  uint32_t selected_pages = 32;
  uint32_t num_steps = 0;
  std::optional<uint32_t> warmup_steps;
  bool json = false;
  std::string plot_path;  // SVG
  KvServingSimOptions serving;
  std::string save_trace_path;  // writes the synthetic selections as a page-access trace
  // Names of options that were asked for; refused where they have no effect. Variables of the
  // environment do not count: they may be meant for a server.
  std::set<std::string> flags;
};

// Borrows the options.
void AddKvSimOptions(config::OptionTable& table, KvSimOptions& options);

// The report, a table or JSON, to be printed; writes the files asked for. `progress` gets fractions
// in [0, 1].
// ERRORS: kInvalidArgument naming the option and its range, or the place in the trace; those of
// reading and writing files.
absl::StatusOr<std::string> KvSim(const KvSimOptions& options,
                                  const std::function<void(double)>& progress);

}  // namespace spindle::cli
