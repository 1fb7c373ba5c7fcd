// The KV store against a naive model: maps, shared pointers and linear searches instead of slots,
// links and chained hashing. After every operation the counters agree and the store's own integrity
// check passes; contents and the whole prefix index are compared regularly.
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kv/kv_store.h"
#include "kv_test_util.h"
#include "support/random_seed.h"

namespace spindle::kv {
namespace {

constexpr KvGeometry kTiny{1, 2, 16, DType::kBF16};
constexpr uint32_t kMaxSequences = 7;
constexpr uint32_t kMaxStripesPerSequence = 9;

// A sealed stripe of the model.
struct ModelStripe {
  Digest key{};
  std::vector<uint64_t> tags;  // content of its 64 tokens
  std::shared_ptr<ModelStripe> parent;
  int refs = 0;
  int hits = 0;
};

using StripePtr = std::shared_ptr<ModelStripe>;

struct ModelSequence {
  SequenceId id;
  std::vector<TokenId> tokens;
  std::vector<uint64_t> tags;
  std::vector<Digest> keys;  // of the sealed stripes
  std::vector<StripePtr> sealed;
  uint32_t room_stripes = 0;
  bool publishes = true;
};

// The prefix cache as its contract describes it.
class ModelCache {
 public:
  explicit ModelCache(size_t capacity) : capacity_(capacity) {}

  [[nodiscard]] StripePtr Find(const Digest& key) const {
    const auto it = index_.find(key);
    return it == index_.end() ? nullptr : it->second;
  }

  void Publish(const StripePtr& stripe) { index_[stripe->key] = stripe; }

  void Pin(const StripePtr& stripe) {
    if (stripe->refs++ == 0) {
      std::erase(probation_, stripe);
      std::erase(protected_, stripe);
    }
  }

  // Returns whether the stripe became free.
  bool Unpin(const StripePtr& stripe) {
    if (--stripe->refs > 0) {
      return false;
    }
    if (Find(stripe->key) != stripe) {
      return true;
    }
    if (stripe->hits < 2) {
      probation_.push_back(stripe);
      return false;
    }
    protected_.push_back(stripe);
    if (protected_.size() > capacity_ * 4 / 5) {
      ++demotions_;
      probation_.push_back(protected_.front());
      protected_.erase(protected_.begin());
    }
    return false;
  }

  // The least recently used stripe without children, probation first.
  void Evict() {
    for (auto* list : {&probation_, &protected_}) {
      const auto leaf = std::find_if(
          list->begin(), list->end(), [this](const StripePtr& s) { return !HasChild(s); });
      if (leaf != list->end()) {
        index_.erase((*leaf)->key);
        list->erase(leaf);
        ++evictions_;
        return;
      }
    }
    FAIL() << "nothing to evict";
  }

  [[nodiscard]] size_t num_cached() const { return probation_.size() + protected_.size(); }

  [[nodiscard]] uint64_t evictions() const { return evictions_; }

  [[nodiscard]] uint64_t demotions() const { return demotions_; }

  [[nodiscard]] const std::map<Digest, StripePtr>& index() const { return index_; }

 private:
  [[nodiscard]] bool HasChild(const StripePtr& parent) const {
    return std::any_of(index_.begin(), index_.end(), [&parent](const auto& entry) {
      return entry.second->parent == parent;
    });
  }

  const size_t capacity_;
  std::map<Digest, StripePtr> index_;
  std::vector<StripePtr> probation_;  // oldest first
  std::vector<StripePtr> protected_;
  uint64_t evictions_ = 0;
  uint64_t demotions_ = 0;
};

class ModelTest {
 public:
  ModelTest(uint64_t seed, uint32_t capacity)
      : random_(seed), capacity_(capacity), store_(MakeStore(kTiny, capacity)), cache_(capacity) {}

  // Busy phases mix all operations over many sequences; calm ones run popular prompts to their end,
  // one at a time, so that the cache fills with protected stripes.
  void Step() {
    constexpr uint64_t kPhaseSteps = 1000;
    if (++steps_ / kPhaseSteps % 8 == 7) {
      CalmStep();
    } else {
      BusyStep();
    }
    CheckCounts();
  }

  void CheckEverything() {
    for (const ModelSequence& sequence : sequences_) {
      CheckContent(sequence);
    }
    for (const auto& [key, stripe] : cache_.index()) {
      std::vector<Digest> chain;
      for (StripePtr s = stripe; s != nullptr; s = s->parent) {
        chain.insert(chain.begin(), s->key);
      }
      ASSERT_EQ(store_->MatchPrefix(chain), chain.size());
    }
  }

  void Drain() {
    while (!sequences_.empty()) {
      CloseOne();
    }
    CheckCounts();
    EXPECT_EQ(store_->Stats().owned_stripes, 0U);
    store_->ResetPrefixCache();
    EXPECT_EQ(store_->Stats().free_stripes, capacity_);
    EXPECT_EQ(store_->Stats().prefix_entries, 0U);
  }

  struct Totals {
    uint64_t hits = 0;
    uint64_t exhausted = 0;
    uint64_t forks = 0;
  };

  [[nodiscard]] const Totals& totals() const { return totals_; }

  [[nodiscard]] KvStats stats() const { return store_->Stats(); }

  [[nodiscard]] uint64_t demotions() const { return cache_.demotions(); }

 private:
  void BusyStep() {
    const uint64_t dice = random_() % 100;
    if (sequences_.empty() || (dice < 14 && sequences_.size() < kMaxSequences)) {
      OpenOne(Prompt(), /*share_all=*/false);
    } else if (dice < 24) {
      CloseOne();
    } else if (dice < 29 && sequences_.size() < kMaxSequences) {
      ForkOne();
    } else if (dice < 30 && random_() % 20 == 0) {
      EXPECT_EQ(store_->ResetPrefixCache(), cache_.num_cached());
      EvictMany(cache_.num_cached());
    } else if (dice < 50) {
      ExtendOne(static_cast<uint32_t>(random_() % (kMaxStripesPerSequence * kStripeTokens)));
    } else if (dice < 75) {
      AppendToOne(1 + random_() % 100);
    } else {
      SealOne();
    }
  }

  void CalmStep() {
    while (!sequences_.empty()) {
      CloseOne();
    }
    const std::vector<TokenId> prompt(kStripeTokens * (1 + random_() % 6),
                                      static_cast<TokenId>(random_() % 4));
    OpenOne(prompt, /*share_all=*/true);
    ExtendOne(static_cast<uint32_t>(prompt.size()));
    AppendToOne(prompt.size());
    for (size_t i = 0; i < prompt.size() / kStripeTokens; ++i) {
      SealOne();
    }
    CloseOne();
  }

  // Prompts form a small tree, so that prefixes meet again and again.
  std::vector<TokenId> Prompt() {
    std::vector<TokenId> tokens;
    const size_t num_stripes = 1 + random_() % 6;
    auto branch = static_cast<TokenId>(random_() % 3);
    for (size_t stripe = 0; stripe < num_stripes; ++stripe) {
      if (random_() % 4 == 0) {
        branch = 10 * branch + 1 + static_cast<TokenId>(random_() % 2);
      }
      tokens.insert(tokens.end(), kStripeTokens, branch);
    }
    return tokens;
  }

  ModelSequence& Pick() { return sequences_[random_() % sequences_.size()]; }

  [[nodiscard]] uint32_t NumFree() const {
    std::vector<const ModelStripe*> owned;
    size_t open = 0;
    for (const ModelSequence& sequence : sequences_) {
      open += sequence.room_stripes - sequence.sealed.size();
      for (const StripePtr& stripe : sequence.sealed) {
        owned.push_back(stripe.get());
      }
    }
    std::sort(owned.begin(), owned.end());
    owned.erase(std::unique(owned.begin(), owned.end()), owned.end());
    return static_cast<uint32_t>(capacity_ - open - owned.size() - cache_.num_cached());
  }

  void EvictMany(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      cache_.Evict();
    }
  }

  // Whether the model can hand out stripes; evicts what that takes.
  bool Take(uint32_t count) {
    const uint32_t num_free = NumFree();
    if (count > num_free + cache_.num_cached()) {
      ++totals_.exhausted;
      return false;
    }
    EvictMany(count > num_free ? count - num_free : 0);
    return true;
  }

  void OpenOne(const std::vector<TokenId>& prompt, bool share_all) {
    ModelSequence sequence;
    const std::vector<Digest> keys = StripeKeys(root_, prompt);
    uint32_t expected = 0;
    while (expected < keys.size() && cache_.Find(keys[expected]) != nullptr) {
      ++expected;
    }
    ASSERT_EQ(store_->MatchPrefix(keys), expected);
    const uint32_t shared =
        share_all ? expected : static_cast<uint32_t>(random_() % (expected + 1));
    sequence.id = store_->Open(BudgetGroupId(1), keys, shared);
    for (uint32_t i = 0; i < shared; ++i) {
      const StripePtr stripe = cache_.Find(keys[i]);
      cache_.Pin(stripe);
      ++stripe->hits;
      sequence.sealed.push_back(stripe);
      sequence.tags.insert(sequence.tags.end(), stripe->tags.begin(), stripe->tags.end());
    }
    sequence.room_stripes = shared;
    sequence.tokens = prompt;
    sequence.keys.assign(keys.begin(), keys.begin() + shared);
    totals_.hits += shared;
    sequences_.push_back(std::move(sequence));
  }

  void ExtendOne(uint32_t num_tokens) {
    ModelSequence& sequence = Pick();
    const uint32_t stripes = KvStore::StripesFor(num_tokens);
    const bool fits = stripes <= sequence.room_stripes || Take(stripes - sequence.room_stripes);
    const absl::Status status = store_->Extend(sequence.id, num_tokens);
    ASSERT_EQ(status.ok(), fits) << status;
    if (fits) {
      sequence.room_stripes = std::max(sequence.room_stripes, stripes);
    } else {
      ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    }
  }

  void AppendToOne(uint64_t max_tokens) {
    ModelSequence& sequence = Pick();
    const auto room = sequence.room_stripes * kStripeTokens - sequence.tags.size();
    const uint64_t count = std::min<uint64_t>(room, max_tokens);
    // Some kernel computes other bits now and then; that must never be shared under the same key.
    const uint64_t deviation = random_() % 25 == 0 ? random_() : 0;
    for (uint64_t i = 0; i < count; ++i) {
      const size_t position = sequence.tags.size();
      if (position == sequence.tokens.size()) {
        sequence.tokens.push_back(static_cast<TokenId>(random_() % 1000 == 0 ? 1 : 2));
      }
      const uint64_t before = position == 0 ? 0 : sequence.tags.back();
      const auto token = static_cast<uint64_t>(sequence.tokens[position]);
      sequence.tags.push_back(Mix(before ^ (token << 1)) + deviation);
      WriteToken(*store_, sequence.id, static_cast<uint32_t>(position), sequence.tags[position]);
    }
    store_->Commit(sequence.id, static_cast<uint32_t>(sequence.tags.size()));
  }

  void SealOne() {
    ModelSequence& sequence = Pick();
    const size_t ordinal = sequence.sealed.size();
    if ((ordinal + 1) * kStripeTokens > sequence.tags.size()) {
      return;
    }
    const auto tokens =
        std::span<const TokenId>(sequence.tokens).subspan(ordinal * kStripeTokens, kStripeTokens);
    const Digest key =
        NextStripeKey(ordinal == 0 ? root_ : sequence.keys.back(), kDenseMethod, tokens);
    auto stripe = std::make_shared<ModelStripe>();
    stripe->key = key;
    stripe->tags.assign(
        sequence.tags.begin() + static_cast<ptrdiff_t>(ordinal * kStripeTokens),
        sequence.tags.begin() + static_cast<ptrdiff_t>((ordinal + 1) * kStripeTokens));
    stripe->refs = 1;
    sequence.keys.push_back(key);
    if (sequence.publishes) {
      const StripePtr existing = cache_.Find(key);
      if (existing == nullptr) {
        stripe->parent = ordinal == 0 ? nullptr : sequence.sealed.back();
        cache_.Publish(stripe);
      } else if (existing->tags == stripe->tags) {
        cache_.Pin(existing);
        stripe = existing;
      } else {
        sequence.publishes = false;
      }
    }
    sequence.sealed.push_back(stripe);
    store_->Seal(sequence.id, static_cast<uint32_t>(ordinal), key);
    ASSERT_EQ(store_->NumSealed(sequence.id), ordinal + 1);
  }

  void ForkOne() {
    ModelSequence child = Pick();
    const auto used = KvStore::StripesFor(child.tags.size());
    const auto shared = static_cast<uint32_t>(child.sealed.size());
    const bool fits = Take(used - shared);
    const auto id = store_->Fork(child.id);
    ASSERT_EQ(id.ok(), fits) << id.status();
    if (!fits) {
      return;
    }
    child.id = *id;
    child.room_stripes = used;
    for (const StripePtr& stripe : child.sealed) {
      cache_.Pin(stripe);
    }
    ++totals_.forks;
    sequences_.push_back(std::move(child));
  }

  void CloseOne() {
    const size_t index = random_() % sequences_.size();
    ModelSequence sequence = std::move(sequences_[index]);
    CheckContent(sequence);
    sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(index));
    for (size_t i = sequence.sealed.size(); i-- > 0;) {
      cache_.Unpin(sequence.sealed[i]);
    }
    store_->Close(sequence.id);
  }

  void CheckContent(const ModelSequence& sequence) {
    ASSERT_EQ(store_->View(sequence.id).num_tokens, sequence.tags.size());
    ASSERT_EQ(store_->View(sequence.id).stripes.size(), sequence.room_stripes);
    for (uint32_t p = 0; p < sequence.tags.size(); ++p) {
      ASSERT_TRUE(TokenIs(*store_, sequence.id, p, sequence.tags[p])) << "position " << p;
    }
  }

  void CheckCounts() {
    const absl::Status integrity = store_->CheckIntegrity();
    ASSERT_TRUE(integrity.ok()) << integrity;
    const KvStats stats = store_->Stats();
    ASSERT_EQ(stats.free_stripes, NumFree());
    ASSERT_EQ(stats.cached_stripes, cache_.num_cached());
    ASSERT_EQ(stats.prefix_entries, cache_.index().size());
    ASSERT_EQ(stats.prefix_evictions, cache_.evictions());
    ASSERT_EQ(store_->AvailableStripes(), stats.free_stripes + stats.cached_stripes);
  }

  std::mt19937_64 random_;
  uint64_t steps_ = 0;
  const uint32_t capacity_;
  const Digest root_ = RootKey(PrefixRoot());
  std::unique_ptr<KvStore> store_;
  ModelCache cache_;
  std::vector<ModelSequence> sequences_;
  Totals totals_;
};

class KvStoreModelTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(KvStoreModelTest, RandomOperationsAgreeWithTheModel) {
  constexpr uint32_t kOperations = 200'000;
  ModelTest model(test::RandomSeed(20262), GetParam());
  for (uint32_t i = 0; i < kOperations; ++i) {
    model.Step();
    if (i % 256 == 0) {
      model.CheckEverything();
    }
    if (HasFailure()) {
      FAIL() << "operation " << i;
    }
  }
  // The run has to reach what it is meant to test.
  EXPECT_GT(model.totals().hits, 1000U);
  EXPECT_GT(model.totals().exhausted, 1000U);
  EXPECT_GT(model.totals().forks, 1000U);
  EXPECT_GT(model.demotions(), 100U);
  EXPECT_GT(model.stats().prefix_evictions, 1000U);
  EXPECT_GT(model.stats().adopted_stripes, 100U);
  EXPECT_GT(model.stats().seal_conflicts, 20U);
  std::cout << "hits " << model.totals().hits << ", exhausted " << model.totals().exhausted
            << ", forks " << model.totals().forks << ", demotions " << model.demotions()
            << ", evictions " << model.stats().prefix_evictions << ", adopted "
            << model.stats().adopted_stripes << ", conflicts " << model.stats().seal_conflicts
            << '\n';
  model.Drain();
}

// Stripes: a store where everything fights for room, and one where prefixes live for a while.
INSTANTIATE_TEST_SUITE_P(Capacities, KvStoreModelTest, ::testing::Values(7, 24));

}  // namespace
}  // namespace spindle::kv
