#include "base/prefix_key.h"

#include <gtest/gtest.h>

namespace spindle {
namespace {

PrefixRoot Root() {
  return {"model", "bf16", "", "", ""};
}

std::vector<TokenId> Tokens(size_t n) {
  std::vector<TokenId> tokens(n);
  for (size_t i = 0; i < n; ++i) {
    tokens[i] = static_cast<TokenId>(i * 7 % 1000);
  }
  return tokens;
}

TEST(Sha256Test, MatchesThePublishedVector) {
  const std::string_view abc = "abc";
  const Digest digest =
      Sha256().Bytes({reinterpret_cast<const uint8_t*>(abc.data()), abc.size()}).Finish();
  EXPECT_EQ(ToHex(digest), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(PrefixKeyTest, FieldBordersMatter) {
  PrefixRoot a = Root();
  PrefixRoot b = Root();
  a.tenant = "ab";
  a.salt = "c";
  b.tenant = "a";
  b.salt = "bc";
  EXPECT_NE(RootKey(a), RootKey(b));
}

TEST(PrefixKeyTest, OnlyCompleteStripesHaveKeys) {
  const Digest root = RootKey(Root());
  EXPECT_TRUE(StripeKeys(root, Tokens(63)).empty());
  EXPECT_EQ(StripeKeys(root, Tokens(64)).size(), 1U);
  EXPECT_EQ(StripeKeys(root, Tokens(191)).size(), 2U);
}

TEST(PrefixKeyTest, AKeyDependsOnEverythingBeforeIt) {
  const Digest root = RootKey(Root());
  std::vector<TokenId> tokens = Tokens(192);
  const std::vector<Digest> before = StripeKeys(root, tokens);
  tokens[3] += 1;
  const std::vector<Digest> after = StripeKeys(root, tokens);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_NE(before[i], after[i]) << i;
  }
}

TEST(PrefixKeyTest, TheMethodSeparatesStripes) {
  const Digest root = RootKey(Root());
  MethodDigest sparse{};
  sparse[0] = 1;
  EXPECT_NE(NextStripeKey(root, kDenseMethod, Tokens(64)), NextStripeKey(root, sparse, Tokens(64)));
}

}  // namespace
}  // namespace spindle
