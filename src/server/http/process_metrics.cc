#include "server/http/process_metrics.h"

#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

namespace spindle::server {
namespace {

// Open descriptors of this process, the one that counts them excluded.
uint64_t CountOpenFds() {
  const auto close_dir = [](DIR* dir) { closedir(dir); };
  const std::unique_ptr<DIR, decltype(close_dir)> dir(opendir("/proc/self/fd"), close_dir);
  if (dir == nullptr) {
    return 0;
  }
  uint64_t count = 0;
  while (const dirent* entry = readdir(dir.get())) {
    count += entry->d_name[0] != '.' ? 1 : 0;
  }
  return count > 0 ? count - 1 : 0;
}

double BootTime() {
  std::ifstream file("/proc/stat");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("btime ", 0) == 0) {
      return static_cast<double>(std::stoll(line.substr(6)));
    }
  }
  return 0;
}

}  // namespace

std::optional<ProcessUsage> ReadProcessUsage() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  // The second field is the program name in parentheses and may hold blanks.
  if (!std::getline(file, line) || line.rfind(')') == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream fields(line.substr(line.rfind(')') + 2));
  // Fields 3 (state) to 24 (rss), proc(5).
  std::string skipped;
  double utime = 0;
  double stime = 0;
  double start_time = 0;
  ProcessUsage usage;
  uint64_t resident_pages = 0;
  for (int field = 3; field <= 24; ++field) {
    switch (field) {
      case 14:
        fields >> utime;
        break;
      case 15:
        fields >> stime;
        break;
      case 20:
        fields >> usage.num_threads;
        break;
      case 22:
        fields >> start_time;
        break;
      case 23:
        fields >> usage.virtual_bytes;
        break;
      case 24:
        fields >> resident_pages;
        break;
      default:
        fields >> skipped;
    }
  }
  if (!fields) {
    return std::nullopt;
  }
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  usage.cpu_seconds = (utime + stime) / ticks;
  static const double boot_time = BootTime();
  usage.start_time_unix_seconds = boot_time + start_time / ticks;
  usage.resident_bytes = resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  usage.open_fds = CountOpenFds();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    usage.max_fds = limit.rlim_cur;
  }
  return usage;
}

void RegisterProcessMetrics(metrics::Registry& registry) {
  const auto cpu =
      registry.AddCounter("process_cpu_seconds_total", "User and system CPU time in seconds.");
  const auto start = registry.AddGauge("process_start_time_seconds", "Start time, Unix seconds.");
  const auto resident =
      registry.AddGauge("process_resident_memory_bytes", "Resident memory in bytes.");
  const auto virt = registry.AddGauge("process_virtual_memory_bytes", "Virtual memory in bytes.");
  const auto open_fds = registry.AddGauge("process_open_fds", "Open file descriptors.");
  const auto max_fds = registry.AddGauge("process_max_fds", "Limit of open file descriptors.");
  const auto threads = registry.AddGauge("process_threads", "Threads of the process.");
  // A counter only grows by differences; two scrapes at a time must not add the same one twice.
  auto mutex = std::make_shared<std::mutex>();  // shared by the copies of the closure
  registry.OnScrape([=] {
    const std::optional<ProcessUsage> usage = ReadProcessUsage();
    if (!usage.has_value()) {
      return;
    }
    const std::lock_guard<std::mutex> lock(*mutex);
    if (const double gained = usage->cpu_seconds - cpu.Value(); gained > 0) {
      cpu.Add(gained);
    }
    start.Set(usage->start_time_unix_seconds);
    resident.Set(static_cast<double>(usage->resident_bytes));
    virt.Set(static_cast<double>(usage->virtual_bytes));
    open_fds.Set(static_cast<double>(usage->open_fds));
    max_fds.Set(static_cast<double>(usage->max_fds));
    threads.Set(static_cast<double>(usage->num_threads));
  });
}

}  // namespace spindle::server
