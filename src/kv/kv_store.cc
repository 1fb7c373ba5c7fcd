#include "kv/kv_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <xxhash.h>

#include "base/status_macros.h"
#include "kv/eviction_order.h"
#include "kv/kv_sequence.h"
#include "kv/prefix_index.h"
#include "kv/slab_arena.h"
#include "kv/stripe_record.h"

namespace spindle::kv {
namespace {

// A sequence id is (generation, place in the pool), so that look-ups need no map and ids are never
// reused.
constexpr uint64_t kPlaceBits = 20;
constexpr uint64_t kPlaceMask = (uint64_t{1} << kPlaceBits) - 1;
constexpr uint64_t kMinStripes = 2;

absl::Status Broken(const std::string& what) {
  return absl::InternalError("KV store: " + what);
}

}  // namespace

class KvStore::Impl {
 public:
  Impl(const KvOptions& options, const KvGeometry& geometry, SlabArena arena, uint32_t num_stripes)
      : geometry_(geometry),
        stripe_bytes_(geometry.stripe_bytes()),
        prefix_cache_(options.prefix_cache),
        arena_(std::move(arena)),
        records_(num_stripes),
        generations_(num_stripes, 0),
        index_(records_),
        order_(records_) {
    returned_.reserve(num_stripes);
    PublishStats();
  }

  [[nodiscard]] const KvGeometry& geometry() const { return geometry_; }

  [[nodiscard]] std::span<const uint32_t> generations() const { return generations_; }

  [[nodiscard]] uint32_t MatchPrefix(std::span<const Digest> keys) const;
  SequenceId Open(std::span<const Digest> keys, uint32_t num_shared, PrefixUse use);
  absl::Status Extend(SequenceId seq, uint32_t num_tokens);
  void Commit(SequenceId seq, uint32_t num_tokens);
  void Seal(SequenceId seq, uint32_t ordinal, const Digest& key, const ContentChecksum* checksum);
  [[nodiscard]] SealedStripe Sealed(SequenceId seq, uint32_t ordinal) const;
  [[nodiscard]] uint32_t NumPublished(SequenceId seq) const;
  absl::StatusOr<SequenceId> Fork(SequenceId seq);
  void Close(SequenceId seq);
  uint64_t ResetPrefixCache();
  [[nodiscard]] KvStats Stats() const;
  [[nodiscard]] absl::Status CheckIntegrity() const;

  [[nodiscard]] const Sequence& Get(SequenceId seq) const {
    const uint64_t place = seq.value() & kPlaceMask;
    SPINDLE_CHECK(seq.value() != 0 && place < sequences_.size());
    SPINDLE_CHECK(sequences_[place].id == seq.value());
    return sequences_[place];
  }

  [[nodiscard]] uint64_t AvailableStripes() const { return NumFree() + order_.size(); }

 private:
  [[nodiscard]] Sequence& Get(SequenceId seq) {
    return const_cast<Sequence&>(std::as_const(*this).Get(seq));
  }

  [[nodiscard]] uint64_t NumFree() const {
    return returned_.size() + (records_.size() - first_unused_);
  }

  [[nodiscard]] uint8_t* Address(uint32_t slot) const {
    return arena_.data() + slot * stripe_bytes_;
  }

  Sequence& NewSequence();
  absl::Status TakeStripes(Sequence& sequence, uint64_t count);
  uint32_t TakeSlot();
  void EvictOldest();
  void AddRef(uint32_t slot);
  void Release(uint32_t slot);
  void FreeSlot(uint32_t slot);
  void PublishStats();

  [[nodiscard]] absl::Status CheckSequences(std::vector<uint32_t>* refs) const;
  [[nodiscard]] absl::Status CheckRecord(uint32_t slot, uint32_t refs) const;
  [[nodiscard]] absl::Status CheckLinks() const;

  const KvGeometry geometry_;
  const size_t stripe_bytes_;
  const bool prefix_cache_;
  SlabArena arena_;
  std::vector<StripeRecord> records_;
  std::vector<uint32_t> generations_;  // [num_stripes]
  PrefixIndex index_;
  EvictionOrder order_;
  std::vector<uint32_t> returned_;  // free slots that were used before
  uint32_t first_unused_ = 0;       // slots from here on were never used
  std::vector<Sequence> sequences_;
  std::vector<uint32_t> vacant_;  // places of `sequences_`
  uint64_t generation_ = 0;
  uint64_t evictions_ = 0;
  uint64_t adopted_ = 0;
  uint64_t conflicts_ = 0;

  // What Stats() reads. Owned and cached stripes share a word, so that free + cached + owned =
  // capacity always holds.
  std::atomic<uint64_t> stat_owned_and_cached_{0};
  std::atomic<uint64_t> stat_committed_bytes_{0};
  std::atomic<uint64_t> stat_evictions_{0};
  std::atomic<uint64_t> stat_entries_{0};
  std::atomic<uint64_t> stat_adopted_{0};
  std::atomic<uint64_t> stat_conflicts_{0};
};

uint32_t KvStore::Impl::MatchPrefix(std::span<const Digest> keys) const {
  uint32_t parent = kNoStripe;
  uint32_t matched = 0;
  for (const Digest& key : keys) {
    const uint32_t slot = index_.Find(key);
    if (slot == kNoStripe || records_[slot].parent != parent) {
      break;
    }
    parent = slot;
    ++matched;
  }
  return matched;
}

Sequence& KvStore::Impl::NewSequence() {
  if (vacant_.empty()) {
    SPINDLE_CHECK(sequences_.size() <= kPlaceMask);
    vacant_.reserve(sequences_.size() + 1);
    vacant_.push_back(static_cast<uint32_t>(sequences_.size()));
    // Room for all stripes of the store: addresses only, until a sequence is really that long.
    sequences_.emplace_back();
    sequences_.back().slots.reserve(records_.size());
    sequences_.back().stripes.reserve(records_.size());
  }
  const uint32_t place = vacant_.back();
  vacant_.pop_back();
  Sequence& sequence = sequences_[place];
  sequence.id = (++generation_ << kPlaceBits) | place;
  sequence.num_tokens = 0;
  sequence.num_sealed = 0;
  sequence.publishes = prefix_cache_;
  return sequence;
}

SequenceId KvStore::Impl::Open(std::span<const Digest> keys, uint32_t num_shared, PrefixUse use) {
  SPINDLE_CHECK(num_shared <= MatchPrefix(keys));
  Sequence& sequence = NewSequence();
  for (uint32_t i = 0; i < num_shared; ++i) {
    const uint32_t slot = index_.Find(keys[i]);
    AddRef(slot);
    if (use == PrefixUse::kHit) {
      records_[slot].num_hits =
          std::min<uint8_t>(kHitsToProtect, static_cast<uint8_t>(records_[slot].num_hits + 1));
    }
    sequence.slots.push_back(slot);
    sequence.stripes.push_back(Address(slot));
  }
  sequence.num_sealed = num_shared;
  sequence.num_tokens = num_shared * static_cast<uint32_t>(kStripeTokens);
  PublishStats();
  return SequenceId(sequence.id);
}

absl::Status KvStore::Impl::Extend(SequenceId seq, uint32_t num_tokens) {
  Sequence& sequence = Get(seq);
  const uint64_t wanted = StripesFor(num_tokens);
  if (wanted <= sequence.slots.size()) {
    return absl::OkStatus();
  }
  const absl::Status status = TakeStripes(sequence, wanted - sequence.slots.size());
  PublishStats();
  return status;
}

// Appends `count` open stripes, or none.
absl::Status KvStore::Impl::TakeStripes(Sequence& sequence, uint64_t count) {
  if (count > AvailableStripes()) {
    return absl::ResourceExhaustedError("KV host tier: " + std::to_string(count) +
                                        " stripes wanted, " + std::to_string(AvailableStripes()) +
                                        " available of " + std::to_string(records_.size()));
  }
  if (count > returned_.size()) {
    const uint64_t fresh =
        std::min<uint64_t>(count - returned_.size(), records_.size() - first_unused_);
    SPINDLE_RETURN_IF_ERROR(arena_.Commit((first_unused_ + fresh) * stripe_bytes_));
  }
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t slot = TakeSlot();
    StripeRecord& record = records_[slot];
    record.state = StripeState::kOpen;
    record.num_refs = 1;
    record.num_hits = 0;
    ++generations_[slot];
    sequence.slots.push_back(slot);
    sequence.stripes.push_back(Address(slot));
  }
  return absl::OkStatus();
}

uint32_t KvStore::Impl::TakeSlot() {
  if (returned_.empty() && first_unused_ < records_.size()) {
    return first_unused_++;
  }
  if (returned_.empty()) {
    EvictOldest();
  }
  const uint32_t slot = returned_.back();
  returned_.pop_back();
  return slot;
}

void KvStore::Impl::EvictOldest() {
  const uint32_t slot = order_.Oldest();
  SPINDLE_CHECK(slot != kNoStripe);
  order_.Remove(slot);
  index_.Erase(slot);
  FreeSlot(slot);
  ++evictions_;
}

void KvStore::Impl::AddRef(uint32_t slot) {
  StripeRecord& record = records_[slot];
  SPINDLE_DCHECK(record.state == StripeState::kSealed);
  if (record.num_refs++ == 0) {
    order_.Remove(slot);
  }
}

void KvStore::Impl::Release(uint32_t slot) {
  StripeRecord& record = records_[slot];
  SPINDLE_CHECK(record.num_refs > 0);
  if (--record.num_refs > 0) {
    return;
  }
  if (record.indexed) {
    order_.Add(slot);
  } else {
    FreeSlot(slot);
  }
}

void KvStore::Impl::FreeSlot(uint32_t slot) {
  records_[slot].state = StripeState::kFree;
  returned_.push_back(slot);
}

void KvStore::Impl::Commit(SequenceId seq, uint32_t num_tokens) {
  Sequence& sequence = Get(seq);
  SPINDLE_CHECK(num_tokens >= sequence.num_tokens);
  SPINDLE_CHECK(StripesFor(num_tokens) <= sequence.slots.size());
  sequence.num_tokens = num_tokens;
}

void KvStore::Impl::Seal(SequenceId seq,
                         uint32_t ordinal,
                         const Digest& key,
                         const ContentChecksum* checksum) {
  Sequence& sequence = Get(seq);
  SPINDLE_CHECK(ordinal == sequence.num_sealed);
  SPINDLE_CHECK((ordinal + 1) * kStripeTokens <= sequence.num_tokens);
  const uint32_t slot = sequence.slots[ordinal];
  StripeRecord& record = records_[slot];
  record.state = StripeState::kSealed;
  ++sequence.num_sealed;
  if (!sequence.publishes) {
    return;
  }
  record.key = key;
  if (checksum != nullptr) {
    record.checksum = *checksum;
  } else {
    const XXH128_hash_t hash = XXH3_128bits(Address(slot), stripe_bytes_);
    record.checksum = {hash.low64, hash.high64};
  }
  const uint32_t existing = index_.Find(key);
  if (existing == kNoStripe) {
    index_.Insert(slot, ordinal == 0 ? kNoStripe : sequence.slots[ordinal - 1]);
  } else if (records_[existing].checksum == record.checksum) {
    AddRef(existing);
    Release(slot);
    sequence.slots[ordinal] = existing;
    sequence.stripes[ordinal] = Address(existing);
    ++adopted_;
  } else {
    sequence.publishes = false;
    ++conflicts_;
  }
  PublishStats();
}

SealedStripe KvStore::Impl::Sealed(SequenceId seq, uint32_t ordinal) const {
  const Sequence& sequence = Get(seq);
  SPINDLE_CHECK(ordinal < sequence.num_sealed);
  const uint32_t slot = sequence.slots[ordinal];
  SPINDLE_CHECK(records_[slot].indexed);
  return {Address(slot), records_[slot].checksum};
}

uint32_t KvStore::Impl::NumPublished(SequenceId seq) const {
  const std::vector<uint32_t>& slots = Get(seq).slots;
  const auto is_indexed = [this](uint32_t slot) { return records_[slot].indexed; };
  return static_cast<uint32_t>(std::ranges::find(slots, false, is_indexed) - slots.begin());
}

absl::StatusOr<SequenceId> KvStore::Impl::Fork(SequenceId seq) {
  const uint32_t num_shared = Get(seq).num_sealed;
  const uint32_t num_copied = StripesFor(Get(seq).num_tokens) - num_shared;
  Sequence& child = NewSequence();  // may move the parent
  const Sequence& parent = Get(seq);
  if (absl::Status status = TakeStripes(child, num_copied); !status.ok()) {
    vacant_.push_back(static_cast<uint32_t>(child.id & kPlaceMask));
    child.id = 0;
    return status;
  }
  for (uint32_t i = 0; i < num_copied; ++i) {
    std::memcpy(child.stripes[i], parent.stripes[num_shared + i], stripe_bytes_);
  }
  child.slots.insert(child.slots.begin(), parent.slots.begin(), parent.slots.begin() + num_shared);
  child.stripes.insert(
      child.stripes.begin(), parent.stripes.begin(), parent.stripes.begin() + num_shared);
  for (uint32_t i = 0; i < num_shared; ++i) {
    AddRef(child.slots[i]);
  }
  child.num_tokens = parent.num_tokens;
  child.num_sealed = num_shared;
  child.publishes = parent.publishes;
  PublishStats();
  return SequenceId(child.id);
}

void KvStore::Impl::Close(SequenceId seq) {
  Sequence& sequence = Get(seq);
  // From the tail, so that heads are newer in the eviction order.
  for (size_t i = sequence.slots.size(); i-- > 0;) {
    Release(sequence.slots[i]);
  }
  sequence.slots.clear();
  sequence.stripes.clear();
  vacant_.push_back(static_cast<uint32_t>(sequence.id & kPlaceMask));
  sequence.id = 0;
  PublishStats();
}

uint64_t KvStore::Impl::ResetPrefixCache() {
  const uint64_t dropped = order_.size();
  for (uint64_t i = 0; i < dropped; ++i) {
    EvictOldest();
  }
  PublishStats();
  return dropped;
}

void KvStore::Impl::PublishStats() {
  const uint64_t cached = order_.size();
  const uint64_t owned = records_.size() - NumFree() - cached;
  stat_owned_and_cached_.store(owned << 32 | cached, std::memory_order_relaxed);
  stat_committed_bytes_.store(arena_.committed_bytes(), std::memory_order_relaxed);
  stat_evictions_.store(evictions_, std::memory_order_relaxed);
  stat_entries_.store(index_.num_entries(), std::memory_order_relaxed);
  stat_adopted_.store(adopted_, std::memory_order_relaxed);
  stat_conflicts_.store(conflicts_, std::memory_order_relaxed);
}

KvStats KvStore::Impl::Stats() const {
  const uint64_t both = stat_owned_and_cached_.load(std::memory_order_relaxed);
  KvStats stats{};
  stats.capacity_stripes = records_.size();
  stats.owned_stripes = both >> 32;
  stats.cached_stripes = both & 0xffffffffU;
  stats.free_stripes = stats.capacity_stripes - stats.owned_stripes - stats.cached_stripes;
  stats.stripe_bytes = stripe_bytes_;
  stats.committed_bytes = stat_committed_bytes_.load(std::memory_order_relaxed);
  stats.prefix_entries = stat_entries_.load(std::memory_order_relaxed);
  stats.prefix_evictions = stat_evictions_.load(std::memory_order_relaxed);
  stats.adopted_stripes = stat_adopted_.load(std::memory_order_relaxed);
  stats.seal_conflicts = stat_conflicts_.load(std::memory_order_relaxed);
  return stats;
}

// Counts the sequences that list each slot.
absl::Status KvStore::Impl::CheckSequences(std::vector<uint32_t>* refs) const {
  for (const Sequence& sequence : sequences_) {
    if (sequence.id == 0) {
      if (!sequence.slots.empty()) {
        return Broken("a closed sequence lists stripes");
      }
      continue;
    }
    if (StripesFor(sequence.num_tokens) > sequence.slots.size() ||
        sequence.num_sealed * kStripeTokens > sequence.num_tokens) {
      return Broken("a sequence has more tokens than room, or sealed more than it has");
    }
    for (size_t i = 0; i < sequence.slots.size(); ++i) {
      const uint32_t slot = sequence.slots[i];
      if (slot >= records_.size() || sequence.stripes[i] != Address(slot)) {
        return Broken("a sequence lists a wrong address");
      }
      if ((records_[slot].state == StripeState::kSealed) != (i < sequence.num_sealed)) {
        return Broken("stripe " + std::to_string(slot) + " and its sequence disagree on sealing");
      }
      ++(*refs)[slot];
    }
  }
  return absl::OkStatus();
}

absl::Status KvStore::Impl::CheckRecord(uint32_t slot, uint32_t refs) const {
  const StripeRecord& record = records_[slot];
  const std::string name = "stripe " + std::to_string(slot);
  if (record.num_refs != refs) {
    return Broken(name + " does not count " + std::to_string(refs) + " references");
  }
  if (record.state == StripeState::kOpen && (refs != 1 || record.indexed)) {
    return Broken(name + " is open, but shared or published");
  }
  if (record.state == StripeState::kFree && (refs != 0 || record.indexed)) {
    return Broken(name + " is free, but in use");
  }
  if (record.state != StripeState::kFree && refs == 0 && !record.indexed) {
    return Broken(name + " is lost: neither free nor used");
  }
  if ((record.segment != EvictionSegment::kNone) != (record.indexed && refs == 0)) {
    return Broken(name + " is evictable and must not be, or the other way round");
  }
  if (!record.indexed) {
    return absl::OkStatus();
  }
  if (record.state != StripeState::kSealed || index_.Find(record.key) != slot) {
    return Broken(name + " is in the prefix index, but not sealed or not found");
  }
  if (record.parent != kNoStripe) {
    const StripeRecord& parent = records_[record.parent];
    if (!parent.indexed) {
      return Broken(name + " is in the prefix index without its parent");
    }
    if (parent.num_refs < refs || parent.num_hits < record.num_hits) {
      return Broken(name + " is used more than its parent");
    }
  }
  return absl::OkStatus();
}

// Free list and tree links, counted once more from the records.
absl::Status KvStore::Impl::CheckLinks() const {
  std::vector<uint32_t> children(records_.size(), 0);
  uint64_t num_free = 0;
  uint64_t num_indexed = 0;
  uint64_t num_evictable = 0;
  for (const StripeRecord& record : records_) {
    num_free += record.state == StripeState::kFree ? 1 : 0;
    num_evictable += record.segment != EvictionSegment::kNone ? 1 : 0;
    if (record.indexed) {
      ++num_indexed;
      if (record.parent != kNoStripe) {
        ++children[record.parent];
      }
    }
  }
  for (uint32_t slot = 0; slot < records_.size(); ++slot) {
    if (records_[slot].indexed && records_[slot].num_children != children[slot]) {
      return Broken("stripe " + std::to_string(slot) + " miscounts its children");
    }
  }
  std::vector<bool> listed(records_.size(), false);
  for (const uint32_t slot : returned_) {
    if (listed[slot] || records_[slot].state != StripeState::kFree || slot >= first_unused_) {
      return Broken("the free list holds stripe " + std::to_string(slot) + " wrongly");
    }
    listed[slot] = true;
  }
  if (num_free != NumFree() || num_indexed != index_.num_entries() ||
      num_evictable != order_.size()) {
    return Broken("counts of free, indexed or evictable stripes are wrong");
  }
  const uint32_t victim = order_.Oldest();
  if (victim != kNoStripe && records_[victim].num_children != 0) {
    return Broken("the next victim has children in the prefix index");
  }
  return absl::OkStatus();
}

absl::Status KvStore::Impl::CheckIntegrity() const {
  std::vector<uint32_t> refs(records_.size(), 0);
  SPINDLE_RETURN_IF_ERROR(CheckSequences(&refs));
  for (uint32_t slot = 0; slot < records_.size(); ++slot) {
    SPINDLE_RETURN_IF_ERROR(CheckRecord(slot, refs[slot]));
  }
  return CheckLinks();
}

KvStore::KvStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

KvStore::~KvStore() = default;

absl::StatusOr<std::unique_ptr<KvStore>> KvStore::Create(const KvOptions& options,
                                                         const KvGeometry& geometry) {
  SPINDLE_RETURN_IF_ERROR(ValidateGeometry(geometry));
  const uint64_t stripe_bytes = geometry.stripe_bytes();
  const uint64_t num_stripes = options.host_bytes / stripe_bytes;
  if (num_stripes < kMinStripes || num_stripes >= kNoStripe) {
    return absl::InvalidArgumentError("--kv-host-bytes must be in " +
                                      std::to_string(kMinStripes * stripe_bytes) + ".." +
                                      std::to_string((kNoStripe - 1) * stripe_bytes) + ", got " +
                                      std::to_string(options.host_bytes));
  }
  SPINDLE_ASSIGN_OR_RETURN(SlabArena arena, SlabArena::Reserve(num_stripes * stripe_bytes));
  return std::unique_ptr<KvStore>(new KvStore(std::make_unique<Impl>(
      options, geometry, std::move(arena), static_cast<uint32_t>(num_stripes))));
}

const KvGeometry& KvStore::geometry() const {
  return impl_->geometry();
}

uint32_t KvStore::MatchPrefix(std::span<const Digest> keys) const {
  return impl_->MatchPrefix(keys);
}

// One tier has nothing to charge to a group yet.
SequenceId KvStore::Open(BudgetGroupId /*group*/,
                         std::span<const Digest> keys,
                         uint32_t num_shared,
                         PrefixUse use) {
  return impl_->Open(keys, num_shared, use);
}

absl::Status KvStore::Extend(SequenceId seq, uint32_t num_tokens) {
  return impl_->Extend(seq, num_tokens);
}

void KvStore::Commit(SequenceId seq, uint32_t num_tokens) {
  impl_->Commit(seq, num_tokens);
}

void KvStore::Seal(SequenceId seq,
                   uint32_t ordinal,
                   const Digest& key,
                   const ContentChecksum* checksum) {
  impl_->Seal(seq, ordinal, key, checksum);
}

SealedStripe KvStore::Sealed(SequenceId seq, uint32_t ordinal) const {
  return impl_->Sealed(seq, ordinal);
}

uint32_t KvStore::NumSealed(SequenceId seq) const {
  return std::as_const(*impl_).Get(seq).num_sealed;
}

uint32_t KvStore::NumPublished(SequenceId seq) const {
  return impl_->NumPublished(seq);
}

absl::StatusOr<SequenceId> KvStore::Fork(SequenceId seq) {
  return impl_->Fork(seq);
}

void KvStore::Close(SequenceId seq) {
  impl_->Close(seq);
}

SequenceView KvStore::View(SequenceId seq) const {
  const Sequence& sequence = std::as_const(*impl_).Get(seq);
  return {sequence.stripes, sequence.slots, impl_->generations(), sequence.num_tokens};
}

uint64_t KvStore::AvailableStripes() const {
  return impl_->AvailableStripes();
}

uint64_t KvStore::ResetPrefixCache() {
  return impl_->ResetPrefixCache();
}

KvStats KvStore::Stats() const {
  return impl_->Stats();
}

absl::Status KvStore::CheckIntegrity() const {
  return impl_->CheckIntegrity();
}

}  // namespace spindle::kv
