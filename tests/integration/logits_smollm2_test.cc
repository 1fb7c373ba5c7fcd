// Logits of the default model against a golden file made with transformers in fp32.
#include <cstdlib>

#include <gtest/gtest.h>

#include "integration/logits_support.h"
#include "kernels/registry.h"

namespace spindle::test {
namespace {

// tools/test.sh gives the path of the model file.
class SmolLogits : public testing::Test {
 protected:
  static constexpr const char* kGolden = "smollm2-135m-instruct.q4_1.gguf.golden";

  void SetUp() override {
    const char* path = std::getenv("SPINDLE_TEST_MODEL");
    if (path == nullptr || *path == '\0') {
      GTEST_SKIP() << "SPINDLE_TEST_MODEL names no model file";
    }
    options_.path = path;
    options_.num_threads = 2;
  }

  RigOptions options_;
};

TEST_F(SmolLogits, ExactModeFollowsTransformers) {
  ExpectExact(options_, kGolden);
}

TEST_F(SmolLogits, DefaultModeStaysClose) {
  for (const char* kernels : {"baseline", "avx2", "avx512", "amx"}) {
    if (kernels::FindKernelsByName(kernels) == nullptr) {
      continue;  // not for this CPU; the best one for it is always there
    }
    SCOPED_TRACE(kernels);
    options_.kernels = kernels;
    ExpectClose(options_, kGolden, 0.99);
  }
}

}  // namespace
}  // namespace spindle::test
