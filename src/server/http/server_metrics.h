// Metric families of the HTTP front end and the process, as far as they are not counted in serving
// and engine. Thread-safety: thread-safe.
#pragma once

#include "base/clock.h"
#include "metrics/metrics.h"
#include "server/http/http_options.h"
#include "server/http/router.h"

namespace spindle::server {

class ServerMetrics {
 public:
  // Registers everything, so that each family exists from the first scrape. `registry` must outlive
  // the object.
  ServerMetrics(metrics::Registry& registry, const BuildInfo& build);

  // One finished request; 499 = the client went away.
  void CountRequest(EndpointId endpoint, int status) const;

  void SetModelLoadTime(Duration time) const { model_load_.Set(ToSeconds(time)); }

 private:
  metrics::Registry& registry_;
  metrics::Gauge model_load_;
};

}  // namespace spindle::server
