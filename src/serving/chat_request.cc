// The messages of a chat request, checked and rewritten for the template: text parts joined,
// tool-call arguments parsed. Keys without a rule go to the template as they are.
#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "serving/body_limits.h"
#include "serving/field_handlers.h"

namespace spindle::serving {
namespace {

// Arguments end up five levels inside the messages; the template engine reads at most 128 levels.
constexpr uint32_t kMaxArgumentsDepth = 100;

constexpr std::array<std::string_view, 6> kRoles = {
    "system", "developer", "user", "assistant", "tool", "function"};
constexpr size_t kDeveloper = 1;
constexpr size_t kAssistant = 3;
constexpr size_t kTool = 4;
constexpr size_t kFunction = 5;

// Present and not null.
std::optional<JsonValue> Get(JsonValue object, std::string_view name) {
  std::optional<JsonValue> value = object.Find(name);
  if (value.has_value() && value->Is(JsonType::kNull)) {
    value.reset();
  }
  return value;
}

// Reads a required string member of `object`, whose path is `path`.
MaybeError RequireString(JsonValue object,
                         std::string_view path,
                         std::string_view name,
                         std::string* out) {
  const std::string member_path = fmt::format("{}.{}", path, name);
  const std::optional<JsonValue> value = Get(object, name);
  return value.has_value() ? ReadString(*value, member_path, out) : Missing(member_path);
}

class MessageWriter {
 public:
  MessageWriter(JsonValue message, std::string path, const FieldContext& context, std::string* out)
      : message_(message), path_(std::move(path)), context_(context), out_(out) {}

  MaybeError Write() {
    if (MaybeError error = ExpectType(message_, path_, JsonType::kObject); error.has_value()) {
      return error;
    }
    *out_ += '{';
    for (MaybeError (MessageWriter::*const step)() : {&MessageWriter::WriteRole,
                                                      &MessageWriter::ReadToolCalls,
                                                      &MessageWriter::WriteContent,
                                                      &MessageWriter::WriteToolCallId}) {
      if (MaybeError error = (this->*step)(); error.has_value()) {
        return error;
      }
    }
    if (!tool_calls_json_.empty()) {
      AppendMember("tool_calls", tool_calls_json_);
    }
    WriteOthers();
    *out_ += '}';
    return std::nullopt;
  }

 private:
  [[nodiscard]] std::string Path(std::string_view member) const {
    return fmt::format("{}.{}", path_, member);
  }

  void AppendMember(std::string_view name, std::string_view json) {
    if (out_->back() != '{') {
      *out_ += ',';
    }
    AppendJsonString(name, out_);
    *out_ += ':';
    *out_ += json;
  }

  void AppendText(std::string_view name, std::string_view text) {
    std::string json;
    AppendJsonString(text, &json);
    AppendMember(name, json);
  }

  MaybeError WriteRole() {
    const std::optional<JsonValue> role = Get(message_, "role");
    if (!role.has_value()) {
      return Missing(Path("role"));
    }
    if (MaybeError error = ReadChoice(*role, Path("role"), kRoles, &role_); error.has_value()) {
      return error;
    }
    std::string_view name = kRoles[role_];
    if (role_ == kDeveloper && context_.out->developer_is_system) {
      name = "system";
    } else if (role_ == kFunction) {
      name = "tool";
    }
    AppendText("role", name);
    return std::nullopt;
  }

  MaybeError WriteContent() {
    const std::optional<JsonValue> content = message_.Find("content");
    if (!content.has_value() || content->Is(JsonType::kNull)) {
      if (role_ == kAssistant && !tool_calls_json_.empty()) {
        AppendMember("content", "null");
        return std::nullopt;
      }
      return content.has_value()
                 ? WrongType(Path("content"), "a string or an array of parts", JsonType::kNull)
                 : Missing(Path("content"));
    }
    if (content->Is(JsonType::kString)) {
      AppendText("content", content->AsString());
      return std::nullopt;
    }
    if (!content->Is(JsonType::kArray)) {
      return WrongType(Path("content"), "a string or an array of parts", content->type());
    }
    return WriteParts(*content);
  }

  MaybeError WriteParts(JsonValue parts) {
    std::string text;
    size_t i = 0;
    for (auto part = parts.begin(); part != parts.end(); ++part, ++i) {
      if (i > 0) {
        text += '\n';
      }
      if (MaybeError error = AppendPart(part.value(), i, &text); error.has_value()) {
        return error;
      }
    }
    if (i == 0) {
      return InvalidRequest("invalid_value",
                            Path("content"),
                            fmt::format("'{}' must hold at least one part.", Path("content")));
    }
    AppendText("content", text);
    return std::nullopt;
  }

  MaybeError AppendPart(JsonValue part, size_t i, std::string* text) {
    const std::string path = fmt::format("{}.content[{}]", path_, i);
    if (MaybeError error = ExpectType(part, path, JsonType::kObject); error.has_value()) {
      return error;
    }
    std::string type;
    if (MaybeError error = RequireString(part, path, "type", &type); error.has_value()) {
      return error;
    }
    const bool is_refusal = type == "refusal" && role_ == kAssistant;
    if (type != "text" && !is_refusal) {
      return InvalidRequest(
          "unsupported_content_part",
          path,
          fmt::format("'{}' has the type '{}'; only text is supported.", path, Excerpt(type)));
    }
    std::string part_text;
    if (MaybeError error = RequireString(part, path, is_refusal ? "refusal" : "text", &part_text);
        error.has_value()) {
      return error;
    }
    *text += part_text;
    return std::nullopt;
  }

  // Into tool_calls_json_; an empty array counts as absent.
  MaybeError ReadToolCalls() {
    const std::optional<JsonValue> calls = Get(message_, "tool_calls");
    if (role_ != kAssistant || !calls.has_value()) {
      return std::nullopt;
    }
    if (MaybeError error = ExpectType(*calls, Path("tool_calls"), JsonType::kArray);
        error.has_value()) {
      return error;
    }
    size_t i = 0;
    for (auto call = calls->begin(); call != calls->end(); ++call, ++i) {
      tool_calls_json_ += i == 0 ? '[' : ',';
      if (MaybeError error =
              AppendToolCall(call.value(), fmt::format("{}.tool_calls[{}]", path_, i));
          error.has_value()) {
        return error;
      }
    }
    if (i > 0) {
      tool_calls_json_ += ']';
    }
    return std::nullopt;
  }

  MaybeError AppendToolCall(JsonValue call, const std::string& path) {
    if (MaybeError error = ExpectType(call, path, JsonType::kObject); error.has_value()) {
      return error;
    }
    std::string id;
    if (MaybeError error = RequireString(call, path, "id", &id); error.has_value()) {
      return error;
    }
    if (const std::optional<JsonValue> type = Get(call, "type"); type.has_value()) {
      constexpr std::array<std::string_view, 1> kTypes = {"function"};
      size_t index = 0;
      if (MaybeError error = ReadChoice(*type, path + ".type", kTypes, &index); error.has_value()) {
        return error;
      }
    }
    const std::string function_path = path + ".function";
    const std::optional<JsonValue> function = Get(call, "function");
    if (!function.has_value()) {
      return Missing(function_path);
    }
    if (MaybeError error = ExpectType(*function, function_path, JsonType::kObject);
        error.has_value()) {
      return error;
    }
    std::string name;
    std::string arguments;
    if (MaybeError error = RequireString(*function, function_path, "name", &name);
        error.has_value()) {
      return error;
    }
    if (MaybeError error = RequireString(*function, function_path, "arguments", &arguments);
        error.has_value()) {
      return error;
    }
    tool_calls_json_ += "{\"id\":";
    AppendJsonString(id, &tool_calls_json_);
    tool_calls_json_ += ",\"type\":\"function\",\"function\":{\"name\":";
    AppendJsonString(name, &tool_calls_json_);
    tool_calls_json_ += ",\"arguments\":";
    AppendArguments(arguments);
    tool_calls_json_ += "}}";
    return std::nullopt;
  }

  // Valid JSON goes in as the value it means, anything else as the string it is.
  void AppendArguments(const std::string& arguments) {
    JsonDocument document;
    if (document.Parse(arguments, kMaxArgumentsDepth, kMaxTemplateNodes).has_value()) {
      AppendJsonString(arguments, &tool_calls_json_);
    } else {
      context_.out->json_nodes += document.num_nodes();
      tool_calls_json_ += document.root().Normalized();
    }
  }

  MaybeError WriteToolCallId() {
    const std::optional<JsonValue> id = Get(message_, "tool_call_id");
    if (!id.has_value()) {
      return role_ == kTool ? Missing(Path("tool_call_id")) : MaybeError();
    }
    std::string text;
    if (MaybeError error = ReadString(*id, Path("tool_call_id"), &text); error.has_value()) {
      return error;
    }
    AppendText("tool_call_id", text);
    return std::nullopt;
  }

  void WriteOthers() {
    constexpr std::array<std::string_view, 4> kDone = {
        "role", "content", "tool_calls", "tool_call_id"};
    for (auto member = message_.begin(); member != message_.end(); ++member) {
      const auto is_done = [&member](std::string_view name) { return member.NameIs(name); };
      if (std::none_of(kDone.begin(), kDone.end(), is_done)) {
        AppendMember(member.name(), member.value().Normalized());
      }
    }
  }

  JsonValue message_;
  std::string path_;
  const FieldContext& context_;
  std::string* out_;
  size_t role_ = 0;  // index into kRoles
  std::string tool_calls_json_;
};

}  // namespace

MaybeError ReadMessages(JsonValue value, const FieldContext& context) {
  if (MaybeError error = ExpectType(value, "messages", JsonType::kArray); error.has_value()) {
    return error;
  }
  std::string& json = context.out->messages_json;
  json = "[";
  size_t i = 0;
  for (auto message = value.begin(); message != value.end(); ++message, ++i) {
    if (i > 0) {
      json += ',';
    }
    MessageWriter writer(message.value(), fmt::format("messages[{}]", i), context, &json);
    if (MaybeError error = writer.Write(); error.has_value()) {
      return error;
    }
  }
  if (i == 0) {
    return InvalidRequest(
        "invalid_value", "messages", "'messages' must hold at least one message.");
  }
  json += ']';
  return std::nullopt;
}

MaybeError MessagesMissing(const FieldContext& /*context*/) {
  return Missing("messages");
}

}  // namespace spindle::serving
