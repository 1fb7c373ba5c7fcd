#include "model/config_reader.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/model/fake_file.h"

namespace spindle::model {
namespace {

using formats::FileKind;
using formats::MetaValue;
using test::FakeFile;
using testing::ElementsAre;
using testing::HasSubstr;

FakeFile Gguf(const std::string& architecture = "llama") {
  FakeFile file(FileKind::kGguf);
  const auto uint = [](uint64_t value) { return MetaValue(value); };
  file.Set("general.architecture", architecture).Set("general.name", std::string("tiny"));
  file.Set(architecture + ".block_count", uint(2))
      .Set(architecture + ".embedding_length", uint(256))
      .Set(architecture + ".feed_forward_length", uint(512))
      .Set(architecture + ".attention.head_count", uint(4))
      .Set(architecture + ".attention.head_count_kv", uint(2))
      .Set(architecture + ".context_length", uint(2048))
      .Set(architecture + ".attention.layer_norm_rms_epsilon", 1e-5);
  file.Tensor("token_embd.weight", {1000, 256});
  return file;
}

FakeFile HuggingFace(const std::string& class_name, const std::string& more = "") {
  FakeFile file(FileKind::kHuggingFace);
  file.Tensor("model.embed_tokens.weight", {1000, 256});
  file.Config(R"({"architectures": [")" + class_name + R"("], "num_hidden_layers": 3,
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "vocab_size": 1000,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-06)" +
              more + "}");
  return file;
}

absl::StatusOr<ModelConfig> Configure(const FakeFile& file, const ModelOptions& options = {}) {
  auto config = ReadConfig(file);
  if (!config.ok()) {
    return config;
  }
  const absl::Status status = ApplyOptions(options, &*config);
  return status.ok() ? config : absl::StatusOr<ModelConfig>(status);
}

void ExpectRefused(const absl::StatusOr<ModelConfig>& config,
                   absl::StatusCode code,
                   const std::string& message) {
  EXPECT_EQ(config.status().code(), code) << config.status();
  EXPECT_THAT(std::string(config.status().message()), HasSubstr(message));
}

TEST(GgufConfig, ReadsALlama) {
  const auto config = Configure(Gguf());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->name, "tiny");
  EXPECT_EQ(config->num_layers, 2U);
  EXPECT_EQ(config->head_dim, 64U);  // derived
  EXPECT_EQ(config->num_kv_heads, 2U);
  EXPECT_EQ(config->vocab_size, 1000U);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_FALSE(config->qk_norm);
  EXPECT_EQ(config->max_model_len, 2048U);
  EXPECT_EQ(config->rope.pairing, kernels::RopePairing::kAdjacent);
  EXPECT_EQ(config->rope.scaling, RopeScaling::kNone);
  EXPECT_THAT(config->layer_window, ElementsAre(0, 0));
}

TEST(GgufConfig, ReadsQwenWithItsPairingNormsAndExplicitHeadSize) {
  FakeFile file = Gguf("qwen3");
  file.Set("qwen3.attention.key_length", MetaValue(uint64_t{128}))
      .Set("qwen3.attention.value_length", MetaValue(uint64_t{128}));
  file.Tensor("output.weight", {1000, 256});
  const auto config = Configure(file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 128U);
  EXPECT_EQ(config->rope.dim, 128U);
  EXPECT_TRUE(config->qk_norm);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_EQ(config->rope.pairing, kernels::RopePairing::kHalfSplit);
  EXPECT_TRUE(Configure(Gguf("qwen2"))->qkv_bias);
}

TEST(GgufConfig, TakesEqualPerLayerArraysAndRefusesMixedOnes) {
  FakeFile same = Gguf();
  same.Set("llama.attention.head_count_kv", std::vector<int64_t>{4, 4});
  EXPECT_EQ(Configure(same)->num_kv_heads, 4U);
  FakeFile mixed = Gguf();
  mixed.Set("llama.attention.head_count_kv", std::vector<int64_t>{4, 2});
  ExpectRefused(Configure(mixed), absl::StatusCode::kDataLoss, "head_count_kv");
}

TEST(GgufConfig, ReadsRopeScaling) {
  FakeFile yarn = Gguf();
  yarn.Set("llama.rope.scaling.type", std::string("yarn"))
      .Set("llama.rope.scaling.factor", 4.0)
      .Set("llama.rope.scaling.original_context_length", MetaValue(uint64_t{1024}));
  const auto config = Configure(yarn);
  EXPECT_EQ(config->rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(config->rope.original_context, 1024U);
  EXPECT_EQ(config->max_model_len, 4096U);  // 4 × the original context

  FakeFile linear = Gguf();  // a factor without a type is linear
  linear.Set("llama.rope.scaling.factor", 2.0);
  EXPECT_EQ(Configure(linear)->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(Configure(linear)->max_model_len, 4096U);

  FakeFile other = Gguf();
  other.Set("llama.rope.scaling.type", std::string("longrope"));
  ExpectRefused(Configure(other), absl::StatusCode::kUnimplemented, "longrope");

  FakeFile factors = Gguf();
  factors.Tensor("rope_freqs.weight", {32}, std::vector<float>(32, 2.0F));
  EXPECT_EQ(Configure(factors)->rope.frequency_factors.size(), 32U);
  FakeFile few = Gguf();
  few.Tensor("rope_freqs.weight", {16}, std::vector<float>(16, 2.0F));
  ExpectRefused(Configure(few), absl::StatusCode::kDataLoss, "rope_freqs.weight");
}

TEST(GgufConfig, RefusesByName) {
  ExpectRefused(Configure(Gguf("mamba")), absl::StatusCode::kUnimplemented, "'mamba'");
  FakeFile experts = Gguf();
  experts.Set("llama.expert_count", MetaValue(uint64_t{8}));
  ExpectRefused(Configure(experts), absl::StatusCode::kUnimplemented, "experts");
  FakeFile text = Gguf();
  text.Set("llama.block_count", std::string("two"));
  ExpectRefused(Configure(text), absl::StatusCode::kDataLoss, "llama.block_count");
  FakeFile huge = Gguf();
  huge.Set("llama.block_count", MetaValue(uint64_t{1} << 31));
  ExpectRefused(Configure(huge), absl::StatusCode::kDataLoss, "number of layers");
  FakeFile heads = Gguf();
  heads.Set("llama.attention.head_count_kv", MetaValue(uint64_t{3}));
  ExpectRefused(Configure(heads), absl::StatusCode::kDataLoss, "not a multiple");
  FakeFile small_head = Gguf();
  small_head.Set("llama.attention.key_length", MetaValue(uint64_t{32}))
      .Set("llama.attention.value_length", MetaValue(uint64_t{32}));
  ExpectRefused(Configure(small_head), absl::StatusCode::kUnimplemented, "head dimension 32");
  FakeFile nothing(FileKind::kGguf);
  ExpectRefused(Configure(nothing), absl::StatusCode::kDataLoss, "token_embd.weight");
}

TEST(HuggingFaceConfig, ReadsALlamaWithDefaults) {
  const auto config = Configure(HuggingFace("LlamaForCausalLM"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_kv_heads, 4U);
  EXPECT_EQ(config->head_dim, 64U);
  EXPECT_TRUE(config->tied_embeddings);  // no lm_head in the file
  EXPECT_EQ(config->rope.base, 10000.0F);
  EXPECT_EQ(config->rope.pairing, kernels::RopePairing::kHalfSplit);
}

TEST(HuggingFaceConfig, ReadsEverySpellingOfRopeScaling) {
  const auto rope = [](const std::string& more) {
    return Configure(HuggingFace("LlamaForCausalLM", more))->rope;
  };
  EXPECT_EQ(rope(R"(, "rope_theta": 5e5, "rope_scaling": null)").base, 5e5F);
  EXPECT_EQ(rope(R"(, "rope_scaling": {"type": "linear", "factor": 2.0})").scaling,
            RopeScaling::kLinear);
  EXPECT_EQ(rope(R"(, "rope_scaling": {"rope_type": "linear", "factor": 2})").factor, 2.0F);
  const RopeConfig newer = rope(R"(, "rope_parameters": {"rope_type": "llama3", "factor": 8.0,
      "rope_theta": 500000.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192})");
  EXPECT_EQ(newer.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(newer.base, 500000.0F);
  EXPECT_EQ(newer.original_context, 8192U);
  const RopeConfig yarn = rope(R"(, "rope_scaling": {"rope_type": "yarn", "factor": 40.0,
      "mscale": 1.0, "mscale_all_dim": 1.0})");
  EXPECT_EQ(yarn.attention_factor, 1.0F);  // the two scales cancel
  EXPECT_EQ(yarn.original_context, 2048U);
  EXPECT_EQ(rope(R"(, "rope_scaling": {"type": "yarn", "factor": 4, "attention_factor": 1.5})")
                .attention_factor,
            1.5F);
}

TEST(HuggingFaceConfig, KnowsWhichLayersHaveAWindow) {
  const auto windows = [](const std::string& class_name, const std::string& more) {
    return Configure(HuggingFace(class_name, more))->layer_window;
  };
  EXPECT_THAT(windows("MistralForCausalLM", R"(, "sliding_window": 512)"),
              ElementsAre(512, 512, 512));
  EXPECT_THAT(windows("MistralForCausalLM", R"(, "sliding_window": null)"), ElementsAre(0, 0, 0));
  const std::string qwen = R"(, "sliding_window": 512, "max_window_layers": 1)";
  EXPECT_THAT(windows("Qwen2ForCausalLM", qwen + R"(, "use_sliding_window": false)"),
              ElementsAre(0, 0, 0));
  EXPECT_THAT(windows("Qwen2ForCausalLM", qwen + R"(, "use_sliding_window": true)"),
              ElementsAre(0, 512, 512));
  EXPECT_THAT(windows("Qwen3ForCausalLM", qwen + R"(, "use_sliding_window": true, "layer_types":
              ["sliding_attention", "full_attention", "full_attention"])"),
              ElementsAre(512, 0, 0));
  EXPECT_THAT(windows("LlamaForCausalLM", R"(, "sliding_window": 512)"), ElementsAre(0, 0, 0));
}

TEST(HuggingFaceConfig, RefusesByName) {
  const auto refused = [](const FakeFile& file, absl::StatusCode code, const std::string& message) {
    ExpectRefused(Configure(file), code, message);
  };
  using enum absl::StatusCode;
  const std::string llama = "LlamaForCausalLM";
  refused(HuggingFace("GPT2LMHeadModel"), kUnimplemented, "'GPT2LMHeadModel'");
  refused(HuggingFace(llama, R"(, "hidden_act": "gelu")"), kUnimplemented, "'gelu'");
  refused(HuggingFace(llama, R"(, "quantization_config": {})"), kUnimplemented, "quantization");
  refused(HuggingFace(llama, R"(, "rope_scaling": {"type": "dynamic", "factor": 2})"),
          kUnimplemented,
          "'dynamic'");
  refused(HuggingFace(llama, R"(, "rope_scaling": {"type": "linear"})"), kDataLoss, "factor");
  refused(HuggingFace(llama, R"(, "rope_scaling": 3)"), kDataLoss, "not an object");
  refused(HuggingFace(llama, R"(, "num_key_value_heads": -1)"), kDataLoss, "num_key_value_heads");
  refused(HuggingFace(llama, R"(, "rope_theta": "big")"), kDataLoss, "rope_theta");
  refused(HuggingFace(llama, R"(, "rope_theta": -1.0)"), kDataLoss, "RoPE base");
  FakeFile broken = HuggingFace(llama);
  broken.Config("{");
  refused(broken, kDataLoss, "config.json");
}

ModelOptions Rope(RopeOverrides overrides) {
  ModelOptions options;
  options.rope = std::move(overrides);
  return options;
}

TEST(Overrides, StretchTheContextAsLlamaCppDoes) {
  RopeOverrides yarn;
  yarn.scaling = "yarn";
  yarn.scale = 4.0F;
  auto config = Configure(Gguf(), Rope(yarn));
  EXPECT_EQ(config->rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(config->rope.original_context, 2048U);
  EXPECT_EQ(config->max_model_len, 8192U);

  yarn.yarn_orig_ctx = 1024;
  config = Configure(Gguf(), Rope(yarn));
  EXPECT_EQ(config->rope.original_context, 1024U);
  EXPECT_EQ(config->max_model_len, 4096U);

  RopeOverrides scale;  // without a scaling: linear
  scale.freq_scale = 0.5F;
  scale.freq_base = 20000.0F;
  config = Configure(Gguf(), Rope(scale));
  EXPECT_EQ(config->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(config->rope.factor, 2.0F);
  EXPECT_EQ(config->rope.base, 20000.0F);
  EXPECT_EQ(config->max_model_len, 4096U);

  FakeFile scaled = Gguf();
  scaled.Set("llama.rope.scaling.type", std::string("linear"))
      .Set("llama.rope.scaling.factor", 4.0);
  RopeOverrides none;
  none.scaling = "none";
  EXPECT_EQ(Configure(scaled, Rope(none))->max_model_len, 2048U);
}

TEST(Overrides, AreRefusedWithTheirRange) {
  using enum absl::StatusCode;
  RopeOverrides both;
  both.scale = 2.0F;
  both.freq_scale = 0.5F;
  ExpectRefused(Configure(Gguf(), Rope(both)), kInvalidArgument, "not both");
  RopeOverrides zero;
  zero.scale = 0.0F;
  ExpectRefused(Configure(Gguf(), Rope(zero)), kInvalidArgument, "--rope-scale must be greater");
  RopeOverrides unknown;
  unknown.scaling = "ntk";
  ExpectRefused(Configure(Gguf(), Rope(unknown)), kInvalidArgument, "'ntk'");
  RopeOverrides orig;
  orig.yarn_orig_ctx = 0;
  ExpectRefused(Configure(Gguf(), Rope(orig)), kInvalidArgument, "--yarn-orig-ctx");
  const FakeFile llama3 = HuggingFace("LlamaForCausalLM", R"(, "rope_scaling": {"type": "llama3",
      "factor": 8.0, "original_max_position_embeddings": 1024})");
  RopeOverrides scale;
  scale.scale = 2.0F;
  ExpectRefused(Configure(llama3, Rope(scale)), kInvalidArgument, "Llama-3");
  scale.scaling = "linear";
  EXPECT_EQ(Configure(llama3, Rope(scale))->max_model_len, 4096U);
}

TEST(Overrides, MaxModelLenStaysInsideTheLimit) {
  ModelOptions options;
  options.max_model_len = 2048;
  EXPECT_EQ(Configure(Gguf(), options)->max_model_len, 2048U);
  options.max_model_len = 100;
  EXPECT_EQ(Configure(Gguf(), options)->max_model_len, 100U);
  for (const uint32_t wrong : {0U, 2049U}) {
    options.max_model_len = wrong;
    ExpectRefused(Configure(Gguf(), options),
                  absl::StatusCode::kInvalidArgument,
                  "--max-model-len must be in 1..2048");
  }
}

}  // namespace
}  // namespace spindle::model
