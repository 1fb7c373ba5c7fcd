// The tools of the disk tier over a real folder.
#include "cli/kv.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kv/disk/session_record.h"
#include "support/temp_folder.h"
#include "unit/kv_disk/disk_test_util.h"

namespace spindle::cli {
namespace {

using ::testing::HasSubstr;
using Action = KvToolOptions::Action;
using Json = nlohmann::json;

constexpr uint64_t kNumStripes = 20;  // two segments of ten

class KvToolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    kv::disk::DiskOptions options = kv::disk::SmallOptions();
    options.path = folder_.path();
    const auto store = kv::disk::OpenStore(kv::disk::SystemFiles(), SteadyClock(), options);
    ASSERT_NE(store, nullptr);
    for (uint64_t number = 1; number <= kNumStripes; ++number) {
      ASSERT_TRUE(kv::disk::StoreNow(*store, kv::disk::TestStripe(number)).ok());
    }
    ASSERT_TRUE(store->Close().ok());
    store_ = store->directory();
  }

  // Output of the tool; its status in `status_`.
  std::string RunTool(KvToolOptions options) {
    if (options.directory.empty()) {
      options.directory = folder_.path();
    }
    ::testing::internal::CaptureStdout();
    status_ = KvTool(options, [this](double fraction) { progress_ = fraction; });
    return ::testing::internal::GetCapturedStdout();
  }

  Json RunJson(Action action) {
    const std::string out = RunTool({.action = action, .json = true});
    EXPECT_TRUE(status_.ok()) << status_;
    return Json::parse(out);
  }

  // One byte in the middle of the first segment.
  void Damage() const {
    for (const auto& entry : std::filesystem::directory_iterator(store_)) {
      if (entry.path().extension() != ".kv") {
        continue;
      }
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const auto middle = static_cast<std::streamoff>(entry.file_size() / 2);
      file.seekg(middle);
      const int byte = file.get();
      file.seekp(middle);
      file.put(static_cast<char>(byte ^ 0x10));
      return;
    }
    FAIL() << "no segment";
  }

  test::TempFolder folder_;
  std::string store_;
  absl::Status status_;
  double progress_ = 0.0;
};

TEST_F(KvToolTest, ListsStores) {
  const std::string out = RunTool({.action = Action::kList});
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_THAT(out, HasSubstr(store_));
  EXPECT_THAT(out, HasSubstr("20 stripes"));
}

TEST_F(KvToolTest, StatSaysWhatAStoreHolds) {
  const Json json = RunJson(Action::kStat);
  EXPECT_EQ(json["store"], store_);
  EXPECT_EQ(json["layers"], 2);
  EXPECT_EQ(json["kv_heads"], 1);
  EXPECT_EQ(json["records"]["stripe"], kNumStripes);
  EXPECT_EQ(json["index_damaged"], false);
  EXPECT_GE(json["bytes"], json["live_bytes"]);
  const std::string text = RunTool({.action = Action::kStat});
  EXPECT_THAT(text, HasSubstr("head_dim            16\n"));
}

TEST_F(KvToolTest, OneStoreCanBeNamed) {
  const std::string out = RunTool({.action = Action::kList, .directory = store_});
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_THAT(out, HasSubstr("20 stripes"));
  RunTool({.action = Action::kList, .directory = folder_.path() + "//"});
  EXPECT_TRUE(status_.ok()) << status_;
}

TEST_F(KvToolTest, CheckFindsDamageAndRepairsIt) {
  EXPECT_EQ(RunJson(Action::kCheck)["clean"], true);
  EXPECT_GT(progress_, 0.9);
  Damage();
  Json json = Json::parse(RunTool({.action = Action::kCheck, .json = true}));
  EXPECT_EQ(status_.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status_.message()), HasSubstr("--repair"));
  EXPECT_EQ(json["clean"], false);
  EXPECT_EQ(json["damaged"], 1);
  json = Json::parse(RunTool({.action = Action::kCheck, .json = true, .repair = true}));
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(json["repaired"], true);
  EXPECT_EQ(RunJson(Action::kStat)["records"]["stripe"], kNumStripes - 1);
}

TEST_F(KvToolTest, CollectShrinksToATarget) {
  const std::string out =
      RunTool({.action = Action::kCollect, .json = true, .target_bytes = 130 << 10});
  EXPECT_TRUE(status_.ok()) << status_;
  const Json json = Json::parse(out);
  EXPECT_GT(json["bytes_before"], json["bytes"]);
  EXPECT_LE(json["bytes"], 130 << 10);
  EXPECT_GT(json["dropped_records"], 0);
  EXPECT_LT(RunJson(Action::kStat)["records"]["stripe"], kNumStripes);
}

TEST_F(KvToolTest, CollectKeepsWhatSessionsNeedAndSaysThatItIsMore) {
  {
    kv::disk::DiskOptions options = kv::disk::SmallOptions();
    options.path = folder_.path();
    auto store = kv::disk::OpenStore(kv::disk::SystemFiles(), SteadyClock(), options);
    kv::disk::SessionManifest manifest{
        .id = "all", .tokens = std::vector<TokenId>(kNumStripes * kStripeTokens, 1)};
    for (uint64_t i = 1; i <= kNumStripes; ++i) {
      manifest.stripe_keys.push_back(kv::disk::TestStripe::Key(i));
    }
    const kv::disk::RecordId id{kv::disk::SessionKey("", "all"), kv::disk::RecordKind::kSession, 0};
    ASSERT_TRUE(kv::disk::PutNow(*store, id, kv::disk::EncodeSession(manifest)).ok());
    ASSERT_TRUE(store->Close().ok());
  }
  const std::string out = RunTool({.action = Action::kCollect, .json = true, .target_bytes = 1});
  EXPECT_EQ(status_.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status_.message()), HasSubstr("1 were wanted"));
  EXPECT_EQ(Json::parse(out)["sessions"], 1);
  EXPECT_EQ(RunJson(Action::kStat)["records"]["stripe"], kNumStripes);
}

TEST_F(KvToolTest, AStoreInUseIsNotTouched) {
  kv::disk::DiskOptions options = kv::disk::SmallOptions();
  options.path = folder_.path();
  const auto server = kv::disk::OpenStore(kv::disk::SystemFiles(), SteadyClock(), options);
  RunTool({.action = Action::kCollect});
  EXPECT_EQ(status_.code(), absl::StatusCode::kFailedPrecondition);
  RunTool({.action = Action::kList});
  EXPECT_TRUE(status_.ok()) << "listing works beside a server";
}

TEST_F(KvToolTest, AFolderWithoutStores) {
  const test::TempFolder other;
  RunTool({.action = Action::kList, .directory = other.path()});
  EXPECT_EQ(status_.code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace spindle::cli
