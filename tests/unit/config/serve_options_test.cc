#include "config/serve_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/algorithm_facts.h"

namespace spindle::config {
namespace {

using ::testing::ElementsAre;

absl::StatusOr<ServeOptions> ParseServe(const std::vector<std::string>& arguments) {
  ServeOptions options;
  OptionTable table;
  AddServeOptions(table, options);
  std::vector<std::string> warnings;
  absl::Status status =
      table.Parse("serve", "", arguments, {}, &options.load.model_path, &warnings);
  if (status.ok()) {
    status = FinishServeOptions(&options);
  }
  if (!status.ok()) {
    return status;
  }
  return options;
}

TEST(ServeOptionsTest, TheServedNameFollowsTheFile) {
  EXPECT_THAT(ParseServe({"/models/tiny.gguf"})->serving.served_names, ElementsAre("tiny"));
  EXPECT_THAT(ParseServe({"/models/Qwen2.5-0.5B/"})->serving.served_names,
              ElementsAre("Qwen2.5-0.5B"));
  EXPECT_THAT(ParseServe({"/m/a.gguf", "-a", "x"})->serving.served_names, ElementsAre("x"));
}

TEST(ServeOptionsTest, AModelIsRequired) {
  EXPECT_FALSE(ParseServe({}).ok());
}

TEST(ServeOptionsTest, TracesAreOffAndTheirSizeHasARange) {
  const auto usual = ParseServe({"m.gguf"});
  EXPECT_EQ(usual->load.kv.trace_path, "");
  EXPECT_EQ(usual->load.kv.trace_file_bytes, uint64_t{256} << 20);
  const auto traced = ParseServe({"m.gguf", "--kv-trace", "/t", "--kv-trace-bytes", "64KiB"});
  ASSERT_TRUE(traced.ok()) << traced.status();
  EXPECT_EQ(traced->load.kv.trace_path, "/t");
  EXPECT_EQ(traced->load.kv.trace_file_bytes, 65536U);
  for (const char* bytes : {"65535", "1073741825", "0"}) {
    const absl::Status status = ParseServe({"m.gguf", "--kv-trace-bytes", bytes}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bytes;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("--kv-trace-bytes"));
  }
}

TEST(ServeOptionsTest, FairSharesAreOffAndNotForTheOrderOfArrival) {
  using enum serving::FairShareBy;
  EXPECT_EQ(ParseServe({"m.gguf"})->serving.fair_share, kNobody);
  EXPECT_EQ(ParseServe({"m.gguf", "--fair-share", "key"})->serving.fair_share, kKey);
  EXPECT_EQ(ParseServe({"m.gguf", "--fair-share", "user"})->serving.fair_share, kUser);
  EXPECT_FALSE(ParseServe({"m.gguf", "--fair-share", "tenant"}).ok());
  const std::vector<std::string> fcfs = {"m.gguf", "--scheduling-policy", "fcfs", "--fair-share"};
  std::vector<std::string> arguments = fcfs;
  arguments.emplace_back("off");
  EXPECT_TRUE(ParseServe(arguments).ok());
  arguments.back() = "key";
  EXPECT_THAT(std::string(ParseServe(arguments).status().message()),
              ::testing::HasSubstr("--fair-share must be off"));
}

TEST(ServeOptionsTest, GatesAreFoundBesideTheModelUnlessNamed) {
  EXPECT_EQ(ParseServe({"m.gguf"})->load.sparse_gates, "");
  const auto named = ParseServe({"m.gguf", "--sparse-gates", "/g", "--sparse-algorithm", "seer_r"});
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->load.sparse_gates, "/g");
  EXPECT_EQ(named->load.sparse.algorithm, "seer_r");
}

TEST(ServeOptionsTest, IndexesAreInBf16UnlessAskedFor) {
  EXPECT_EQ(ParseServe({"m.gguf"})->load.sparse_index_type, sparse::IndexType::kBf16);
  const auto int8 = ParseServe({"m.gguf", "--sparse-index-dtype", "int8"});
  ASSERT_TRUE(int8.ok()) << int8.status();
  EXPECT_EQ(int8->load.sparse_index_type, sparse::IndexType::kInt8);
  const absl::Status refused = ParseServe({"m.gguf", "--sparse-index-dtype", "fp8"}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("--sparse-index-dtype"));
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("bf16|int8"));
}

TEST(ServeOptionsTest, EveryKnownAlgorithmMayBeTheDefault) {
  EXPECT_EQ(ParseServe({"m.gguf", "--sparse-algorithm", "auto"})->load.sparse.algorithm, "");
  const absl::Status refused = ParseServe({"m.gguf", "--sparse-algorithm", "telepathy"}).status();
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("--sparse-algorithm"));
  for (const std::string_view name : engine::KnownAlgorithms()) {
    const auto options = ParseServe({"m.gguf", "--sparse-algorithm", std::string(name)});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->load.sparse.algorithm, name);
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr(std::string(name)));
  }
}

TEST(ServeOptionsTest, SpellingsOfOtherServersWork) {
  const auto options =
      ParseServe({"m.gguf", "-c",   "4096", "-np",    "2",   "-b", "256", "-t",
                  "1",      "-ctk", "f32",  "--temp", "0.5", "-n", "7",   "--threads-http",
                  "3",      "-to",  "9",    "-ngl",   "0",   "-fa"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->load.model.max_model_len, 4096U);
  EXPECT_EQ(options->load.engine.max_num_seqs, 2U);
  EXPECT_EQ(options->load.engine.max_num_batched_tokens, 256U);
  EXPECT_EQ(options->load.threads, 1U);
  EXPECT_EQ(options->load.kv_type, KvType::kF32);
  EXPECT_EQ(options->serving.temperature, 0.5F);
  EXPECT_EQ(options->serving.default_max_tokens, 7U);
  EXPECT_EQ(options->http.num_threads, 3U);
  EXPECT_EQ(options->load.engine.request_timeout, std::chrono::seconds(9));
}

TEST(ServeOptionsTest, NeutralSettingsOfOtherServersChangeNothing) {
  const auto options = ParseServe({"m.gguf",     "--tensor-parallel-size",
                                   "1",          "-pp",
                                   "1",          "--gpu-memory-utilization",
                                   "0.9",        "--no-mmap=false",
                                   "--no-mlock", "--device",
                                   "cpu",        "--swap-space",
                                   "0",          "--block-size",
                                   "64",         "--quantization",
                                   "auto",       "-ctv",
                                   "auto",       "--no-context-shift",
                                   "-cb",        "--no-webui",
                                   "--jinja"});
  EXPECT_TRUE(options.ok()) << options.status();
}

TEST(ServeOptionsTest, SettingsThatWouldChangeSomethingAreRefusedWithTheReason) {
  struct Row {
    std::vector<std::string> flags;
    const char* reason;
  };

  const std::vector<Row> rows = {
      {{"--tensor-parallel-size", "2"}, "one process serves a model on one machine"},
      {{"--tp", "4"}, "--tensor-parallel-size '4'"},
      {{"--no-mmap"}, "read through a mapping"},
      {{"--mlock"}, "not locked"},
      {{"--device", "cuda"}, "on the CPU"},
      {{"--swap-space", "4"}, "--kv-host-bytes"},
      {{"--block-size", "16"}, "stripes of 64 tokens"},
      {{"--quantization", "awq"}, "as the file has them"},
      {{"-ctv", "q8_0"}, "--kv-cache-dtype"},
      {{"--context-shift"}, "'length'"},
      {{"--no-jinja"}, "Jinja"},
      {{"--no-cont-batching"}, "running batch"},
      {{"--embeddings"}, "embeddings endpoint"},
      {{"--enable-lora"}, "adapters"},
  };
  for (const Row& row : rows) {
    std::vector<std::string> arguments = {"m.gguf"};
    arguments.insert(arguments.end(), row.flags.begin(), row.flags.end());
    const auto options = ParseServe(arguments);
    ASSERT_FALSE(options.ok()) << row.flags.front();
    EXPECT_THAT(std::string(options.status().message()), ::testing::HasSubstr(row.reason));
  }
}

TEST(ServeOptionsTest, SizesThatCannotBeAreRefused) {
  EXPECT_FALSE(ParseServe({"m.gguf", "--grpc-max-message", "3GiB"}).ok());
  EXPECT_FALSE(ParseServe({"m.gguf", "--max-body-size", "2TiB"}).ok());
  EXPECT_FALSE(ParseServe({"m.gguf", "--max-connections", "0"}).ok());
}

TEST(ServeOptionsTest, QueueBoundsFollowTheBatch) {
  const auto options = ParseServe({"m.gguf", "--max-num-seqs", "10"});
  ASSERT_TRUE(options.ok());
  const engine::EngineOptions engine = ResolveEngineOptions(options->load, 2048);
  EXPECT_EQ(engine.max_queue_size, 40U);
  EXPECT_EQ(engine.max_queue_tokens, 8U * 2048);
  EXPECT_EQ(
      ResolveEngineOptions(ParseServe({"m.gguf", "--max-num-seqs", "1"})->load, 64).max_queue_size,
      16U);
}

TEST(ServeOptionsTest, TheListingShowsTheLimitsInForce) {
  const auto defaults = ParseServe({"m.gguf"});
  EXPECT_EQ(defaults->serving.max_num_seqs, defaults->load.engine.max_num_seqs);
  EXPECT_EQ(defaults->serving.max_queue_size,
            ResolveEngineOptions(defaults->load, 64).max_queue_size);
  EXPECT_EQ(defaults->serving.max_body_bytes, defaults->http.max_body_bytes);
  EXPECT_GT(defaults->serving.max_body_bytes, 0U);
  const auto changed = ParseServe(
      {"m.gguf", "--max-num-seqs", "5", "--max-queue-size", "7", "--max-body-size", "65536"});
  EXPECT_EQ(changed->serving.max_num_seqs, 5U);
  EXPECT_EQ(changed->serving.max_queue_size, 7U);
  EXPECT_EQ(changed->serving.max_body_bytes, 65536U);
}

TEST(ServeOptionsTest, ExactModeKeepsKvInFp32) {
  EXPECT_EQ(ResolveKvType(ParseServe({"m.gguf"})->load), DType::kBF16);
  EXPECT_EQ(ResolveKvType(ParseServe({"m.gguf", "--dtype", "f32"})->load), DType::kF32);
  EXPECT_EQ(
      ResolveKvType(ParseServe({"m.gguf", "--dtype", "f32", "--kv-cache-dtype", "bf16"})->load),
      DType::kBF16);
}

TEST(ServeOptionsTest, TlsNeedsBothFiles) {
  EXPECT_FALSE(ParseServe({"m.gguf", "--tls-cert", "c.pem"}).ok());
}

TEST(ServeOptionsTest, TlsCaNeedsTls) {
  EXPECT_FALSE(ParseServe({"m.gguf", "--tls-ca", "ca.pem"}).ok());
}

TEST(ServeOptionsTest, EmptyOriginsAreRefused) {
  EXPECT_FALSE(ParseServe({"m.gguf", "--cors-origins", ""}).ok());
  EXPECT_FALSE(ParseServe({"m.gguf", "--cors-origins", ","}).ok());
  EXPECT_TRUE(ParseServe({"m.gguf", "--cors-origins", "*"}).ok());
}

TEST(ServeOptionsTest, ServedNamesAreValidUtf8) {
  EXPECT_EQ(ParseServe({"/m/bad\xff.gguf"})->serving.served_names.front(), "bad\xEF\xBF\xBD");
}

TEST(ServeOptionsTest, AFileNameWithAnEqualsSignIsNoPreset) {
  const auto options = ParseServe({"/m/a=b.gguf"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(options->serving.served_names, ElementsAre("a=b"));
}

TEST(ServeOptionsTest, AuditsRunInPlaceOnly) {
  EXPECT_TRUE(ParseServe({"m.gguf", "--allow-audit"}).ok());
  const absl::Status status =
      ParseServe({"m.gguf", "--allow-audit", "--kv-mode", "mirror"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("--kv-mode"));
}

TEST(ServeOptionsTest, DuplicateNamesAreRefused) {
  EXPECT_FALSE(ParseServe({"m.gguf", "-a", "x", "-a", "x"}).ok());
}

}  // namespace
}  // namespace spindle::config
