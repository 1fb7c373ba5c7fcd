// `spindle chat`: a conversation with a model in the terminal, the engine in the same process.
// Thread-safety: call from the main thread (it owns the terminal and SIGINT).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "serving/completion_service.h"

namespace spindle::cli {

struct ChatOptions {
  std::string prompt;  // one answer, then end; empty = conversation
  std::string system;  // system message
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<uint32_t> seed;
  std::optional<uint32_t> max_tokens;
  bool color = true;  // off when the output is no terminal
};

// Talks until end of input or /exit. Ctrl-C stops the answer, not the program. `service` has a
// model. ERRORS: the first failed answer, with `prompt` only; a conversation reports errors and
// goes on.
absl::Status Chat(serving::CompletionService& service, const ChatOptions& options);

}  // namespace spindle::cli
