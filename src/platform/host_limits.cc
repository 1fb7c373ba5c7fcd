#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include <sched.h>
#include <unistd.h>

#include "platform/compute_pool.h"

namespace spindle::platform {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// First number of a file such as memory.max; kUnlimited for "max", absent or unreadable files.
uint64_t ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : kUnlimited;
}

// Folder of this process's cgroup (version 2), "" when there is none.
std::string CgroupFolder() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) {
      return "/sys/fs/cgroup" + line.substr(3);
    }
  }
  return "";
}

// Calls f(folder) for the process's cgroup and all its parents: a limit anywhere above binds too.
template <typename F>
void ForEachCgroup(F f) {
  static constexpr size_t kRootLength = sizeof("/sys/fs/cgroup") - 1;
  for (std::string folder = CgroupFolder(); folder.size() >= kRootLength && !folder.empty();) {
    f(folder);
    if (folder.size() == kRootLength) {
      return;
    }
    folder.resize(std::max(folder.find_last_of('/'), kRootLength));
  }
}

uint64_t MemInfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  std::string unit;
  while (file >> name >> kib) {
    std::getline(file, unit);
    if (name == key) {
      return kib * 1024;
    }
  }
  return kUnlimited;
}

}  // namespace

uint32_t UsableCpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  uint32_t cpus = 1;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    cpus = static_cast<uint32_t>(CPU_COUNT(&mask));
  }
  ForEachCgroup([&cpus](const std::string& folder) {
    std::ifstream file(folder + "/cpu.max");
    uint64_t quota = 0;
    uint64_t period = 0;
    if (file >> quota >> period && period > 0) {  // "max 100000" fails to parse: no limit
      cpus = static_cast<uint32_t>(std::min<uint64_t>(cpus, (quota + period - 1) / period));
    }
  });
  return std::max(cpus, 1U);
}

uint64_t AvailableMemoryBytes() {
  uint64_t bytes = MemInfo("MemAvailable:");
  ForEachCgroup([&bytes](const std::string& folder) {
    const uint64_t limit = ReadNumber(folder + "/memory.max");
    const uint64_t used = ReadNumber(folder + "/memory.current");
    if (limit != kUnlimited && used != kUnlimited) {
      bytes = std::min(bytes, limit > used ? limit - used : 0);
    }
  });
  return bytes;
}

uint64_t TotalMemoryBytes() {
  uint64_t bytes = MemInfo("MemTotal:");
  ForEachCgroup([&bytes](const std::string& folder) {
    bytes = std::min(bytes, ReadNumber(folder + "/memory.max"));
  });
  return bytes;
}

}  // namespace spindle::platform
