#include "server/http/stats_format.h"

#include <chrono>
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

}  // namespace

void AppendStats(const serving::PreparedRequest& request,
                 const engine::RequestStats& stats,
                 std::string* out) {
  out->append(
      R"({"sparse":{"algorithm":"dense","attended_fraction_mean":1,"attended_fraction_min":1,)"
      R"("attended_fraction_max":1,"estimated_fraction_mean":0,"est_mass_mean":null,)"
      R"("est_mass_min":null,"audit":null},"kv":{)");
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
  out->push_back('}');
}

}  // namespace spindle::server
