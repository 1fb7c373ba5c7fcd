#include "server/http/server_metrics.h"

#include <string>
#include <string_view>

#include "server/http/process_metrics.h"

namespace spindle::server {
namespace {

constexpr std::string_view kRequests = "spindle_requests_total";
constexpr std::string_view kRequestsHelp = "Finished HTTP requests; 499 = client gone.";

}  // namespace

ServerMetrics::ServerMetrics(metrics::Registry& registry, const BuildInfo& build)
    : registry_(registry) {
  for (size_t i = 0; i < kNumEndpoints; ++i) {
    const std::string endpoint(EndpointLabel(static_cast<EndpointId>(i)));
    registry.AddCounter(kRequests, kRequestsHelp, {{"endpoint", endpoint}, {"code", "200"}}).Add(0);
  }
  model_load_ =
      registry.AddGauge("spindle_model_load_seconds", "Time from start to a loaded model.");
  registry
      .AddGauge("spindle_build_info",
                "Always 1; the labels tell the build.",
                {{"version", build.version},
                 {"commit", build.commit},
                 {"backend", build.backend},
                 {"isa", build.isa}})
      .Set(1);
  RegisterProcessMetrics(registry);
}

void ServerMetrics::CountRequest(EndpointId endpoint, int status) const {
  registry_
      .AddCounter(
          kRequests,
          kRequestsHelp,
          {{"endpoint", std::string(EndpointLabel(endpoint))}, {"code", std::to_string(status)}})
      .Add();
}

}  // namespace spindle::server
