#include "kv/trace/kv_trace.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/read_file.h"
#include "support/temp_folder.h"

namespace spindle::kv {
namespace {

using ::testing::HasSubstr;

KvTraceOptions OptionsIn(const test::TempFolder& folder) {
  AccessTraceHeader header;
  header.geometry = {.num_layers = 2, .num_kv_heads = 1, .head_dim = 64};
  header.algorithm = "dense";
  KvTraceOptions options;
  options.path = folder.path() + "/run";
  options.max_file_bytes = uint64_t{1} << 20;
  options.pages = header;
  options.num_workers = 2;
  return options;
}

TEST(KvTrace, WritesBothFiles) {
  const test::TempFolder folder;
  auto trace = KvTrace::Create(OptionsIn(folder));
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_NE((*trace)->pages(), nullptr);
  (*trace)->pages()->Resize(CacheSetId(1), 8);
  (*trace)->pages()->End(CacheSetId(1));
  RequestRecorder& requests = (*trace)->requests();
  requests.End(requests.Begin({.input_tokens = 3, .unit_ids = {1}}), 2);
  (*trace)->Finish();
  const KvTraceStats stats = (*trace)->Stats();
  EXPECT_EQ(stats.kept_page_records, 2U);
  EXPECT_EQ(stats.kept_requests, 1U);
  EXPECT_EQ(stats.dropped_page_records + stats.dropped_requests, 0U);
  const std::string pages = ReadFile(folder.path() + "/run-pages.trace", 1 << 20).value();
  EXPECT_TRUE(LooksLikeAccessTrace({reinterpret_cast<const uint8_t*>(pages.data()), pages.size()}));
  EXPECT_THAT(ReadFile(folder.path() + "/run-requests.jsonl", 1 << 20).value(),
              HasSubstr(R"("output_length": 2)"));
}

TEST(KvTrace, WithoutAFastTierThereAreNoPages) {
  const test::TempFolder folder;
  KvTraceOptions options = OptionsIn(folder);
  options.pages.reset();
  auto trace = KvTrace::Create(options);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ((*trace)->pages(), nullptr);
  (*trace)->Finish();
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/run-pages.trace"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/run-requests.jsonl"));
}

TEST(KvTrace, OverwritesNothing) {
  const test::TempFolder folder;
  folder.Write("run-requests.jsonl", "precious");
  EXPECT_EQ(KvTrace::Create(OptionsIn(folder)).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFile(folder.path() + "/run-requests.jsonl", 100).value(), "precious");
}

TEST(KvTrace, RefusesLimitsOutsideTheirRange) {
  const test::TempFolder folder;
  KvTraceOptions options = OptionsIn(folder);
  for (const uint64_t bytes : {kMinAccessTraceBytes - 1, kMaxAccessTraceBytes + 1}) {
    options.max_file_bytes = bytes;
    const absl::Status status = KvTrace::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("65536..1073741824"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace spindle::kv
