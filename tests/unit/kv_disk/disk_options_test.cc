// Options out of range are refused by name; every state and cause has a name of its own.
#include "kv/disk/disk_options.h"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "disk_test_util.h"

namespace spindle::kv::disk {
namespace {

TEST(DiskOptionsTest, RefusedByName) {
  struct Case {
    const char* name;
    void (*change)(DiskOptions&);
  };

  using O = DiskOptions;
  const std::vector<Case> cases = {
      {"path", [](O& o) { o.path.clear(); }},
      {"segment_bytes", [](O& o) { o.segment_bytes = 4096; }},
      {"segment_bytes", [](O& o) { o.segment_bytes = uint64_t{2} << 30; }},
      {"segment_bytes", [](O& o) { o.segment_bytes += 512; }},
      {"capacity_bytes", [](O& o) { o.capacity_bytes = 2 * o.segment_bytes - 1; }},
      {"min_free_fraction", [](O& o) { o.min_free_fraction = 1.0; }},
      {"min_free_fraction", [](O& o) { o.min_free_fraction = -0.1; }},
      {"watermarks", [](O& o) { o.low_watermark = o.high_watermark; }},
      {"watermarks", [](O& o) { o.low_watermark = 0; }},
      {"watermarks", [](O& o) { o.high_watermark = 1.1; }},
      {"max_stores", [](O& o) { o.max_stores = 0; }},
      {"max_loads", [](O& o) { o.max_loads = 32769; }},
      {"read_depth", [](O& o) { o.read_depth = 0; }},
      {"write_depth", [](O& o) { o.write_depth = 1025; }},
      {"max_errors", [](O& o) { o.max_errors = 65; }},
  };
  ASSERT_TRUE(ValidateOptions(SmallOptions()).ok());
  ::spindle::test::MemoryFiles files;
  const VirtualClock clock;
  for (const Case& each : cases) {
    DiskOptions options = SmallOptions();
    each.change(options);
    const absl::Status status =
        DiskStore::Open(options, SmallIdentity(), files, clock, nullptr).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << each.name;
    EXPECT_NE(status.message().find(each.name), std::string::npos) << status;
  }
  EXPECT_TRUE(files.Paths().empty());
}

template <typename Enum, typename Name>
void ExpectDistinct(Enum last, Name name) {
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    names.emplace(name(static_cast<Enum>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(last) + 1);
  EXPECT_FALSE(names.contains("?"));
  EXPECT_EQ(name(static_cast<Enum>(200)), "?");
}

TEST(DiskOptionsTest, NamesAreDistinct) {
  ExpectDistinct(TierState::kOff, StateName);
  ExpectDistinct(LoadFailure::kOff, LoadFailureName);
  ExpectDistinct(StoreSkip::kOff, StoreSkipName);
}

}  // namespace
}  // namespace spindle::kv::disk
