#include "config/memory_plan.h"

#include <algorithm>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/output_stream.h"
#include "model/model.h"
#include "serving/body_limits.h"

namespace spindle::config {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// 2 layers of 4 KV heads of 64 in bf16: 2 KiB a token, 128 KiB a stripe.
model::ModelConfig SmallModel() {
  model::ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 512;
  config.ffn_size = 1536;
  config.num_q_heads = 8;
  config.num_kv_heads = 4;
  config.head_dim = 64;
  config.vocab_size = 32000;
  config.max_model_len = 4096;
  config.rope.dim = 64;
  return config;
}

MemoryPlan Plan(const LoadOptions& options,
                const FrontEndOptions* front_ends = nullptr,
                uint64_t total = 64 * 1024 * kMiB) {
  return PlanServing(options,
                     SmallModel(),
                     100 * kMiB,
                     total,
                     front_ends,
                     sparse::AlgorithmSet(options.sparse_index_type));
}

// 0 when there is no such part.
uint64_t BytesOf(const MemoryPlan& plan, const std::string& name) {
  const auto part = std::ranges::find(plan.parts(), name, &MemoryPart::name);
  return part == plan.parts().end() ? 0 : part->bytes;
}

TEST(MemoryPlanTest, TheTotalIsTheSumOfTheParts) {
  MemoryPlan plan;
  EXPECT_EQ(plan.total_bytes(), 0U);
  plan.Add("a", 3);
  plan.Add("b", 4, "--b");
  EXPECT_EQ(plan.total_bytes(), 7U);
  EXPECT_EQ(plan.parts()[1].option, "--b");
}

TEST(MemoryPlanTest, NinetyFivePerCentMayBePlanned) {
  MemoryPlan plan;
  plan.Add("all", 950);
  EXPECT_TRUE(plan.Check(1000).ok());
  plan.Add("one more", 1);
  EXPECT_TRUE(absl::IsResourceExhausted(plan.Check(1000)));
  EXPECT_TRUE(plan.Check(1100).ok());
}

TEST(MemoryPlanTest, ARefusalListsThePartsLargestFirstWithTheirOptions) {
  MemoryPlan plan;
  plan.Add("small", 1 * kMiB);
  plan.Add("large", 900 * kMiB, "--large");
  plan.Add("middle", 30 * kMiB, "--middle");
  const std::string message(plan.Check(100 * kMiB).message());
  EXPECT_THAT(message, HasSubstr("the memory plan of 931.0 MiB passes 95.0 MiB"));
  EXPECT_THAT(message,
              HasSubstr(": large 900.0 MiB (--large); middle 30.0 MiB (--middle); small 1.0 MiB"));
}

TEST(MemoryPlanTest, KvIsTheSmallerOfAQuarterAndWhatAllSequencesFill) {
  LoadOptions options;
  const model::ModelConfig model = SmallModel();
  EXPECT_EQ(GeometryOf(options, model).stripe_bytes(), 128U << 10);
  // 16 sequences of 64 stripes.
  EXPECT_EQ(ResolveHostBytes(options, model, 64 * 1024 * kMiB), 128 * kMiB);
  EXPECT_EQ(ResolveHostBytes(options, model, 100 * kMiB), 25 * kMiB);
  EXPECT_EQ(ResolveHostBytes(options, model, 1000), 256U << 10) << "two stripes at least";
  options.kv.host_bytes = 7 * kMiB;
  EXPECT_EQ(ResolveHostBytes(options, model, 1000), 7 * kMiB);
}

TEST(MemoryPlanTest, EveryBoundOfTheFrontEndsHasALine) {
  FrontEndOptions front_ends;
  front_ends.http.max_body_bytes = 10 * kMiB;
  front_ends.http.max_connections = 100;
  front_ends.grpc.max_message_bytes = 8 * kMiB;
  front_ends.answer_memory_bytes = 70 * kMiB;
  LoadOptions options;
  options.max_queue_size = 34;
  const MemoryPlan plan = Plan(options, &front_ends);
  EXPECT_EQ(BytesOf(plan, "large HTTP bodies"), 40 * kMiB);
  // A head, a body or later requests, what was read, three buffers for answers, objects.
  EXPECT_EQ(BytesOf(plan, "HTTP connections"), 100U * ((64 + 8 + 64 + 32 + 48 + 16) << 10));
  EXPECT_EQ(BytesOf(plan, "large answers"), 70 * kMiB);
  // Four messages and small ones; one that is decoded, with fields beside its text.
  EXPECT_EQ(BytesOf(plan, "gRPC"), (4 * 8 + 16 + 8) * kMiB + 24 * (kMiB + 5 * 4096));
  EXPECT_EQ(BytesOf(plan, "work on a large body"),
            serving::BodyWorkBytes(10 * kMiB, SmallModel().max_model_len, 128));
  front_ends.http.tls.cert_file = "/cert.pem";
  EXPECT_EQ(BytesOf(Plan(options, &front_ends), "HTTP connections"), 100U * ((232 + 64) << 10));
  front_ends.grpc.port = 0;
  EXPECT_EQ(BytesOf(Plan(options, &front_ends), "gRPC"), 0U);
  EXPECT_EQ(BytesOf(Plan(options), "large HTTP bodies"), 0U) << "chat has no front end";
}

// 16 bytes of index per unit, 1 MiB of weights.
class Weighty final : public sparse::SparseAlgorithm {
 public:
  [[nodiscard]] std::string_view name() const override { return "weighty"; }

  [[nodiscard]] uint64_t weight_bytes() const override { return kMiB; }

  [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& /*geometry*/) const override {
    return 16;
  }

  void Select(const sparse::SelectJob& /*job*/,
              sparse::SelectWorkspace& /*workspace*/,
              sparse::Selection* /*out*/) const override {}
};

TEST(MemoryPlanTest, AlgorithmsOfTheModelTakeMemoryForWeightsAndIndexes) {
  LoadOptions options;
  options.kv.host_bytes = 128 * kMiB;  // 1,024 stripes
  const MemoryPlan without = Plan(options);
  sparse::AlgorithmSet algorithms;
  algorithms.Add(std::make_shared<Weighty>());
  const MemoryPlan with =
      PlanServing(options, SmallModel(), 100 * kMiB, 64 * 1024 * kMiB, nullptr, algorithms);
  EXPECT_EQ(BytesOf(without, "weights of sparse attention"), 0U);
  EXPECT_EQ(BytesOf(with, "weights of sparse attention"), kMiB);
  EXPECT_EQ(BytesOf(with, "indexes of sparse attention") -
                BytesOf(without, "indexes of sparse attention"),
            16U * 2 * 4 * 1024);
}

TEST(MemoryPlanTest, IndexesInInt8TakeAboutHalf) {
  LoadOptions options;
  options.kv.host_bytes = 128 * kMiB;  // 1,024 stripes
  const MemoryPlan bf16 = Plan(options);
  options.sparse_index_type = sparse::IndexType::kInt8;
  const MemoryPlan int8 = Plan(options);
  // Per stripe, layer and head: 496 bytes of quest, 496 of shadowkv; per segment 7,936 of
  // retroinfer.
  EXPECT_EQ(
      BytesOf(bf16, "indexes of sparse attention") - BytesOf(int8, "indexes of sparse attention"),
      2U * 4 * (1024 * (496 + 496) + 65 * 7936));
}

TEST(MemoryPlanTest, TracesTakeMemoryForTheirBuffers) {
  LoadOptions options;
  EXPECT_EQ(BytesOf(Plan(options), "buffers of traces"), 0U);
  options.kv.trace_path = "/traces";
  EXPECT_EQ(BytesOf(Plan(options), "buffers of traces"), 64 * kMiB);
}

TEST(MemoryPlanTest, TheDiskTierTakesMemoryForItsIndexItsTransfersAndSessions) {
  LoadOptions options;
  EXPECT_EQ(BytesOf(Plan(options), "index of the disk tier"), 0U);
  EXPECT_EQ(BytesOf(Plan(options), "sessions"), 0U);
  options.kv.disk_path = "/store";
  options.kv.disk_bytes = 1024 * kMiB;  // 8,192 stripes
  EXPECT_EQ(BytesOf(Plan(options), "index of the disk tier"), 8192U * 100);
  EXPECT_GT(BytesOf(Plan(options), "transfers of the disk tier"), 2048U * 3 * 4096)
      << "loads and stores in progress, each with its header";
  options.kv.disk_bytes = 0;  // as if the file system had room for the largest default
  EXPECT_EQ(BytesOf(Plan(options), "index of the disk tier"), 32U * 8192 * 100);
}

TEST(MemoryPlanTest, SessionsCountWithTheirKeys) {
  LoadOptions options;
  options.kv.disk_path = "/store";
  options.kv.disk_bytes = 1024 * kMiB;
  const auto bytes = [&options](uint32_t max_sessions) {
    options.kv.max_sessions = max_sessions;
    return BytesOf(Plan(options), "sessions");
  };
  // 64 stripes of a context of 4096 tokens, 32 bytes a key.
  const uint64_t one = bytes(1001) - bytes(1000);
  EXPECT_GE(one, 64U * 32);
  EXPECT_LE(one, 64U * 32 + 1500);
  EXPECT_GE(bytes(1), 64U * 3 * 4096 * 4) << "manifests that are written, with their tokens";
}

TEST(MemoryPlanTest, RequestsCountWithTheirChoices) {
  LoadOptions options;
  FrontEndOptions front_ends;
  const auto bytes = [&](uint32_t max_choices) {
    front_ends.max_choices = max_choices;
    return BytesOf(Plan(options, &front_ends), "requests");
  };
  // 64 wait, and 16 run for each of five classes.
  const uint64_t one = (bytes(128) - bytes(127)) / (64 + 5 * 16);
  EXPECT_GE(one, sizeof(engine::StreamEvent) + 1024);
  EXPECT_LE(one, 4096U);
  EXPECT_GT(bytes(1), (64 + 5 * 16) * 16U << 10);
}

TEST(MemoryPlanTest, AttentionFollowsContextAndThreads) {
  LoadOptions options;
  options.threads = 2;
  const uint64_t two = BytesOf(Plan(options), "attention");
  options.threads = 4;
  // States of 64 rows of a span, in fp32, for each of 4 spans and 16 more items that may be cut.
  const uint64_t state_bytes = 2 * (64 + 2) * 4;
  EXPECT_GE(BytesOf(Plan(options), "attention") - two, 16U * 4 * 64 * state_bytes);
}

TEST(MemoryPlanTest, ActivationsFollowTheStep) {
  LoadOptions options;
  const uint64_t small = BytesOf(Plan(options), "activations");
  EXPECT_EQ(small, model::ActivationBytes(SmallModel(), 512 + 16, 16 + 64));
  options.engine.max_num_batched_tokens = 4096;
  // A row of x, q, k, v and attention in fp32.
  EXPECT_GE(BytesOf(Plan(options), "activations") - small, (4096U - 512) * 4 * (3 * 512 + 2 * 256));
  options.engine.max_num_batched_tokens = 512;
  options.engine.chunked_prefill = false;
  EXPECT_EQ(BytesOf(Plan(options), "activations"),
            model::ActivationBytes(SmallModel(), 4096 + 16, 16 + 64));
}

TEST(MemoryPlanTest, ThePlanHoldsWeightsKvAndProgram) {
  LoadOptions options;
  const MemoryPlan plan = Plan(options);
  EXPECT_EQ(BytesOf(plan, "weights"), 100 * kMiB);
  EXPECT_EQ(BytesOf(plan, "KV in host memory"), 128 * kMiB);
  EXPECT_EQ(BytesOf(plan, "position tables"), 4096U * 64 * 4);
  EXPECT_GT(BytesOf(plan, "requests"), 0U);
  EXPECT_GT(BytesOf(plan, "vocabulary"), 32000U * 24);
  EXPECT_GE(BytesOf(plan, "program"), 32 * kMiB);
  EXPECT_THAT(std::string(plan.Check(200 * kMiB).message()), HasSubstr("(--kv-host-bytes)"));
}

TEST(HumanBytesTest, UsesTheLargestUnitBelow) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(uint64_t{3} << 40), "3.0 TiB");
}

}  // namespace
}  // namespace spindle::config
