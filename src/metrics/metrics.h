// Counters, gauges and histograms in Prometheus form (prometheus-cpp core underneath).
// Thread-safety: thread-safe. Updates are atomic and never wait for a scrape; a scrape never waits
// for an engine step. Handles are cheap values that stay valid as long as the registry. Every
// family exists from the first scrape: create the handles, labels included, at start. Label values
// never hold text from requests.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace spindle::metrics {

using Labels = std::map<std::string, std::string>;

// Labels of a vLLM-compatible family: `labels` and the number of the engine, of which there is one.
[[nodiscard]] Labels EngineLabels(Labels labels = {});

class Counter {
 public:
  Counter() = default;  // counts nothing

  void Add(double value = 1.0) const;
  [[nodiscard]] double Value() const;

 private:
  friend class Registry;

  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}

  prometheus::Counter* counter_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;

  void Set(double value) const;
  void Add(double value) const;
  [[nodiscard]] double Value() const;

 private:
  friend class Registry;

  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}

  prometheus::Gauge* gauge_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;

  void Observe(double value) const;

 private:
  friend class Registry;

  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}

  prometheus::Histogram* histogram_ = nullptr;
};

class Registry {
 public:
  // `common`: labels added to every series, for example model_name.
  explicit Registry(Labels common);
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // The same (name, labels) gives the same series. `name` in full, counters with their _total
  // suffix. REQUIRES: one help text and one type per name.
  [[nodiscard]] Counter AddCounter(std::string_view name,
                                   std::string_view help,
                                   const Labels& labels = {});
  [[nodiscard]] Gauge AddGauge(std::string_view name,
                               std::string_view help,
                               const Labels& labels = {});
  // `bounds` ascending upper bounds, +Inf implied; equal for all series of a name.
  [[nodiscard]] Histogram AddHistogram(std::string_view name,
                                       std::string_view help,
                                       const std::vector<double>& bounds,
                                       const Labels& labels = {});

  // `refresh` runs at the start of each scrape, to copy state into gauges; it must not block.
  void OnScrape(std::function<void()> refresh);

  // Exposition text: Prometheus 0.0.4, or OpenMetrics 1.0.
  [[nodiscard]] std::string Expose(bool open_metrics);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// 1, 2, 5, 10, 20 … up to and including the first value ≥ max: the buckets of token-count
// histograms.
[[nodiscard]] std::vector<double> OneTwoFive(double max);

}  // namespace spindle::metrics
