// A plain model of the policies that evict the page with the smallest key, and random selections to
// compare it on. Thread-safety: single-threaded tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "kv/sim/selection_trace.h"

namespace spindle::kv::sim {

// A selection that wanders: some pages stay, some are new, its size varies.
inline SelectionTrace RandomTrace(uint32_t num_pages,
                                  uint32_t max_selected,
                                  uint32_t num_steps,
                                  uint64_t seed) {
  std::mt19937_64 rng(seed);
  SelectionTrace trace(num_pages, 0);
  std::set<uint32_t> pages;
  for (uint32_t step = 0; step < num_steps; ++step) {
    const auto wanted = static_cast<size_t>(rng() % (max_selected + 1));
    for (auto page = pages.begin(); page != pages.end();) {
      page = rng() % 4 == 0 ? pages.erase(page) : std::next(page);
    }
    while (pages.size() < wanted) {
      // Low pages more often.
      pages.insert(static_cast<uint32_t>(std::min(rng() % num_pages, rng() % num_pages)));
    }
    while (pages.size() > wanted) {
      pages.erase(std::next(pages.begin(), static_cast<int64_t>(rng() % pages.size())));
    }
    trace.Append(std::vector<uint32_t>(pages.begin(), pages.end()));
  }
  return trace;
}

// Evicts the page for which `key` is smallest: (page, step of last use, number of arrival) → key.
class OraclePolicy {
 public:
  struct Use {
    uint32_t page;
    uint32_t last_step;
    uint64_t arrival;
  };

  using Key = std::pair<int64_t, int64_t>;

  OraclePolicy(uint32_t capacity, std::function<Key(const Use&)> key)
      : capacity_(capacity), key_(std::move(key)) {}

  std::vector<uint8_t> Step(std::span<const uint32_t> pages) {
    ++step_;
    std::vector<uint8_t> is_hit;
    for (const uint32_t page : pages) {
      is_hit.push_back(cache_.contains(page) ? 1 : 0);
    }
    const std::set<uint32_t> pinned(pages.begin(), pages.end());
    for (const uint32_t page : pages) {
      if (!cache_.contains(page) && MakeRoom(pinned)) {
        cache_[page] = {page, step_, ++arrivals_};
      }
    }
    for (const uint32_t page : pages) {
      if (auto found = cache_.find(page); found != cache_.end()) {
        found->second.last_step = step_;
      }
    }
    return is_hit;
  }

 private:
  bool MakeRoom(const std::set<uint32_t>& pinned) {
    if (cache_.size() < capacity_) {
      return true;
    }
    const Use* victim = nullptr;
    for (const auto& [page, use] : cache_) {
      if (!pinned.contains(page) && (victim == nullptr || key_(use) < key_(*victim))) {
        victim = &use;
      }
    }
    if (victim == nullptr) {
      return false;
    }
    cache_.erase(victim->page);
    return true;
  }

  size_t capacity_;
  std::function<Key(const Use&)> key_;
  std::map<uint32_t, Use> cache_;
  uint32_t step_ = 0;
  uint64_t arrivals_ = 0;
};

}  // namespace spindle::kv::sim
