// JSON forms of log-probabilities (API specification, 6). Thread-safety: pure functions.
#pragma once

#include <span>
#include <string>

#include "serving/generation.h"

namespace spindle::server {

// {"content":[…],"refusal":null}
void AppendChatLogprobs(std::span<const serving::TokenLogprob> tokens, std::string* out);

// {"tokens":[…],"token_logprobs":[…],"top_logprobs":[…],"text_offset":[…]}
void AppendCompletionLogprobs(std::span<const serving::TokenLogprob> tokens, std::string* out);

}  // namespace spindle::server
