#include "base/byte_quota.h"

namespace spindle {

bool ByteQuota::Lease::Cover(uint64_t bytes) {
  if (bytes <= owner_->small_bytes_ || bytes <= bytes_) {
    return true;
  }
  const uint64_t more = bytes - bytes_;
  uint64_t used = owner_->used_bytes_.load();
  do {
    if (more > owner_->max_bytes_ || used > owner_->max_bytes_ - more) {
      return false;
    }
  } while (!owner_->used_bytes_.compare_exchange_weak(used, used + more));
  bytes_ = bytes;
  return true;
}

void ByteQuota::Lease::Release() {
  owner_->used_bytes_.fetch_sub(bytes_);
  bytes_ = 0;
}

}  // namespace spindle
