// Progress of a long start on standard error: a bar on a terminal, nothing otherwise.
// Thread-safety: thread-compatible.
#pragma once

#include <string>

namespace spindle::app {

class LoadProgressBar {
 public:
  explicit LoadProgressBar(std::string label);
  // The same on what is known to be a terminal or not, for tests.
  LoadProgressBar(std::string label, bool terminal);
  // Removes the bar.
  ~LoadProgressBar();
  LoadProgressBar(const LoadProgressBar&) = delete;
  LoadProgressBar& operator=(const LoadProgressBar&) = delete;

  // `fraction` in [0, 1]; draws when the whole per cent changes.
  void Show(double fraction);

 private:
  const std::string label_;
  const bool terminal_;
  int shown_percent_ = -1;
};

}  // namespace spindle::app
