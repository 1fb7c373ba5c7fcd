#include "server/http/stats_format.h"

#include <chrono>
#include <span>
#include <string_view>

#include "server/http/json_writer.h"

namespace spindle::server {
namespace {

// `,"name":` without the comma behind an opening brace.
void AppendName(std::string_view name, std::string* out) {
  out->append(out->back() == '{' ? "\"" : ",\"").append(name).append("\":");
}

void AppendCount(std::string_view name, uint64_t value, std::string* out) {
  AppendName(name, out);
  AppendJsonNumber(value, out);
}

// With a resolution of a microsecond.
void AppendMilliseconds(std::string_view name, Duration time, std::string* out) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  AppendName(name, out);
  AppendJsonNumber(static_cast<float>(us) / 1000.0F, out);
}

void AppendShare(std::string_view name, double share, std::string* out) {
  AppendName(name, out);
  AppendJsonNumber(static_cast<float>(share), out);
}

void AppendAudit(const engine::AuditUse& audit, std::string* out) {
  AppendName("audit", out);
  if (audit.steps == 0) {
    out->append("null");
    return;
  }
  out->push_back('{');
  AppendCount("steps", audit.steps, out);
  AppendShare("top1_agreement", static_cast<double>(audit.same_top) / audit.steps, out);
  AppendShare("mean_kl", audit.kl_sum / audit.steps, out);
  AppendShare("max_logit_diff", audit.max_logit_diff, out);
  out->push_back('}');
}

void AppendPrefill(const engine::RequestStats& stats, std::string* out) {
  const sparse::PrefillUse& use = stats.prefill;
  AppendName("prefill", out);
  AppendJsonString(stats.prefill_method, out);
  AppendCount("prefill_sparse_blocks", use.sparse_blocks, out);
  AppendShare("prefill_attended_fraction_mean", use.MeanShare(), out);
  AppendShare("prefill_attended_fraction_min", use.share_min, out);
  AppendShare("prefill_attended_fraction_max", use.MaxShare(), out);
}

void AppendSparse(const engine::RequestStats& stats, std::string* out) {
  const sparse::DecodeUse& use = stats.sparse;
  AppendName("algorithm", out);
  AppendJsonString(stats.algorithm, out);
  AppendCount("decode_steps", stats.generated_tokens, out);
  AppendCount("dense_steps", use.sparse_rows > 0 ? use.dense_rows : stats.generated_tokens, out);
  AppendCount("fallback_steps", use.fallback_rows, out);
  AppendCount("context_tokens", stats.prompt_tokens + stats.longest_choice, out);
  AppendShare("attended_fraction_mean", use.MeanShare(), out);
  AppendShare("attended_fraction_min", use.share_min, out);
  AppendShare("attended_fraction_max", use.MaxShare(), out);
  AppendShare("estimated_fraction_mean", use.MeanEstimated(), out);
  if (use.mass_rows > 0) {
    AppendShare("est_mass_mean", use.MeanMass(), out);
    AppendShare("est_mass_min", use.mass_min, out);
  } else {
    out->append(R"(,"est_mass_mean":null,"est_mass_min":null)");
  }
  AppendPrefill(stats, out);
  AppendAudit(stats.audit, out);
}

void AppendLayers(std::span<const sparse::LayerUse> layers, std::string* out) {
  AppendName("per_layer", out);
  out->push_back('[');
  for (size_t i = 0; i < layers.size(); ++i) {
    const sparse::LayerUse& use = layers[i];
    out->append(i == 0 ? "{" : ",{");
    AppendCount("layer", i, out);
    AppendShare("attended_fraction_mean", use.MeanShare(), out);
    AppendShare("hit_rate", use.HitRate(), out);
    if (use.mass_rows > 0) {
      AppendShare("est_mass_mean", use.MeanMass(), out);
    } else {
      out->append(R"(,"est_mass_mean":null)");
    }
    out->push_back('}');
  }
  out->push_back(']');
}

}  // namespace

void AppendStats(const serving::PreparedRequest& request,
                 const engine::RequestStats& stats,
                 std::string* out) {
  out->append(R"({"sparse":{)");
  AppendSparse(stats, out);
  out->append(R"(},"kv":{)");
  AppendCount("page_tokens", stats.kv.page_tokens, out);
  AppendCount("pages_total", stats.kv.pages, out);
  AppendCount("bytes_total", stats.kv.bytes, out);
  out->append(R"(,"fetched_bytes":{)");
  AppendCount("disk", stats.kv.disk_bytes, out);
  out->append("}");
  AppendMilliseconds("fetch_stall_ms", stats.load_time, out);
  out->append(R"(},"timing":{)");
  AppendMilliseconds("queue_ms", stats.queue_time, out);
  AppendMilliseconds("load_ms", stats.load_time, out);
  AppendMilliseconds("prefill_ms", stats.prefill_time, out);
  AppendMilliseconds("ttft_ms", stats.time_to_first_token, out);
  AppendMilliseconds("decode_ms", stats.decode_time, out);
  const uint32_t gaps = stats.longest_choice > 1 ? stats.longest_choice - 1 : 1;
  AppendMilliseconds("tpot_ms_mean", stats.decode_time / gaps, out);
  AppendCount("preemptions", stats.preemptions, out);
  out->append("}");
  AppendCount("seed", request.sampling.seed, out);
  if (request.layer_stats) {
    AppendLayers(stats.layers, out);
  }
  out->push_back('}');
}

}  // namespace spindle::server
