// How often each token occurred in a choice's history: the state of the penalties. Only distinct
// tokens take room and time. Allocates in Reserve only.
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace spindle::sampling {

class TokenCounts {
 public:
  struct Entry {
    TokenId token;
    uint32_t generated;  // 0 = only in the prompt
  };

  // Room for `max_distinct` different tokens; forgets everything.
  void Reserve(size_t max_distinct);

  // Cost O(1). REQUIRES: no more distinct tokens than reserved.
  void AddPrompt(TokenId token) { Find(token); }

  void AddGenerated(TokenId token) { ++entries_[Find(token)].generated; }

  // In order of first occurrence.
  [[nodiscard]] std::span<const Entry> entries() const { return entries_; }

 private:
  // Index of the token's entry, made when missing.
  size_t Find(TokenId token);

  std::vector<Entry> entries_;
  std::vector<uint32_t> slots_;  // open addressing: entry index + 1, 0 = empty; a power of two
};

}  // namespace spindle::sampling
