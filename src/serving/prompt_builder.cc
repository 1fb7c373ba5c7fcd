#include "serving/prompt_builder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "base/utf8.h"
#include "serving/body_limits.h"

namespace spindle::serving {
namespace {

constexpr uint32_t kDefaultCompletionTokens = 16;

ApiError TemplateError(std::string_view message) {
  return InvalidRequest("chat_template_error", "messages", ToValidUtf8(message));
}

// The template's own refusals and limits go to the client; anything else is ours.
ApiError FromTemplateStatus(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kInvalidArgument ||
      status.code() == absl::StatusCode::kResourceExhausted) {
    const auto message = status.message();
    return TemplateError({message.data(), message.size()});
  }
  log::Error("chat_template_failed", {{"status", status.ToString()}});
  return InternalError();
}

// How many tokens of a prompt are kept; nullopt: all.
std::optional<size_t> KeptTokens(const RequestFields& fields, const ModelFacts& model) {
  if (!fields.truncate_prompt_tokens.has_value()) {
    return std::nullopt;
  }
  if (*fields.truncate_prompt_tokens > 0) {
    return static_cast<size_t>(*fields.truncate_prompt_tokens);
  }
  const uint64_t sampled = fields.max_tokens.value_or(1);
  return sampled < model.max_model_len ? model.max_model_len - sampled : 1;
}

void Truncate(std::optional<size_t> kept, std::vector<TokenId>* tokens) {
  if (kept.has_value() && tokens->size() > *kept) {
    tokens->erase(tokens->begin(), tokens->end() - static_cast<std::ptrdiff_t>(*kept));
  }
}

ApiError ContextExceeded(const PreparedRequest& request,
                         const LimitInput& input,
                         size_t num_prompt_tokens) {
  const uint64_t max_tokens = input.given_max_tokens.value_or(0);
  std::string message = fmt::format("The prompt has {} tokens", num_prompt_tokens);
  if (input.given_max_tokens.has_value()) {
    message += fmt::format(" and 'max_tokens' is {}", max_tokens);
  }
  message += fmt::format("; the context holds {} tokens.", input.model.max_model_len);
  ApiError error = InvalidRequest("context_length_exceeded",
                                  request.endpoint == Endpoint::kChat ? "messages" : "prompt",
                                  std::move(message));
  error.extras = {{"n_prompt_tokens", static_cast<int64_t>(num_prompt_tokens)},
                  {"n_ctx", input.model.max_model_len},
                  {"max_tokens", static_cast<int64_t>(max_tokens)}};
  return error;
}

MaybeError CheckPromptLength(const PreparedRequest& request,
                             const LimitInput& input,
                             size_t num_prompt_tokens) {
  const uint64_t n_ctx = input.model.max_model_len;
  // A scoring call samples nothing and may fill the context.
  const bool scores_only = input.given_max_tokens == 0U;
  const bool too_long =
      num_prompt_tokens > n_ctx || (num_prompt_tokens == n_ctx && !scores_only) ||
      (input.given_max_tokens.has_value() && *input.given_max_tokens > n_ctx - num_prompt_tokens);
  if (too_long) {
    return ContextExceeded(request, input, num_prompt_tokens);
  }
  if (request.sampling.prompt_logprobs.has_value() &&
      num_prompt_tokens > input.options.max_prompt_logprobs) {
    return InvalidRequest(
        "invalid_value",
        "logprobs",
        fmt::format("'logprobs' with 'echo' is offered for prompts of at most {} tokens; this one "
                    "has {}.",
                    input.options.max_prompt_logprobs,
                    num_prompt_tokens));
  }
  return std::nullopt;
}

// Engines of templates take many times what they are given.
MaybeError CheckTemplateInput(const RequestFields& fields, const ModelFacts& model) {
  const uint64_t bytes = fields.messages_json.size() + fields.explicit_kwargs.size();
  const uint64_t limit = MaxTemplateBytes(model.max_text_bytes);
  if (bytes > limit) {
    ApiError error = InvalidRequest(
        "context_length_exceeded",
        "messages",
        fmt::format("'messages' and 'chat_template_kwargs' have {} bytes; with the context of {} "
                    "tokens at most {} are taken.",
                    bytes,
                    model.max_model_len,
                    limit));
    error.extras = {{"n_ctx", model.max_model_len}};
    return error;
  }
  if (fields.json_nodes > kMaxTemplateNodes) {
    return InvalidRequest("invalid_value",
                          "messages",
                          fmt::format("A chat may hold at most {} JSON values and names; this one "
                                      "has {}.",
                                      kMaxTemplateNodes,
                                      fields.json_nodes));
  }
  return std::nullopt;
}

}  // namespace

ApiError InternalError() {
  return MakeError(500, "internal_error", "The server met an internal error; its log says more.");
}

MaybeError RenderChat(const RequestFields& fields,
                      const PromptTools& tools,
                      text::RenderedPrompt* rendered) {
  const text::ChatTemplate* chat_template = tools.chat_template;
  std::unique_ptr<text::ChatTemplate> compiled;
  if (fields.chat_template.has_value()) {
    auto result = tools.compile(*fields.chat_template, tools.tokenizer);
    if (!result.ok()) {
      return FromTemplateStatus(result.status());
    }
    compiled = *std::move(result);
    chat_template = compiled.get();
  }
  if (chat_template == nullptr) {
    return TemplateError(
        "The model has no chat template: use /v1/completions, or start the server with a "
        "template file.");
  }
  if (MaybeError error = CheckTemplateInput(fields, tools.model); error.has_value()) {
    return error;
  }
  std::string kwargs;
  if (!fields.derived_kwargs.empty() || !fields.explicit_kwargs.empty()) {
    const bool both = !fields.derived_kwargs.empty() && !fields.explicit_kwargs.empty();
    // Of equal names the last one counts: what the client wrote itself.
    kwargs =
        fmt::format("{{{}{}{}}}", fields.derived_kwargs, both ? "," : "", fields.explicit_kwargs);
  }
  absl::StatusOr<text::RenderedPrompt> result =
      chat_template->Render({.messages_json = fields.messages_json,
                             .tools_json = {},
                             .kwargs_json = kwargs,
                             .add_generation_prompt = fields.add_generation_prompt,
                             .continue_final_message = fields.continue_final_message,
                             .now = std::nullopt});
  if (!result.ok()) {
    return FromTemplateStatus(result.status());
  }
  *rendered = *std::move(result);
  return std::nullopt;
}

MaybeError CheckTextBytes(uint64_t num_bytes, std::string_view param, const ModelFacts& model) {
  if (num_bytes <= model.max_text_bytes) {
    return std::nullopt;
  }
  ApiError error = InvalidRequest(
      "context_length_exceeded",
      std::string(param),
      fmt::format("'{}' has {} bytes of text; the context of {} tokens holds at most {}.",
                  param,
                  num_bytes,
                  model.max_model_len,
                  model.max_text_bytes));
  error.extras = {{"n_ctx", model.max_model_len}};
  return error;
}

MaybeError EncodeText(const std::string& text,
                      text::EncodeOptions options,
                      std::string_view param,
                      const PromptTools& tools,
                      std::vector<TokenId>* tokens) {
  if (MaybeError error = CheckTextBytes(text.size(), param, tools.model); error.has_value()) {
    return error;
  }
  absl::StatusOr<std::vector<TokenId>> encoded = tools.tokenizer.Encode(text, options);
  if (!encoded.ok()) {
    log::Error("tokenizer_failed", {{"status", encoded.status().ToString()}});
    return InternalError();
  }
  *tokens = *std::move(encoded);
  return std::nullopt;
}

MaybeError DecodeIds(std::span<const TokenId> ids,
                     bool skip_special,
                     std::string_view param,
                     const PromptTools& tools,
                     std::string* text) {
  if (ids.size() > tools.model.max_model_len) {
    ApiError error = InvalidRequest("context_length_exceeded",
                                    std::string(param),
                                    fmt::format("'{}' has {} ids; the context holds {}.",
                                                param,
                                                ids.size(),
                                                tools.model.max_model_len));
    error.extras = {{"n_ctx", tools.model.max_model_len}};
    return error;
  }
  const IntegerRange range{0, static_cast<int64_t>(tools.model.vocab_size) - 1};
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < range.min || ids[i] > range.max) {
      return OutOfRange(fmt::format("{}[{}]", param, i), range);
    }
  }
  absl::StatusOr<std::string> decoded = tools.tokenizer.Decode(ids, skip_special);
  if (!decoded.ok()) {
    log::Error("detokenizer_failed", {{"status", decoded.status().ToString()}});
    return InternalError();
  }
  *text = *std::move(decoded);
  return std::nullopt;
}

MaybeError EncodeChat(const text::RenderedPrompt& rendered,
                      bool add_special,
                      const PromptTools& tools,
                      std::vector<TokenId>* tokens) {
  if (MaybeError error = CheckTextBytes(rendered.text.size(), "messages", tools.model);
      error.has_value()) {
    return error;
  }
  absl::StatusOr<std::vector<TokenId>> encoded =
      tools.tokenizer.EncodeRendered(rendered.text, rendered.guard, add_special);
  if (!encoded.ok()) {
    log::Error("tokenizer_failed", {{"status", encoded.status().ToString()}});
    return InternalError();
  }
  if (encoded->empty()) {
    return TemplateError("The template rendered an empty prompt.");
  }
  *tokens = *std::move(encoded);
  return std::nullopt;
}

MaybeError BuildPrompts(const ModelFacts& model, const PromptTools& tools, RequestFields* fields) {
  std::vector<std::vector<TokenId>>& prompts = fields->prepared.prompts;
  const std::optional<size_t> kept = KeptTokens(*fields, model);
  if (fields->prepared.endpoint == Endpoint::kChat) {
    text::RenderedPrompt rendered;
    if (MaybeError error = RenderChat(*fields, tools, &rendered); error.has_value()) {
      return error;
    }
    if (MaybeError error =
            EncodeChat(rendered, /*add_special=*/false, tools, &prompts.emplace_back());
        error.has_value()) {
      return error;
    }
    Truncate(kept, &prompts.back());
    return std::nullopt;
  }
  for (RawPrompt& raw : fields->raw_prompts) {
    const std::string path =
        fields->prompt_is_list ? fmt::format("prompt[{}]", prompts.size()) : "prompt";
    std::vector<TokenId>& tokens = prompts.emplace_back();
    if (auto* ids = std::get_if<std::vector<TokenId>>(&raw)) {
      tokens = std::move(*ids);
    } else if (MaybeError error =
                   EncodeText(std::get<std::string>(raw),
                              {.add_special = fields->add_special_tokens, .parse_special = true},
                              path,
                              tools,
                              &tokens);
               error.has_value()) {
      return error;
    }
    if (tokens.empty()) {
      return InvalidRequest(
          "invalid_value", path, fmt::format("'{}' must have at least one token.", path));
    }
    Truncate(kept, &tokens);
    if (tokens.size() > model.max_model_len) {
      break;  // refused by the limits: the others need no tokenizing
    }
  }
  return std::nullopt;
}

uint32_t TokensLeft(const PreparedRequest& request,
                    uint32_t max_model_len,
                    size_t num_prompt_tokens) {
  const size_t rest = num_prompt_tokens < max_model_len ? max_model_len - num_prompt_tokens : 0;
  return static_cast<uint32_t>(std::min<size_t>(request.sampling.max_tokens, rest));
}

MaybeError ApplyLimits(const LimitInput& input, PreparedRequest* request) {
  size_t shortest = input.model.max_model_len;
  size_t longest = 0;
  for (const std::vector<TokenId>& prompt : request->prompts) {
    if (MaybeError error = CheckPromptLength(*request, input, prompt.size()); error.has_value()) {
      return error;
    }
    shortest = std::min(shortest, prompt.size());
    longest = std::max(longest, prompt.size());
  }
  SamplingParams& sampling = request->sampling;
  request->max_tokens_given = input.given_max_tokens.has_value();
  if (input.given_max_tokens.has_value()) {
    sampling.max_tokens = static_cast<uint32_t>(*input.given_max_tokens);
  } else {
    size_t limit = input.model.max_model_len - shortest;
    if (request->endpoint == Endpoint::kCompletions) {
      limit = std::min<size_t>(limit, kDefaultCompletionTokens);
    }
    limit = std::min<size_t>(limit, input.options.default_max_tokens.value_or(kRestOfContext));
    sampling.max_tokens = static_cast<uint32_t>(limit);
  }
  if (sampling.min_tokens > TokensLeft(*request, input.model.max_model_len, longest)) {
    return InvalidRequest("invalid_value",
                          "min_tokens",
                          "'min_tokens' must not be above the token limit or the rest of the "
                          "context.");
  }
  return std::nullopt;
}

}  // namespace spindle::serving
