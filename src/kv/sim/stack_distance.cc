#include "kv/sim/stack_distance.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace spindle::kv::sim {
namespace {

constexpr uint32_t kNoTime = ~uint32_t{0};

// Which times hold a page's last use, in a binary indexed tree of prefix counts. Times are handed
// out upwards; when they run out the pages move together.
class LastUses {
 public:
  explicit LastUses(uint32_t num_pages)
      : time_of_(num_pages, kNoTime),
        page_at_(std::max<size_t>(size_t{4} * num_pages, kMinTimes), kNoTime),
        tree_(page_at_.size() + 1) {}

  // The number of pages that are at least as young as `page`, itself included; 0 = never used.
  [[nodiscard]] uint32_t Distance(uint32_t page) const {
    const uint32_t time = time_of_[page];
    return time == kNoTime ? 0 : num_used_ - CountBefore(time);
  }

  // `page` is the youngest from now on.
  void Use(uint32_t page) {
    if (next_ == page_at_.size()) {
      Compact();
    }
    if (time_of_[page] == kNoTime) {
      ++num_used_;
    } else {
      page_at_[time_of_[page]] = kNoTime;
      Add(time_of_[page], -1);
    }
    time_of_[page] = next_;
    page_at_[next_] = page;
    Add(next_, 1);
    ++next_;
  }

 private:
  static constexpr size_t kMinTimes = 1024;

  [[nodiscard]] uint32_t CountBefore(uint32_t time) const {
    int32_t count = 0;
    for (uint32_t i = time; i > 0; i &= i - 1) {
      count += tree_[i];
    }
    return static_cast<uint32_t>(count);
  }

  void Add(uint32_t time, int32_t by) {
    for (size_t i = size_t{time} + 1; i < tree_.size(); i += i & (~i + 1)) {
      tree_[i] += by;
    }
  }

  void Compact() {
    std::fill(tree_.begin(), tree_.end(), 0);
    uint32_t to = 0;
    for (uint32_t from = 0; from < next_; ++from) {
      const uint32_t page = std::exchange(page_at_[from], kNoTime);
      if (page != kNoTime) {
        page_at_[to] = page;
        time_of_[page] = to;
        Add(to, 1);
        ++to;
      }
    }
    next_ = to;
  }

  std::vector<uint32_t> time_of_;  // [num_pages]
  std::vector<uint32_t> page_at_;  // [times]
  std::vector<int32_t> tree_;
  uint32_t next_ = 0;
  uint32_t num_used_ = 0;
};

}  // namespace

HitCount MissRatioCurve::At(uint32_t capacity_pages) const {
  SPINDLE_CHECK(capacity_pages >= min_capacity_);
  return {accesses_, hits_within_[std::min(capacity_pages, max_useful_capacity())]};
}

MissRatioCurve ComputeMissRatioCurve(const SelectionTrace& trace) {
  MissRatioCurve curve;
  curve.min_capacity_ = std::max(1U, trace.max_step_pages());
  LastUses uses(trace.num_pages());
  std::vector<uint64_t>& hits = curve.hits_within_;
  for (uint32_t step = 0; step < trace.num_steps(); ++step) {
    const bool is_counted = step >= trace.warmup_steps();
    for (const uint32_t page : trace.step(step)) {
      const uint32_t distance = uses.Distance(page);
      if (!is_counted || distance == 0) {
        continue;
      }
      if (distance >= hits.size()) {
        hits.resize(distance + 1);
      }
      ++hits[distance];
    }
    for (const uint32_t page : trace.step(step)) {
      uses.Use(page);
    }
  }
  for (size_t distance = 1; distance < hits.size(); ++distance) {
    hits[distance] += hits[distance - 1];
  }
  curve.accesses_ = trace.num_counted_accesses();
  return curve;
}

}  // namespace spindle::kv::sim
