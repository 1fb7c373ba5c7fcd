// Request traces in the format of Mooncake's release: JSON lines with arrival, lengths, and one
// hash id per 512 tokens of the prompt; equal ids mean an equal prefix up to there.
// Thread-safety: value types and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace spindle::kv::sim {

struct TraceRequest {
  uint64_t timestamp_ms = 0;
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  uint32_t tenant = 0;      // dense number; 0 = none given
  uint32_t priority = 35;   // 0 … 100, higher first
  uint64_t first_unit = 0;  // into RequestTrace::units
  uint32_t num_units = 0;
};

// A unit is what one hash id stands for.
struct RequestTrace {
  std::vector<TraceRequest> requests;  // in order of the file, timestamps not descending
  std::vector<uint32_t> units;         // dense numbers of (tenant, hash id), 0 … num_units − 1
  uint32_t num_units = 0;              // distinct
  bool is_cut = false;                 // whoever recorded it could not keep what came after

  [[nodiscard]] std::span<const uint32_t> UnitsOf(const TraceRequest& request) const {
    return std::span(units).subspan(request.first_unit, request.num_units);
  }
};

// Most of what one trace may hold.
inline constexpr uint64_t kMaxTraceBytes = uint64_t{1} << 30;
inline constexpr uint32_t kMaxRequestTokens = 1U << 27;
inline constexpr uint64_t kMaxTraceUnits = uint64_t{1} << 28;

// Fields: timestamp (ms), input_length, output_length, hash_ids; optional tenant (text), priority
// (0 … 100) and cut (a switch: this line is no request, it says that the trace ends too early).
// Other fields are ignored, empty lines skipped. ERRORS: kInvalidArgument with the line number and
// the field.
[[nodiscard]] absl::StatusOr<RequestTrace> ParseRequestTrace(std::string_view text);

}  // namespace spindle::kv::sim
