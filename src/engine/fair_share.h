// Who of the senders of requests has been served how much, so that the one with the least comes
// first: virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI
// 2024), one per prompt token that is computed and four per generated token (what a request holds
// of the fast tier is not charged). A sender that had nothing waiting is lifted to the least served
// of those who have: nobody saves up a claim. Thread-safety: engine-thread only.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "engine/scheduler_policy.h"

namespace spindle::engine {

class FairShare {
 public:
  static constexpr uint64_t kPromptToken = 1;
  static constexpr uint64_t kGeneratedToken = 4;
  // Senders that are remembered while they have no request; the least served are forgotten first.
  static constexpr size_t kMaxIdle = 4096;

  struct Account {
    uint64_t served = 0;
    uint32_t num_requests = 0;  // waiting and running
    uint32_t num_waiting = 0;
    // When the last request of this class, or of a less urgent one, began: a sender's requests do
    // not age while others of it are served instead.
    std::array<TimePoint, kNumPriorityClasses> last_start = {};
    uint64_t queued = 0;  // scratch of an ordering: cost of its requests so far
  };

  // A request of the sender arrives and waits. The account stays valid until the request leaves.
  Account& Join(const std::string& sender);

  // It begins, with so many prompt tokens to compute.
  void Start(Account& account, uint32_t priority_class, uint32_t prompt_tokens, TimePoint now);

  // It generated a token.
  static void Generate(Account& account) { account.served += kGeneratedToken; }

  // It ends; `started`: it did begin.
  void Leave(Account& account, bool started);

  // Of all accounts together, for checks.
  [[nodiscard]] uint64_t num_requests() const;

 private:
  void ForgetIdle();

  // By sender; nodes do not move.
  std::unordered_map<std::string, Account> accounts_;
  size_t num_idle_ = 0;
  uint64_t last_served_ = 0;  // of the account whose request began last, before it was charged
};

}  // namespace spindle::engine
