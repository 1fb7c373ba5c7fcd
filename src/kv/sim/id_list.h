// Doubly linked lists of small ids (pages, blocks) over one pair of arrays: an id is in one list at
// a time. All operations O(1). Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status_macros.h"

namespace spindle::kv::sim {

inline constexpr uint32_t kNoId = ~uint32_t{0};

// The links of all ids below num_ids; lists borrow them.
struct IdLinks {
  explicit IdLinks(uint32_t num_ids) : older(num_ids), newer(num_ids) {}

  std::vector<uint32_t> older;
  std::vector<uint32_t> newer;
};

class IdList {
 public:
  explicit IdList(IdLinks& links) : links_(&links) {}

  [[nodiscard]] uint32_t oldest() const { return oldest_; }

  [[nodiscard]] uint32_t size() const { return size_; }

  // The next younger id, or kNoId.
  [[nodiscard]] uint32_t After(uint32_t id) const { return links_->newer[id]; }

  // Adds an id as the newest. REQUIRES: in no list.
  void Append(uint32_t id) {
    links_->older[id] = newest_;
    links_->newer[id] = kNoId;
    (newest_ == kNoId ? oldest_ : links_->newer[newest_]) = id;
    newest_ = id;
    ++size_;
  }

  // REQUIRES: in this list.
  void Remove(uint32_t id) {
    const uint32_t older = links_->older[id];
    const uint32_t newer = links_->newer[id];
    (older == kNoId ? oldest_ : links_->newer[older]) = newer;
    (newer == kNoId ? newest_ : links_->older[newer]) = older;
    --size_;
  }

  // REQUIRES: not empty.
  uint32_t PopOldest() {
    SPINDLE_DCHECK(size_ > 0);
    const uint32_t id = oldest_;
    Remove(id);
    return id;
  }

  // Everything in `younger` becomes younger than everything here; `younger` is empty afterwards.
  void AppendAll(IdList& younger) {
    if (younger.size_ == 0) {
      return;
    }
    links_->older[younger.oldest_] = newest_;
    (newest_ == kNoId ? oldest_ : links_->newer[newest_]) = younger.oldest_;
    newest_ = younger.newest_;
    size_ += younger.size_;
    younger.oldest_ = kNoId;
    younger.newest_ = kNoId;
    younger.size_ = 0;
  }

 private:
  IdLinks* links_;
  uint32_t oldest_ = kNoId;
  uint32_t newest_ = kNoId;
  uint32_t size_ = 0;
};

}  // namespace spindle::kv::sim
