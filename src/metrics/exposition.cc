#include "metrics/exposition.h"

#include <cmath>
#include <iterator>

#include <fmt/format.h>
#include <prometheus/text_serializer.h>

namespace spindle::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr std::string_view kTotal = "_total";

std::string Escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\n') {
      escaped += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') {
      escaped += '\\';
    }
    escaped += c;
  }
  return escaped;
}

std::string Number(double value) {
  if (std::isinf(value)) {
    return value > 0 ? "+Inf" : "-Inf";
  }
  return std::isnan(value) ? "NaN" : fmt::format("{}", value);
}

void AppendSample(const std::string& name,
                  const ClientMetric& metric,
                  const std::string& extra_label,
                  double value,
                  std::string* out) {
  *out += name;
  std::string labels;
  for (const auto& label : metric.label) {
    fmt::format_to(std::back_inserter(labels),
                   "{}{}=\"{}\"",
                   labels.empty() ? "" : ",",
                   label.name,
                   Escape(label.value));
  }
  if (!extra_label.empty()) {
    labels += (labels.empty() ? "" : ",") + extra_label;
  }
  if (!labels.empty()) {
    *out += "{" + labels + "}";
  }
  *out += " " + Number(value) + "\n";
}

void AppendHistogram(const std::string& name, const ClientMetric& metric, std::string* out) {
  for (const auto& bucket : metric.histogram.bucket) {
    AppendSample(name + "_bucket",
                 metric,
                 "le=\"" + Number(bucket.upper_bound) + "\"",
                 static_cast<double>(bucket.cumulative_count),
                 out);
  }
  AppendSample(
      name + "_count", metric, "", static_cast<double>(metric.histogram.sample_count), out);
  AppendSample(name + "_sum", metric, "", metric.histogram.sample_sum, out);
}

}  // namespace

std::string PrometheusText(const std::vector<MetricFamily>& families) {
  return prometheus::TextSerializer().Serialize(families);
}

std::string OpenMetricsText(const std::vector<MetricFamily>& families) {
  std::string out;
  for (const MetricFamily& family : families) {
    std::string name = family.name;
    const bool counter = family.type == MetricType::Counter;
    if (counter && name.ends_with(kTotal)) {
      name.resize(name.size() - kTotal.size());
    }
    const bool histogram = family.type == MetricType::Histogram;
    fmt::format_to(std::back_inserter(out),
                   "# HELP {} {}\n# TYPE {} {}\n",
                   name,
                   Escape(family.help),
                   name,
                   counter ? "counter" : (histogram ? "histogram" : "gauge"));
    for (const ClientMetric& metric : family.metric) {
      if (histogram) {
        AppendHistogram(name, metric, &out);
      } else if (counter) {
        AppendSample(name + std::string(kTotal), metric, "", metric.counter.value, &out);
      } else {
        AppendSample(name, metric, "", metric.gauge.value, &out);
      }
    }
  }
  return out + "# EOF\n";
}

}  // namespace spindle::metrics
