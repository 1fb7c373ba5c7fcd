// A GGUF file's embedded vocabulary as a definition in the format of tokenizer.json.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "text/tokenizer.h"

namespace spindle::text {

struct GgufDefinition {
  // May hold one id past vocabulary.tokens, which stands for bytes without a token; drop it.
  std::string tokenizer_json;
  std::vector<TokenId> prefix;   // put before every text
  std::vector<TokenId> suffix;   // put after it
  std::vector<TokenId> end_ids;  // ascending, distinct
};

// ERRORS: kUnimplemented (tokenizer model or pre-tokenizer, named); kInvalidArgument (the field,
// named).
[[nodiscard]] absl::StatusOr<GgufDefinition> BuildGgufDefinition(const GgufVocabulary& vocabulary);

}  // namespace spindle::text
