#include "server/http/text_blocks.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace spindle::server {

void TextBlocks::Append(std::string_view text) {
  size_bytes_ += text.size();
  while (!text.empty()) {
    if (blocks_.empty() || blocks_.back().size() >= kBlockBytes) {
      blocks_.emplace_back();
      held_bytes_ += sizeof(std::string);
    }
    std::string& block = blocks_.back();
    const size_t taken = std::min(text.size(), kBlockBytes - block.size());
    const size_t before = block.capacity();
    if (block.size() + taken > before) {
      // The last step is a doubling at least: the string would round a smaller one up.
      const size_t wanted = std::max(2 * before, block.size() + taken);
      block.reserve(wanted > kBlockBytes / 2 ? kBlockBytes : wanted);
    }
    block.append(text.substr(0, taken));
    held_bytes_ += block.capacity() - before;
    text.remove_prefix(taken);
  }
}

void TextBlocks::Append(TextBlocks&& other) {
  // What is short is copied, so that many short texts make no block each.
  constexpr size_t kWorthMoving = kBlockBytes / 8;
  if (other.size_bytes_ < kWorthMoving) {
    for (const std::string& block : std::exchange(other.blocks_, {})) {
      Append(block);
    }
  } else {
    std::move(other.blocks_.begin(), other.blocks_.end(), std::back_inserter(blocks_));
    size_bytes_ += other.size_bytes_;
    held_bytes_ += other.held_bytes_;
  }
  other = TextBlocks();
}

std::vector<std::string> TextBlocks::Take() {
  std::vector<std::string> blocks = std::move(blocks_);
  *this = TextBlocks();
  return blocks;
}

}  // namespace spindle::server
