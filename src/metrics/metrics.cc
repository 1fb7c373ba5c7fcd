#include "metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "base/mutex.h"
#include "metrics/exposition.h"

namespace spindle::metrics {

Labels EngineLabels(Labels labels) {
  labels["engine"] = "0";
  return labels;
}

void Counter::Add(double value) const {
  if (counter_ != nullptr) {
    counter_->Increment(value);
  }
}

double Counter::Value() const {
  return counter_ == nullptr ? 0.0 : counter_->Value();
}

void Gauge::Set(double value) const {
  if (gauge_ != nullptr) {
    gauge_->Set(value);
  }
}

void Gauge::Add(double value) const {
  if (gauge_ != nullptr) {
    gauge_->Increment(value);
  }
}

double Gauge::Value() const {
  return gauge_ == nullptr ? 0.0 : gauge_->Value();
}

void Histogram::Observe(double value) const {
  if (histogram_ != nullptr) {
    histogram_->Observe(value);
  }
}

struct Registry::Impl {
  Labels common;
  prometheus::Registry registry;
  Mutex mutex;
  std::vector<std::function<void()>> refreshers SPINDLE_GUARDED_BY(mutex);
};

Registry::Registry(Labels common) : impl_(std::make_unique<Impl>()) {
  impl_->common = std::move(common);
}

Registry::~Registry() = default;

Counter Registry::AddCounter(std::string_view name, std::string_view help, const Labels& labels) {
  auto& family = prometheus::BuildCounter()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Labels(impl_->common)
                     .Register(impl_->registry);
  return Counter(&family.Add(labels));
}

Gauge Registry::AddGauge(std::string_view name, std::string_view help, const Labels& labels) {
  auto& family = prometheus::BuildGauge()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Labels(impl_->common)
                     .Register(impl_->registry);
  return Gauge(&family.Add(labels));
}

Histogram Registry::AddHistogram(std::string_view name,
                                 std::string_view help,
                                 const std::vector<double>& bounds,
                                 const Labels& labels) {
  auto& family = prometheus::BuildHistogram()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Labels(impl_->common)
                     .Register(impl_->registry);
  return Histogram(&family.Add(labels, prometheus::Histogram::BucketBoundaries(bounds)));
}

void Registry::OnScrape(std::function<void()> refresh) {
  MutexLock lock(impl_->mutex);
  impl_->refreshers.push_back(std::move(refresh));
}

std::string Registry::Expose(bool open_metrics) {
  {
    MutexLock lock(impl_->mutex);
    for (const auto& refresh : impl_->refreshers) {
      refresh();
    }
  }
  const std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  return open_metrics ? OpenMetricsText(families) : PrometheusText(families);
}

std::vector<double> OneTwoFive(double max) {
  std::vector<double> bounds;
  for (double decade = 1.0;; decade *= 10.0) {
    for (const double step : {1.0, 2.0, 5.0}) {
      bounds.push_back(step * decade);
      if (bounds.back() >= max) {
        return bounds;
      }
    }
  }
}

}  // namespace spindle::metrics
