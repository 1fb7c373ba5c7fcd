#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/ffi_api.h"
#include "text/json_input.h"
#include "text/special_guard.h"
#include "text/template_source.h"

namespace spindle::text {
namespace {

// Marks the end of the message that stays open; the rendered text is cut there. The space at its
// end tells whether the template trims messages.
constexpr std::string_view kOpenMark = "CONTINUE_FINAL_MESSAGE_TAG";
constexpr std::string_view kWhitespace = " \t\n\v\f\r";

// Names under which clients pass an assistant's reasoning; templates read the first (some the
// second).
constexpr std::array kReasoningKeys = {"reasoning_content", "thinking", "reasoning"};

// Variables that the caller may not set through kwargs.
constexpr std::array kReservedKeys = {"messages", "tools", "add_generation_prompt"};

absl::Status Invalid(absl::string_view message) {
  return absl::InvalidArgumentError(message);
}

// As transformers prepares messages: keys without a value are left out, and reasoning is found
// under each name.
absl::StatusOr<Json> NormalizeMessage(const Json& message) {
  if (!message.is_object()) {
    return Invalid("messages must be objects");
  }
  Json result = Json::object();
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) {
      result[key] = value;
    }
  }
  for (const char* key : kReasoningKeys) {
    if (result.contains(key)) {
      const Json reasoning = result[key];
      if (!result.contains("thinking")) {
        result["thinking"] = reasoning;
      }
      result["reasoning_content"] = reasoning;
      break;
    }
  }
  return result;
}

// Appends kOpenMark and a space to the last text of `message`.
absl::Status MarkOpen(Json& message) {
  const std::string mark = absl::StrCat(absl::string_view(kOpenMark.data(), kOpenMark.size()), " ");
  Json* content = message.contains("content") ? &message["content"] : nullptr;
  if (content != nullptr && content->is_array()) {
    const auto last = std::find_if(content->rbegin(), content->rend(), [](const Json& part) {
      return part.is_object() && part.contains("text");
    });
    content = last == content->rend() ? nullptr : &(*last)["text"];
  }
  if (content == nullptr || !content->is_string()) {
    return Invalid("continue_final_message: the last message has no text to continue");
  }
  content->get_ref<std::string&>() += mark;
  return absl::OkStatus();
}

// Cuts `text` where the open message ends.
absl::Status CutOpen(std::string& text) {
  const size_t at = text.rfind(kOpenMark);
  if (at == std::string::npos) {
    return Invalid("continue_final_message: the chat template does not print the last message");
  }
  const bool keeps_spaces = text.compare(at + kOpenMark.size(), 1, " ") == 0;
  text.resize(at);
  if (!keeps_spaces) {
    text.resize(text.find_last_not_of(kWhitespace) + 1);
  }
  return absl::OkStatus();
}

// Guards every string and key inside `value`.
void GuardStrings(const SpecialGuard& guard, char32_t code_point, Json& value) {
  if (value.is_string()) {
    auto& text = value.get_ref<std::string&>();
    text = guard.Guard(text, code_point);
  } else if (value.is_array()) {
    for (Json& item : value) {
      GuardStrings(guard, code_point, item);
    }
  } else if (value.is_object()) {
    Json result = Json::object();
    for (auto& [key, item] : value.items()) {
      GuardStrings(guard, code_point, item);
      result[guard.Guard(key, code_point)] = std::move(item);
    }
    value = std::move(result);
  }
}

// A filter such as tojson(ensure_ascii=true) writes a guard as an escape; turns those back into the
// guard. The input held no such escape, or another guard would have been chosen.
void UnescapeGuard(char32_t guard, std::string& text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string escape = "\\u";
  for (const int shift : {12, 8, 4, 0}) {
    escape += kDigits[guard >> shift & 0xF];
  }
  std::string mark;
  AppendUtf8(guard, mark);
  for (size_t at = text.find(escape); at != std::string::npos; at = text.find(escape, at)) {
    text.replace(at, escape.size(), mark);
  }
}

class RustChatTemplate final : public ChatTemplate {
 public:
  RustChatTemplate(TemplateHandle handle,
                   std::string_view source,
                   std::string_view bos_text,
                   std::string_view eos_text,
                   std::span<const std::string> special_texts)
      : handle_(std::move(handle)),
        source_(source),
        bos_text_(bos_text),
        eos_text_(eos_text),
        supports_tools_(MentionsTools(source)),
        guard_(special_texts) {}

  absl::StatusOr<RenderedPrompt> Render(const RenderRequest& request) const override;

  std::string_view source() const override { return source_; }

  bool supports_tools() const override { return supports_tools_; }

 private:
  // All variables of a render; strings from the request are guarded.
  absl::StatusOr<Json> Variables(const RenderRequest& request, char32_t guard) const;

  TemplateHandle handle_;
  std::string source_;
  std::string bos_text_;
  std::string eos_text_;
  bool supports_tools_;
  SpecialGuard guard_;
};

absl::StatusOr<Json> RustChatTemplate::Variables(const RenderRequest& request,
                                                 char32_t guard) const {
  Json variables = Json::object();
  // Absent names are undefined in the template, as transformers leaves them.
  if (!bos_text_.empty()) {
    variables["bos_token"] = bos_text_;
  }
  if (!eos_text_.empty()) {
    variables["eos_token"] = eos_text_;
  }
  if (!request.kwargs_json.empty()) {
    SPINDLE_ASSIGN_OR_RETURN(Json kwargs, ParseJson(request.kwargs_json, "chat_template_kwargs"));
    if (!kwargs.is_object()) {
      return Invalid("chat_template_kwargs must be an object");
    }
    for (const char* key : kReservedKeys) {
      if (kwargs.contains(key)) {
        return Invalid(absl::StrCat("chat_template_kwargs may not set '", key, "'"));
      }
    }
    GuardStrings(guard_, guard, kwargs);
    variables.update(kwargs);
  }
  SPINDLE_ASSIGN_OR_RETURN(const Json messages, ParseJson(request.messages_json, "messages"));
  if (!messages.is_array() || messages.empty()) {
    return Invalid("messages must be an array with at least one message");
  }
  Json prepared = Json::array();
  for (const Json& message : messages) {
    SPINDLE_ASSIGN_OR_RETURN(Json normalized, NormalizeMessage(message));
    prepared.push_back(std::move(normalized));
  }
  if (request.continue_final_message) {
    SPINDLE_RETURN_IF_ERROR(MarkOpen(prepared.back()));
  }
  GuardStrings(guard_, guard, prepared);
  variables["messages"] = std::move(prepared);
  variables["tools"] = nullptr;
  if (!request.tools_json.empty()) {
    SPINDLE_ASSIGN_OR_RETURN(Json tools, ParseJson(request.tools_json, "tools"));
    if (!tools.is_array()) {
      return Invalid("tools must be an array");
    }
    GuardStrings(guard_, guard, tools);
    variables["tools"] = std::move(tools);
  }
  if (!variables.contains("documents")) {
    variables["documents"] = nullptr;
  }
  variables["add_generation_prompt"] = request.add_generation_prompt;
  return variables;
}

absl::StatusOr<RenderedPrompt> RustChatTemplate::Render(const RenderRequest& request) const {
  if (request.continue_final_message && request.add_generation_prompt) {
    return Invalid("continue_final_message and add_generation_prompt exclude each other");
  }
  const std::array<std::string_view, 6> inputs = {request.messages_json,
                                                  request.tools_json,
                                                  request.kwargs_json,
                                                  source_,
                                                  bos_text_,
                                                  eos_text_};
  const std::optional<char32_t> guard = SpecialGuard::Choose(inputs);
  if (!guard.has_value()) {
    return Invalid(
        "messages use all of the noncharacters U+FDD0 to U+FDEF; at least one must be left out");
  }
  SPINDLE_ASSIGN_OR_RETURN(const Json variables, Variables(request, *guard));
  const std::string json = variables.dump();
  const auto now = request.now.has_value()
                       ? *request.now
                       : std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  std::string text;
  const int32_t code = spindle_text_template_render(
      handle_.get(), FfiBytes(json), json.size(), now.time_since_epoch().count(), FfiOutput(text));
  SPINDLE_RETURN_IF_ERROR(FfiStatus(code, SpecialGuard::Remove(text, *guard)));
  UnescapeGuard(*guard, text);
  if (request.continue_final_message) {
    SPINDLE_RETURN_IF_ERROR(CutOpen(text));
  }
  std::string plain = SpecialGuard::Remove(text, *guard);
  return RenderedPrompt{.text = std::move(text), .plain = std::move(plain), .guard = *guard};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Compile(
    std::string_view source,
    std::string_view bos_text,
    std::string_view eos_text,
    std::span<const std::string> special_texts) {
  const std::string rewritten = RewriteTemplate(source);
  std::string message;
  int32_t code = 0;
  TemplateHandle handle(
      spindle_text_template_new(FfiBytes(rewritten), rewritten.size(), FfiOutput(message), &code));
  SPINDLE_RETURN_IF_ERROR(FfiStatus(code, message));
  return std::make_unique<RustChatTemplate>(
      std::move(handle), source, bos_text, eos_text, special_texts);
}

}  // namespace spindle::text
