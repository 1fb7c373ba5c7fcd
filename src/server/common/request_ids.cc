#include "server/common/request_ids.h"

#include <array>
#include <cstdint>
#include <utility>

#include <openssl/rand.h>

#include "base/client_name.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace spindle::server {
namespace {

constexpr size_t kSuffixBytes = 9;  // "-" and eight hex digits

}  // namespace

std::string RandomId() {
  std::array<uint8_t, 16> bytes;
  SPINDLE_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
  return ToHex(bytes);
}

RequestIds::Lease::Lease(Lease&& other) noexcept
    : registry_(std::exchange(other.registry_, nullptr)), id_(std::move(other.id_)) {}

RequestIds::Lease& RequestIds::Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    if (registry_ != nullptr) {
      registry_->Release(id_);
    }
    registry_ = std::exchange(other.registry_, nullptr);
    id_ = std::move(other.id_);
  }
  return *this;
}

RequestIds::Lease::~Lease() {
  if (registry_ != nullptr) {
    registry_->Release(id_);
  }
}

RequestIds::Lease RequestIds::Acquire(std::optional<std::string_view> wanted) {
  const bool keep = wanted.has_value() && IsClientName(*wanted);
  std::string id = keep ? std::string(*wanted) : RandomId();
  MutexLock lock(mutex_);
  while (!active_.insert(id).second) {
    id = std::string(wanted->substr(0, kMaxClientNameBytes - kSuffixBytes)) + '-' +
         RandomId().substr(0, 8);
  }
  return Lease(this, std::move(id));
}

void RequestIds::Release(const std::string& id) {
  MutexLock lock(mutex_);
  active_.erase(id);
}

size_t RequestIds::num_active() const {
  MutexLock lock(mutex_);
  return active_.size();
}

}  // namespace spindle::server
