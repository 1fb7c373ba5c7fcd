#include "kv/fast/budget.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "support/random_seed.h"

namespace spindle::kv {
namespace {

struct BoundsRow {
  const char* name;
  BudgetNeed need;
  uint32_t floor;
  uint32_t target;
  uint32_t ceiling;
};

TEST(BudgetTest, BoundsTable) {
  const BoundsRow rows[] = {
      {"14B at 64K: k 128", {128, 5, 8192}, 256, 768, 1152},
      {"SmolLM2 at 8K: k 32", {32, 5, 512}, 64, 192, 288},
      {"whole runs", {35, 5, 512}, 72, 216, 320},  // 70, 210, 315 pages
      {"ratio 0: mandatory only", {32, 0, 512}, 32, 32, 288},
      {"ratio 0.5", {32, 0.5, 512}, 48, 48, 288},
      {"ratio 9 beyond the usual ceiling", {32, 9, 512}, 64, 320, 320},
      {"short context", {32, 5, 100}, 64, 104, 104},
      {"one page", {32, 5, 1}, 8, 8, 8},
      {"cap between floor and target", {32, 5, 512, 100}, 64, 96, 96},
      {"cap below the floor", {32, 5, 512, 30}, 24, 24, 24},
      {"nothing selected", {0, 5, 512}, 0, 0, 0},
  };
  for (const BoundsRow& row : rows) {
    const BudgetBounds bounds = BoundsOf(row.need);
    EXPECT_EQ(bounds.floor, row.floor) << row.name;
    EXPECT_EQ(bounds.target, row.target) << row.name;
    EXPECT_EQ(bounds.ceiling, row.ceiling) << row.name;
  }
}

TEST(BudgetTest, FramesForBytes) {
  EXPECT_EQ(FramesForBytes(90 * 4096 * 16, 0, 4096, 90), 16U);
  EXPECT_EQ(FramesForBytes(90 * 4096 * 16 - 1, 0, 4096, 90), 8U);
  EXPECT_EQ(FramesForBytes(90 * 4096 * 16, 1, 4096, 90), 8U);
  EXPECT_EQ(FramesForBytes(1000, 1000, 4096, 90), 0U);
  EXPECT_EQ(FramesForBytes(0, 1000, 4096, 90), 0U);
}

TEST(BudgetTest, MarginalGainIsSpreadOverRememberedPages) {
  EXPECT_DOUBLE_EQ(MarginalGain(4, 100, 5), 0.2);
  EXPECT_DOUBLE_EQ(MarginalGain(4, 0, 5), 0);
}

BudgetRequest Request(uint32_t floor, uint32_t target, uint32_t ceiling, uint32_t groups = 1) {
  BudgetRequest request;
  request.bounds = {floor, target, ceiling};
  request.num_groups = groups;
  return request;
}

std::vector<uint32_t> Divide(const std::vector<BudgetRequest>& requests,
                             uint64_t capacity,
                             double min_gain = 0.01) {
  std::vector<uint32_t> out(requests.size());
  EXPECT_TRUE(Distribute(requests, capacity, min_gain, out).ok());
  return out;
}

using Sizes = std::vector<uint32_t>;

TEST(BudgetTest, FloorsThenTargetsThenGain) {
  std::vector<BudgetRequest> requests = {Request(80, 240, 400), Request(80, 400, 800)};
  EXPECT_EQ(Divide(requests, 160), (Sizes{80, 80}));     // floors exactly
  EXPECT_EQ(Divide(requests, 400), (Sizes{160, 240}));   // half of the way for both
  EXPECT_EQ(Divide(requests, 640), (Sizes{240, 400}));   // targets exactly
  EXPECT_EQ(Divide(requests, 5000), (Sizes{240, 400}));  // nobody gains: spare stays spare
  requests[1].gain = 1;
  EXPECT_EQ(Divide(requests, 720), (Sizes{240, 480}));   // spare goes to who gains
  EXPECT_EQ(Divide(requests, 5000), (Sizes{240, 800}));  // up to the ceiling
  requests[0].gain = 2;
  EXPECT_EQ(Divide(requests, 800), (Sizes{400, 400}));        // the best gain first
  EXPECT_EQ(Divide(requests, 900), (Sizes{400, 496}));        // whole runs
  EXPECT_EQ(Divide(requests, 5000, 1.5), (Sizes{400, 400}));  // small gains do not count
}

TEST(BudgetTest, FloorsThatDoNotFitAreAnError) {
  const std::vector<BudgetRequest> requests = {Request(80, 240, 400, 2)};
  Sizes out(1);
  EXPECT_EQ(Distribute(requests, 159, 0, out).code(), absl::StatusCode::kResourceExhausted);
  // k jumps tenfold: the same request with its new floor goes back to admission.
  const std::vector<BudgetRequest> grown = {Request(800, 2400, 4000, 2)};
  EXPECT_EQ(Distribute(grown, 1000, 0, out).code(), absl::StatusCode::kResourceExhausted);
}

struct NextRow {
  const char* name;
  uint32_t current;
  uint32_t wanted;
  uint32_t next;
};

TEST(BudgetTest, SizesChangeGradually) {
  BudgetRequest request = Request(64, 192, 288);
  request.mandatory_pages = 32;
  const NextRow rows[] = {
      {"unchanged", 192, 192, 192},
      {"dead band above", 192, 208, 192},
      {"beyond the dead band", 192, 216, 216},
      {"at most half more", 96, 288, 144},
      {"at least a run more", 8 * 8, 72, 72},
      {"dead band below", 192, 176, 192},
      {"a quarter of the buffering part", 192, 64, 152},
      {"not below what is wanted", 192, 160, 160},
      {"at least a run less", 72, 64, 64},
      {"never below the floor", 80, 8, 72},
      {"below the floor: guaranteed at once", 16, 8, 64},
      {"newcomer", 0, 192, 64},
  };
  for (const NextRow& row : rows) {
    request.current = row.current;
    EXPECT_EQ(NextSize(request, row.wanted, false), row.next) << row.name;
  }
  request.current = 192;
  EXPECT_EQ(NextSize(request, 176, true), 176U);  // no dead band while a floor waits
}

// Less than a dead band too much, after something else has taken frames.
TEST(BudgetTest, SizesThatAreTooLargeTogetherShrink) {
  std::vector<BudgetRequest> requests = {Request(64, 192, 288), Request(64, 192, 288)};
  requests[0].current = 192;
  requests[1].current = 192;
  const Sizes wanted = {184, 184};
  Sizes next(2);
  NextSizes(requests, wanted, 384, next);
  EXPECT_EQ(next, (Sizes{192, 192}));
  NextSizes(requests, wanted, 368, next);
  EXPECT_EQ(next, wanted);
}

// Requests come, go, and change their needs; sizes follow the plan step by step.
class BudgetWorld {
 public:
  explicit BudgetWorld(uint64_t seed) : rng_(seed) {}

  void Step() {
    if (requests_.size() < 12 && rng_() % 6 == 0) {
      Admit();
    }
    if (!requests_.empty() && rng_() % 20 == 0) {
      std::swap(requests_[rng_() % requests_.size()], requests_.back());
      requests_.pop_back();
    }
    for (BudgetRequest& request : requests_) {
      request.gain = static_cast<double>(rng_() % 100) / 50;
    }
    Sizes wanted(requests_.size());
    ASSERT_TRUE(Distribute(requests_, kCapacity, 0.1, wanted).ok());
    Sizes next(requests_.size());
    NextSizes(requests_, wanted, kCapacity, next);
    uint64_t wanted_total = 0;
    uint64_t next_total = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      CheckOne(requests_[i], wanted[i], next[i]);
      wanted_total += uint64_t{wanted[i]} * requests_[i].num_groups;
      next_total += uint64_t{next[i]} * requests_[i].num_groups;
      num_changes_ += requests_[i].current != next[i] ? 1U : 0U;
      requests_[i].current = next[i];
    }
    ASSERT_LE(wanted_total, kCapacity);
    ASSERT_LE(next_total, kCapacity);
  }

  // With nothing else changing, everybody reaches what is wanted, but for dead bands.
  void Settle() {
    Sizes wanted(requests_.size());
    Sizes next(requests_.size());
    ASSERT_TRUE(Distribute(requests_, kCapacity, 0.1, wanted).ok());
    for (uint32_t step = 0; step < 60; ++step) {
      NextSizes(requests_, wanted, kCapacity, next);
      for (size_t i = 0; i < requests_.size(); ++i) {
        requests_[i].current = next[i];
      }
    }
    uint64_t used = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      used += uint64_t{next[i]} * requests_[i].num_groups;
    }
    for (size_t i = 0; i < requests_.size(); ++i) {
      ASSERT_GE(next[i], requests_[i].bounds.floor);
      const double tolerance = 0.1 * std::max(next[i], wanted[i]) + 2 * 8;
      ASSERT_LE(next[i], wanted[i] + tolerance);
      // Others inside their dead band may hold what this one lacks.
      const bool is_full = kCapacity - used < uint64_t{8} * requests_[i].num_groups;
      ASSERT_TRUE(is_full || next[i] + tolerance >= wanted[i]);
    }
  }

  [[nodiscard]] uint64_t num_changes() const { return num_changes_; }

 private:
  static constexpr uint64_t kCapacity = 100'000;

  void Admit() {
    BudgetNeed need;
    need.mandatory_pages = 1 + static_cast<double>(rng_() % 60);
    need.buffer_ratio = static_cast<double>(rng_() % 10);
    need.total_pages = static_cast<uint32_t>(1 + rng_() % 1000);
    BudgetRequest request;
    request.bounds = BoundsOf(need);
    request.num_groups = static_cast<uint32_t>(1 + rng_() % 90);
    request.mandatory_pages = need.mandatory_pages;
    uint64_t floors = uint64_t{request.bounds.floor} * request.num_groups;
    for (const BudgetRequest& other : requests_) {
      floors += uint64_t{other.bounds.floor} * other.num_groups;
    }
    if (floors <= kCapacity) {
      requests_.push_back(request);
    }
  }

  static void CheckOne(const BudgetRequest& request, uint32_t wanted, uint32_t next) {
    ASSERT_GE(wanted, request.bounds.floor);
    ASSERT_LE(wanted, request.bounds.ceiling);
    ASSERT_EQ(wanted % 8, 0U);
    ASSERT_EQ(next % 8, 0U);
    const double current = request.current;
    if (next > request.current) {
      ASSERT_TRUE(next <= request.bounds.floor || next <= std::max(1.5 * current, current + 8));
    } else if (next < request.current) {
      ASSERT_GE(next, request.bounds.floor);
      const double buffering = std::max(0.0, current - request.mandatory_pages);
      ASSERT_LE(current - next, std::max(8.0, 0.25 * buffering));
    }
  }

  std::mt19937_64 rng_;
  std::vector<BudgetRequest> requests_;
  uint64_t num_changes_ = 0;
};

TEST(BudgetTest, KeepsItsLimitsUnderRandomArrivals) {
  BudgetWorld world(test::RandomSeed(1));
  for (uint32_t step = 0; step < 5000 && !testing::Test::HasFatalFailure(); ++step) {
    world.Step();
    if (step % 100 == 99) {
      world.Settle();
    }
  }
  EXPECT_GT(world.num_changes(), 1000U);
}

}  // namespace
}  // namespace spindle::kv
