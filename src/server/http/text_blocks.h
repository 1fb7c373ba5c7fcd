// Text that grows in blocks: growing copies no more than a block, and what is held is what is
// counted. Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spindle::server {

class TextBlocks {
 public:
  static constexpr size_t kBlockBytes = size_t{64} << 10;

  void Append(std::string_view text);
  // Moves what `other` holds to the end.
  void Append(TextBlocks&& other);

  [[nodiscard]] bool empty() const { return size_bytes_ == 0; }

  [[nodiscard]] uint64_t size_bytes() const { return size_bytes_; }

  // Memory, unused room of the blocks included.
  [[nodiscard]] uint64_t held_bytes() const { return held_bytes_; }

  // The text in order, cut anywhere; nothing is left.
  [[nodiscard]] std::vector<std::string> Take();

 private:
  std::vector<std::string> blocks_;
  uint64_t size_bytes_ = 0;
  uint64_t held_bytes_ = 0;
};

}  // namespace spindle::server
