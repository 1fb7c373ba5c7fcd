// Logits of tiny models of every architecture against golden files made with transformers in fp32.
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "integration/logits_support.h"

namespace spindle::test {
namespace {

struct Tiny {
  std::string model;   // path below tests/golden/models
  std::string golden;  // file in tests/golden/logits
};

void PrintTo(const Tiny& tiny, std::ostream* out) {
  *out << tiny.golden;
}

class TinyLogits : public testing::TestWithParam<Tiny> {
 protected:
  static RigOptions Options() {
    RigOptions options;
    options.path = SPINDLE_TEST_GOLDEN_DIR "/models/" + GetParam().model;
    return options;
  }
};

TEST_P(TinyLogits, ExactModeFollowsTransformers) {
  ExpectExact(Options(), GetParam().golden);
}

TEST_P(TinyLogits, DefaultModeStaysClose) {
  ExpectClose(Options(), GetParam().golden, 0.99);
}

std::vector<Tiny> AllTiny() {
  std::vector<Tiny> all = {{"llama-wide.gguf", "llama-wide.gguf.golden"}};
  for (const char* name : {"llama",
                           "llama-rope-llama3",
                           "llama-rope-linear",
                           "llama-rope-yarn",
                           "mistral",
                           "qwen2",
                           "qwen3"}) {
    all.push_back({name, std::string(name) + ".safetensors.golden"});
    all.push_back({std::string(name) + ".gguf", std::string(name) + ".gguf.golden"});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, TinyLogits, testing::ValuesIn(AllTiny()));

}  // namespace
}  // namespace spindle::test
