// A running generation as its consumer (HTTP stream, gRPC call, terminal chat) sees it: text, not
// tokens. Stop strings, UTF-8 borders, log-probabilities and usage are settled here, once for all
// transports. Thread-safety: one consumer thread at a time; Cancel is thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "engine/output_stream.h"
#include "serving/api_error.h"

namespace spindle::serving {

struct AlternativeLogprob {
  TokenId token;
  std::string bytes;  // exact bytes of the token, not necessarily UTF-8
  float logprob;
};

struct TokenLogprob {
  TokenId token;
  std::string bytes;
  std::optional<float> logprob;  // absent for the first prompt token
  std::vector<AlternativeLogprob> top;
  uint64_t text_offset = 0;  // Unicode code points from the beginning of the choice's returned text
};

struct Usage {
  uint32_t prompt_tokens = 0;      // each prompt once
  uint32_t completion_tokens = 0;  // all choices, end tokens included
  uint32_t cached_tokens = 0;
};

// The request was admitted.
struct StartedEvent {
  Usage usage;
};

struct ProgressEvent {
  bool queued = false;  // else prefill
  uint32_t queue_position = 0;
  uint32_t processed_tokens = 0;
  uint32_t total_tokens = 0;
  uint32_t cached_tokens = 0;
};

// New text of a choice: whole UTF-8 characters; held-back text comes when it is decided.
struct DeltaEvent {
  uint32_t choice = 0;
  std::string text;                // may be empty when only log-probabilities or ids are released
  std::vector<TokenId> token_ids;  // tokens that begin in this delta
  std::vector<TokenLogprob> logprobs;  // those tokens', when asked for
  bool is_echo = false;                // prompt text (completions with echo)
};

struct FinishedEvent {
  uint32_t choice = 0;
  engine::FinishReason reason = engine::FinishReason::kStop;
  std::optional<std::string> stop_string;  // which one matched
  std::optional<TokenId> stop_token;
};

// Last event of a successful generation.
struct UsageEvent {
  Usage usage;
  engine::RequestStats stats;
};

// Last event of a failed one.
struct ErrorEvent {
  ApiError error;
};

using GenerationEvent =
    std::variant<StartedEvent, ProgressEvent, DeltaEvent, FinishedEvent, UsageEvent, ErrorEvent>;

class Generation {
 public:
  // Destroying an unfinished generation cancels it (kClientGone).
  virtual ~Generation() = default;

  // Appends what is there now, at most `max_events`; returns how many. 0 with Done() false: wait
  // for `ready`.
  virtual size_t Poll(size_t max_events, std::vector<GenerationEvent>* events) = 0;
  // The last event was delivered.
  [[nodiscard]] virtual bool Done() const = 0;
  // See engine::OutputStream::SetReadyCallback.
  virtual void SetReadyCallback(std::function<void()> ready) = 0;
  virtual void Cancel(engine::CancelCause cause) = 0;
  // The consumer cannot go on: the rest is dropped, `error` is the last event, and it counts as a
  // rejection.
  virtual void Fail(const ApiError& error) = 0;
  [[nodiscard]] virtual const std::string& request_id() const = 0;
  // Running totals (continuous_usage_stats).
  [[nodiscard]] virtual Usage usage() const = 0;
};

}  // namespace spindle::serving
