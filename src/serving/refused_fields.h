// Fields of other servers that would change the answer and that we do not offer: refused by name,
// unless their value says "off" (docs/http-api.md). Thread-safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>

#include "serving/request_fields.h"

namespace spindle::serving {

struct RefusedField {
  std::string_view name;
  std::string_view reason;
  double off = std::numeric_limits<double>::quiet_NaN();  // the number that is accepted; false is 0
  std::optional<Endpoint> only = {};                      // unset: of both endpoints
};

inline constexpr std::string_view kNoConstraint =
    "structured outputs are not available in this build";
inline constexpr std::string_view kNoSampler = "this sampler is not offered";

inline constexpr std::array kRefusedFields = std::to_array<RefusedField>({
    {"guided_json", kNoConstraint},
    {"guided_regex", kNoConstraint},
    {"guided_choice", kNoConstraint},
    {"guided_grammar", kNoConstraint},
    {"use_beam_search", "beam search is not offered", 0},
    {"mirostat", kNoSampler, 0},
    {"dry_multiplier", kNoSampler, 0},
    {"xtc_probability", kNoSampler, 0},
    {"dynatemp_range", kNoSampler, 0},
    {"tfs_z", kNoSampler, 1},
    {"top_n_sigma", kNoSampler, -1},
    {"samplers", "the order of samplers is fixed"},
    {"logits_processors", "it is not offered"},
    {"repeat_last_n", "penalties look at the whole sequence; only -1 is accepted", -1},
    {"lora", "adapters are not offered"},
    {"lora_request", "adapters are not offered"},
    {"n_predict", "use 'max_tokens'"},
    {"n_probs", "use 'logprobs'", 0},
    {"prompt_logprobs", "use 'echo' with 'logprobs' of /v1/completions"},
    {"echo", "only /v1/completions has it", 0, Endpoint::kChat},
    {.name = "suffix", .reason = "only /v1/completions knows the field", .only = Endpoint::kChat},
    {"best_of", "only /v1/completions has it", 1, Endpoint::kChat},
});

// ERRORS: unsupported_parameter unless the value is the field's "off", an empty array or object.
[[nodiscard]] MaybeError CheckRefusedField(const RefusedField& field, JsonValue value);

// The handler of kRefusedFields[kIndex], for rule lists.
template <size_t kIndex>
MaybeError ReadRefusedField(JsonValue value, const FieldContext& /*context*/) {
  return CheckRefusedField(kRefusedFields[kIndex], value);
}

}  // namespace spindle::serving
