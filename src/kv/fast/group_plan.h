// What one cache group does in one layer of one step: where each selected page is, which pages must
// be copied first, and in how many passes attention goes over them. Filled by FastTier::Plan and
// reused, so that nothing is allocated per step. Thread-safety: one worker at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spindle::kv {

// What happens to pages that a plan finds outside the fast tier.
enum class Caching : uint8_t {
  kLru,     // they take free frames, then those of the least recently used pages
  kFill,    // they take free frames only: a scan keeps a fixed part instead of pushing all out.
            // Neither refaults nor ages count
  kStream,  // they go through the ring
};

// A page that must be copied into a frame before the pass that contains it.
struct PageLoad {
  uint32_t index;  // into the selected pages
  uint32_t frame;
};

// Half-open ranges of selected pages and of loads. Frames of a ring are used again by the next
// pass, so a pass's loads come after the attention of the pass before it.
struct AttentionPass {
  uint32_t page_begin;
  uint32_t page_end;
  uint32_t load_begin;
  uint32_t load_end;
};

struct GroupPlan {
  // `max_pages` selected pages per group and step need no allocation.
  explicit GroupPlan(uint32_t max_pages) { Reserve(max_pages); }

  void Reserve(size_t max_pages) {
    frames.reserve(max_pages);
    loads.reserve(max_pages);
    passes.reserve(max_pages);
  }

  std::vector<uint32_t> frames;       // [num selected pages]
  std::vector<PageLoad> loads;        // ascending index
  std::vector<AttentionPass> passes;  // together all selected pages, ascending
  uint32_t num_streamed = 0;          // loads into the ring: pages that are not cached afterwards
  uint32_t num_refaults = 0;          // loads of pages that were evicted not long ago
};

}  // namespace spindle::kv
