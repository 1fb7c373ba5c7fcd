#include "kv/sim/prefix_sim.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kv/eviction_order.h"
#include "kv/sim/id_list.h"

namespace spindle::kv::sim {
namespace {

constexpr std::array<std::pair<std::string_view, PrefixPolicy>, 5> kNames = {
    {{"fifo", PrefixPolicy::kFifo},
     {"bucketed", PrefixPolicy::kBucketed},
     {"lru", PrefixPolicy::kExactLru},
     {"server", PrefixPolicy::kServer},
     {"belady", PrefixPolicy::kBelady}}};

constexpr uint32_t kMaxCapacity = 1U << 28;

// A pool of units.
class PrefixPool {
 public:
  virtual ~PrefixPool() = default;

  [[nodiscard]] virtual bool Contains(uint32_t unit) const = 0;

  // A request uses its units; the first num_hits were hits.
  virtual void Use(std::span<const uint32_t> units, uint32_t num_hits) = 0;
};

// Pools of which a victim is the oldest of a list.
class ListPool : public PrefixPool {
 public:
  ListPool(uint32_t capacity, uint32_t num_units)
      : capacity_(capacity), links_(num_units), is_in_(num_units) {}

  [[nodiscard]] bool Contains(uint32_t unit) const final { return is_in_[unit] != 0; }

 protected:
  // Notes that a unit comes in. True when something must go first.
  bool Admit(uint32_t unit) {
    is_in_[unit] = 1;
    if (size_ < capacity_) {
      ++size_;
      return false;
    }
    return true;
  }

  void Forget(uint32_t unit) { is_in_[unit] = 0; }

  [[nodiscard]] uint32_t capacity() const { return capacity_; }

  [[nodiscard]] IdLinks& links() { return links_; }

 private:
  uint32_t capacity_;
  uint32_t size_ = 0;
  IdLinks links_;
  std::vector<uint8_t> is_in_;  // [num_units]
};

class FifoPool final : public ListPool {
 public:
  FifoPool(uint32_t capacity, uint32_t num_units)
      : ListPool(capacity, num_units), order_(links()) {}

  void Use(std::span<const uint32_t> units, uint32_t /*num_hits*/) override {
    for (const uint32_t unit : units) {
      if (!Contains(unit)) {
        if (Admit(unit)) {
          Forget(order_.PopOldest());
        }
        order_.Append(unit);
      }
    }
  }

 private:
  IdList order_;
};

class LruPool final : public ListPool {
 public:
  LruPool(uint32_t capacity, uint32_t num_units) : ListPool(capacity, num_units), order_(links()) {}

  void Use(std::span<const uint32_t> units, uint32_t /*num_hits*/) override {
    for (size_t i = units.size(); i-- > 0;) {
      if (Contains(units[i])) {
        order_.Remove(units[i]);
      } else if (Admit(units[i])) {
        Forget(order_.PopOldest());
      }
      order_.Append(units[i]);
    }
  }

 private:
  IdList order_;
};

class BucketedPool final : public ListPool {
 public:
  BucketedPool(uint32_t capacity, uint32_t num_units)
      : ListPool(capacity, num_units),
        ages_(kAges, IdList(links())),
        age_of_(num_units),
        uses_per_age_(std::max(1U, capacity / 2)) {}

  void Use(std::span<const uint32_t> units, uint32_t /*num_hits*/) override {
    for (size_t i = units.size(); i-- > 0;) {
      const uint32_t unit = units[i];
      if (Contains(unit)) {
        ages_[AgeOf(unit)].Remove(unit);
      } else if (Admit(unit)) {
        Forget(PopOldest());
      }
      ages_[now_ % kAges].Append(unit);
      age_of_[unit] = now_;
      if (++uses_ == uses_per_age_) {
        uses_ = 0;
        BeginAge();
      }
    }
  }

 private:
  static constexpr uint32_t kAges = 8;

  // What is older than 8 ages has been merged into the oldest of them.
  [[nodiscard]] uint32_t AgeOf(uint32_t unit) const {
    return (now_ - age_of_[unit] < kAges ? age_of_[unit] : now_ - (kAges - 1)) % kAges;
  }

  void BeginAge() {
    // The list of the age that begins holds the oldest one, which joins the next.
    IdList& oldest = ages_[(now_ + 1) % kAges];
    IdList& next = ages_[(now_ + 2) % kAges];
    oldest.AppendAll(next);
    std::swap(oldest, next);
    ++now_;
  }

  uint32_t PopOldest() {
    for (uint32_t age = now_ + 1; age <= now_ + kAges; ++age) {
      if (ages_[age % kAges].size() > 0) {
        return ages_[age % kAges].PopOldest();
      }
    }
    SPINDLE_CHECK(false);  // the pool is full
    return kNoId;
  }

  std::vector<IdList> ages_;      // by age modulo 8
  std::vector<uint32_t> age_of_;  // [num_units]
  uint32_t uses_per_age_;
  uint32_t uses_ = 0;
  uint32_t now_ = kAges - 1;
};

class ServerPool final : public PrefixPool {
 public:
  ServerPool(uint32_t capacity, uint32_t num_units)
      : records_(capacity), slot_of_(num_units, kNoStripe), unit_of_(capacity), order_(records_) {}

  [[nodiscard]] bool Contains(uint32_t unit) const override { return slot_of_[unit] != kNoStripe; }

  void Use(std::span<const uint32_t> units, uint32_t num_hits) override {
    // Opened with its hits, extended, sealed stripe by stripe; what the cache already holds behind
    // the first miss is adopted, which counts no hit. Closed from the tail.
    for (size_t i = 0; i < units.size(); ++i) {
      uint32_t& slot = slot_of_[units[i]];
      if (slot == kNoStripe) {
        continue;
      }
      order_.Remove(slot);
      if (i < num_hits && records_[slot].num_hits < kHitsToProtect) {
        ++records_[slot].num_hits;
      }
    }
    for (const uint32_t unit : units) {
      if (slot_of_[unit] == kNoStripe) {
        slot_of_[unit] = TakeSlot();
        unit_of_[slot_of_[unit]] = unit;
        records_[slot_of_[unit]].num_hits = 0;
      }
    }
    for (size_t i = units.size(); i-- > 0;) {
      order_.Add(slot_of_[units[i]]);
    }
  }

 private:
  uint32_t TakeSlot() {
    if (next_free_ < records_.size()) {
      return next_free_++;
    }
    const uint32_t slot = order_.Oldest();
    order_.Remove(slot);
    slot_of_[unit_of_[slot]] = kNoStripe;
    return slot;
  }

  std::vector<StripeRecord> records_;
  std::vector<uint32_t> slot_of_;  // [num_units]
  std::vector<uint32_t> unit_of_;  // [capacity]
  EvictionOrder order_;
  uint32_t next_free_ = 0;
};

class BeladyPool final : public PrefixPool {
 public:
  BeladyPool(uint32_t capacity, const RequestTrace& trace)
      : capacity_(capacity), next_use_(trace.units.size()), unit_next_(trace.num_units, kAbsent) {
    std::vector<uint32_t> upcoming(trace.num_units, kNever);
    for (size_t i = trace.requests.size(); i-- > 0;) {
      const TraceRequest& request = trace.requests[i];
      for (uint64_t k = 0; k < request.num_units; ++k) {
        const uint32_t unit = trace.units[request.first_unit + k];
        next_use_[request.first_unit + k] = upcoming[unit];
        upcoming[unit] = static_cast<uint32_t>(i);
      }
    }
  }

  [[nodiscard]] bool Contains(uint32_t unit) const override { return unit_next_[unit] != kAbsent; }

  void Use(std::span<const uint32_t> units, uint32_t /*num_hits*/) override {
    for (uint32_t i = 0; i < units.size(); ++i) {
      size_ += Contains(units[i]) ? 0U : 1U;
      const uint32_t next = next_use_[position_++];
      unit_next_[units[i]] = next;
      // Of units that are needed again at the same time, the tail goes first.
      candidates_.push_back({next, i, units[i]});
      std::push_heap(candidates_.begin(), candidates_.end());
      if (size_ > capacity_) {
        EvictFarthest();
      }
    }
  }

 private:
  static constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max() - 1;
  static constexpr uint32_t kAbsent = std::numeric_limits<uint32_t>::max();

  struct Candidate {
    uint32_t next_use;
    uint32_t place;  // in the prompt
    uint32_t unit;

    auto operator<=>(const Candidate&) const = default;
  };

  void EvictFarthest() {
    while (true) {
      std::pop_heap(candidates_.begin(), candidates_.end());
      const Candidate last = candidates_.back();
      candidates_.pop_back();
      if (unit_next_[last.unit] == last.next_use) {
        unit_next_[last.unit] = kAbsent;
        --size_;
        return;
      }
    }
  }

  uint32_t capacity_;
  uint32_t size_ = 0;
  uint64_t position_ = 0;            // in the trace's units
  std::vector<uint32_t> next_use_;   // [units] request that uses the unit next
  std::vector<uint32_t> unit_next_;  // [num_units]
  std::vector<Candidate> candidates_;
};

std::unique_ptr<PrefixPool> MakePool(PrefixPolicy policy,
                                     uint32_t capacity,
                                     const RequestTrace& trace) {
  switch (policy) {
    case PrefixPolicy::kFifo:
      return std::make_unique<FifoPool>(capacity, trace.num_units);
    case PrefixPolicy::kBucketed:
      return std::make_unique<BucketedPool>(capacity, trace.num_units);
    case PrefixPolicy::kExactLru:
      return std::make_unique<LruPool>(capacity, trace.num_units);
    case PrefixPolicy::kServer:
      return std::make_unique<ServerPool>(capacity, trace.num_units);
    case PrefixPolicy::kBelady:
      break;
  }
  return std::make_unique<BeladyPool>(capacity, trace);
}

}  // namespace

absl::StatusOr<PrefixPolicy> ParsePrefixPolicy(std::string_view text) {
  for (const auto& [name, policy] : kNames) {
    if (name == text) {
      return policy;
    }
  }
  return absl::InvalidArgumentError(
      "policy of a request trace must be fifo, bucketed, lru, server or belady, got '" +
      std::string(text) + "'");
}

absl::StatusOr<HitCount> SimulatePrefixCache(PrefixPolicy policy,
                                             uint32_t capacity_units,
                                             const RequestTrace& trace) {
  uint32_t longest = 1;
  for (const TraceRequest& request : trace.requests) {
    longest = std::max(longest, request.num_units);
  }
  if (capacity_units < longest || capacity_units > kMaxCapacity) {
    return absl::InvalidArgumentError("capacity must be in " + std::to_string(longest) +
                                      " (the longest prompt)..268435456 units, got " +
                                      std::to_string(capacity_units));
  }
  const std::unique_ptr<PrefixPool> pool = MakePool(policy, capacity_units, trace);
  HitCount count;
  for (const TraceRequest& request : trace.requests) {
    const std::span<const uint32_t> units = trace.UnitsOf(request);
    uint32_t hits = 0;
    while (hits < units.size() && pool->Contains(units[hits])) {
      ++hits;
    }
    count += {units.size(), hits};
    pool->Use(units, hits);
  }
  return count;
}

double PrefixHitCeiling(const RequestTrace& trace) {
  std::vector<uint8_t> seen(trace.num_units);
  HitCount count;
  for (const TraceRequest& request : trace.requests) {
    const std::span<const uint32_t> units = trace.UnitsOf(request);
    count.accesses += units.size();
    uint64_t hits = 0;
    while (hits < units.size() && seen[units[hits]] != 0) {
      ++hits;
    }
    count.hits += hits;
    for (const uint32_t unit : units) {
      seen[unit] = 1;
    }
  }
  return count.ratio();
}

}  // namespace spindle::kv::sim
