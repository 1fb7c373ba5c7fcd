// What the work on one body (JSON tree, template, tokenizing) may take: bodies are bounded, but a
// value of two bytes may take many times that once it is read. Thread-safety: constants and pure
// functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spindle::serving {

// Work on bodies and texts above this size is done one after the other, whatever transport they
// came by, so that its memory is there once.
inline constexpr uint64_t kLargeWorkBytes = uint64_t{64} << 10;

// Values and member names of a body: token ids for sixteen contexts, and room for all else.
[[nodiscard]] inline constexpr uint64_t MaxJsonNodes(uint32_t max_model_len) {
  return (uint64_t{1} << 18) + uint64_t{16} * max_model_len;
}

// … of a chat, which is handed to the template as a tree of its own.
inline constexpr uint64_t kMaxTemplateNodes = uint64_t{1} << 18;

// JSON text for the template, where `max_text_bytes` of rendered text can fit the context: escapes,
// roles and what the template leaves out come on top.
[[nodiscard]] inline constexpr uint64_t MaxTemplateBytes(uint64_t max_text_bytes) {
  return 2 * max_text_bytes + kLargeWorkBytes;
}

// Bound of the work on one body, for a vocabulary whose longest token has `token_bytes`.
[[nodiscard]] inline constexpr uint64_t BodyWorkBytes(uint64_t max_body_bytes,
                                                      uint32_t max_model_len,
                                                      uint64_t token_bytes) {
  // Measured: a node takes 8 bytes, 16 in a container; template engines take up to 88 for a value
  // and 12 times the text.
  constexpr uint64_t kTreeBytes = 16;
  constexpr uint64_t kTemplateNodeBytes = 88;
  constexpr uint64_t kTextCopies = 12;
  const uint64_t nodes = std::min(MaxJsonNodes(max_model_len), max_body_bytes / 2);
  const uint64_t text =
      std::min(MaxTemplateBytes(uint64_t{max_model_len} * token_bytes), max_body_bytes);
  return nodes * kTreeBytes + std::min(kMaxTemplateNodes, nodes) * kTemplateNodeBytes +
         text * kTextCopies;
}

}  // namespace spindle::serving
