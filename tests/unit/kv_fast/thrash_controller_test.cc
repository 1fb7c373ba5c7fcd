#include "kv/fast/thrash_controller.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "support/random_seed.h"

namespace spindle::kv {
namespace {

using Action = ThrashController::Action;

constexpr ThrashSample kHot = {
    .refaults = 80, .fetches = 100, .link_utilisation = 0.9, .capacity_frames = 1000};
constexpr ThrashSample kCalm = {
    .refaults = 1, .fetches = 100, .link_utilisation = 0.9, .capacity_frames = 1000};

ThrashRequest Running(uint32_t priority_class, uint64_t working_set) {
  return {.priority_class = priority_class,
          .working_set_frames = working_set,
          .is_paused = false,
          .steps_in_state = 1000};
}

// The request paused after enough hot steps, or −1.
int Paused(const std::vector<ThrashRequest>& requests, uint32_t steps = 100) {
  ThrashController controller({});
  for (uint32_t step = 0; step < steps; ++step) {
    const ThrashController::Decision decision = controller.Step(kHot, requests);
    if (decision.action == Action::kPause) {
      EXPECT_EQ(step, 15U);  // 16 hot steps
      return static_cast<int>(decision.request);
    }
    EXPECT_EQ(decision.action, Action::kNone);
  }
  return -1;
}

TEST(ThrashControllerTest, PausesTheLeastImportantThenTheLargest) {
  EXPECT_EQ(Paused({Running(1, 500), Running(2, 400), Running(2, 300)}), 1);
  EXPECT_EQ(Paused({Running(2, 500), Running(2, 600), Running(0, 900)}), 1);
  EXPECT_EQ(Paused({Running(2, 500)}), -1);  // never the last one
  EXPECT_EQ(Paused({}), -1);
  ThrashRequest fresh = Running(3, 900);
  fresh.steps_in_state = 15;
  EXPECT_EQ(Paused({fresh, Running(2, 500)}), 1);
}

TEST(ThrashControllerTest, NeedsRefaultsAndABusyLinkTogether) {
  const std::vector<ThrashRequest> requests = {Running(1, 500), Running(1, 600)};
  ThrashSample idle_link = kHot;
  idle_link.link_utilisation = 0.8;
  ThrashSample half = kHot;
  half.refaults = 50;
  for (const ThrashSample& sample : {kCalm, idle_link, half}) {
    ThrashController controller({});
    for (uint32_t step = 0; step < 200; ++step) {
      ASSERT_EQ(controller.Step(sample, requests).action, Action::kNone);
    }
  }
  ThrashController controller({});
  for (uint32_t step = 0; step < 200; ++step) {  // one calm link in 16 steps is calm enough
    ASSERT_EQ(controller.Step(step % 16 == 15 ? idle_link : kHot, requests).action, Action::kNone);
  }
}

TEST(ThrashControllerTest, ResumesWhenThereIsRoomAndAfter64StepsAnyway) {
  std::vector<ThrashRequest> requests = {Running(1, 600), Running(1, 300)};
  requests[1].is_paused = true;
  ThrashController controller({});
  requests[1].steps_in_state = 15;
  EXPECT_EQ(controller.Step(kCalm, requests).action, Action::kNone);  // too soon
  requests[1].steps_in_state = 16;
  const ThrashController::Decision early = controller.Step(kCalm, requests);
  EXPECT_EQ(early.action, Action::kResume);  // 900 of 1000: exactly the slack is left
  EXPECT_EQ(early.request, 1U);
  requests[0].working_set_frames = 601;
  EXPECT_EQ(controller.Step(kCalm, requests).action, Action::kNone);
  requests[1].steps_in_state = 62;
  EXPECT_EQ(controller.Step(kHot, requests).action, Action::kNone);
  requests[1].steps_in_state = 63;
  EXPECT_EQ(controller.Step(kHot, requests).action, Action::kResume);
}

TEST(ThrashControllerTest, NeitherFlapsNorStarvesUnderAnyLoad) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(1)));
  ThrashController controller({});
  std::vector<ThrashRequest> requests(12);
  for (ThrashRequest& request : requests) {
    request = Running(static_cast<uint32_t>(rng() % 5), 50 + rng() % 400);
  }
  uint32_t num_pauses = 0;
  uint32_t num_resumes = 0;
  for (uint32_t step = 0; step < 50000; ++step) {
    ThrashSample sample = rng() % 3000 < 1500 ? kHot : kCalm;
    sample = step / 500 % 2 == 0 ? kHot : sample;
    const ThrashController::Decision decision = controller.Step(sample, requests);
    for (ThrashRequest& request : requests) {
      ++request.steps_in_state;
    }
    if (decision.action != Action::kNone) {
      ThrashRequest& request = requests[decision.request];
      ASSERT_EQ(request.is_paused, decision.action == Action::kResume);
      ASSERT_GT(request.steps_in_state, 16U);
      num_pauses += request.is_paused ? 0U : 1U;
      num_resumes += request.is_paused ? 1U : 0U;
      request.is_paused = !request.is_paused;
      request.steps_in_state = 0;
    }
    uint32_t num_running = 0;
    for (const ThrashRequest& request : requests) {
      num_running += request.is_paused ? 0U : 1U;
      ASSERT_TRUE(!request.is_paused || request.steps_in_state < 64);
    }
    ASSERT_GE(num_running, 1U);
  }
  EXPECT_GT(num_pauses, 100U);
  EXPECT_GT(num_resumes, 100U);
}

}  // namespace
}  // namespace spindle::kv
