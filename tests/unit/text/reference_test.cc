// Token ids against llama.cpp (GGUF vocabularies) and Python tokenizers (tokenizer.json) on the
// strings of tests/golden/text; see the README there for how the digests are made.
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "formats/model_file.h"
#include "text/tokenizer.h"
#include "unit/text/test_vocabulary.h"

namespace spindle::text {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string Golden(const std::string& name) {
  return ReadFile(std::string(SPINDLE_TEST_GOLDEN_DIR) + "/text/" + name);
}

std::vector<std::string> Strings() {
  return nlohmann::json::parse(Golden("strings.json")).get<std::vector<std::string>>();
}

// 32-bit FNV-1a over the ids as little-endian 32-bit integers.
uint32_t Digest(const std::vector<TokenId>& ids) {
  uint32_t digest = 0x811C9DC5U;
  for (const TokenId id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      digest = (digest ^ (static_cast<uint32_t>(id) >> shift & 0xFFU)) * 0x01000193U;
    }
  }
  return digest;
}

// True when each byte of `text` has a token (SmolLM2 lacks some control characters).
bool HasAllBytes(const std::set<std::string_view>& tokens, std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (!tokens.contains(text.substr(i, 1))) {
      return false;
    }
  }
  return true;
}

// Both encodings of each string have the digests of `golden`, and decoding restores the string
// where `lossless`.
void ExpectSameIds(const Tokenizer& tokenizer, const std::string& golden, bool lossless) {
  const std::vector<std::string> strings = Strings();
  std::istringstream lines(Golden(golden));
  std::string line;
  size_t index = 0;
  size_t num_different = 0;
  size_t num_restored = 0;
  std::set<std::string_view> tokens;
  for (uint32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    tokens.insert(tokenizer.TokenBytes(static_cast<TokenId>(id)));
  }
  while (std::getline(lines, line)) {
    if (line[0] == '#') {
      continue;
    }
    ASSERT_LT(index, strings.size());
    const std::string& text = strings[index++];
    for (const bool parse_special : {true, false}) {
      uint32_t expected = 0;
      const char* digits = line.data() + (parse_special ? 0 : 9);
      std::from_chars(digits, digits + 8, expected, 16);
      const auto ids =
          tokenizer.Encode(text, {.add_special = false, .parse_special = parse_special});
      ASSERT_TRUE(ids.ok()) << ids.status();
      if (Digest(*ids) != expected) {
        ++num_different;
        ADD_FAILURE() << golden << " string " << index - 1 << " parse_special " << parse_special
                      << ": " << nlohmann::json(text).dump();
      }
      if (lossless && HasAllBytes(tokens, text)) {
        EXPECT_EQ(*tokenizer.Decode(*ids, /*skip_special=*/false), text);
        ++num_restored;
      }
      ASSERT_LT(num_different, 20U) << "and perhaps more";
    }
  }
  EXPECT_EQ(index, strings.size());
  EXPECT_GE(index, 5000U);
  EXPECT_TRUE(!lossless || num_restored > index) << num_restored;
}

// The default model's vocabulary; nullptr without a model.
std::unique_ptr<GgufVocabulary> ModelVocabulary() {
  const char* path = std::getenv("SPINDLE_TEST_MODEL");
  if (path == nullptr || *path == '\0') {
    return nullptr;
  }
  const auto file = formats::ModelFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  auto vocabulary = std::make_unique<GgufVocabulary>();
  const auto& model = **file;
  vocabulary->model = *model.MetaString("tokenizer.ggml.model");
  vocabulary->pre = model.MetaString("tokenizer.ggml.pre").value_or("");
  vocabulary->tokens = std::get<std::vector<std::string>>(*model.Meta("tokenizer.ggml.tokens"));
  vocabulary->merges = std::get<std::vector<std::string>>(*model.Meta("tokenizer.ggml.merges"));
  const auto& types = std::get<std::vector<int64_t>>(*model.Meta("tokenizer.ggml.token_type"));
  vocabulary->token_types.assign(types.begin(), types.end());
  vocabulary->bos_id = static_cast<TokenId>(*model.MetaUint("tokenizer.ggml.bos_token_id"));
  vocabulary->eos_id = static_cast<TokenId>(*model.MetaUint("tokenizer.ggml.eos_token_id"));
  return vocabulary;
}

class GgufReferenceTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufReferenceTest, DefaultModelsVocabularyGivesTheIdsOfLlamaCpp) {
  const auto vocabulary = ModelVocabulary();
  if (vocabulary == nullptr) {
    GTEST_SKIP() << "SPINDLE_TEST_MODEL is not set";
  }
  const std::string pre = GetParam();
  if (pre == "smollm") {
    EXPECT_EQ(vocabulary->pre, "smollm");
  }
  vocabulary->pre = pre == "default" ? "" : pre;
  const auto tokenizer = Tokenizer::FromGguf(*vocabulary);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectSameIds(**tokenizer, "ids_" + pre + ".txt", /*lossless=*/true);
}

INSTANTIATE_TEST_SUITE_P(PreTokenizers,
                         GgufReferenceTest,
                         ::testing::Values("smollm", "gpt-2", "default", "qwen2", "llama-bpe"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(SentencePieceReferenceTest, SmallVocabularyGivesTheIdsOfLlamaCpp) {
  const auto pieces = nlohmann::json::parse(Golden("sentencepiece.json"));
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.tokens = pieces["tokens"].get<std::vector<std::string>>();
  vocabulary.token_types = pieces["types"].get<std::vector<int32_t>>();
  vocabulary.scores = pieces["scores"].get<std::vector<float>>();
  vocabulary.bos_id = 1;
  vocabulary.eos_id = 2;
  vocabulary.unknown_id = 0;
  const auto tokenizer = Tokenizer::FromGguf(vocabulary);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectSameIds(**tokenizer, "ids_sentencepiece.txt", /*lossless=*/false);
}

struct FolderRow {
  const char* name;
  bool lossless;  // its normaliser changes no text
};

class FolderReferenceTest : public ::testing::TestWithParam<FolderRow> {};

TEST_P(FolderReferenceTest, TokenizerJsonGivesTheIdsOfPythonTokenizers) {
  const char* root = std::getenv("SPINDLE_TEST_TOKENIZERS");
  if (root == nullptr) {
    GTEST_SKIP() << "SPINDLE_TEST_TOKENIZERS is not set (tools/golden/text_fetch.py "
                    "fills a folder)";
  }
  const std::string folder = std::string(root) + "/" + GetParam().name;
  if (!std::ifstream(folder + "/tokenizer.json").good()) {
    GTEST_SKIP() << folder << " has no tokenizer.json";
  }
  const auto tokenizer = Tokenizer::FromJson(
      ReadFile(folder + "/tokenizer.json"), ReadFile(folder + "/tokenizer_config.json"), "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectSameIds(**tokenizer, std::string("ids_") + GetParam().name + ".txt", GetParam().lossless);
}

INSTANTIATE_TEST_SUITE_P(Families,
                         FolderReferenceTest,
                         ::testing::Values(FolderRow{"llama3_1", true},
                                           FolderRow{"qwen2_5", false},
                                           FolderRow{"qwen3", false},
                                           FolderRow{"gemma3", false},
                                           FolderRow{"llama2", false},
                                           FolderRow{"deepseek_v3", true},
                                           FolderRow{"mistral_nemo", true},
                                           FolderRow{"gptoss", true}),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace spindle::text
