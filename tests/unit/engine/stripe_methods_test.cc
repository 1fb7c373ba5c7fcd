#include "engine/stripe_methods.h"

#include <limits>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sparse/algorithm_registry.h"
#include "sparse/prefill_registry.h"

namespace spindle::engine {
namespace {

constexpr uint32_t kPromptTokens = 1000;

std::shared_ptr<const sparse::PrefillPolicy> TriShape(double recent) {
  return std::make_shared<const sparse::PrefillPolicy>(sparse::FindPrefillMethod("tri_shape"),
                                                       std::vector<double>{0, recent, 128});
}

// Blocks 2 … 5 are sparse: tokens [256, 768).
SparseDecode SparsePrompt(double recent = 128) {
  SparseDecode decode;
  decode.prefill = TriShape(recent);
  return decode;
}

SparseDecode SparseAnswer() {
  SparseDecode decode;
  decode.policy = std::make_shared<const sparse::SparsePolicy>(sparse::FindAlgorithm("streaming"),
                                                               sparse::SparseSettings());
  decode.method[0] = 9;
  return decode;
}

std::vector<TokenId> Tokens(uint32_t count) {
  std::vector<TokenId> tokens(count);
  for (uint32_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<TokenId>(i % 91);
  }
  return tokens;
}

std::vector<Digest> KeysOf(const StripeMethods& methods, const std::vector<TokenId>& tokens) {
  std::vector<Digest> keys;
  methods.ExtendKeys(Digest{}, tokens, tokens.size() / kStripeTokens, &keys);
  return keys;
}

// Leading keys that are equal.
size_t Common(const std::vector<Digest>& a, const std::vector<Digest>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

StripeMethods MethodsOf(const SparseDecode& decode,
                        uint8_t number,
                        uint32_t prompt = kPromptTokens) {
  return StripeMethods::Of(decode, prompt, MethodDigest{number});
}

TEST(StripeMethods, WithoutSparsePrefillNothingIsNew) {
  const std::vector<TokenId> tokens = Tokens(kPromptTokens + 64);
  EXPECT_EQ(KeysOf(MethodsOf({}, 1), tokens), StripeKeys(Digest{}, tokens));
  const StripeMethods sparse = MethodsOf(SparseAnswer(), 1);
  EXPECT_EQ(Common(KeysOf(sparse, tokens), StripeKeys(Digest{}, tokens)), 15U);
  EXPECT_EQ(sparse.PublishedEnd(), kPromptTokens);
  EXPECT_EQ(MethodsOf({}, 1).PublishedEnd(), std::numeric_limits<uint32_t>::max());
  EXPECT_EQ(sparse.UsableMatch(7), 7U);
  EXPECT_EQ(sparse.BlocksEnd(), 0U);
}

TEST(StripeMethods, APromptTooShortForASparseBlockIsDense) {
  const std::vector<TokenId> tokens = Tokens(383);
  const StripeMethods methods = MethodsOf(SparsePrompt(), 1, 383);
  EXPECT_FALSE(methods.HasSparseBlocks());
  EXPECT_EQ(KeysOf(methods, tokens), StripeKeys(Digest{}, tokens));
  EXPECT_EQ(methods.PublishedEnd(), std::numeric_limits<uint32_t>::max());
}

TEST(StripeMethods, RangesOfAPrompt) {
  const StripeMethods methods = MethodsOf(SparsePrompt(), 1);
  EXPECT_EQ(methods.sparse_begin, 256U);
  EXPECT_EQ(methods.sparse_end, 768U);
  EXPECT_EQ(methods.PublishedEnd(), 768U);
  const std::vector<TokenId> tokens = Tokens(kPromptTokens + 200);
  const std::vector<Digest> keys = KeysOf(methods, tokens);
  // Dense where the method makes everything dense: shared with dense requests, and not behind it.
  EXPECT_EQ(Common(keys, StripeKeys(Digest{}, tokens)), 4U);
  // The same request once more shares its sparse blocks, and not its dense end.
  EXPECT_EQ(Common(keys, KeysOf(MethodsOf(SparsePrompt(), 2), tokens)), 12U);
  EXPECT_EQ(Common(keys, KeysOf(methods, tokens)), keys.size());
  // A longer prompt has a longer sparse part; what they share is equal.
  EXPECT_EQ(Common(keys, KeysOf(MethodsOf(SparsePrompt(), 2, 1190), tokens)), 12U);
  // Another setting shares nothing that is sparse.
  EXPECT_EQ(Common(keys, KeysOf(MethodsOf(SparsePrompt(120), 1), tokens)), 4U);
}

// A row of a sparse block follows from all tokens of the block, so its first stripe does.
TEST(StripeMethods, TheFirstStripeOfABlockKnowsTheSecond) {
  const StripeMethods methods = MethodsOf(SparsePrompt(), 1);
  const std::vector<TokenId> tokens = Tokens(kPromptTokens);
  for (const auto& [changed, shared] : {std::pair(0U, 0U),
                                        std::pair(128U, 2U),
                                        std::pair(200U, 3U),
                                        std::pair(256U, 4U),
                                        std::pair(383U, 4U),
                                        std::pair(384U, 6U),
                                        std::pair(500U, 6U),
                                        std::pair(767U, 10U),
                                        std::pair(768U, 12U)}) {
    std::vector<TokenId> others = tokens;
    others[changed] += 1;
    EXPECT_EQ(Common(KeysOf(methods, tokens), KeysOf(methods, others)), shared) << changed;
  }
}

TEST(StripeMethods, MatchesBeforeTheDenseEndAreWholeBlocks) {
  const StripeMethods methods = MethodsOf(SparsePrompt(), 1);
  for (const auto& [found, usable] : {std::pair(0U, 0U),
                                      std::pair(1U, 0U),
                                      std::pair(2U, 2U),
                                      std::pair(5U, 4U),
                                      std::pair(11U, 10U),
                                      std::pair(12U, 12U),
                                      std::pair(13U, 13U),
                                      std::pair(15U, 15U)}) {
    EXPECT_EQ(methods.UsableMatch(found), usable) << found;
  }
}

}  // namespace
}  // namespace spindle::engine
