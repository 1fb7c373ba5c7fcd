// Signals and wake-ups of the main thread as events to wait for.
// Thread-safety: Wake is thread-safe; the rest belongs to the main thread. Construct before any
// other thread starts: the signals are blocked in all threads from then on.
#pragma once

namespace spindle::app {

class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // SIGINT, SIGTERM or SIGHUP; 0 for a Wake. Blocks.
  [[nodiscard]] int Wait();

  // Makes Wait return 0 once.
  void Wake();

 private:
  int signal_fd_;
  int wake_fd_;
};

}  // namespace spindle::app
