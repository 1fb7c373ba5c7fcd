// Options of the gRPC front end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace spindle::server {

// Fields of a message beside its text: token ids of a context, and room for all else.
[[nodiscard]] inline constexpr uint64_t MaxFieldBytes(uint32_t max_model_len) {
  constexpr uint64_t kIdBytes = 5;  // of the longest
  return (uint64_t{1} << 20) + kIdBytes * max_model_len;
}

struct GrpcOptions {
  std::string host = "127.0.0.1";          // --grpc-host
  uint32_t port = 8001;                    // 0 = off; --grpc-port
  uint64_t max_message_bytes = 32U << 20;  // --grpc-max-message
  bool reflection = true;                  // --grpc-reflection
  std::string tls_cert_path;               // PEM; empty = plain text
  std::string tls_key_path;
  std::string tls_ca_path;  // client certificates are asked for when set
};

// What the gRPC library may hold for calls and messages: four messages of the largest size, and
// room for small ones.
[[nodiscard]] inline constexpr uint64_t GrpcQuotaBytes(uint64_t max_message_bytes) {
  return 4 * max_message_bytes + (uint64_t{16} << 20);
}

// That, and one large message in the making: its text, and other fields, which may take 48 bytes
// for two (an empty text in a list).
[[nodiscard]] inline constexpr uint64_t GrpcMemoryBytes(uint64_t max_message_bytes,
                                                        uint32_t max_model_len) {
  constexpr uint64_t kFieldFactor = 24;
  return GrpcQuotaBytes(max_message_bytes) + max_message_bytes +
         kFieldFactor * std::min(MaxFieldBytes(max_model_len), max_message_bytes);
}

}  // namespace spindle::server
