// The configuration as /admin/config and the log show it: what was asked for, and what it came to.
// Thread-safety: thread-safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "config/option_table.h"

namespace spindle::app {

// Options that were left to the machine or the model, with the values they came to.
using ResolvedOptions = std::vector<std::pair<std::string, config::OptionValue>>;

class ConfigReport {
 public:
  explicit ConfigReport(std::vector<config::EffectiveOption> options)
      : options_(std::move(options)) {}

  // REQUIRES: the names are options.
  void Resolve(const ResolvedOptions& resolved);

  // {"max-num-seqs": {"value": 16, "given": null, "source": "default"}, …}. Bytes and counts are
  // numbers, times seconds; a value that is not known yet, or that nothing was chosen for, is null.
  [[nodiscard]] std::string Json() const;

 private:
  mutable Mutex mutex_;
  std::vector<config::EffectiveOption> options_ SPINDLE_GUARDED_BY(mutex_);
};

// {"max-num-seqs": 16, …} of the options that have a value.
[[nodiscard]] std::string ValuesJson(const std::vector<config::EffectiveOption>& options);
[[nodiscard]] std::string ValuesJson(const ResolvedOptions& options);

}  // namespace spindle::app
