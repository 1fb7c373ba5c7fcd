// Stop strings in a stream of bytes: the match that completes first wins; of several that complete
// at the same byte, the one that began earliest, which is the longest. One Knuth-Morris-Pratt
// automaton per string: a byte costs O(number of strings), amortised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spindle::serving {

// The strings of a request and their failure tables. Thread-safety: immutable. REQUIRES: no empty
// string.
class StopSet {
 public:
  explicit StopSet(std::vector<std::string> strings);

  [[nodiscard]] const std::vector<std::string>& strings() const { return strings_; }

 private:
  friend class StopMatcher;

  std::vector<std::string> strings_;
  std::vector<std::vector<uint32_t>> failure_;  // [string][length]: longest proper border
};

// State of one choice. Thread-compatible. Lifetime: borrows the set.
class StopMatcher {
 public:
  explicit StopMatcher(const StopSet& set) : set_(set), matched_(set.strings().size(), 0) {}

  // Index of the stop string that this byte completes. Not to be called after a match.
  [[nodiscard]] std::optional<size_t> Feed(char byte);

  // Bytes at the end of the stream that may be the beginning of a stop string.
  [[nodiscard]] size_t held() const;

 private:
  const StopSet& set_;
  std::vector<uint32_t> matched_;  // per string: length of the longest prefix that ends here
};

}  // namespace spindle::serving
