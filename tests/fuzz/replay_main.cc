// main() of a fuzz target where libFuzzer is not linked: runs the target once over every file given
// by name or folder. Arguments that start with '-' are libFuzzer's and are ignored.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;

bool RunFile(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(stream),
                                std::istreambuf_iterator<char>()};
  if (stream.bad() || !fs::is_regular_file(path)) {
    std::cerr << "cannot read " << path << '\n';
    return false;
  }
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  size_t num_inputs = 0;
  bool all_read = true;
  for (int i = 1; i < argc; ++i) {
    const fs::path argument = argv[i];
    if (argument.native().starts_with('-')) {
      continue;
    }
    if (!fs::is_directory(argument)) {
      all_read &= RunFile(argument);
      ++num_inputs;
      continue;
    }
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(argument)) {
      if (entry.is_regular_file()) {
        all_read &= RunFile(entry.path());
        ++num_inputs;
      }
    }
  }
  std::cout << "ran " << num_inputs << " inputs\n";
  return all_read && num_inputs > 0 ? 0 : 1;
}
