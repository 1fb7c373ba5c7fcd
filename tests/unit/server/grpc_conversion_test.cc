#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "server/grpc/conversion.h"
#include "serving/sparse_fields.h"
#include "unit/serving/serving_fakes.h"

namespace spindle::server {
namespace {

using serving::InvalidRequest;

constexpr auto kText = v1::GenerateRequest::kText;
constexpr auto kTokenIds = v1::GenerateRequest::kTokenIds;
constexpr auto kChat = v1::GenerateRequest::kChatJson;

TEST(WithGrpcNames, FieldsAreNamedAsInTheMessage) {
  struct Row {
    const char* http;
    const char* grpc;
  };

  for (const Row& row : {Row{"temperature", "sampling.temperature"},
                         Row{"n", "sampling.n"},
                         Row{"top_k", "sampling.top_k"},
                         Row{"logit_bias.7", "sampling.logit_bias.7"},
                         Row{"max_tokens", "stopping.max_tokens"},
                         Row{"stop", "stopping.stop_strings"},
                         Row{"stop_token_ids[3]", "stopping.stop_token_ids[3]"},
                         Row{"top_logprobs", "output.top_logprobs"},
                         Row{"prompt[2]", "token_ids.ids[2]"},
                         Row{"priority", "priority"},
                         Row{"cache_salt", "cache_salt"},
                         Row{"spindle.kv", "kv"},
                         Row{"spindle.kv.max_tier", "kv.max_tier"},
                         Row{"model", "model"}}) {
    const serving::ApiError error = WithGrpcNames(
        InvalidRequest("invalid_value", row.http, std::string("'") + row.http + "' is wrong."),
        kTokenIds);
    EXPECT_EQ(error.param, row.grpc);
    EXPECT_EQ(error.message, std::string("'") + row.grpc + "' is wrong.");
    EXPECT_EQ(error.code, "invalid_value");
  }
}

TEST(WithGrpcNames, EveryNameOfAMessageIsReplaced) {
  const serving::ApiError error = WithGrpcNames(
      InvalidRequest("x", "min_tokens", "'min_tokens' is above 'max_tokens', it's wrong."), kText);
  EXPECT_EQ(error.message, "'stopping.min_tokens' is above 'stopping.max_tokens', it's wrong.");
}

TEST(WithGrpcNames, APromptIsWhatWasGiven) {
  EXPECT_EQ(WithGrpcNames(InvalidRequest("x", "prompt", ""), kText).param, "text");
  EXPECT_EQ(WithGrpcNames(InvalidRequest("x", "prompt", ""), kTokenIds).param, "token_ids.ids");
}

TEST(WithGrpcNames, ErrorsOfAChatSpeakOfItsBody) {
  const serving::ApiError error =
      WithGrpcNames(InvalidRequest("x", "temperature", "'temperature' is wrong."), kChat);
  EXPECT_EQ(error.param, "temperature");
  EXPECT_EQ(error.message, "'temperature' is wrong.");
}

TEST(ViewOf, TextIsShownUnlessSwitchedOff) {
  v1::GenerateRequest request;
  EXPECT_TRUE(ViewOf(request).text);
  EXPECT_FALSE(ViewOf(request).token_ids);
  request.mutable_output()->set_text(false);
  request.mutable_output()->set_token_ids(true);
  request.set_chat_json("{}");
  EXPECT_FALSE(ViewOf(request).text);
  EXPECT_TRUE(ViewOf(request).token_ids);
  EXPECT_EQ(ViewOf(request).input, kChat);
}

// What a request says about its KV, as a message and as `spindle.kv` in JSON.
struct KvRow {
  std::function<void(v1::KvOptions&)> set;
  std::string json;
};

const std::vector<KvRow>& KvRows() {
  static const std::vector<KvRow> rows = {
      {[](v1::KvOptions&) {}, ""},
      {[](v1::KvOptions& kv) { kv.set_fast_tier_budget_bytes(1 << 20); },
       R"("fast_tier_budget_bytes":1048576)"},
      {[](v1::KvOptions& kv) { kv.set_fast_tier_budget_bytes(0); },
       R"("fast_tier_budget_bytes":0)"},
      {[](v1::KvOptions& kv) { kv.set_fast_tier_budget_fraction(0.25); },
       R"("fast_tier_budget_fraction":0.25)"},
      {[](v1::KvOptions& kv) { kv.set_fast_tier_budget_fraction(1.5); },
       R"("fast_tier_budget_fraction":1.5)"},
      {[](v1::KvOptions& kv) {
         kv.set_fast_tier_budget_bytes(9);
         kv.set_fast_tier_budget_fraction(0.5);
       },
       R"("fast_tier_budget_bytes":9,"fast_tier_budget_fraction":0.5)"},
      {[](v1::KvOptions& kv) { kv.set_buffer_ratio(0); }, R"("buffer_ratio":0)"},
      {[](v1::KvOptions& kv) { kv.set_buffer_ratio(2.75); }, R"("buffer_ratio":2.75)"},
      {[](v1::KvOptions& kv) { kv.set_buffer_ratio(65); }, R"("buffer_ratio":65)"},
      {[](v1::KvOptions& kv) { kv.set_max_tier("host"); }, R"("max_tier":"host")"},
      {[](v1::KvOptions& kv) { kv.set_max_tier("fast"); }, R"("max_tier":"fast")"},
      {[](v1::KvOptions& kv) { kv.set_reuse_sparse(false); }, R"("reuse_sparse":false)"},
      {[](v1::KvOptions& kv) { kv.set_reuse_sparse(true); }, R"("reuse_sparse":true)"},
      {[](v1::KvOptions& kv) { kv.set_retention_seconds(0); }, R"("retention_seconds":0)"},
      {[](v1::KvOptions& kv) { kv.set_retention_seconds(60); }, R"("retention_seconds":60)"},
      {[](v1::KvOptions& kv) { kv.set_retention_seconds(86401); }, R"("retention_seconds":86401)"},
      {[](v1::KvOptions& kv) { kv.set_session("a.B_c:d-9"); }, R"("session":"a.B_c:d-9")"},
      {[](v1::KvOptions& kv) { kv.set_session(""); }, R"("session":"")"},
      {[](v1::KvOptions& kv) { kv.set_session(".."); }, R"("session":"..")"},
      {[](v1::KvOptions& kv) {
         kv.set_session("a");
         kv.set_retention_seconds(0);
       },
       R"("session":"a","retention_seconds":0)"},
      {[](v1::KvOptions& kv) {
         kv.set_max_tier("host");
         kv.set_retention_seconds(5);
       },
       R"("max_tier":"host","retention_seconds":5)"},
  };
  return rows;
}

v1::GenerateRequest TextRequest() {
  v1::GenerateRequest request;
  request.set_model("smol");
  request.set_text("hello");
  return request;
}

TEST(PrepareGenerate, KvOptionsMeanWhatTheyMeanInJson) {
  const serving::FakeService service;
  for (const KvRow& row : KvRows()) {
    v1::GenerateRequest request = TextRequest();
    row.set(*request.mutable_kv());
    const auto typed = PrepareGenerate(request, service.caller, service.api);
    const auto json = service.Prepare(serving::Endpoint::kCompletions,
                                      R"({"prompt":"hello","spindle":{"kv":{)" + row.json + "}}}");
    ASSERT_EQ(typed.ok(), json.ok()) << row.json;
    if (!json.ok()) {
      const serving::ApiError wanted = WithGrpcNames(json.error(), kText);
      EXPECT_EQ(typed.error().code, wanted.code) << row.json;
      EXPECT_EQ(typed.error().param, wanted.param) << row.json;
      EXPECT_EQ(typed.error().param->substr(0, 3), "kv.") << row.json;
      EXPECT_EQ(typed.error().message, wanted.message);
      continue;
    }
    EXPECT_EQ(typed.value().fast_bytes, json.value().fast_bytes) << row.json;
    EXPECT_EQ(typed.value().fast_fraction, json.value().fast_fraction) << row.json;
    EXPECT_EQ(typed.value().buffer_ratio, json.value().buffer_ratio) << row.json;
    EXPECT_EQ(typed.value().uses_disk, json.value().uses_disk) << row.json;
    EXPECT_EQ(typed.value().retention_seconds, json.value().retention_seconds) << row.json;
    EXPECT_EQ(typed.value().session, json.value().session) << row.json;
  }
}

TEST(PrepareGenerate, AFastBudgetAboveAllIntegersStaysOne) {
  const serving::FakeService service;
  v1::GenerateRequest request = TextRequest();
  request.mutable_kv()->set_fast_tier_budget_bytes(UINT64_MAX);
  const auto prepared = PrepareGenerate(request, service.caller, service.api);
  ASSERT_TRUE(prepared.ok());
  EXPECT_EQ(prepared.value().fast_bytes, uint64_t{INT64_MAX});
}

TEST(PrepareGenerate, KeptKvNeedsPermissionAndOneChoice) {
  serving::FakeService service;
  v1::GenerateRequest request = TextRequest();
  request.mutable_kv()->set_session("mine");
  request.mutable_sampling()->set_n(2);
  const auto several = PrepareGenerate(request, service.caller, service.api);
  ASSERT_FALSE(several.ok());
  EXPECT_EQ(several.error().code, "unsupported_combination");
  EXPECT_EQ(several.error().param, "kv.session");
  request.mutable_sampling()->set_n(1);
  service.caller.retention = false;
  const auto refused = PrepareGenerate(request, service.caller, service.api);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().http_status, 403);
  EXPECT_EQ(refused.error().message, "This API key may not send 'kv.session'.");
}

TEST(PrepareGenerate, AuditsAreCountedAsInJson) {
  serving::ServingOptions options;
  options.allow_audit = true;
  const serving::FakeService service(options);
  v1::GenerateRequest request = TextRequest();
  request.mutable_output()->set_audit_every(static_cast<uint32_t>(serving::kMaxAuditEvery));
  EXPECT_TRUE(PrepareGenerate(request, service.caller, service.api).ok());
  request.mutable_output()->set_audit_every(static_cast<uint32_t>(serving::kMaxAuditEvery) + 1);
  const auto refused = PrepareGenerate(request, service.caller, service.api);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, "invalid_value");
  EXPECT_EQ(refused.error().param, "output.audit_every");
}

TEST(PrepareGenerate, StatisticsBesideAChatAreObeyed) {
  const serving::FakeService service;
  v1::GenerateRequest request;
  request.set_model("smol");
  request.set_chat_json(R"({"messages":[{"role":"user","content":"a"}],
                            "spindle":{"sparse":{"algorithm":"shadowkv"}}})");
  EXPECT_FALSE(PrepareGenerate(request, service.caller, service.api).value().stats);
  request.mutable_output()->set_stats(v1::STATS_LEVEL_SUMMARY);
  const auto prepared = PrepareGenerate(request, service.caller, service.api);
  ASSERT_TRUE(prepared.ok());
  EXPECT_TRUE(prepared.value().stats);
  EXPECT_FALSE(prepared.value().layer_stats);
  EXPECT_TRUE(prepared.value().decode->policy->settings().estimates_mass);
  request.mutable_output()->set_stats(v1::STATS_LEVEL_PER_LAYER);
  const auto by_layer = PrepareGenerate(request, service.caller, service.api);
  EXPECT_TRUE(by_layer.value().stats && by_layer.value().layer_stats);
  request.mutable_output()->set_stats(v1::STATS_LEVEL_NONE);
  request.set_chat_json(R"({"messages":[{"role":"user","content":"a"}],
                            "spindle":{"stats":"per_layer"}})");
  EXPECT_TRUE(PrepareGenerate(request, service.caller, service.api).value().layer_stats);
  request.mutable_output()->set_stats(static_cast<v1::StatsLevel>(3));
  EXPECT_EQ(PrepareGenerate(request, service.caller, service.api).error().param, "output.stats");
}

TEST(PrepareGenerate, AModelNamedBesideAChatBringsItsOwnDefaults) {
  serving::ServingOptions options;
  options.served_names = {"smol", "other"};
  options.presets["smol"].algorithm = "quest";
  const serving::FakeService service(options);
  v1::GenerateRequest request;
  request.set_chat_json(R"({"model":"smol","messages":[{"role":"user","content":"a"}]})");
  EXPECT_TRUE(PrepareGenerate(request, service.caller, service.api).value().decode.has_value());
  request.set_model("other");
  EXPECT_FALSE(PrepareGenerate(request, service.caller, service.api).value().decode.has_value());
}

TEST(PrepareGenerate, AChatSaysItInItsBody) {
  const serving::FakeService service;
  v1::GenerateRequest request;
  request.set_model("smol");
  request.set_chat_json(R"({"messages":[{"role":"user","content":"a"}],
                            "spindle":{"kv":{"max_tier":"host"}}})");
  const auto prepared = PrepareGenerate(request, service.caller, service.api);
  ASSERT_TRUE(prepared.ok());
  EXPECT_FALSE(prepared.value().uses_disk);
  request.mutable_kv()->set_max_tier("host");
  const auto both = PrepareGenerate(request, service.caller, service.api);
  ASSERT_FALSE(both.ok());
  EXPECT_EQ(both.error().code, "unsupported_combination");
  EXPECT_EQ(both.error().param, "kv");
}

}  // namespace
}  // namespace spindle::server
