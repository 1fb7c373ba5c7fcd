#include "base/hash.h"

#include <openssl/evp.h>

#include "base/status_macros.h"

namespace spindle {

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();

  Context() {
    // Fails only when memory is exhausted or the library is broken.
    SPINDLE_CHECK(md != nullptr && EVP_DigestInit_ex(md, EVP_sha256(), nullptr) == 1);
  }

  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

Sha256& Sha256::Bytes(std::span<const uint8_t> bytes) {
  SPINDLE_CHECK(EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()) == 1);
  return *this;
}

Sha256& Sha256::Field(std::string_view bytes) {
  Number(bytes.size());
  SPINDLE_CHECK(EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()) == 1);
  return *this;
}

Sha256& Sha256::Number(uint64_t value) {
  std::array<uint8_t, 8> little_endian;
  for (size_t i = 0; i < little_endian.size(); ++i) {
    little_endian[i] = static_cast<uint8_t>(value >> (8 * i));
  }
  return Bytes(little_endian);
}

Digest Sha256::Finish() {
  Digest digest;
  unsigned size = 0;
  SPINDLE_CHECK(EVP_DigestFinal_ex(context_->md, digest.data(), &size) == 1 &&
                size == digest.size());
  return digest;
}

std::string ToHex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const uint8_t b : bytes) {
    hex.push_back(kDigits[b >> 4]);
    hex.push_back(kDigits[b & 15]);
  }
  return hex;
}

}  // namespace spindle
