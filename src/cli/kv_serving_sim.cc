#include "cli/kv_serving_sim.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "kv/fast/frame_pool.h"
#include "kv/sim/serving_sim.h"

namespace spindle::cli {
namespace {

using kv::sim::ServingSimOptions;
using kv::sim::ServingSimResult;
using nlohmann::ordered_json;

// The smallest value that `part` of the values do not exceed; 0 of none.
double Quantile(std::vector<double> values, double part) {
  if (values.empty()) {
    return 0;
  }
  const auto rank =
      static_cast<size_t>(std::llround(part * static_cast<double>(values.size() - 1)));
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(rank), values.end());
  return values[rank];
}

ordered_json Describe(const ServingSimResult& result) {
  const double seconds = ToSeconds(result.end);
  const auto pages = static_cast<double>(result.page_hits + result.page_misses);
  ordered_json out;
  out["arrived"] = result.arrived;
  out["completed"] = result.completed;
  out["refused_busy"] = result.refused_busy;
  out["refused_never_fits"] = result.refused_never;
  out["refused_closing"] = result.refused_closing;
  out["simulated_seconds"] = seconds;
  out["steps"] = result.steps;
  out["output_tokens_per_second"] =
      seconds > 0 ? static_cast<double>(result.output_tokens) / seconds : 0.0;
  out["ttft_p50_seconds"] = Quantile(result.ttft_seconds, 0.5);
  out["ttft_p99_seconds"] = Quantile(result.ttft_seconds, 0.99);
  out["tpot_p50_seconds"] = Quantile(result.tpot_seconds, 0.5);
  out["tpot_p99_seconds"] = Quantile(result.tpot_seconds, 0.99);
  out["longest_wait_seconds"] = ToSeconds(result.longest_wait);
  out["page_hit_ratio"] = pages > 0 ? static_cast<double>(result.page_hits) / pages : 0.0;
  out["stall_share"] = result.stall_share;
  out["compute_seconds"] = ToSeconds(result.compute_time);
  out["link_seconds"] = ToSeconds(result.link_time);
  out["link_bytes"] = result.link_bytes;
  out["prefix_tokens"] = result.prefix_tokens;
  out["pauses"] = result.pauses;
  out["peak_running"] = std::max(result.first_half.running, result.second_half.running);
  out["peak_waiting"] = std::max(result.first_half.waiting, result.second_half.waiting);
  return out;
}

// The smallest tiers that SimulateServing takes: two stripes; a run of frames for streamed pages
// and one for each of the groups that stand for all.
uint64_t MinHostBytes() {
  return 2 * ServingSimOptions().geometry.stripe_bytes();
}

uint64_t MinFastBytes() {
  const ServingSimOptions model;
  const uint64_t num_groups = uint64_t{model.geometry.num_layers} * model.geometry.num_kv_heads;
  const uint64_t frames = uint64_t{kv::kRunFrames} * (1 + model.sampled_groups);
  const uint64_t pages = (frames * num_groups + model.sampled_groups - 1) / model.sampled_groups;
  return pages * model.geometry.page_bytes();
}

}  // namespace

void AddKvServingSimOptions(config::OptionTable& table, KvServingSimOptions& options) {
  table.Float("serve",
              &options.requests_per_second,
              0,
              1e6F,
              "a server on a virtual clock instead, under so many requests per second");
  table.Seconds("serve-time",
                &options.arrival_time,
                "how long requests arrive",
                std::chrono::milliseconds(1));
  table.Bytes("kv-fast-bytes",
              &options.fast_bytes,
              MinFastBytes(),
              uint64_t{1} << 40,
              "fast tier of the simulated server");
  table.Bytes("kv-host-bytes",
              &options.host_bytes,
              MinHostBytes(),
              uint64_t{1} << 42,
              "host tier of the simulated server");
  table.Float("link-gbps",
              &options.link_gigabytes_per_second,
              0.001F,
              10000,
              "gigabytes per second from host to fast tier");
  table.Uint32("prefetch-depth",
               &options.prefetch_depth,
               0,
               64,
               "layers whose pages are foretold and copied while others compute");
  table.Switch("async-copies",
               &options.async_copies,
               "copies run beside computing; without it nothing overlaps, foretold or not");
  table.Float("serve-ratio", &options.buffer_ratio, 0, 15, "buffering pages per mandatory page");
  table.Uint32(
      "max-prompt-tokens", &options.max_prompt_tokens, 512, 1U << 20, "prompts from 512 on");
  table.Uint32("max-output-tokens", &options.max_output_tokens, 16, 1U << 20, "outputs from 16 on");
}

absl::StatusOr<std::string> KvServingSim(const KvServingSimOptions& options,
                                         const std::string& profile,
                                         bool json) {
  const auto selection = kv::sim::FindSelectionProfile(profile);
  if (!selection.has_value()) {
    return absl::InvalidArgumentError(
        "--serve: --synthetic must be sticky, medium or loose, got '" + profile + "'");
  }
  ServingSimOptions simulated;
  simulated.profile = *selection;
  simulated.arrivals_per_second = options.requests_per_second;
  simulated.arrival_time = options.arrival_time;
  simulated.drain_time = std::max<Duration>(options.arrival_time, std::chrono::seconds(60));
  simulated.fast_bytes = options.fast_bytes;
  simulated.host_bytes = options.host_bytes;
  simulated.link.bytes_per_second = 1e9 * static_cast<double>(options.link_gigabytes_per_second);
  simulated.prefetch_depth = options.prefetch_depth;
  simulated.async_copies = options.async_copies;
  simulated.buffer_ratio = static_cast<double>(options.buffer_ratio);
  simulated.max_prompt_tokens = options.max_prompt_tokens;
  simulated.max_output_tokens = options.max_output_tokens;
  SPINDLE_ASSIGN_OR_RETURN(const ServingSimResult result, kv::sim::SimulateServing(simulated));
  const ordered_json description = Describe(result);
  if (json) {
    return DumpJson(description, 2) + "\n";
  }
  std::string out = "modelled server, synthetic selection: " + profile + "\n";
  for (const auto& [key, value] : description.items()) {
    out += fmt::format("  {:<26}{:>14}\n",
                       key,
                       value.is_number_float() ? fmt::format("{:.3f}", value.get<double>())
                                               : std::to_string(value.get<uint64_t>()));
  }
  return out;
}

}  // namespace spindle::cli
