#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/model.h"
#include "support/gguf_builder.h"
#include "support/temp_folder.h"

namespace spindle::model {
namespace {

namespace fs = std::filesystem;
using test::GgufBuilder;
using testing::HasSubstr;

constexpr const char* kModels = SPINDLE_TEST_GOLDEN_DIR "/models/";

class ModelLoad : public testing::Test {
 protected:
  void SetUp() override {
    auto pool = platform::ComputePool::Create({.num_threads = 2, .pin = false});
    ASSERT_TRUE(pool.ok());
    pool_ = std::move(*pool);
  }

  absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& path,
                                              const ModelOptions& options = {},
                                              const LoadProgress& progress = nullptr) {
    auto file = formats::ModelFile::Open(path);
    if (!file.ok()) {
      return file.status();
    }
    return Model::Load(std::move(*file), options, *pool_, *kernels::BestKernels(), progress);
  }

  void ExpectRefused(const std::string& path, absl::StatusCode code, const std::string& message) {
    const auto model = Load(path);
    EXPECT_EQ(model.status().code(), code) << model.status();
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(message));
  }

  std::unique_ptr<platform::ComputePool> pool_;
  test::TempFolder folder_;
};

// A one-layer Llama without the tensors that a test adds itself.
GgufBuilder Llama(uint32_t layers = 1) {
  GgufBuilder builder;
  builder.Text("general.architecture", "llama").Uint("llama.block_count", layers);
  builder.Uint("llama.embedding_length", 64).Uint("llama.feed_forward_length", 128);
  builder.Uint("llama.attention.head_count", 1).Uint("llama.context_length", 256);
  builder.Float("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  builder.Tensor("token_embd.weight", {64, 32}).Tensor("output_norm.weight", {64});
  builder.Tensor("blk.0.attn_norm.weight", {64}).Tensor("blk.0.attn_q.weight", {64, 64});
  builder.Tensor("blk.0.attn_k.weight", {64, 64}).Tensor("blk.0.attn_v.weight", {64, 64});
  builder.Tensor("blk.0.attn_output.weight", {64, 64}).Tensor("blk.0.ffn_norm.weight", {64});
  builder.Tensor("blk.0.ffn_gate.weight", {64, 128}).Tensor("blk.0.ffn_up.weight", {64, 128});
  return builder;
}

TEST_F(ModelLoad, ReportsProgressAndSizes) {
  std::vector<double> fractions;
  const auto model = Load(std::string(kModels) + "llama.gguf", {}, [&fractions](double fraction) {
    fractions.push_back(fraction);
  });
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_FALSE(fractions.empty());
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_EQ(fractions.back(), 1.0);
  // Two layers of (q, k, v, o), (gate, up, down), two norms; embedding, head and the last norm.
  const uint64_t layer = 64 * 256 * 2 + 64 * 128 * 2 + 3 * 64 * 128 + 2 * 64;
  EXPECT_EQ((*model)->num_parameters(), 2 * layer + 2 * 256 * 64 + 64);
  EXPECT_EQ((*model)->config().quantization, "Q8_0");
  EXPECT_GT((*model)->weight_bytes(), 100'000U);
}

TEST_F(ModelLoad, FingerprintsTellModelsAndArithmeticApart) {
  const std::string path = std::string(kModels) + "llama.gguf";
  const Digest first = (*Load(path))->fingerprint();
  EXPECT_EQ((*Load(path))->fingerprint(), first);
  ModelOptions exact;
  exact.mode = kernels::ComputeMode::kExact;
  EXPECT_NE((*Load(path, exact))->fingerprint(), first);
  ModelOptions base;
  base.rope.freq_base = 20000.0F;
  EXPECT_NE((*Load(path, base))->fingerprint(), first);
  ModelOptions shorter;  // does not change a bit of what is computed
  shorter.max_model_len = 100;
  EXPECT_EQ((*Load(path, shorter))->fingerprint(), first);

  std::ifstream stream(path, std::ios::binary);
  std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(stream),
                             std::istreambuf_iterator<char>()};
  bytes[bytes.size() - 100] ^= 1;  // one bit of one weight
  EXPECT_NE((*Load(folder_.Write("changed.gguf", bytes)))->fingerprint(), first);
}

TEST_F(ModelLoad, RefusesMissingUnknownAndMisshapenTensors) {
  using enum absl::StatusCode;
  ExpectRefused(
      folder_.Write("a.gguf", Llama().Build()), kDataLoss, "'blk.0.ffn_down.weight' is missing");
  ExpectRefused(folder_.Write("b.gguf", Llama().Tensor("blk.0.ffn_down.weight", {64, 64}).Build()),
                kDataLoss,
                "'blk.0.ffn_down.weight' has shape [64, 64], the configuration asks for [64, 128]");
  GgufBuilder extra = Llama().Tensor("blk.0.ffn_down.weight", {128, 64});
  EXPECT_TRUE(Load(folder_.Write("c.gguf", extra.Build())).ok());
  extra.Tensor("blk.0.attn_output.bias", {64});
  ExpectRefused(folder_.Write("d.gguf", extra.Build()), kUnimplemented, "'blk.0.attn_output.bias'");
  GgufBuilder layers = Llama(2).Tensor("blk.0.ffn_down.weight", {128, 64});
  ExpectRefused(folder_.Write("e.gguf", layers.Build()), kDataLoss, "'blk.1.attn_norm.weight'");
}

TEST_F(ModelLoad, TakesSafetensorsAtOddAddresses) {
  const fs::path source = fs::path(kModels) / "llama";
  std::ifstream stream(source / "model.safetensors", std::ios::binary);
  std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(stream),
                             std::istreambuf_iterator<char>()};
  const Digest straight = (*Load(source.string()))->fingerprint();
  ++bytes[0];  // one more byte of header, a space before the closing brace's end
  const size_t header_end =
      8 + (static_cast<size_t>(bytes[0]) | static_cast<size_t>(bytes[1]) << 8) - 1;
  bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(header_end), ' ');
  folder_.Write("model.safetensors", bytes);
  fs::copy_file(source / "config.json", fs::path(folder_.path()) / "config.json");
  const auto odd = Load(folder_.path());
  ASSERT_TRUE(odd.ok()) << odd.status();
  EXPECT_EQ((*odd)->fingerprint(), straight);
}

}  // namespace
}  // namespace spindle::model
