// A real server on an ephemeral port and a raw client socket, for tests that look at every byte.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "metrics/metrics.h"
#include "server/common/api_keys.h"
#include "server/common/request_ids.h"
#include "server/http/http_server.h"
#include "unit/server/scripted_backend.h"

namespace spindle::server {

// One response as read from a socket.
struct RawResponse {
  int status = 0;
  std::string head;       // lower-cased names, as received otherwise
  std::string body;       // chunks removed
  bool complete = false;  // the body ended as its framing says

  // Empty when absent.
  [[nodiscard]] std::string Header(std::string_view lower_name) const;
};

// A blocking client. Reads give up after ten seconds, so a broken server fails a test instead of
// hanging it.
class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0);
  explicit RawClient(const std::string& unix_path);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Send(std::string_view bytes);
  // False when the server closed the connection.
  [[nodiscard]] bool TrySend(std::string_view bytes);
  // The next response; status 0 when the connection ended before one.
  [[nodiscard]] RawResponse Read(bool head_request = false);
  // Bytes up to and including `mark`, body framing included; what there is at the end otherwise.
  [[nodiscard]] std::string ReadUntil(std::string_view mark);
  // Everything until the server closes.
  [[nodiscard]] std::string ReadAll();
  void ShutdownWrite();
  // Sends a reset.
  void Reset();

 private:
  bool Fill();

  int fd_ = -1;
  std::string buffer_;
};

struct TestServerConfig {
  HttpOptions options;
  ApiKeyOptions keys;
  uint64_t answer_memory_bytes = uint64_t{1} << 30;
};

class TestServer {
 public:
  explicit TestServer(TestServerConfig config = {});
  ~TestServer();

  [[nodiscard]] uint16_t port() const { return server_->port(); }

  [[nodiscard]] ScriptedBackend& backend() { return *backend_; }

  [[nodiscard]] HttpServer& server() { return *server_; }

  [[nodiscard]] metrics::Registry& registry() { return registry_; }

  [[nodiscard]] RequestIds& ids() { return ids_; }

  [[nodiscard]] int num_drains() const { return num_drains_.load(); }

  // One request on a connection of its own.
  [[nodiscard]] RawResponse Ask(std::string_view request);

 private:
  metrics::Registry registry_{{{"model_name", "smol"}}};
  RequestIds ids_;
  std::unique_ptr<ApiKeys> keys_;
  ScriptedBackend* backend_ = nullptr;  // owned by the server
  std::atomic<int> num_drains_{0};
  std::unique_ptr<HttpServer> server_;
};

// A complete request with Host and, for a body, its length.
[[nodiscard]] std::string Request(std::string_view method,
                                  std::string_view target,
                                  std::string_view body = {},
                                  std::string_view extra_headers = {});

// The JSON `error.code` of a body, or a note that there is none.
[[nodiscard]] std::string ErrorCode(const RawResponse& response);

}  // namespace spindle::server
