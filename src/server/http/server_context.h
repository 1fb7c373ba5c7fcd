// What all connections of one server share. Thread-safety: thread-safe.
#pragma once

#include <atomic>
#include <memory>

#include "base/clock.h"
#include "server/common/api_keys.h"
#include "server/common/request_ids.h"
#include "server/http/backend.h"
#include "server/http/cors.h"
#include "server/http/http_options.h"
#include "server/http/http_server.h"
#include "server/http/large_bodies.h"
#include "server/http/router.h"
#include "server/http/server_metrics.h"

namespace spindle::server {

struct ServerContext {
  ServerContext(HttpOptions server_options,
                std::unique_ptr<Backend> server_backend,
                const HttpDependencies& dependencies,
                HttpHooks server_hooks)
      : options(std::move(server_options)),
        backend(std::move(server_backend)),
        keys(dependencies.keys),
        ids(dependencies.ids),
        registry(dependencies.registry),
        clock(dependencies.clock),
        hooks(std::move(server_hooks)),
        router(options.root_path, options.metrics, options.metrics_auth),
        cors(options.cors_origins),
        metrics(dependencies.registry, options.build),
        large_bodies(kBodiesAtOnce * options.max_body_bytes) {}

  [[nodiscard]] bool draining() const { return drain_deadline_ticks.load() != 0; }

  // 503 shutting_down with the drain time left. REQUIRES: draining().
  [[nodiscard]] serving::ApiError DrainError() const;

  const HttpOptions options;
  const std::unique_ptr<Backend> backend;
  ApiKeys& keys;
  RequestIds& ids;
  metrics::Registry& registry;
  const Clock& clock;
  const HttpHooks hooks;
  const Router router;
  const Cors cors;
  const ServerMetrics metrics;
  LargeBodies large_bodies;
  std::atomic<Duration::rep> drain_deadline_ticks{0};  // 0 = not draining
};

}  // namespace spindle::server
