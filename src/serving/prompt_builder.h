// The last check of a body: template, tokenising, context arithmetic. Thread-safety: pure
// functions; tokenizer and template are thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serving/request_fields.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace spindle::serving {

struct PromptTools {
  const text::Tokenizer& tokenizer;
  const text::ChatTemplate* chat_template;  // null: the model has none
  const TemplateCompiler& compile;
  const ModelFacts& model;
};

// Tokenizing costs many times a text's size, so what cannot fit the context is refused before.
// ERRORS: context_length_exceeded naming `param`.
[[nodiscard]] MaybeError CheckTextBytes(uint64_t num_bytes,
                                        std::string_view param,
                                        const ModelFacts& model);

// ERRORS: as CheckTextBytes; internal_error.
[[nodiscard]] MaybeError EncodeText(const std::string& text,
                                    text::EncodeOptions options,
                                    std::string_view param,
                                    const PromptTools& tools,
                                    std::vector<TokenId>* tokens);

// ERRORS: chat_template_error.
[[nodiscard]] MaybeError RenderChat(const RequestFields& fields,
                                    const PromptTools& tools,
                                    text::RenderedPrompt* rendered);

// Token ids of a rendered prompt; what the template wrote is all there is (no BOS is added).
[[nodiscard]] MaybeError EncodeChat(const text::RenderedPrompt& rendered,
                                    bool add_special,
                                    const PromptTools& tools,
                                    std::vector<TokenId>* tokens);

// Fills prepared.prompts, truncation included.
[[nodiscard]] MaybeError BuildPrompts(const ModelFacts& model,
                                      const PromptTools& tools,
                                      RequestFields* fields);

struct LimitInput {
  const ServingOptions& options;
  const ModelFacts& model;
  std::optional<uint64_t> given_max_tokens;  // nullopt: not given
};

// Checks every prompt against the context and sets sampling.max_tokens: as given, else the most
// that a prompt may use (Start cuts it to each prompt's rest of the context). ERRORS:
// context_length_exceeded; invalid_value (min_tokens; prompt log-probabilities of a long prompt).
[[nodiscard]] MaybeError ApplyLimits(const LimitInput& input, PreparedRequest* request);

// Sampled tokens that `num_prompt_tokens` leave under the limit of the request.
[[nodiscard]] uint32_t TokensLeft(const PreparedRequest& request,
                                  uint32_t max_model_len,
                                  size_t num_prompt_tokens);

// The text of `ids`. ERRORS: invalid_value (an id outside the vocabulary), context_length_exceeded
// (more than the context holds).
[[nodiscard]] MaybeError DecodeIds(std::span<const TokenId> ids,
                                   bool skip_special,
                                   std::string_view param,
                                   const PromptTools& tools,
                                   std::string* text);

[[nodiscard]] ApiError InternalError();

}  // namespace spindle::serving
