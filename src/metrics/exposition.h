// Text forms of collected metric families. Module-private.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include <prometheus/metric_family.h>

namespace spindle::metrics {

// Prometheus text format 0.0.4.
[[nodiscard]] std::string PrometheusText(const std::vector<prometheus::MetricFamily>& families);

// OpenMetrics 1.0: counter families are named without _total, and the text ends with # EOF.
[[nodiscard]] std::string OpenMetricsText(const std::vector<prometheus::MetricFamily>& families);

}  // namespace spindle::metrics
