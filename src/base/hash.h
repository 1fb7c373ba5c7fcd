// SHA-256 for cache keys and fingerprints. Fields are length-prefixed, so that no two different
// field lists give the same byte stream. XXH3 (libxxhash) serves where no security rests on the
// digest. Thread-safety: thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace spindle {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  // Raw bytes, without a length prefix.
  Sha256& Bytes(std::span<const uint8_t> bytes);
  // u64 little-endian length, then the bytes.
  Sha256& Field(std::string_view bytes);
  // u64 little-endian.
  Sha256& Number(uint64_t value);

  // The object may not be used afterwards.
  [[nodiscard]] Digest Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

[[nodiscard]] std::string ToHex(std::span<const uint8_t> bytes);

}  // namespace spindle
