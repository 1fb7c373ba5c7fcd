#include "engine/fair_share.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spindle::engine {
namespace {

constexpr TimePoint kNow{};

TEST(FairShare, ChargesWhatIsComputedAndGenerated) {
  FairShare shares;
  FairShare::Account& a = shares.Join("a");
  EXPECT_EQ(a.served, 0U);
  shares.Start(a, 2, 100, kNow);
  FairShare::Generate(a);
  EXPECT_EQ(a.served, 104U);
  EXPECT_EQ(&shares.Join("a"), &a);
  EXPECT_EQ(shares.num_requests(), 2U);
  shares.Leave(a, /*started=*/true);
  shares.Leave(a, /*started=*/false);
  EXPECT_EQ(shares.num_requests(), 0U);
}

TEST(FairShare, NewcomersBeginLevelWithTheLeastServedWhoWaits) {
  FairShare shares;
  shares.Join("a").served = 100;
  FairShare::Account& b = shares.Join("b");
  EXPECT_EQ(b.served, 100U);
  b.served = 300;
  EXPECT_EQ(shares.Join("c").served, 100U);
  EXPECT_EQ(shares.Join("b").served, 300U);  // it waits already
}

TEST(FairShare, WhoHadNothingWaitingSavesUpNoClaimAndLosesNoDebt) {
  FairShare shares;
  FairShare::Account& light = shares.Join("light");
  FairShare::Account& heavy = shares.Join("heavy");
  light.served = 10;
  heavy.served = 900;
  shares.Start(light, 0, 1, kNow);  // runs on, while others wait
  FairShare::Account& busy = shares.Join("busy");
  busy.served = 500;
  shares.Leave(heavy, /*started=*/false);
  EXPECT_EQ(shares.Join("light").served, 500U);
  EXPECT_EQ(shares.Join("heavy").served, 900U);
}

TEST(FairShare, WithNobodyWaitingANewcomerBeginsWhereTheLastOneStarted) {
  FairShare shares;
  FairShare::Account& a = shares.Join("a");
  a.served = 700;
  shares.Start(a, 0, 50, kNow);
  EXPECT_EQ(shares.Join("b").served, 700U);
  shares.Leave(a, /*started=*/true);
  EXPECT_EQ(shares.Join("a").served, 750U);
}

TEST(FairShare, RemembersWhenAClassWasServedLast) {
  FairShare shares;
  FairShare::Account& a = shares.Join("a");
  const TimePoint later = kNow + std::chrono::seconds(5);
  shares.Start(a, 2, 1, later);
  EXPECT_EQ(a.last_start[0], later);
  EXPECT_EQ(a.last_start[2], later);
  EXPECT_EQ(a.last_start[3], TimePoint());  // less urgent ones were passed over
}

TEST(FairShare, ForgetsThoseServedLeastWhenTooManyAreIdle) {
  FairShare shares;
  shares.Join("waits");
  std::vector<FairShare::Account*> accounts;
  constexpr size_t kSenders = 3 * FairShare::kMaxIdle;
  for (size_t i = 0; i < kSenders; ++i) {
    accounts.push_back(&shares.Join(std::to_string(i)));
    accounts.back()->served = i;
  }
  for (FairShare::Account* account : accounts) {
    shares.Leave(*account, /*started=*/false);
  }
  EXPECT_EQ(shares.num_requests(), 1U);
  EXPECT_EQ(shares.Join(std::to_string(kSenders - 1)).served, kSenders - 1);
  EXPECT_EQ(shares.Join("1000").served, 0U);  // forgotten: level with the one that waits
}

}  // namespace
}  // namespace spindle::engine
