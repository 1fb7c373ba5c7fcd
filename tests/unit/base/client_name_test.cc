#include "base/client_name.h"

#include <string>

#include <gtest/gtest.h>

namespace spindle {
namespace {

TEST(ClientNameTest, WhatMayStandInAPath) {
  for (const char* name : {"a", "aZ09._:-", "...", ".a", "a..", "-"}) {
    EXPECT_TRUE(IsClientName(name)) << name;
  }
  EXPECT_TRUE(IsClientName(std::string(128, 'x')));
}

TEST(ClientNameTest, WhatMayNot) {
  for (const char* name : {"", " ", "a b", "a\n", "ü", "a/b", "a\"b", "%2e", ".", ".."}) {
    EXPECT_FALSE(IsClientName(name)) << name;
  }
  EXPECT_FALSE(IsClientName(std::string(129, 'x')));
}

}  // namespace
}  // namespace spindle
