#include "kv/sim/request_trace.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "kv/trace/request_recorder.h"

namespace spindle::kv::sim {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxTimestampMs = uint64_t{1} << 53;
constexpr uint64_t kMaxPriority = 100;
constexpr size_t kMaxTenants = 1U << 20;

absl::Status BadField(const char* field, const std::string& wanted) {
  return absl::InvalidArgumentError(std::string(field) + " must be " + wanted);
}

absl::StatusOr<uint64_t> Number(const json& line, const char* field, uint64_t max) {
  const auto found = line.find(field);
  if (found == line.end() || !found->is_number_unsigned() || found->get<uint64_t>() > max) {
    return BadField(field, "a whole number in 0.." + std::to_string(max));
  }
  return found->get<uint64_t>();
}

class Parser {
 public:
  // Appends the request of a line. ERRORS: kInvalidArgument naming the field.
  absl::Status Add(std::string_view text) {
    const json line = json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) {
      return absl::InvalidArgumentError("not a JSON object");
    }
    if (const auto cut = line.find("cut"); cut != line.end()) {
      if (!cut->is_boolean()) {
        return BadField("cut", "true or false");
      }
      if (cut->get<bool>()) {
        trace_.is_cut = true;
        return absl::OkStatus();
      }
    }
    TraceRequest request;
    SPINDLE_ASSIGN_OR_RETURN(request.timestamp_ms, Number(line, "timestamp", kMaxTimestampMs));
    SPINDLE_ASSIGN_OR_RETURN(const uint64_t input, Number(line, "input_length", kMaxRequestTokens));
    SPINDLE_ASSIGN_OR_RETURN(const uint64_t output,
                             Number(line, "output_length", kMaxRequestTokens));
    request.input_tokens = static_cast<uint32_t>(input);
    request.output_tokens = static_cast<uint32_t>(output);
    if (line.contains("priority")) {
      SPINDLE_ASSIGN_OR_RETURN(const uint64_t priority, Number(line, "priority", kMaxPriority));
      request.priority = static_cast<uint32_t>(priority);
    }
    SPINDLE_ASSIGN_OR_RETURN(request.tenant, Tenant(line));
    if (!trace_.requests.empty() && request.timestamp_ms < trace_.requests.back().timestamp_ms) {
      return BadField("timestamp", "at least that of the line before");
    }
    SPINDLE_RETURN_IF_ERROR(AddUnits(line, &request));
    trace_.requests.push_back(request);
    return absl::OkStatus();
  }

  RequestTrace Finish() && {
    trace_.num_units = static_cast<uint32_t>(numbers_.size());
    return std::move(trace_);
  }

 private:
  struct UnitKey {
    uint64_t hash_id;
    uint32_t tenant;

    bool operator==(const UnitKey&) const = default;
  };

  struct HashUnit {
    size_t operator()(const UnitKey& key) const {
      return std::hash<uint64_t>()(key.hash_id ^ uint64_t{key.tenant} << 44);
    }
  };

  absl::StatusOr<uint32_t> Tenant(const json& line) {
    const auto found = line.find("tenant");
    if (found == line.end()) {
      return 0;
    }
    if (!found->is_string()) {
      return BadField("tenant", "a text");
    }
    const auto number = static_cast<uint32_t>(tenants_.size() + 1);
    const auto [place, is_new] = tenants_.try_emplace(found->get<std::string>(), number);
    if (is_new && tenants_.size() > kMaxTenants) {
      return BadField("tenant", "one of at most " + std::to_string(kMaxTenants));
    }
    return place->second;
  }

  absl::Status AddUnits(const json& line, TraceRequest* request) {
    const auto ids = line.find("hash_ids");
    const uint64_t wanted =
        (uint64_t{request->input_tokens} + kTraceUnitTokens - 1) / kTraceUnitTokens;
    if (ids == line.end() || !ids->is_array() || ids->size() != wanted) {
      return BadField("hash_ids",
                      "a list of one id per 512 tokens of input_length: " + std::to_string(wanted));
    }
    if (trace_.units.size() + wanted > kMaxTraceUnits) {
      return BadField("hash_ids",
                      "at most " + std::to_string(kMaxTraceUnits) + " ids in the whole trace");
    }
    request->first_unit = trace_.units.size();
    request->num_units = static_cast<uint32_t>(wanted);
    for (const json& id : *ids) {
      if (!id.is_number_unsigned()) {
        return BadField("hash_ids", "a list of whole numbers of at least 0");
      }
      const UnitKey key{id.get<uint64_t>(), request->tenant};
      const auto next = static_cast<uint32_t>(numbers_.size());
      trace_.units.push_back(numbers_.try_emplace(key, next).first->second);
    }
    // A prefix names each of its places once.
    std::vector<uint32_t> sorted(trace_.units.end() - static_cast<int64_t>(wanted),
                                 trace_.units.end());
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
      return BadField("hash_ids", "a list of distinct ids");
    }
    return absl::OkStatus();
  }

  RequestTrace trace_;
  std::unordered_map<UnitKey, uint32_t, HashUnit> numbers_;
  std::map<std::string, uint32_t> tenants_;
};

}  // namespace

absl::StatusOr<RequestTrace> ParseRequestTrace(std::string_view text) {
  Parser parser;
  uint64_t number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (line.empty()) {
      continue;
    }
    if (const absl::Status status = parser.Add(line); !status.ok()) {
      return absl::InvalidArgumentError("line " + std::to_string(number) + ": " +
                                        std::string(status.message()));
    }
  }
  return std::move(parser).Finish();
}

}  // namespace spindle::kv::sim
