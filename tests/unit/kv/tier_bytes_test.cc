// What the tiers' bookkeeping takes stays within what is promised, and the promise is no more than
// a few times of it.
#include "kv/tier_bytes.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "kv/disk/disk_index.h"
#include "kv/session_book.h"
#include "kv_test_util.h"
#include "support/allocation_counter.h"

namespace spindle::kv {
namespace {

using ::spindle::test::AllocatedBytes;

constexpr KvGeometry kGeometry = {
    .num_layers = 2, .num_kv_heads = 1, .head_dim = 16, .type = DType::kBF16};
constexpr uint32_t kContextTokens = 8192;

disk::DiskOptions DiskOf(uint64_t capacity_bytes) {
  disk::DiskOptions options;
  options.capacity_bytes = capacity_bytes;
  return options;
}

DiskTierBytes BytesOf(const DiskTierOptions& tier, const disk::DiskOptions& disk) {
  return DiskTierBytesOf(tier, disk, kGeometry, uint64_t{64} << 20, kContextTokens);
}

TEST(TierBytesTest, AFullHostTier) {
  constexpr uint32_t kStripes = 1024;
  const uint64_t before = AllocatedBytes();
  const std::unique_ptr<KvStore> store = MakeStore(kGeometry, kStripes);
  const SequenceId sequence = store->Open(BudgetGroupId(), {}, 0);
  ASSERT_TRUE(store->Extend(sequence, kStripes * kStripeTokens).ok());
  store->Commit(sequence, kStripes * kStripeTokens);
  for (uint32_t i = 0; i < kStripes; ++i) {
    store->Seal(sequence, i, Sha256().Number(i).Finish());
  }
  const uint64_t taken = AllocatedBytes() - before;
  store->Close(sequence);
  const uint64_t promised = HostIndexBytes(kGeometry, kStripes * kGeometry.stripe_bytes());
  EXPECT_LE(taken, promised);
  EXPECT_LE(promised, 4 * taken);
}

TEST(TierBytesTest, AsManySessionsAsTheBookHolds) {
  constexpr uint32_t kSessions = 512;
  SessionBook book;
  const uint64_t before = AllocatedBytes();
  for (uint32_t i = 0; i < kSessions; ++i) {
    disk::SessionManifest manifest{.id = std::to_string(i), .tenant = std::string(64, 't')};
    manifest.id.resize(128, 'x');
    manifest.tokens.resize(kContextTokens - 1, TokenId(1));
    manifest.stripe_keys.resize((kContextTokens - 1) / kStripeTokens);
    for (Digest& key : manifest.stripe_keys) {
      key.fill(static_cast<uint8_t>(i));
    }
    manifest.tail_sub_id = i + 1;
    book.Add(MakeSession(std::move(manifest)));
  }
  const uint64_t taken = AllocatedBytes() - before;
  // No more than the book's part: no manifests on their way, no retained stripes.
  const uint64_t promised =
      BytesOf({.sessions = {.max_sessions = kSessions, .max_pending = 0}}, DiskOf(0)).sessions;
  EXPECT_LE(taken, promised);
  EXPECT_LE(promised, 2 * taken);
}

TEST(TierBytesTest, AFullIndexOfTheDisk) {
  constexpr uint32_t kRecords = 100'000;
  const uint64_t before = AllocatedBytes();
  disk::DiskIndex index;
  for (uint32_t i = 0; i < kRecords; ++i) {
    index.Put({.id = {Sha256().Number(i).Finish(), disk::RecordKind::kStripe, 0}, .segment = 1},
              /*durable=*/true);
  }
  const uint64_t taken = AllocatedBytes() - before;
  const uint64_t promised =
      BytesOf({}, DiskOf(uint64_t{kRecords} * kGeometry.stripe_bytes())).index;
  EXPECT_LE(taken, promised);
  EXPECT_LE(promised, 4 * taken);
}

TEST(TierBytesTest, EveryBoundCounts) {
  const disk::DiskOptions disk = DiskOf(uint64_t{1} << 30);
  disk::DiskOptions more = disk;
  more.max_loads *= 2;
  EXPECT_GT(BytesOf({}, more).transfers, BytesOf({}, disk).transfers);
  more = disk;
  more.max_stores *= 2;
  EXPECT_GT(BytesOf({}, more).transfers, BytesOf({}, disk).transfers);
  const uint64_t sessions = BytesOf({}, disk).sessions;
  EXPECT_GT(BytesOf({.sessions = {.max_sessions = 8192}}, disk).sessions, sessions);
  EXPECT_GT(BytesOf({.sessions = {.max_pending = 128}}, disk).sessions, sessions);
  EXPECT_GT(BytesOf({.sessions = {.max_share = 1.0}}, disk).sessions, sessions);
}

}  // namespace
}  // namespace spindle::kv
