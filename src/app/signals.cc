#include "app/signals.h"

#include <array>
#include <cstdint>

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/status_macros.h"

namespace spindle::app {

Signals::Signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    sigaddset(&set, number);
  }
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a write past the limit fails instead
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_CLOEXEC);
  SPINDLE_CHECK(signal_fd_ >= 0 && wake_fd_ >= 0);
}

Signals::~Signals() {
  close(signal_fd_);
  close(wake_fd_);
}

int Signals::Wait() {
  std::array<pollfd, 2> fds{{{signal_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}}};
  for (;;) {
    if (poll(fds.data(), fds.size(), -1) < 0) {
      continue;  // EINTR
    }
    if ((fds[0].revents & POLLIN) != 0) {
      signalfd_siginfo info{};
      if (read(signal_fd_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
        return static_cast<int>(info.ssi_signo);
      }
    }
    if ((fds[1].revents & POLLIN) != 0) {
      uint64_t count = 0;
      if (read(wake_fd_, &count, sizeof(count)) == static_cast<ssize_t>(sizeof(count))) {
        return 0;
      }
    }
  }
}

void Signals::Wake() {
  const uint64_t one = 1;
  // An eventfd write fails only when the counter is at its limit, and then a wake-up is pending
  // anyway.
  if (write(wake_fd_, &one, sizeof(one)) < 0) {
    return;
  }
}

}  // namespace spindle::app
