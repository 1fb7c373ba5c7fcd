// Who of the senders of requests has been served how much, so that the one with the least comes
// first: virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI
// 2024), charged as the tiered-KV specification, 9.4, weighs them: one per prompt token that is
// computed, four per generated token. A sender who comes back from a pause is lifted to the least
// served of those who did not pause: nobody saves up a claim. Thread-safety: engine-thread only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

namespace spindle::engine {

class FairShare {
 public:
  static constexpr uint64_t kPromptToken = 1;
  static constexpr uint64_t kGeneratedToken = 4;
  // Senders that are remembered while they have no request; the least served are forgotten first.
  static constexpr size_t kMaxIdle = 4096;

  struct Account {
    uint64_t served = 0;
    uint32_t num_requests = 0;  // unfinished
    uint64_t queued = 0;        // scratch of an ordering: cost of its requests so far
  };

  // A request of the sender arrives. The account stays valid until its Leave.
  Account& Join(const std::string& sender);

  // A request ends.
  void Leave(Account& account);

 private:
  void ForgetIdle();

  // By sender; nodes do not move.
  std::unordered_map<std::string, Account> accounts_;
  size_t num_idle_ = 0;
  uint64_t floor_ = 0;  // what a newcomer starts with where nobody else has a request
};

}  // namespace spindle::engine
