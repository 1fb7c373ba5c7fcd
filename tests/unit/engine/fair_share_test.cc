#include "engine/fair_share.h"

#include <vector>

#include <gtest/gtest.h>

namespace spindle::engine {
namespace {

TEST(FairShare, NewcomersBeginLevelWithTheLeastServed) {
  FairShare shares;
  FairShare::Account& a = shares.Join("a");
  EXPECT_EQ(a.served, 0U);
  a.served = 100;
  FairShare::Account& b = shares.Join("b");
  EXPECT_EQ(b.served, 100U);
  b.served = 300;
  EXPECT_EQ(shares.Join("c").served, 100U);
  EXPECT_EQ(&shares.Join("a"), &a);
  EXPECT_EQ(a.served, 100U);
}

TEST(FairShare, WhoPausesSavesUpNoClaimAndLosesNoDebt) {
  FairShare shares;
  FairShare::Account& idle = shares.Join("idle");
  FairShare::Account& greedy = shares.Join("greedy");
  idle.served = 10;
  greedy.served = 900;
  FairShare::Account& busy = shares.Join("busy");
  busy.served = 500;
  shares.Leave(idle);
  shares.Leave(greedy);
  EXPECT_EQ(shares.Join("idle").served, 500U);
  EXPECT_EQ(shares.Join("greedy").served, 900U);
}

TEST(FairShare, AfterAllHaveLeftANewcomerBeginsWhereTheyWere) {
  FairShare shares;
  FairShare::Account& a = shares.Join("a");
  a.served = 700;
  shares.Leave(a);
  EXPECT_EQ(shares.Join("b").served, 700U);
  EXPECT_EQ(shares.Join("a").served, 700U);
}

TEST(FairShare, ForgetsThoseServedLeastWhenTooManyAreIdle) {
  FairShare shares;
  FairShare::Account& stays = shares.Join("stays");
  std::vector<FairShare::Account*> accounts;
  constexpr size_t kSenders = 3 * FairShare::kMaxIdle;
  for (size_t i = 0; i < kSenders; ++i) {
    accounts.push_back(&shares.Join(std::to_string(i)));
    accounts.back()->served = i;
  }
  for (FairShare::Account* account : accounts) {
    shares.Leave(*account);
  }
  // Those served most are remembered; the others begin at the least of those who are there.
  EXPECT_EQ(stays.served, 0U);
  EXPECT_EQ(shares.Join(std::to_string(kSenders - 1)).served, kSenders - 1);
  EXPECT_EQ(shares.Join("0").served, 0U);
  EXPECT_EQ(shares.Join("1000").served, 0U);
}

}  // namespace
}  // namespace spindle::engine
