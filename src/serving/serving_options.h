// Limits and defaults of the API, common to all transports.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sparse_request.h"

namespace spindle::serving {

enum class UnknownFields : uint8_t { kIgnore, kReject };

// Among whom waiting requests of one priority class share the service.
enum class FairShareBy : uint8_t { kNobody, kKey, kUser };

struct ServingOptions {
  std::vector<std::string> served_names;       // --served-model-name; at least one; no duplicates
  std::string model_path;                      // "root" of the model listing
  uint32_t max_n = 128;                        // [1, 128]; --max-n
  uint32_t max_stop_strings = 4;               // --max-stop-strings
  uint32_t max_logprobs = 20;                  // --max-logprobs
  uint32_t max_prompts = 128;                  // --max-prompts
  uint32_t max_prompt_logprobs = 8192;         // longest prompt with prompt log-probabilities
  std::optional<uint32_t> default_max_tokens;  // --default-max-tokens
  // What answers that wait for their end or for their reader, and long lists of parameters, may
  // take together; --answer-memory.
  uint64_t answer_memory_bytes = uint64_t{128} << 20;
  UnknownFields unknown_fields = UnknownFields::kIgnore;
  FairShareBy fair_share = FairShareBy::kNobody;  // --fair-share
  bool trust_request_chat_template = false;
  bool logprobs_processed = false;  // --logprobs-mode processed
  // Server sampling defaults; unset = the model's generation configuration, else the API's.
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  std::optional<float> min_p;
  std::optional<uint64_t> seed;
  engine::SparseRequest sparse;  // defaults of `spindle.sparse`; --sparse-…
  // The same of some served names alone: --served-model-name NAME=FILE.
  std::map<std::string, engine::SparseRequest, std::less<>> presets;
  bool allow_audit = false;  // --allow-audit

  // Defaults of requests to a served name.
  [[nodiscard]] const engine::SparseRequest& SparseOf(std::string_view served_name) const {
    const auto preset = presets.find(served_name);
    return preset == presets.end() ? sparse : preset->second;
  }

  // For the model listing only; 0 = not listed.
  uint32_t max_num_seqs = 0;
  uint32_t max_queue_size = 0;
  uint64_t max_body_bytes = 0;
};

}  // namespace spindle::serving
