// The tokenizer endpoints (docs/http-api.md): JSON in, JSON out, no engine. Thread-safety: pure
// functions.
#pragma once

#include <string>
#include <string_view>

#include "serving/prompt_builder.h"
#include "serving/request_fields.h"

namespace spindle::serving {

struct ToolInput {
  const ServingOptions& options;
  const ModelFacts& model;
  PromptTools tools;
};

// Both forms of /tokenize: with `content` llama.cpp's, else vLLM's. `fields`: start values for a
// body with messages; used up.
[[nodiscard]] Result<std::string> TokenizeJson(std::string_view body,
                                               const ToolInput& input,
                                               RequestFields&& fields);
[[nodiscard]] Result<std::string> DetokenizeJson(std::string_view body, const ToolInput& input);
// {prompt}, with token_ids when `render`.
[[nodiscard]] Result<std::string> RenderedPromptJson(const RequestFields& fields,
                                                     const ToolInput& input,
                                                     bool render);

}  // namespace spindle::serving
