#include "server/common/key_file.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spindle::server {
namespace {

TEST(KeyFile, BareKeysPropertiesCommentsAndHashes) {
  const auto entries = ParseKeyFile(
      "# a comment\n"
      "\n"
      "  sk-bare==  \r\n"
      "name=ci key=sk-ci role=admin concurrency=4 rpm=60 min_priority=-10 retention=on "
      "trusted=on\n"
      "key=sha256:9e76d6bd8e8d9c6d9f2d5e3a2a0b8a1c9e76d6bd8e8d9c6d9f2d5e3a2a0b8a1c\n");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 3U);
  EXPECT_EQ((*entries)[0].digest, KeyDigest("sk-bare=="));
  EXPECT_FALSE((*entries)[0].admin);
  EXPECT_EQ((*entries)[0].min_priority, 0);
  const KeyEntry& ci = (*entries)[1];
  EXPECT_EQ(ci.name, "ci");
  EXPECT_EQ(ci.digest, KeyDigest("sk-ci"));
  EXPECT_TRUE(ci.admin);
  EXPECT_EQ(ci.concurrency, 4U);
  EXPECT_EQ(ci.rpm, 60U);
  EXPECT_EQ(ci.min_priority, -10);
  EXPECT_TRUE(ci.retention);
  EXPECT_TRUE(ci.trusted);
  EXPECT_EQ((*entries)[2].digest[0], 0x9e);
  EXPECT_EQ((*entries)[2].digest[31], 0x1c);
}

TEST(KeyFile, HashedKeysEqualTheirPlainForm) {
  // SHA-256 of "abc", from FIPS 180-2.
  const auto digest =
      ParseKeyValue("sha256:BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD");
  ASSERT_TRUE(digest.ok());
  EXPECT_EQ(*digest, KeyDigest("abc"));
}

TEST(KeyFile, BadLinesAreNamedWithoutTheKey) {
  const std::vector<std::string> lines = {
      "key=secret role=root",
      "key=secret concurrency=0",
      "key=secret concurrency=-1",
      "key=secret rpm=1x",
      "key=secret rpm=",
      "key=secret min_priority=101",
      "key=secret retention=yes",
      "key=secret colour=blue",
      "key=secret blue",
      "name=nobody",
      "key=",
      "key=sha256:abc",
      "key=sha256:zz7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
      "secret with blanks",
  };
  for (const std::string& line : lines) {
    const auto entries = ParseKeyFile("good\n" + line + "\n");
    ASSERT_FALSE(entries.ok()) << line;
    EXPECT_EQ(entries.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(entries.status().message().find("line 2"), std::string::npos) << entries.status();
    EXPECT_EQ(entries.status().message().find("secret"), std::string::npos) << entries.status();
  }
}

}  // namespace
}  // namespace spindle::server
