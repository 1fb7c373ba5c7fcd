#include "engine/fair_share.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"

namespace spindle::engine {

FairShare::Account& FairShare::Join(const std::string& sender) {
  const auto [entry, is_new] = accounts_.try_emplace(sender);
  Account& account = entry->second;
  if (account.num_waiting == 0) {
    uint64_t least = UINT64_MAX;
    for (const auto& [name, other] : accounts_) {
      if (other.num_waiting > 0) {
        least = std::min(least, other.served);
      }
    }
    account.served = std::max(account.served, least == UINT64_MAX ? last_served_ : least);
  }
  if (account.num_requests == 0 && !is_new) {
    --num_idle_;
  }
  ++account.num_requests;
  ++account.num_waiting;
  return account;
}

void FairShare::Start(Account& account,
                      uint32_t priority_class,
                      uint32_t prompt_tokens,
                      TimePoint now) {
  SPINDLE_CHECK(account.num_waiting > 0);
  --account.num_waiting;
  last_served_ = account.served;
  account.served += prompt_tokens * kPromptToken;
  std::fill_n(account.last_start.begin(), priority_class + 1, now);
}

void FairShare::Leave(Account& account, bool started) {
  SPINDLE_CHECK(account.num_requests > 0);
  account.num_waiting -= started ? 0 : 1;
  if (--account.num_requests == 0 && ++num_idle_ > kMaxIdle) {
    ForgetIdle();
  }
}

uint64_t FairShare::num_requests() const {
  uint64_t sum = 0;
  for (const auto& [name, account] : accounts_) {
    sum += account.num_requests;
  }
  return sum;
}

// Half of them or more, so that this is rare.
void FairShare::ForgetIdle() {
  std::vector<uint64_t> served;
  for (const auto& [name, account] : accounts_) {
    if (account.num_requests == 0) {
      served.push_back(account.served);
    }
  }
  const auto middle = served.begin() + static_cast<ptrdiff_t>(served.size() / 2);
  std::nth_element(served.begin(), middle, served.end());
  num_idle_ -= std::erase_if(accounts_, [most = *middle](const auto& entry) {
    return entry.second.num_requests == 0 && entry.second.served <= most;
  });
}

}  // namespace spindle::engine
