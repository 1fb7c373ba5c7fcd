// Chat templates (Jinja) rendered as Hugging Face transformers renders them, in a sandbox without
// files or network. Thread-safety: thread-safe after construction.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spindle::text {

// `text` may hold `guard` code points inside control-token look-alikes that came from message
// content; they keep Tokenizer::EncodeRendered from turning them into control tokens. `plain` is
// the text without them.
struct RenderedPrompt {
  std::string text;
  std::string plain;
  char32_t guard;
};

struct RenderRequest {
  std::string_view messages_json = {};  // array, OpenAI form
  std::string_view tools_json = {};     // array or empty
  std::string_view kwargs_json = {};    // object of further variables, or empty
  bool add_generation_prompt = true;
  // The last message stays open. REQUIRES: not together with add_generation_prompt.
  bool continue_final_message = false;
  // What strftime_now sees; unset = the system clock.
  std::optional<std::chrono::sys_seconds> now = std::nullopt;
};

class ChatTemplate {
 public:
  // `special_texts`: texts that must not become control tokens when they occur in message content.
  // ERRORS: kInvalidArgument with the template's line.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Compile(
      std::string_view source,
      std::string_view bos_text,
      std::string_view eos_text,
      std::span<const std::string> special_texts);
  virtual ~ChatTemplate() = default;

  // ERRORS: kInvalidArgument carrying the template's own message (raise_exception), or naming the
  // template's line, or the input that is not what the fields above say; kResourceExhausted
  // (limits: output 64 MiB, bounded instruction count standing for 1 s).
  [[nodiscard]] virtual absl::StatusOr<RenderedPrompt> Render(
      const RenderRequest& request) const = 0;

  [[nodiscard]] virtual std::string_view source() const = 0;
  // True when the source mentions tools, so that tools can be passed natively.
  [[nodiscard]] virtual bool supports_tools() const = 0;
};

}  // namespace spindle::text
