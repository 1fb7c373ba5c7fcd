// The HTTP front end: OpenAI-compatible API, health, metrics and administration on one port.
// Thread-safety: thread-safe, except that Listen and Stop are called once each, by the owner.
// The port opens before a model is loaded; what needs the model answers 503 until the service is
// ready.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "metrics/metrics.h"
#include "server/http/http_options.h"

namespace spindle::serving {
class CompletionService;
}  // namespace spindle::serving

namespace spindle::server {

class ApiKeys;
class Backend;
class RequestIds;

// What the server uses of the rest of the process. Everything borrowed must outlive the server.
struct HttpDependencies {
  ApiKeys& keys;
  RequestIds& ids;
  metrics::Registry& registry;
  const Clock& clock;
};

// Administration that only the application can do. Called on HTTP threads; must not block.
struct HttpHooks {
  std::function<void()> drain = {};               // POST /admin/drain
  std::function<std::string()> config_json = {};  // GET /admin/config; secrets masked
};

class HttpServer {
 public:
  // `service` must outlive the server. ERRORS: kInvalidArgument naming the option and its range;
  // kInvalidArgument or kNotFound for TLS files.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(const HttpOptions& options,
                                                            serving::CompletionService& service,
                                                            const HttpDependencies& dependencies,
                                                            HttpHooks hooks);
  // The same over an interface, for tests.
  static absl::StatusOr<std::unique_ptr<HttpServer>> CreateWithBackend(
      const HttpOptions& options,
      std::unique_ptr<Backend> backend,
      const HttpDependencies& dependencies,
      HttpHooks hooks);
  // Stops, when Stop was not called.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Opens the port and starts the threads. ERRORS: kUnavailable (address in use, no permission),
  // kInvalidArgument (host).
  absl::Status Listen();

  // The port really bound; 0 before Listen and for a Unix socket.
  [[nodiscard]] uint16_t port() const;
  // Printable: http://127.0.0.1:8000, or unix:/path.
  [[nodiscard]] std::string address() const;

  // From now on inference is refused with 503 shutting_down, readiness is 503, connections end
  // after their answer, and those that idle between requests soon; running requests continue and
  // the port stays open. `deadline` is what Retry-After tells.
  void Drain(TimePoint deadline);

  // Waits until running requests ended or `deadline` passed, but also a moment (250 ms) for clients
  // that do not know yet: what they ask is answered as under Drain. Then closes everything and
  // joins the threads.
  void Stop(TimePoint deadline);

  // Reads the TLS files again; connections keep what they have. On an error the old ones stay.
  absl::Status ReloadTls();

  // spindle_model_load_seconds.
  void SetModelLoadTime(Duration time);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace spindle::server
