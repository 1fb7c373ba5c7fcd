// Logits of whole models against golden files made with transformers in fp32.
#include <cstdlib>
#include <iostream>
#include <string>

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

void Print(const std::string& what, const Agreement& agreement) {
  std::cout << what << ": relative error " << agreement.relative_error << ", rms difference "
            << agreement.rms_difference << ", same arg-max " << agreement.decided_same << "/"
            << agreement.decided << " of " << agreement.positions
            << " positions, largest lost margin " << agreement.largest_lost_margin
            << ", largest lse difference " << agreement.largest_lse_difference << '\n';
}

// `--dtype f32`: fp32 throughout. The limit leaves room for the fp16 of the golden file.
void ExpectExact(const RigOptions& base, const std::string& golden_name) {
  RigOptions options = base;
  options.model.mode = kernels::ComputeMode::kExact;
  options.kv_type = DType::kF32;
  const auto golden = ReadGolden(golden_name);
  ASSERT_TRUE(golden.ok()) << golden.status();
  auto rig = ModelRig::Create(options);
  ASSERT_TRUE(rig.ok()) << rig.status();
  const auto agreement = Compare(**rig, *golden, options.max_rows);
  ASSERT_TRUE(agreement.ok()) << agreement.status();
  Print(golden_name + " exact", *agreement);
  EXPECT_EQ(agreement->decided_same, agreement->decided);
  EXPECT_LE(agreement->relative_error, 2e-3);
}

void ExpectClose(const RigOptions& options, const std::string& golden_name) {
  const auto golden = ReadGolden(golden_name);
  ASSERT_TRUE(golden.ok()) << golden.status();
  auto rig = ModelRig::Create(options);
  ASSERT_TRUE(rig.ok()) << rig.status();
  const auto agreement = Compare(**rig, *golden, options.max_rows);
  ASSERT_TRUE(agreement.ok()) << agreement.status();
  Print(golden_name + " default", *agreement);
  EXPECT_GE(static_cast<double>(agreement->decided_same),
            0.99 * static_cast<double>(agreement->decided));
  EXPECT_LE(agreement->largest_lost_margin, 4 * agreement->rms_difference);
  EXPECT_LE(agreement->relative_error, 2e-2);
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
  ExpectClose(Options(), GetParam().golden);
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

// The default model, where ctest gives its path (cmake -DSPINDLE_TEST_MODEL=…).
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
  ExpectClose(options_, kGolden);
}

}  // namespace
}  // namespace spindle::test
