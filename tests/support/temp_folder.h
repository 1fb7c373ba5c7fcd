// A folder of its own for a test, removed at the end.
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace spindle::test {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = ::testing::TempDir() + "spindle_XXXXXX";
    path_ = mkdtemp(pattern.data()) != nullptr ? pattern : "";
  }

  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  // Writes a file and returns its path.
  std::string Write(std::string_view name, std::span<const uint8_t> bytes) const {
    const std::string path = path_ + "/" + std::string(name);
    std::ofstream stream(path, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
    return path;
  }

  std::string Write(std::string_view name, std::string_view text) const {
    return Write(name, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  }

 private:
  std::string path_;
};

}  // namespace spindle::test
