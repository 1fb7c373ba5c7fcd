#include "base/bounded_queue.h"

#include <thread>

#include <gtest/gtest.h>

namespace spindle {
namespace {

TEST(BoundedQueueTest, RefusesWhenFullAndLeavesTheItem) {
  BoundedQueue<std::string> queue(1);
  std::string first = "a";
  std::string second = "b";
  EXPECT_TRUE(queue.TryPush(std::move(first)));
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  EXPECT_EQ(second, "b");  // NOLINT(bugprone-use-after-move): a refused push does not move
}

TEST(BoundedQueueTest, ClosedQueueDrainsThenEnds) {
  BoundedQueue<int> queue(4);
  ASSERT_TRUE(queue.TryPush(1));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(2));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueueTest, WakeEndsABlockedPop) {
  BoundedQueue<int> queue(1);
  std::thread consumer([&queue] { EXPECT_EQ(queue.Pop(), std::nullopt); });
  queue.Wake();
  consumer.join();
}

TEST(BoundedQueueTest, ManyProducersLoseNothing) {
  constexpr int kProducers = 4;
  constexpr int kItems = 1000;
  BoundedQueue<int> queue(8);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&queue] {
      for (int i = 1; i <= kItems; ++i) {
        int item = i;
        while (!queue.TryPush(std::move(item))) {
          std::this_thread::yield();
        }
      }
    });
  }
  int64_t sum = 0;
  for (int i = 0; i < kProducers * kItems; ++i) {
    sum += *queue.Pop();
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
  EXPECT_EQ(sum, int64_t{kProducers} * kItems * (kItems + 1) / 2);
}

}  // namespace
}  // namespace spindle
