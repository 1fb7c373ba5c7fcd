// A request between JSON and tokens: what the field handlers have read so far, and what they need
// to know. Thread-safety: plain values; one request, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "serving/completion_service.h"
#include "serving/field_reader.h"
#include "serving/json_document.h"

namespace spindle::serving {

// What validation knows about the model.
struct ModelFacts {
  uint32_t vocab_size = 0;
  uint32_t max_model_len = 0;
  // No text of more bytes fits the context: as many of the longest tokens as it holds.
  uint64_t max_text_bytes = 0;
  bool keeps_sessions = false;  // there is a disk tier
  // Sampling defaults of its generation configuration.
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
};

// A prompt of /v1/completions before tokenising.
using RawPrompt = std::variant<std::string, std::vector<TokenId>>;

struct RequestFields {
  PreparedRequest prepared;

  std::optional<uint64_t> max_tokens;  // as given
  std::optional<int64_t> truncate_prompt_tokens;
  std::optional<uint64_t> seed;
  uint32_t top_logprobs = 0;
  bool wants_logprobs = false;

  uint64_t json_nodes = 0;  // of the body, and of JSON in its texts

  // Chat.
  bool developer_is_system = false;  // in: the template has no developer role
  std::string messages_json;
  std::string derived_kwargs;   // members without braces, from fields with a template meaning
  std::string explicit_kwargs;  // chat_template_kwargs, likewise
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::optional<std::string> chat_template;

  // Completions.
  std::vector<RawPrompt> raw_prompts;
  bool prompt_is_list = false;
  bool add_special_tokens = true;
};

// The members of the request's top-level object that have a rule, by position in the rule list.
class FieldIndex;

struct FieldContext {
  const ServingOptions& options;
  const ModelFacts& model;
  const Caller& caller;
  const FieldIndex& given;
  Endpoint endpoint;
  RequestFields* out;
};

using FieldHandler = MaybeError (*)(JsonValue value, const FieldContext& context);

// How a field is read; the order of rules is the order of checks.
struct FieldRule {
  std::string_view name;
  FieldHandler read;  // called when the field is there and not null
  // Called when it is absent or null; null: nothing to do.
  MaybeError (*absent)(const FieldContext& context) = nullptr;
};

class FieldIndex {
 public:
  // Indexes `object` by `rules`, which must outlive the index. Last of duplicate names wins.
  FieldIndex(JsonValue object, std::span<const FieldRule> rules);

  // The field's value unless absent or null. `name` must be a rule's.
  [[nodiscard]] std::optional<JsonValue> Find(std::string_view name) const;

  [[nodiscard]] std::optional<JsonValue> at(size_t rule) const { return values_[rule]; }

  // Names without a rule, in order of appearance, null values excluded; the first 16 distinct ones.
  [[nodiscard]] const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  std::span<const FieldRule> rules_;
  std::vector<std::optional<JsonValue>> values_;
  std::vector<std::string> unknown_;
};

// True when the field is given as true; wrong types count as false (their own rule reports them).
[[nodiscard]] bool IsTrue(const FieldIndex& fields, std::string_view name);

[[nodiscard]] ApiError Unsupported(std::string_view param, std::string_view reason);

}  // namespace spindle::serving
