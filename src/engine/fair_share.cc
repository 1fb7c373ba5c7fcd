#include "engine/fair_share.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"

namespace spindle::engine {

FairShare::Account& FairShare::Join(const std::string& sender) {
  const auto [entry, is_new] = accounts_.try_emplace(sender);
  Account& account = entry->second;
  if (account.num_requests == 0) {
    uint64_t least = UINT64_MAX;
    for (const auto& [name, other] : accounts_) {
      if (other.num_requests > 0) {
        least = std::min(least, other.served);
      }
    }
    account.served = std::max(account.served, least == UINT64_MAX ? floor_ : least);
    num_idle_ -= is_new ? 0 : 1;
  }
  ++account.num_requests;
  return account;
}

void FairShare::Leave(Account& account) {
  SPINDLE_CHECK(account.num_requests > 0);
  if (--account.num_requests > 0) {
    return;
  }
  floor_ = std::max(floor_, account.served);
  if (++num_idle_ > kMaxIdle) {
    ForgetIdle();
  }
}

// Half of them, so that this is rare.
void FairShare::ForgetIdle() {
  std::vector<uint64_t> served;
  for (const auto& [name, account] : accounts_) {
    if (account.num_requests == 0) {
      served.push_back(account.served);
    }
  }
  const auto middle = served.begin() + static_cast<ptrdiff_t>(served.size() / 2);
  std::nth_element(served.begin(), middle, served.end());
  std::erase_if(accounts_, [most = *middle](const auto& entry) {
    return entry.second.num_requests == 0 && entry.second.served <= most;
  });
  num_idle_ =
      static_cast<size_t>(std::count_if(accounts_.begin(), accounts_.end(), [](const auto& entry) {
        return entry.second.num_requests == 0;
      }));
}

}  // namespace spindle::engine
