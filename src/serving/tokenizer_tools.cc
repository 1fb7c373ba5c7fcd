#include "serving/tokenizer_tools.h"

#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "base/utf8.h"
#include "serving/field_handlers.h"
#include "serving/request_parser.h"

namespace spindle::serving {
namespace {

// The rules of a tool's body serve as its list of known names; unknown ones are ignored here, since
// both callers' forms grow.
MaybeError Known(JsonValue /*value*/, const FieldContext& /*context*/) {
  return std::nullopt;
}

constexpr FieldRule kTokenizeRules[] = {
    {"model", Known},
    {"content", Known},
    {"add_special", Known},
    {"parse_special", Known},
    {"with_pieces", Known},
    {"prompt", Known},
    {"messages", ReadMessages},
    {"add_special_tokens", Known},
    {"return_token_strs", Known},
    {"tools", ReadTools},
    {"add_generation_prompt", ReadAddGenerationPrompt},
    {"continue_final_message", ReadContinueFinalMessage},
    {"chat_template_kwargs", ReadChatTemplateKwargs},
};

constexpr FieldRule kDetokenizeRules[] = {
    {"model", Known}, {"tokens", Known}, {"skip_special_tokens", Known}};

MaybeError ReadOptionalBool(const FieldIndex& given, std::string_view name, bool* out) {
  const std::optional<JsonValue> value = given.Find(name);
  return value.has_value() ? ReadBool(*value, name, out) : MaybeError();
}

void AppendIds(std::span<const TokenId> ids, std::string* out) {
  *out += fmt::format("[{}]", fmt::join(ids, ","));
}

// A piece is its text, or the array of its bytes when it is not UTF-8.
void AppendPieces(std::span<const TokenId> ids,
                  const text::Tokenizer& tokenizer,
                  std::string* out) {
  *out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    *out += fmt::format("{}{{\"id\":{},\"piece\":", i == 0 ? "" : ",", ids[i]);
    const std::string_view piece = tokenizer.TokenBytes(ids[i]);
    if (IsUtf8(piece)) {
      AppendJsonString(piece, out);
    } else {
      const auto* bytes = reinterpret_cast<const uint8_t*>(piece.data());
      *out += fmt::format("[{}]", fmt::join(bytes, bytes + piece.size(), ","));
    }
    *out += '}';
  }
  *out += ']';
}

void AppendTokenTexts(std::span<const TokenId> ids,
                      const text::Tokenizer& tokenizer,
                      std::string* out) {
  *out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    *out += i == 0 ? "" : ",";
    AppendJsonString(ToValidUtf8(tokenizer.TokenBytes(ids[i])), out);
  }
  *out += ']';
}

Result<std::string> TokenizeContent(const FieldIndex& given, const ToolInput& input) {
  std::string content;
  text::EncodeOptions encode{.add_special = false, .parse_special = true};
  bool with_pieces = false;
  std::vector<TokenId> tokens;
  MaybeError error = ReadString(*given.Find("content"), "content", &content);
  if (!error.has_value()) {
    error = ReadOptionalBool(given, "add_special", &encode.add_special);
  }
  if (!error.has_value()) {
    error = ReadOptionalBool(given, "parse_special", &encode.parse_special);
  }
  if (!error.has_value()) {
    error = ReadOptionalBool(given, "with_pieces", &with_pieces);
  }
  if (!error.has_value()) {
    error = EncodeText(content, encode, "content", input.tools, &tokens);
  }
  if (error.has_value()) {
    return *std::move(error);
  }
  std::string out = R"({"tokens":)";
  if (with_pieces) {
    AppendPieces(tokens, input.tools.tokenizer, &out);
  } else {
    AppendIds(tokens, &out);
  }
  return out + '}';
}

MaybeError TokenizePrompt(const FieldIndex& given,
                          const ToolInput& input,
                          std::vector<TokenId>* tokens) {
  std::string prompt;
  bool add_special = true;
  if (MaybeError error = ReadString(*given.Find("prompt"), "prompt", &prompt); error.has_value()) {
    return error;
  }
  if (MaybeError error = ReadOptionalBool(given, "add_special_tokens", &add_special);
      error.has_value()) {
    return error;
  }
  return EncodeText(
      prompt, {.add_special = add_special, .parse_special = true}, "prompt", input.tools, tokens);
}

MaybeError TokenizeMessages(const FieldIndex& given,
                            const ToolInput& input,
                            RequestFields* fields,
                            std::vector<TokenId>* tokens) {
  const Caller caller;
  const FieldContext context{input.options, input.model, caller, given, Endpoint::kChat, fields};
  for (size_t i = 0; i < std::size(kTokenizeRules); ++i) {
    const std::optional<JsonValue> value = given.at(i);
    if (!value.has_value()) {
      continue;
    }
    if (MaybeError error = kTokenizeRules[i].read(*value, context); error.has_value()) {
      return error;
    }
  }
  bool add_special = false;
  if (MaybeError error = ReadOptionalBool(given, "add_special_tokens", &add_special);
      error.has_value()) {
    return error;
  }
  text::RenderedPrompt rendered;
  if (MaybeError error = RenderChat(*fields, input.tools, &rendered); error.has_value()) {
    return error;
  }
  return EncodeChat(rendered, add_special, input.tools, tokens);
}

}  // namespace

Result<std::string> TokenizeJson(std::string_view body,
                                 const ToolInput& input,
                                 RequestFields&& fields) {
  JsonDocument document;
  if (MaybeError error = ParseBody(body, input.model, &document); error.has_value()) {
    return *std::move(error);
  }
  fields.json_nodes = document.num_nodes();
  const FieldIndex given(document.root(), kTokenizeRules);
  std::string model;
  if (MaybeError error = ResolveModel(given.Find("model"), input.options, &model);
      error.has_value()) {
    return *std::move(error);
  }
  if (given.Find("content").has_value()) {
    return TokenizeContent(given, input);
  }
  std::vector<TokenId> tokens;
  MaybeError error;
  if (given.Find("messages").has_value()) {
    error = TokenizeMessages(given, input, &fields, &tokens);
  } else if (given.Find("prompt").has_value()) {
    error = TokenizePrompt(given, input, &tokens);
  } else {
    error = Missing("prompt");
  }
  bool return_strings = false;
  if (!error.has_value()) {
    error = ReadOptionalBool(given, "return_token_strs", &return_strings);
  }
  if (error.has_value()) {
    return *std::move(error);
  }
  std::string out = fmt::format(
      R"({{"count":{},"max_model_len":{},"tokens":)", tokens.size(), input.model.max_model_len);
  AppendIds(tokens, &out);
  out += R"(,"token_strs":)";
  if (return_strings) {
    AppendTokenTexts(tokens, input.tools.tokenizer, &out);
  } else {
    out += "null";
  }
  return out + '}';
}

Result<std::string> DetokenizeJson(std::string_view body, const ToolInput& input) {
  JsonDocument document;
  if (MaybeError error = ParseBody(body, input.model, &document); error.has_value()) {
    return *std::move(error);
  }
  const FieldIndex given(document.root(), kDetokenizeRules);
  std::string model;
  std::vector<TokenId> tokens;
  bool skip_special = false;
  MaybeError error = ResolveModel(given.Find("model"), input.options, &model);
  if (!error.has_value()) {
    const std::optional<JsonValue> value = given.Find("tokens");
    error = value.has_value() ? ReadTokenIds(*value, "tokens", input.model.vocab_size, &tokens)
                              : Missing("tokens");
  }
  if (!error.has_value()) {
    error = ReadOptionalBool(given, "skip_special_tokens", &skip_special);
  }
  if (error.has_value()) {
    return *std::move(error);
  }
  std::string text;
  if (MaybeError refused = DecodeIds(tokens, skip_special, "tokens", input.tools, &text);
      refused.has_value()) {
    return *std::move(refused);
  }
  std::string quoted;
  AppendJsonString(ToValidUtf8(text), &quoted);
  return fmt::format(R"({{"prompt":{0},"content":{0}}})", quoted);
}

Result<std::string> RenderedPromptJson(const RequestFields& fields,
                                       const ToolInput& input,
                                       bool render) {
  text::RenderedPrompt rendered;
  if (MaybeError error = RenderChat(fields, input.tools, &rendered); error.has_value()) {
    return *std::move(error);
  }
  std::string out = R"({"prompt":)";
  AppendJsonString(ToValidUtf8(rendered.plain), &out);
  if (render) {
    std::vector<TokenId> tokens;
    if (MaybeError error = EncodeChat(rendered, /*add_special=*/false, input.tools, &tokens);
        error.has_value()) {
      return *std::move(error);
    }
    out += R"(,"token_ids":)";
    AppendIds(tokens, &out);
  }
  return out + '}';
}

}  // namespace spindle::serving
