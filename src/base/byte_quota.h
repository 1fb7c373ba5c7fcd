// Memory that several holders share up to a limit: each covers what it holds with a lease, and is
// refused what would pass the limit. Small holdings are nobody's concern; who bounds their number
// counts them. Thread-safety: thread-safe; a Lease belongs to one thread at a time. A quota must
// outlive its leases.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace spindle {

class ByteQuota {
 public:
  // Holdings of at most `small_bytes` are not counted.
  ByteQuota(uint64_t max_bytes, uint64_t small_bytes)
      : max_bytes_(max_bytes), small_bytes_(small_bytes) {}

  ByteQuota(const ByteQuota&) = delete;
  ByteQuota& operator=(const ByteQuota&) = delete;

  [[nodiscard]] uint64_t max_bytes() const { return max_bytes_; }

  [[nodiscard]] uint64_t small_bytes() const { return small_bytes_; }

  // Held at the moment, small holdings excluded.
  [[nodiscard]] uint64_t used_bytes() const { return used_bytes_.load(); }

  // One holder's part. Move-only; gives back at its end.
  class Lease {
   public:
    explicit Lease(ByteQuota& owner) : owner_(&owner) {}

    Lease(Lease&& other) noexcept
        : owner_(other.owner_), bytes_(std::exchange(other.bytes_, uint64_t{0})) {}

    Lease& operator=(Lease&& other) noexcept {
      if (this != &other) {
        Release();
        owner_ = other.owner_;
        bytes_ = std::exchange(other.bytes_, uint64_t{0});
      }
      return *this;
    }

    ~Lease() { Release(); }

    // Makes the lease one for at least `bytes`; false, and as before, when all holders together
    // would hold too much.
    [[nodiscard]] bool Cover(uint64_t bytes);

    void Release();

    [[nodiscard]] uint64_t bytes() const { return bytes_; }

   private:
    ByteQuota* owner_;
    uint64_t bytes_ = 0;
  };

 private:
  const uint64_t max_bytes_;
  const uint64_t small_bytes_;
  std::atomic<uint64_t> used_bytes_{0};
};

}  // namespace spindle
