// Victim selection of every table against sorting by (stamp, distance from the hand).
#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernel_cases.h"
#include "kernels/registry.h"
#include "support/random_seed.h"

namespace spindle::kernels {
namespace {

struct Expected {
  std::vector<uint32_t> slots;
  uint32_t hand;
};

Expected BySorting(const VictimArgs& args) {
  std::vector<uint32_t> slots;
  for (uint32_t i = 0; i < args.num_slots; ++i) {
    const uint32_t slot = (i + args.hand) % args.num_slots;
    if (args.stamps[slot] != kLruPinned) {
      slots.push_back(slot);
    }
  }
  std::stable_sort(slots.begin(), slots.end(), [&](uint32_t a, uint32_t b) {
    return args.stamps[a] < args.stamps[b];
  });
  slots.resize(std::min<size_t>(args.num_wanted, slots.size()));
  const bool moves = !slots.empty() && args.stamps[slots.back()] != kLruFree;
  const uint32_t hand = moves ? slots.back() + 1 : args.hand;
  std::sort(slots.begin(), slots.end());
  return {slots, hand};
}

class LruTest : public testing::TestWithParam<Isa> {};

void ExpectSame(const KernelTable& table, const VictimArgs& args) {
  const Expected expected = BySorting(args);
  std::vector<uint32_t> out(args.num_wanted + 1, 0xDEADBEEF);
  const VictimResult result = table.select_victims(args, out.data());
  ASSERT_EQ(result.count, expected.slots.size());
  ASSERT_EQ(result.hand, expected.hand);
  ASSERT_TRUE(std::equal(expected.slots.begin(), expected.slots.end(), out.begin()));
  ASSERT_EQ(out[result.count], 0xDEADBEEF);
}

TEST_P(LruTest, VictimsAreTheOldestWithTiesFromTheHandOn) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(1)));
  const auto below = [&rng](uint32_t n) { return static_cast<uint32_t>(rng() % n); };
  for (const uint32_t num_slots : {1U, 7U, 63U, 64U, 65U, 127U, 128U, 192U, 200U, 768U, 1537U}) {
    for (uint32_t round = 0; round < 120; ++round) {
      const uint32_t max_stamp = round % 4 == 0 ? 64 : 1 + below(128);
      const uint32_t pinned_percent = below(4) == 0 ? 100 : below(60);
      const uint32_t spread = 1 + below(max_stamp + 1);  // narrow: many ties
      std::vector<uint8_t> stamps(num_slots);
      for (uint8_t& stamp : stamps) {
        stamp = below(100) < pinned_percent ? kLruPinned
                                            : static_cast<uint8_t>(max_stamp - below(spread));
      }
      const uint32_t wanted = below(3) == 0 ? below(num_slots + 3) : below(9);
      ExpectSame(*table,
                 {.stamps = stamps.data(),
                  .num_slots = num_slots,
                  .max_stamp = max_stamp,
                  .num_wanted = wanted,
                  .hand = below(num_slots + 1)});
    }
  }
}

TEST_P(LruTest, FreeSlotsComeFirstAndLeaveTheHand) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  const std::vector<uint8_t> stamps = {3, kLruFree, 1, kLruPinned, kLruFree, 2};
  VictimArgs args{
      .stamps = stamps.data(), .num_slots = 6, .max_stamp = 3, .num_wanted = 1, .hand = 2};
  uint32_t out[6];
  VictimResult result = table->select_victims(args, out);
  ASSERT_EQ(result.count, 1U);
  EXPECT_EQ(out[0], 4U);  // the first free one from the hand on
  EXPECT_EQ(result.hand, 2U);
  args.num_wanted = 3;
  result = table->select_victims(args, out);
  ASSERT_EQ(result.count, 3U);
  EXPECT_EQ(std::vector<uint32_t>(out, out + 3), (std::vector<uint32_t>{1, 2, 4}));
  EXPECT_EQ(result.hand, 3U);
}

// The hand behind the last slot starts over; only free slots and pinned ones.
TEST_P(LruTest, EndsOfTheRanges) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  for (const uint32_t num_slots : {64U, 65U, 768U}) {
    for (const uint32_t max_stamp : {0U, 1U, 254U}) {
      std::vector<uint8_t> stamps(num_slots, static_cast<uint8_t>(max_stamp));
      stamps[num_slots / 2] = kLruPinned;
      for (const uint32_t wanted : {0U, 1U, num_slots - 1, num_slots}) {
        for (const uint32_t hand : {0U, num_slots - 1, num_slots}) {
          ExpectSame(*table,
                     {.stamps = stamps.data(),
                      .num_slots = num_slots,
                      .max_stamp = max_stamp,
                      .num_wanted = wanted,
                      .hand = hand});
        }
      }
    }
  }
}

TEST_P(LruTest, EmptyGroup) {
  SPINDLE_TABLE_OR_SKIP(table, GetParam());
  const VictimResult result = table->select_victims(
      {.stamps = nullptr, .num_slots = 0, .max_stamp = 5, .num_wanted = 4, .hand = 0}, nullptr);
  EXPECT_EQ(result.count, 0U);
  EXPECT_EQ(result.hand, 0U);
}

INSTANTIATE_TEST_SUITE_P(Tables, LruTest, testing::ValuesIn(kAllIsas), IsaParamName);

}  // namespace
}  // namespace spindle::kernels
