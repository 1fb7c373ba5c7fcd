// Options of the HTTP front end. Plain values.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace spindle::server {

// Bodies up to this size are nobody's concern: they count with their connection.
inline constexpr uint64_t kLargeBodyBytes = uint64_t{64} << 10;
// Bodies of the largest size that memory is set aside for.
inline constexpr uint64_t kBodiesAtOnce = 4;
// What a connection reads at once.
inline constexpr uint64_t kConnectionReadBytes = uint64_t{16} << 10;
// Later requests that wait on a connection while one is served. Beyond it reading stops, so TCP
// holds the peer back.
inline constexpr uint64_t kBufferedInputBytes = uint64_t{64} << 10;

// What /version and spindle_build_info report.
struct BuildInfo {
  std::string version;
  std::string commit;
  std::string build;    // compiler and build type
  std::string backend;  // cpu or cuda
  std::string isa;      // kernel family chosen at start
};

enum class TlsClientAuth : uint8_t { kNone, kOptional, kRequire };

// Off while cert_file is empty. PEM files.
struct TlsOptions {
  std::string cert_file;                             // --tls-cert; the chain, leaf first
  std::string key_file;                              // --tls-key
  std::string ca_file;                               // --tls-ca; for client certificates
  TlsClientAuth client_auth = TlsClientAuth::kNone;  // --tls-client-auth
};

struct HttpOptions {
  std::string host = "127.0.0.1";  // --host; an address or a name
  uint16_t port = 8000;            // --port; 0 = any free one
  std::string uds;                 // --uds; a Unix socket instead of host and port
  uint32_t num_threads = 2;        // --http-threads; [1, 64]
  std::string root_path;           // --root-path; empty or "/x" without a trailing slash

  uint64_t max_body_bytes = uint64_t{32} << 20;            // --max-body-size; ≥ 1 KiB
  uint32_t max_header_bytes = uint32_t{64} << 10;          // all header lines of a request
  uint32_t max_request_line_bytes = uint32_t{8} << 10;     // without its CRLF
  uint32_t max_connections = 1024;                         // --max-connections; more wait
  Duration header_timeout = std::chrono::seconds(30);      // from the first byte to the last header
  Duration body_timeout = std::chrono::seconds(60);        // without enough bytes of a body
  Duration keep_alive_timeout = std::chrono::seconds(75);  // idle between two requests

  Duration sse_keepalive = std::chrono::seconds(15);         // --sse-keepalive; 0 = off
  uint64_t stream_buffer_bytes = uint64_t{256} << 10;        // --stream-buffer; ≥ 4 KiB
  Duration stream_stall_timeout = std::chrono::seconds(60);  // --stream-stall-timeout; > 0
  Duration watchdog = std::chrono::seconds(60);              // --watchdog

  bool metrics = true;                    // --metrics
  bool metrics_auth = false;              // --metrics-auth
  std::vector<std::string> cors_origins;  // --cors-origins; "*" or a list; empty = off
  TlsOptions tls;
  BuildInfo build;
};

// What a connection holds at most beside large bodies and large answers, of which
// `small_answer_bytes` may wait in each of its buffers: the head of its request, input, and its own
// objects.
[[nodiscard]] inline uint64_t ConnectionBytes(const HttpOptions& options,
                                              uint64_t small_answer_bytes) {
  constexpr uint64_t kObjectBytes = uint64_t{16} << 10;  // with 128 header fields
  constexpr uint64_t kTlsBytes = uint64_t{64} << 10;
  const uint64_t input_bytes =
      std::max(kLargeBodyBytes, kBufferedInputBytes) + 2 * kConnectionReadBytes;
  return options.max_header_bytes + options.max_request_line_bytes + input_bytes +
         3 * small_answer_bytes + kObjectBytes + (options.tls.cert_file.empty() ? 0 : kTlsBytes);
}

}  // namespace spindle::server
