#include "kv/kv_store.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_test_util.h"
#include "support/allocation_counter.h"

namespace spindle::kv {
namespace {

using ::testing::HasSubstr;

constexpr KvGeometry kSmall{2, 3, 16, DType::kBF16};

Digest Root(std::string_view salt = "") {
  PrefixRoot root;
  root.model_fingerprint = "model";
  root.salt = salt;
  return RootKey(root);
}

std::vector<TokenId> Tokens(size_t num_stripes, TokenId first) {
  std::vector<TokenId> tokens(num_stripes * kStripeTokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = first + static_cast<TokenId>(i);
  }
  return tokens;
}

std::vector<Digest> Keys(size_t num_stripes, TokenId first, std::string_view salt = "") {
  return StripeKeys(Root(salt), Tokens(num_stripes, first));
}

// Opens a sequence on what is cached of `keys`, computes the rest and seals it. The content of a
// position depends on the key chain, or also on `deviation`.
SequenceId Compute(KvStore& store, const std::vector<Digest>& keys, uint64_t deviation = 0) {
  const SequenceId seq = store.Open(BudgetGroupId(1), keys, store.MatchPrefix(keys));
  const auto num_tokens = static_cast<uint32_t>(keys.size() * kStripeTokens);
  EXPECT_TRUE(store.Extend(seq, num_tokens).ok());
  for (uint32_t p = store.View(seq).num_tokens; p < num_tokens; ++p) {
    WriteToken(store, seq, p, keys[p / kStripeTokens][0] + 1000 * p + deviation);
  }
  store.Commit(seq, num_tokens);
  for (uint32_t i = store.NumSealed(seq); i < keys.size(); ++i) {
    store.Seal(seq, i, keys[i]);
  }
  return seq;
}

void ComputeAndClose(KvStore& store, const std::vector<Digest>& keys) {
  store.Close(Compute(store, keys));
}

void ExpectIntegrity(const KvStore& store) {
  const absl::Status status = store.CheckIntegrity();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(KvStoreTest, TooSmallBudgetIsRefusedWithItsRange) {
  const auto store = KvStore::Create({.host_bytes = 2 * kSmall.stripe_bytes() - 1}, kSmall);
  ASSERT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("--kv-host-bytes must be in "));
}

TEST(KvStoreTest, WrongGeometryIsRefused) {
  const auto store = KvStore::Create({.host_bytes = 1 << 30}, {2, 3, 65, DType::kBF16});
  EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(KvStoreTest, AddressSpaceBeyondTheMachineIsRefused) {
  const auto store =
      KvStore::Create({.host_bytes = uint64_t{1} << 60}, {4096, 4096, 1024, DType::kF32});
  EXPECT_EQ(store.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(KvStoreTest, StripesForRoundsUp) {
  EXPECT_EQ(KvStore::StripesFor(0), 0U);
  EXPECT_EQ(KvStore::StripesFor(1), 1U);
  EXPECT_EQ(KvStore::StripesFor(64), 1U);
  EXPECT_EQ(KvStore::StripesFor(65), 2U);
}

TEST(KvStoreTest, MemoryIsCommittedInSlabsAndZeroed) {
  const KvGeometry geometry{16, 8, 128, DType::kBF16};  // 4 MiB per stripe
  const auto store = MakeStore(geometry, 40);
  EXPECT_EQ(store->Stats().committed_bytes, 0U);
  const SequenceId seq = store->Open(BudgetGroupId(1), {}, 0);
  ASSERT_TRUE(store->Extend(seq, 1).ok());
  EXPECT_EQ(store->Stats().committed_bytes, uint64_t{64} << 20);
  ASSERT_TRUE(store->Extend(seq, 17 * kStripeTokens).ok());
  EXPECT_EQ(store->Stats().committed_bytes, uint64_t{128} << 20);
  const uint8_t* last = store->View(seq).stripes[16];
  EXPECT_TRUE(std::all_of(last, last + geometry.stripe_bytes(), [](uint8_t b) { return b == 0; }));
  ASSERT_TRUE(store->Extend(seq, 40 * kStripeTokens).ok());
  EXPECT_EQ(store->Stats().committed_bytes, uint64_t{160} << 20);  // the budget, not a slab more
  store->Close(seq);
}

TEST(KvStoreTest, StripesAreAlignedDisjointAndInOrder) {
  const auto store = MakeStore(kSmall, 12);
  const SequenceId a = store->Open(BudgetGroupId(1), {}, 0);
  const SequenceId b = store->Open(BudgetGroupId(2), {}, 0);
  ASSERT_TRUE(store->Extend(a, 6 * kStripeTokens).ok());
  ASSERT_TRUE(store->Extend(b, 6 * kStripeTokens).ok());
  std::set<uintptr_t> bases;
  for (const SequenceId seq : {a, b}) {
    for (const uint8_t* stripe : store->View(seq).stripes) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(stripe) % 4096, 0U);
      bases.insert(reinterpret_cast<uintptr_t>(stripe));
    }
  }
  EXPECT_EQ(bases.size(), 12U);
  for (auto it = bases.begin(); std::next(it) != bases.end(); ++it) {
    EXPECT_GE(*std::next(it) - *it, kSmall.stripe_bytes());
  }
}

TEST(KvStoreTest, ExhaustionChangesNothing) {
  const auto store = MakeStore(kSmall, 8);
  const SequenceId a = store->Open(BudgetGroupId(1), {}, 0);
  const SequenceId b = store->Open(BudgetGroupId(1), {}, 0);
  ASSERT_TRUE(store->Extend(a, 5 * kStripeTokens).ok());
  const absl::Status status = store->Extend(b, 4 * kStripeTokens);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store->View(b).stripes.size(), 0U);
  EXPECT_EQ(store->AvailableStripes(), 3U);
  EXPECT_TRUE(store->Extend(b, 3 * kStripeTokens).ok());
  EXPECT_TRUE(store->Extend(b, 3 * kStripeTokens).ok());  // room already there
  ExpectIntegrity(*store);
}

TEST(KvStoreTest, ExhaustionEvictsNothing) {
  const auto store = MakeStore(kSmall, 8);
  const auto cached = Keys(3, 100);
  ComputeAndClose(*store, cached);
  const SequenceId seq = store->Open(BudgetGroupId(1), {}, 0);
  EXPECT_FALSE(store->Extend(seq, 9 * kStripeTokens).ok());
  EXPECT_EQ(store->MatchPrefix(cached), 3U);
  EXPECT_TRUE(store->Extend(seq, 8 * kStripeTokens).ok());
  EXPECT_EQ(store->MatchPrefix(cached), 0U);
  EXPECT_EQ(store->Stats().prefix_evictions, 3U);
}

TEST(KvStorePrefixTest, ALaterSequenceSharesSealedStripes) {
  const auto store = MakeStore(kSmall, 8);
  const auto keys = Keys(3, 100);
  const SequenceId first = Compute(*store, keys);
  EXPECT_EQ(store->MatchPrefix(keys), 3U);  // while the first still runs
  const SequenceId second = store->Open(BudgetGroupId(2), keys, 2);
  EXPECT_EQ(store->View(second).num_tokens, 128U);
  EXPECT_EQ(store->NumSealed(second), 2U);
  EXPECT_EQ(store->View(second).stripes[1], store->View(first).stripes[1]);
  EXPECT_EQ(store->Stats().owned_stripes, 3U);
  store->Close(first);
  EXPECT_EQ(store->Stats().owned_stripes, 2U);
  EXPECT_EQ(store->Stats().cached_stripes, 1U);
  store->Close(second);
  EXPECT_EQ(store->Stats().cached_stripes, 3U);
  ExpectIntegrity(*store);
}

TEST(KvStorePrefixTest, MatchStopsAtTheFirstUnknownStripe) {
  const auto store = MakeStore(kSmall, 8);
  auto tokens = Tokens(4, 100);
  ComputeAndClose(*store, StripeKeys(Root(), tokens));
  tokens[2 * kStripeTokens + 5] = 7;
  EXPECT_EQ(store->MatchPrefix(StripeKeys(Root(), tokens)), 2U);
  tokens[0] = 7;
  EXPECT_EQ(store->MatchPrefix(StripeKeys(Root(), tokens)), 0U);
}

TEST(KvStorePrefixTest, SaltsSeparate) {
  const auto store = MakeStore(kSmall, 8);
  ComputeAndClose(*store, Keys(2, 100, "tenant a"));
  EXPECT_EQ(store->MatchPrefix(Keys(2, 100, "tenant a")), 2U);
  EXPECT_EQ(store->MatchPrefix(Keys(2, 100, "tenant b")), 0U);
  EXPECT_EQ(store->MatchPrefix(Keys(2, 100)), 0U);
}

TEST(KvStorePrefixTest, EmptySlotsAreUsedBeforeEviction) {
  const auto store = MakeStore(kSmall, 6);
  ComputeAndClose(*store, Keys(3, 100));
  const SequenceId seq = store->Open(BudgetGroupId(1), {}, 0);
  ASSERT_TRUE(store->Extend(seq, 3 * kStripeTokens).ok());
  EXPECT_EQ(store->MatchPrefix(Keys(3, 100)), 3U);
  EXPECT_EQ(store->Stats().prefix_evictions, 0U);
}

TEST(KvStorePrefixTest, LeastRecentlyUsedGoesFirstAndTailsBeforeHeads) {
  const auto store = MakeStore(kSmall, 6);
  const auto older = Keys(3, 100);
  const auto newer = Keys(3, 900);
  ComputeAndClose(*store, older);
  ComputeAndClose(*store, newer);
  const SequenceId seq = store->Open(BudgetGroupId(1), {}, 0);
  for (uint32_t taken = 1; taken <= 6; ++taken) {
    ASSERT_TRUE(store->Extend(seq, taken * kStripeTokens).ok());
    EXPECT_EQ(store->MatchPrefix(older), taken < 3 ? 3 - taken : 0);
    EXPECT_EQ(store->MatchPrefix(newer), taken <= 3 ? 3 : 6 - taken);
    ExpectIntegrity(*store);
  }
}

TEST(KvStorePrefixTest, UseRefreshes) {
  const auto store = MakeStore(kSmall, 4);
  const auto first = Keys(2, 100);
  const auto second = Keys(2, 900);
  ComputeAndClose(*store, first);
  ComputeAndClose(*store, second);
  ComputeAndClose(*store, first);  // a hit on both stripes
  const SequenceId seq = store->Open(BudgetGroupId(1), {}, 0);
  ASSERT_TRUE(store->Extend(seq, 2 * kStripeTokens).ok());
  EXPECT_EQ(store->MatchPrefix(first), 2U);
  EXPECT_EQ(store->MatchPrefix(second), 0U);
}

TEST(KvStorePrefixTest, MatchPrefixDoesNotRefresh) {
  const auto store = MakeStore(kSmall, 4);
  ComputeAndClose(*store, Keys(2, 100));
  ComputeAndClose(*store, Keys(2, 900));
  EXPECT_EQ(store->MatchPrefix(Keys(2, 100)), 2U);
  const SequenceId seq = store->Open(BudgetGroupId(1), {}, 0);
  ASSERT_TRUE(store->Extend(seq, 2 * kStripeTokens).ok());
  EXPECT_EQ(store->MatchPrefix(Keys(2, 100)), 0U);
}

TEST(KvStorePrefixTest, TwiceHitStripesSurviveAScanOfOneTimePrompts) {
  const auto store = MakeStore(kSmall, 10);
  const auto popular = Keys(2, 100);
  for (int use = 0; use < 3; ++use) {
    ComputeAndClose(*store, popular);
  }
  for (TokenId scan = 0; scan < 20; ++scan) {
    ComputeAndClose(*store, Keys(4, 1000 * (scan + 1)));
  }
  EXPECT_EQ(store->MatchPrefix(popular), 2U);
  EXPECT_GT(store->Stats().prefix_evictions, 50U);
  ExpectIntegrity(*store);
}

TEST(KvStorePrefixTest, ProtectedStripesCannotFillTheWholeStore) {
  const auto store = MakeStore(kSmall, 10);
  for (int use = 0; use < 3; ++use) {
    ComputeAndClose(*store, Keys(10, 100));
    ExpectIntegrity(*store);
  }
  // Eight may stay protected; the two oldest, the tail, fall back to probation and go first.
  ComputeAndClose(*store, Keys(1, 9000));
  ComputeAndClose(*store, Keys(1, 8000));
  EXPECT_EQ(store->MatchPrefix(Keys(10, 100)), 8U);
}

TEST(KvStorePrefixTest, PinnedStripesAreNotEvicted) {
  const auto store = MakeStore(kSmall, 6);
  const auto pinned = Keys(2, 100);
  ComputeAndClose(*store, pinned);
  const SequenceId holder = store->Open(BudgetGroupId(1), pinned, 2);
  ComputeAndClose(*store, Keys(4, 900));
  const SequenceId seq = store->Open(BudgetGroupId(1), {}, 0);
  EXPECT_FALSE(store->Extend(seq, 5 * kStripeTokens).ok());
  ASSERT_TRUE(store->Extend(seq, 4 * kStripeTokens).ok());
  EXPECT_EQ(store->MatchPrefix(pinned), 2U);
  EXPECT_EQ(store->ResetPrefixCache(), 0U);
  store->Close(holder);
  EXPECT_EQ(store->ResetPrefixCache(), 2U);
  EXPECT_EQ(store->MatchPrefix(pinned), 0U);
}

TEST(KvStorePrefixTest, EqualStripesAreAdoptedAtSeal) {
  const auto store = MakeStore(kSmall, 8);
  const auto keys = Keys(2, 100);
  // Both start before either seals.
  const SequenceId a = store->Open(BudgetGroupId(1), keys, 0);
  const SequenceId b = store->Open(BudgetGroupId(2), keys, 0);
  for (const SequenceId seq : {a, b}) {
    ASSERT_TRUE(store->Extend(seq, 128).ok());
    for (uint32_t p = 0; p < 128; ++p) {
      WriteToken(*store, seq, p, p);
    }
    store->Commit(seq, 128);
  }
  EXPECT_EQ(store->Stats().owned_stripes, 4U);
  for (uint32_t i = 0; i < 2; ++i) {
    store->Seal(a, i, keys[i]);
    store->Seal(b, i, keys[i]);
  }
  EXPECT_EQ(store->View(a).stripes[1], store->View(b).stripes[1]);
  EXPECT_EQ(store->Stats().owned_stripes, 2U);
  EXPECT_EQ(store->Stats().adopted_stripes, 2U);
  EXPECT_TRUE(TokenIs(*store, b, 100, 100));
  ExpectIntegrity(*store);
}

TEST(KvStorePrefixTest, EqualKeyWithOtherContentStaysPrivate) {
  const auto store = MakeStore(kSmall, 12);
  const auto keys = Keys(3, 100);
  const SequenceId a = store->Open(BudgetGroupId(1), keys, 0);
  const SequenceId b = store->Open(BudgetGroupId(2), keys, 0);
  for (const SequenceId seq : {a, b}) {
    ASSERT_TRUE(store->Extend(seq, 192).ok());
    for (uint32_t p = 0; p < 192; ++p) {
      const bool differs = seq == b && p == 70;  // in the second stripe
      WriteToken(*store, seq, p, differs ? 1'000'000 : p);
    }
    store->Commit(seq, 192);
    for (uint32_t i = 0; i < 3; ++i) {
      if (seq == b || i < 2) {
        store->Seal(seq, i, keys[i]);
      }
    }
  }
  EXPECT_EQ(store->View(a).stripes[0], store->View(b).stripes[0]);
  EXPECT_NE(store->View(a).stripes[1], store->View(b).stripes[1]);
  EXPECT_EQ(store->Stats().seal_conflicts, 1U);
  // The third stripe of b rests on its private second one, so it must not be found under the key.
  EXPECT_EQ(store->MatchPrefix(keys), 2U);
  EXPECT_EQ(store->NumPublished(a), 2U);
  EXPECT_EQ(store->NumPublished(b), 1U);
  EXPECT_TRUE(TokenIs(*store, b, 70, 1'000'000));
  EXPECT_TRUE(TokenIs(*store, a, 70, 70));
  ExpectIntegrity(*store);
  store->Close(b);
  EXPECT_EQ(store->Stats().cached_stripes, 0U);
  ExpectIntegrity(*store);
}

TEST(KvStorePrefixTest, WithoutTheCacheNothingIsKept) {
  const auto store = MakeStore(kSmall, 8, /*prefix_cache=*/false);
  const auto keys = Keys(2, 100);
  const SequenceId seq = Compute(*store, keys);
  EXPECT_EQ(store->NumSealed(seq), 2U);
  EXPECT_EQ(store->MatchPrefix(keys), 0U);
  store->Close(seq);
  EXPECT_EQ(store->Stats().free_stripes, 8U);
  ExpectIntegrity(*store);
}

TEST(KvStoreForkTest, SharesSealedAndCopiesOpenStripes) {
  const auto store = MakeStore(kSmall, 8);
  const auto keys = Keys(2, 100);
  const SequenceId parent = Compute(*store, keys);
  ASSERT_TRUE(store->Extend(parent, 200).ok());
  for (uint32_t p = 128; p < 170; ++p) {
    WriteToken(*store, parent, p, p);
  }
  store->Commit(parent, 170);
  const auto child = store->Fork(parent);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(store->View(*child).num_tokens, 170U);
  EXPECT_EQ(store->NumSealed(*child), 2U);
  EXPECT_EQ(store->View(*child).stripes[1], store->View(parent).stripes[1]);
  EXPECT_NE(store->View(*child).stripes[2], store->View(parent).stripes[2]);
  ASSERT_TRUE(store->Extend(*child, 171).ok());
  WriteToken(*store, *child, 169, 5);
  for (uint32_t p = 128; p < 169; ++p) {
    EXPECT_TRUE(TokenIs(*store, *child, p, p));
  }
  EXPECT_TRUE(TokenIs(*store, parent, 169, 169));
  store->Close(parent);
  EXPECT_TRUE(TokenIs(*store, *child, 130, 130));
  ExpectIntegrity(*store);
}

TEST(KvStoreForkTest, ExhaustionChangesNothing) {
  const auto store = MakeStore(kSmall, 3);
  const SequenceId parent = store->Open(BudgetGroupId(1), {}, 0);
  ASSERT_TRUE(store->Extend(parent, 128).ok());
  store->Commit(parent, 128);
  EXPECT_EQ(store->Fork(parent).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store->Stats().owned_stripes, 2U);
  ExpectIntegrity(*store);
}

TEST(KvStoreTest, SequenceIdsAreNeverReused) {
  const auto store = MakeStore(kSmall, 4);
  std::set<uint64_t> ids;
  for (int i = 0; i < 100; ++i) {
    const SequenceId seq = store->Open(BudgetGroupId(1), {}, 0);
    EXPECT_TRUE(ids.insert(seq.value()).second);
    store->Close(seq);
  }
}

TEST(KvStoreDeathTest, UseAfterCloseIsCaught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto store = MakeStore(kSmall, 4);
  const SequenceId seq = store->Open(BudgetGroupId(1), {}, 0);
  store->Close(seq);
  const SequenceId next = store->Open(BudgetGroupId(1), {}, 0);
  EXPECT_NE(seq, next);
  EXPECT_DEATH(store->Commit(seq, 0), "");
  EXPECT_DEATH(store->Close(seq), "");
}

TEST(KvStoreTest, SteadyStateAllocatesNothing) {
  const auto store = MakeStore(kSmall, 16);
  std::vector<std::vector<Digest>> prompts;
  for (TokenId i = 0; i < 12; ++i) {
    prompts.push_back(Keys(5, 1000 * i));
  }
  const SequenceId warm_a = store->Open(BudgetGroupId(1), {}, 0);
  const SequenceId warm_b = store->Open(BudgetGroupId(1), {}, 0);
  store->Close(warm_a);
  store->Close(warm_b);
  const uint64_t before = test::AllocationCount();
  for (const auto& keys : prompts) {
    const SequenceId seq = Compute(*store, keys);
    const auto child = store->Fork(seq);
    store->Close(seq);
    store->Close(*child);
  }
  EXPECT_EQ(test::AllocationCount(), before);
  EXPECT_GT(store->Stats().prefix_evictions, 0U);
}

TEST(KvStoreTest, StatsMayBeReadFromAnyThreadAndAddUp) {
  const auto store = MakeStore(kSmall, 16);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> reads{0};
  std::thread scraper([&] {
    while (!stop.load()) {
      const KvStats stats = store->Stats();
      EXPECT_EQ(stats.free_stripes + stats.cached_stripes + stats.owned_stripes, 16U);
      EXPECT_LE(stats.free_stripes, 16U);
      ++reads;
    }
  });
  for (TokenId i = 0; i < 200 || reads.load() < 100; ++i) {
    ComputeAndClose(*store, Keys(3, 1000 * (i % 50)));
  }
  stop = true;
  scraper.join();
  ExpectIntegrity(*store);
}

}  // namespace
}  // namespace spindle::kv
