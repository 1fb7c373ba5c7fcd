// Options of the gRPC front end.
#pragma once

#include <cstdint>
#include <string>

namespace spindle::server {

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
[[nodiscard]] inline constexpr uint64_t GrpcMemoryBytes(uint64_t max_message_bytes) {
  return 4 * max_message_bytes + (uint64_t{16} << 20);
}

}  // namespace spindle::server
