#include "model/sparse_gates.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_file.h"
#include "formats/tensor_file.h"
#include "kernels/codes.h"
#include "sparse/seer_r/seer_algorithm.h"
#include "support/temp_folder.h"

namespace spindle::model {
namespace {

using kernels::RopePairing;
using testing::HasSubstr;

constexpr const char* kGolden = SPINDLE_TEST_GOLDEN_DIR "/gates/";
constexpr uint32_t kDim = 32;
constexpr uint32_t kGroup = 3;
constexpr uint32_t kHeads = 2;
constexpr uint32_t kBlocks = 9;
constexpr uint32_t kRows = 24;
constexpr uint32_t kTokens = kBlocks * 64;

// With the final norm that the golden gates were made for.
test::FakeFile GoldenModel() {
  std::vector<float> norm(kDim);
  std::iota(norm.begin(), norm.end(), 1.0F);
  test::FakeFile file(formats::FileKind::kGguf);
  file.Tensor("output_norm.weight", {kDim}, norm);
  return file;
}

ModelConfig GoldenConfig(RopePairing pairing) {
  ModelConfig config;
  config.num_layers = 1;
  config.num_q_heads = kHeads * kGroup;
  config.num_kv_heads = kHeads;
  config.head_dim = kDim;
  config.rope.dim = kDim;
  config.rope.pairing = pairing;
  return config;
}

tensor::RopeTable GoldenRope() {
  tensor::RopeTable rope;
  rope.max_positions = kTokens;
  rope.rope_dim = kDim;
  for (uint32_t position = 0; position < kTokens; ++position) {
    for (uint32_t i = 0; i < kDim / 2; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * i / kDim);
      rope.cos.push_back(static_cast<float>(std::cos(angle)));
      rope.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return rope;
}

// Writes a head of Hugging Face's order as a model of `pairing` has it, rotated to `position`.
void Rotate(const float* head,
            RopePairing pairing,
            const tensor::RopeTable& rope,
            uint32_t position,
            float* out) {
  for (uint32_t i = 0; i < kDim / 2; ++i) {
    const bool is_split = pairing == RopePairing::kHalfSplit;
    const float cosine = rope.cos[position * kDim / 2 + i];
    const float sine = rope.sin[position * kDim / 2 + i];
    out[is_split ? i : 2 * i] = head[i] * cosine - head[i + kDim / 2] * sine;
    out[is_split ? i + kDim / 2 : 2 * i + 1] = head[i] * sine + head[i + kDim / 2] * cosine;
  }
}

const float* Floats(const formats::TensorFile& file, const char* name) {
  return reinterpret_cast<const float*>(file.Find(name)->bytes.data());
}

// Which of the blocks between the first and the last a row chooses besides them.
std::vector<uint32_t> ChosenOf(const sparse::Selection& selection) {
  std::vector<uint32_t> blocks;
  for (const sparse::TileLive& tile : selection.tiles) {
    EXPECT_EQ(tile.live, ~uint64_t{0});
    if (tile.tile != 0 && tile.tile != kBlocks - 1) {
      blocks.push_back(tile.tile);
    }
  }
  return blocks;
}

struct Agreement {
  uint32_t equal = 0;
  uint32_t different = 0;
};

// Compares choices with torch's logits, for a model whose heads come in the order of `pairing`
// while gates were loaded for `loaded_for`.
Agreement CompareWithGolden(RopePairing pairing, RopePairing loaded_for) {
  const test::FakeFile model = GoldenModel();
  auto gates =
      LoadSeerGates(std::string(kGolden) + "gates.safetensors", model, GoldenConfig(loaded_for));
  EXPECT_TRUE(gates.ok()) << gates.status();
  const auto expected = formats::TensorFile::Open(std::string(kGolden) + "expected.safetensors");
  EXPECT_TRUE(expected.ok()) << expected.status();
  const sparse::SeerAlgorithm algorithm(*std::move(gates), kTokens);
  const tensor::RopeTable rope = GoldenRope();
  tensor::AttentionSpec spec;
  spec.pairing = pairing;
  spec.rope = &rope;
  sparse::SelectWorkspace workspace(*kernels::BestKernels());
  const sparse::SparseSettings settings{.sink_tokens = 0, .recent_tokens = 1, .min_context = 0};
  Agreement agreement;
  for (uint32_t head = 0; head < kHeads; ++head) {
    const KvHeadIdx kv_head(static_cast<uint16_t>(head));
    std::vector<float> keys(size_t{kTokens} * kDim);
    std::vector<std::vector<uint64_t>> index(kBlocks, std::vector<uint64_t>(16 * 2 / 8));
    std::vector<const uint8_t*> blobs;
    for (uint32_t token = 0; token < kTokens; ++token) {
      Rotate(Floats(**expected, "keys") + (size_t{token} * kHeads + head) * kDim,
             pairing,
             rope,
             token,
             &keys[size_t{token} * kDim]);
    }
    for (uint32_t block = 0; block < kBlocks; ++block) {
      auto* const blob = reinterpret_cast<uint8_t*>(index[block].data());
      const auto* const first = reinterpret_cast<const uint8_t*>(&keys[size_t{block} * 64 * kDim]);
      EXPECT_EQ(algorithm.BuildIndex({.keys = {first, 64, 0, kDim, DType::kF32},
                                      .lane_begin = 0,
                                      .lane_end = 64,
                                      .index = blob,
                                      .first_position = block * 64,
                                      .head = kv_head,
                                      .spec = &spec},
                                     *kernels::BestKernels()),
                kernels::kOk);
      blobs.push_back(blob);
    }
    for (uint32_t row = 0; row < kRows; ++row) {
      std::vector<float> q(kGroup * kDim);
      for (uint32_t g = 0; g < kGroup; ++g) {
        const size_t at = ((size_t{row} * kHeads + head) * kGroup + g) * kDim;
        Rotate(Floats(**expected, "queries") + at, pairing, rope, kTokens - 1, &q[g * kDim]);
      }
      const float* const logits =
          Floats(**expected, "logits") + (size_t{row} * kHeads + head) * kBlocks;
      std::vector<uint32_t> order(kBlocks - 2);
      std::iota(order.begin(), order.end(), 1U);
      std::sort(order.begin(), order.end(), [logits](uint32_t a, uint32_t b) {
        return logits[a] > logits[b];
      });
      for (uint32_t wanted = 1; wanted < order.size(); ++wanted) {
        // The index is bf16.
        if (logits[order[wanted - 1]] - logits[order[wanted]] < 0.03F) {
          continue;
        }
        sparse::Selection selection;
        algorithm.Select({.position = kTokens - 1,
                          .head = kv_head,
                          .settings = &settings,
                          .budget_tokens = wanted * 64,
                          .q = q.data(),
                          .group = kGroup,
                          .head_dim = kDim,
                          .index = {.stripes = blobs},
                          .spec = &spec},
                         workspace,
                         &selection);
        std::vector<uint32_t> best(order.begin(), order.begin() + wanted);
        std::sort(best.begin(), best.end());
        ++(ChosenOf(selection) == best ? agreement.equal : agreement.different);
      }
    }
  }
  return agreement;
}

TEST(SparseGates, ChoicesEqualThoseOfTorchInBothOrdersOfChannels) {
  for (const RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kAdjacent}) {
    const Agreement agreement = CompareWithGolden(pairing, pairing);
    EXPECT_EQ(agreement.different, 0U);
    EXPECT_GT(agreement.equal, 200U);
  }
}

TEST(SparseGates, AWrongOrderOfChannelsWouldShow) {
  EXPECT_GT(CompareWithGolden(RopePairing::kAdjacent, RopePairing::kHalfSplit).different, 50U);
  EXPECT_GT(CompareWithGolden(RopePairing::kHalfSplit, RopePairing::kAdjacent).different, 50U);
}

// A gate file of zeros for GoldenConfig that a test damages.
struct GatesFile {
  std::map<std::string, std::string> metadata = {{"format", "spindle-gates-1"},
                                                 {"seerattn_gate_block_size", "64"},
                                                 {"seerattn_gate_hidden_size", "16"},
                                                 {"seerattn_use_rope", "true"},
                                                 {"seerattn_use_qk_norm", "false"},
                                                 {"rope_theta", "10000.0"},
                                                 {"base_model", "golden"}};
  std::map<std::string, std::vector<uint64_t>> tensors = {
      {"model.layers.0.self_attn.attn_gate.attngate_linear_q.weight", {kHeads, kGroup, kDim, 16}},
      {"model.layers.0.self_attn.attn_gate.attngate_linear_k.weight", {kHeads, 3 * kDim, 16}}};
  uint16_t element = 0;

  [[nodiscard]] std::vector<uint8_t> Bytes() const {
    std::string header = R"({"__metadata__": {)";
    for (const auto& [key, value] : metadata) {
      header += (header.back() == '{' ? "\"" : ", \"") + key + "\": \"" + value + "\"";
    }
    header += "}";
    size_t at = 0;
    for (const auto& [name, shape] : tensors) {
      size_t bytes = 2;
      std::string text;
      for (const uint64_t extent : shape) {
        bytes *= extent;
        text += (text.empty() ? "" : ", ") + std::to_string(extent);
      }
      header += ", \"" + name + R"(": {"dtype": "BF16", "shape": [)" + text +
                R"(], "data_offsets": [)" + std::to_string(at) + ", " + std::to_string(at + bytes) +
                "]}";
      at += bytes;
    }
    header += "}";
    std::vector<uint8_t> out(8 + header.size() + at);
    const uint64_t length = header.size();
    std::memcpy(out.data(), &length, sizeof(length));
    std::copy(header.begin(), header.end(), out.begin() + 8);
    std::memcpy(out.data() + out.size() - 2, &element, sizeof(element));
    return out;
  }
};

absl::Status LoadStatus(const GatesFile& file) {
  const test::TempFolder folder;
  const std::vector<uint8_t> bytes = file.Bytes();
  const test::FakeFile model = GoldenModel();
  return LoadSeerGates(
             folder.Write("g.safetensors", bytes), model, GoldenConfig(RopePairing::kAdjacent))
      .status();
}

TEST(SparseGates, RefusalsNameWhatIsWrong) {
  EXPECT_TRUE(LoadStatus({}).ok()) << LoadStatus({});
  const std::string q = "model.layers.0.self_attn.attn_gate.attngate_linear_q.weight";
  const std::vector<std::pair<std::function<void(GatesFile*)>, std::string>> cases = {
      {[](GatesFile* f) { f->metadata.erase("format"); }, "'format' is missing"},
      {[](GatesFile* f) { f->metadata["format"] = "pt"; }, "got 'pt'"},
      {[](GatesFile* f) { f->metadata["seerattn_gate_block_size"] = "32"; }, "must be 64"},
      {[](GatesFile* f) { f->metadata["seerattn_gate_hidden_size"] = "24"; }, "multiple of 16"},
      {[](GatesFile* f) { f->metadata["seerattn_gate_hidden_size"] = "1024"; }, "[16, 512]"},
      {[](GatesFile* f) { f->metadata["seerattn_gate_hidden_size"] = "wide"; }, "got 'wide'"},
      {[](GatesFile* f) { f->metadata["seerattn_use_rope"] = "yes"; }, "true or false"},
      {[](GatesFile* f) { f->metadata["rope_theta"] = "0"; }, "at least 1"},
      {[](GatesFile* f) { f->metadata["rope_theta"] = "nan"; }, "at least 1"},
      {[](GatesFile* f) { f->metadata["model_digest"] = "00"; }, "for another model, golden"},
      {[](GatesFile* f) { f->metadata["seerattn_use_qk_norm"] = "true"; },
       "qnorm.weight' is missing"},
      {[&](GatesFile* f) { f->tensors.erase(q); }, "linear_q.weight' is missing"},
      {[&](GatesFile* f) {
         f->tensors[q] = {kHeads, kGroup, kDim, 32};
       },
       "has shape [2, 3, 32, 32], for this model it must be [2, 3, 32, 16]"},
      {[](GatesFile* f) { f->tensors["model.layers.1.x"] = {4}; }, "it has 3 tensors"},
      {[](GatesFile* f) { f->element = 0x7F80; }, "no finite number"},
  };
  for (const auto& [damage, message] : cases) {
    GatesFile file;
    damage(&file);
    const absl::Status status = LoadStatus(file);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  const test::FakeFile model = GoldenModel();
  EXPECT_TRUE(absl::IsNotFound(
      LoadSeerGates("/nowhere", model, GoldenConfig(RopePairing::kAdjacent)).status()));
}

TEST(SparseGates, TheDigestFollowsWeightsAndSettings) {
  const test::TempFolder folder;
  const test::FakeFile model = GoldenModel();
  const auto digest = [&](const GatesFile& file) {
    const std::vector<uint8_t> bytes = file.Bytes();
    const auto gates = LoadSeerGates(
        folder.Write("g.safetensors", bytes), model, GoldenConfig(RopePairing::kHalfSplit));
    EXPECT_TRUE(gates.ok()) << gates.status();
    return gates->digest;
  };
  GatesFile file;
  const Digest zeros = digest(file);
  file.element = kernels::FloatToBf16(0.5F);
  EXPECT_NE(digest(file), zeros);
  file.element = 0;
  EXPECT_EQ(digest(file), zeros);
  file.metadata["rope_theta"] = "20000";
  EXPECT_NE(digest(file), zeros);
}

TEST(SparseGates, GatesAreFoundBesideTheModel) {
  const test::TempFolder folder;
  EXPECT_EQ(FindGatesBeside(folder.path() + "/m.q4_1.gguf"), "");
  EXPECT_EQ(FindGatesBeside(folder.path()), "");
  const uint8_t byte = 0;
  const std::string beside = folder.Write("m.q4_1.gates.safetensors", {&byte, 1});
  EXPECT_EQ(FindGatesBeside(folder.path() + "/m.q4_1.gguf"), beside);
  const std::string in_folder = folder.Write("gates.safetensors", {&byte, 1});
  EXPECT_EQ(FindGatesBeside(folder.path()), in_folder);
  EXPECT_EQ(FindGatesBeside(folder.path() + "/model.safetensors"), in_folder);
}

}  // namespace
}  // namespace spindle::model
