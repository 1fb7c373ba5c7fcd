#include "app/load_progress.h"

#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace spindle::app {

LoadProgressBar::LoadProgressBar(std::string label)
    : LoadProgressBar(std::move(label), isatty(STDERR_FILENO) != 0) {}

LoadProgressBar::LoadProgressBar(std::string label, bool terminal)
    : label_(std::move(label)), terminal_(terminal) {}

LoadProgressBar::~LoadProgressBar() {
  if (shown_percent_ >= 0) {
    fmt::print(stderr, "\r\033[K");
  }
}

void LoadProgressBar::Show(double fraction) {
  static constexpr int kWidth = 40;
  const int percent = static_cast<int>(fraction * 100.0);
  if (!terminal_ || percent == shown_percent_) {
    return;
  }
  shown_percent_ = percent;
  const int filled = percent * kWidth / 100;
  fmt::print(stderr,
             "\r{} [{}{}] {:3} %",
             label_,
             std::string(static_cast<size_t>(filled), '#'),
             std::string(static_cast<size_t>(kWidth - filled), '.'),
             percent);
  std::fflush(stderr);
}

}  // namespace spindle::app
