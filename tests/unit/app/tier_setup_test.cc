// Options that only a model's shape or the machine can refuse: marked, so that they end with the
// exit code of a wrong option, and named.
#include "app/tier_setup.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/commands.h"
#include "app/trace_files.h"
#include "config/memory_plan.h"
#include "config/option_error.h"
#include "support/temp_folder.h"

namespace spindle::app {
namespace {

using ::testing::HasSubstr;

model::ModelConfig TwoLayers() {
  model::ModelConfig shape;
  shape.num_layers = 2;
  shape.num_q_heads = 2;
  shape.num_kv_heads = 2;
  shape.head_dim = 64;
  shape.max_model_len = 1024;
  return shape;
}

config::LoadOptions SmallHostOptions() {
  config::LoadOptions options;
  options.kv.host_bytes = uint64_t{16} << 20;
  return options;
}

void ExpectOptionError(const absl::Status& status, const std::string& message) {
  EXPECT_TRUE(config::IsOptionError(status)) << status;
  EXPECT_EQ(LoadExitCode(status), kExitUsage);
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

absl::Status MakeTiers(const config::LoadOptions& options, const model::ModelConfig& shape) {
  return MakeMemoryTiers(options, shape, *kernels::BestKernels(), /*num_workers=*/1).status();
}

absl::Status Prepare(const config::LoadOptions& options) {
  return PrepareDisk(options, config::GeometryOf(options, TwoLayers()), {}).status();
}

TEST(TierSetupTest, SizesInMemoryAreRefusedByName) {
  config::LoadOptions options = SmallHostOptions();
  EXPECT_TRUE(MakeTiers(options, TwoLayers()).ok());
  options.kv.host_bytes = 1;
  ExpectOptionError(MakeTiers(options, TwoLayers()), "--kv-host-bytes must be in ");
  options = SmallHostOptions();
  options.kv.mode = kv::KvMode::kMirror;
  options.kv.fast_bytes = 1024;
  ExpectOptionError(MakeTiers(options, TwoLayers()), "--kv-fast-bytes must be at least ");
}

TEST(TierSetupTest, AShapeThatCannotBeStoredIsTheModelsFault) {
  model::ModelConfig shape = TwoLayers();
  shape.head_dim = 7;
  const absl::Status status = MakeTiers(SmallHostOptions(), shape);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(LoadExitCode(status), kExitModel);
}

TEST(TierSetupTest, TheDiskTierNamesItsOptions) {
  const test::TempFolder folder;
  config::LoadOptions options = SmallHostOptions();
  options.kv.disk_path = folder.path() + "/kv";
  EXPECT_TRUE(Prepare(options).ok());
  options.kv.disk_bytes = 1;
  ExpectOptionError(Prepare(options), "--kv-disk-bytes must be at least ");
  for (const std::string& path :
       {folder.Write("afile", "text"), std::string("/dev/null/x"), std::string("/proc/foo")}) {
    options.kv.disk_path = path;
    ExpectOptionError(Prepare(options), "--kv-disk-path " + path + ": ");
  }
}

TEST(TierSetupTest, TheFolderOfTracesIsNamed) {
  const test::TempFolder folder;
  config::LoadOptions options = SmallHostOptions();
  EXPECT_TRUE(PrepareTraceFolder(options, {}, 1024).ok());
  options.kv.trace_path = folder.path() + "/traces";
  EXPECT_TRUE(PrepareTraceFolder(options, {}, 1024).ok());
  for (const char* path : {"/dev/null/x", "/proc/foo"}) {
    options.kv.trace_path = path;
    ExpectOptionError(PrepareTraceFolder(options, {}, 1024), std::string("--kv-trace ") + path);
  }
}

TEST(TierSetupTest, OtherFailuresKeepTheirExitCodes) {
  EXPECT_EQ(LoadExitCode(absl::ResourceExhaustedError("")), kExitMemory);
  EXPECT_EQ(LoadExitCode(absl::InvalidArgumentError("")), kExitModel);
  ExpectOptionError(config::OptionError("--x", absl::ResourceExhaustedError("full")), "--x: full");
}

}  // namespace
}  // namespace spindle::app
