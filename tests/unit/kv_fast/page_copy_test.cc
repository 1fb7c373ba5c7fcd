#include "kv/fast/page_copy.h"

#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "support/random_seed.h"

namespace spindle::kv {
namespace {

TEST(PageCopyTest, CopiesExactlyThePages) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(1)));
  for (const size_t bytes : {1U, 63U, 64U, 512U, 576U, 2176U, 4096U, 5120U}) {
    constexpr size_t kPages = 9;
    std::vector<uint8_t> from(kPages * bytes);
    for (uint8_t& byte : from) {
      byte = static_cast<uint8_t>(rng());
    }
    std::vector<uint8_t> to(kPages * bytes + 128, 0xEE);
    std::vector<PageCopy> copies;
    for (const size_t page : {7U, 0U, 3U, 8U}) {
      copies.push_back({from.data() + page * bytes, to.data() + 64 + (8 - page) * bytes});
    }
    std::vector<uint8_t> expected = to;
    for (const PageCopy& copy : copies) {
      std::memcpy(expected.data() + (copy.to - to.data()), copy.from, bytes);
    }
    CopyPages(copies, bytes);
    ASSERT_EQ(to, expected) << bytes;
  }
  CopyPages({}, 4096);
}

// A half that is not fetched keeps what it had: only V rows move here.
TEST(PageCopyTest, HalfAPageLeavesTheOtherHalf) {
  std::vector<uint8_t> host(4096, 1);
  std::vector<uint8_t> frame(4096, 0xFF);
  const std::vector<PageCopy> copies = {{host.data() + 2048, frame.data() + 2048}};
  CopyPages(copies, 2048);
  EXPECT_EQ(std::vector<uint8_t>(frame.begin(), frame.begin() + 2048),
            std::vector<uint8_t>(2048, 0xFF));
  EXPECT_EQ(std::vector<uint8_t>(frame.begin() + 2048, frame.end()), std::vector<uint8_t>(2048, 1));
}

}  // namespace
}  // namespace spindle::kv
