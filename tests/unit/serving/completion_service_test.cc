// The service as its transports use it: prepared requests, context arithmetic, starting, refusals,
// tools, listings, life cycle, metrics.
#include "serving/completion_service.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "unit/serving/serving_fakes.h"

namespace spindle::serving {
namespace {

using engine::SubmitRefusal;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kHello = R"({"messages":[{"role":"user","content":"hello"}]})";

PreparedRequest MustPrepare(const FakeService& service, Endpoint endpoint, std::string_view body) {
  Result<PreparedRequest> result = service.Prepare(endpoint, body);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? std::move(result).value() : PreparedRequest();
}

// A completion body whose prompt has `num_tokens` tokens (BOS included).
std::string PromptBody(size_t num_tokens, std::string_view more = "") {
  return R"({"prompt":")" + std::string(num_tokens - 1, 'x') + '"' + std::string(more) + "}";
}

TEST(CompletionServiceTest, PrepareFillsDefaultsInOrderOfPreference) {
  FakeService plain;
  PreparedRequest request = MustPrepare(plain, Endpoint::kChat, kHello);
  EXPECT_EQ(request.model, "smol");
  EXPECT_EQ(request.sampling.temperature, 1.0F);
  EXPECT_EQ(request.sampling.num_choices, 1U);
  EXPECT_EQ(request.sampling.max_tokens, 256 - request.prompts[0].size());
  EXPECT_FALSE(request.max_tokens_given);
  EXPECT_FALSE(request.sampling.logprobs.has_value());
  EXPECT_TRUE(request.cache_prompt);

  ServingOptions options;
  options.temperature = 0.25F;
  options.top_k = 40;
  options.seed = 9;
  options.default_max_tokens = 7;
  options.logprobs_processed = true;
  const FakeService tuned(options);
  request = MustPrepare(tuned, Endpoint::kChat, kHello);
  EXPECT_EQ(request.sampling.temperature, 0.25F);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.seed, 9U);
  EXPECT_EQ(request.sampling.max_tokens, 7U);
  EXPECT_TRUE(request.sampling.logprobs_processed);
  request =
      MustPrepare(tuned, Endpoint::kCompletions, R"({"prompt":"x","temperature":1.5,"top_k":-1})");
  EXPECT_EQ(request.sampling.temperature, 1.5F);
  EXPECT_EQ(request.sampling.top_k, -1);
}

TEST(CompletionServiceTest, EveryHonouredFieldArrives) {
  FakeService service;
  service.caller.min_priority = -100;
  const PreparedRequest r = MustPrepare(service, Endpoint::kCompletions, R"({
      "prompt":"hello","model":"smol","max_tokens":6,"temperature":0.5,"top_p":0.75,"n":2,
      "stop":["a","b"],"seed":-1,"presence_penalty":1,"frequency_penalty":-1,
      "logit_bias":{"7":1,"3":-100},"logprobs":3,"stream":true,
      "stream_options":{"include_usage":true,"continuous_usage_stats":true},"echo":true,
      "top_k":5,"min_p":0.125,"repetition_penalty":1.5,"min_tokens":2,"stop_token_ids":[9],
      "ignore_eos":true,"include_stop_str_in_output":true,"skip_special_tokens":false,
      "allowed_token_ids":[8,2],"return_token_ids":true,"cache_salt":"s","cache_prompt":false,
      "priority":-7,"request_id":"mine","spindle":{"progress":true}})");
  const SamplingParams& s = r.sampling;
  EXPECT_EQ(s.max_tokens, 6U);
  EXPECT_TRUE(r.max_tokens_given);
  EXPECT_EQ(s.temperature, 0.5F);
  EXPECT_EQ(s.top_p, 0.75F);
  EXPECT_EQ(s.num_choices, 2U);
  EXPECT_THAT(r.stop, ElementsAre("a", "b"));
  EXPECT_EQ(s.seed, UINT64_MAX);
  EXPECT_EQ(s.presence_penalty, 1.0F);
  EXPECT_EQ(s.frequency_penalty, -1.0F);
  EXPECT_THAT(s.logit_bias, ElementsAre(std::pair(3, -100.0F), std::pair(7, 1.0F)));
  EXPECT_EQ(s.logprobs, 3U);
  EXPECT_EQ(s.prompt_logprobs, 3U);
  EXPECT_TRUE(r.stream && r.include_usage && r.continuous_usage && r.echo);
  EXPECT_EQ(s.top_k, 5);
  EXPECT_EQ(s.min_p, 0.125F);
  EXPECT_EQ(s.repetition_penalty, 1.5F);
  EXPECT_EQ(s.min_tokens, 2U);
  EXPECT_THAT(s.stop_token_ids, ElementsAre(9));
  EXPECT_TRUE(s.ignore_eos && r.include_stop && !r.skip_special_tokens);
  EXPECT_THAT(s.allowed_token_ids, ElementsAre(2, 8));
  EXPECT_TRUE(r.return_token_ids && !r.cache_prompt && r.progress);
  EXPECT_EQ(r.cache_salt, "s");
  EXPECT_EQ(r.priority, -7);
  EXPECT_EQ(r.request_id, "mine");
  EXPECT_THAT(r.prompts, ElementsAre(ElementsAre(kBos, kFirstWord)));
  EXPECT_THAT(r.prompt_texts, ElementsAre("<s>hello"));
  EXPECT_TRUE(r.ignored_fields.empty());
}

TEST(CompletionServiceTest, CompletionPromptForms) {
  const FakeService service;
  const auto prompts = [&service](const char* body) {
    return MustPrepare(service, Endpoint::kCompletions, body).prompts;
  };
  EXPECT_THAT(prompts(R"({"prompt":"ab"})"), ElementsAre(ElementsAre(kBos, 'a', 'b')));
  EXPECT_THAT(prompts(R"({"prompt":"ab","add_special_tokens":false})"),
              ElementsAre(ElementsAre('a', 'b')));
  EXPECT_THAT(prompts(R"({"prompt":[97,98]})"), ElementsAre(ElementsAre('a', 'b')));
  EXPECT_THAT(prompts(R"({"prompt":["a","b"]})"),
              ElementsAre(ElementsAre(kBos, 'a'), ElementsAre(kBos, 'b')));
  EXPECT_THAT(prompts(R"({"prompt":[[97],[98,99]]})"),
              ElementsAre(ElementsAre('a'), ElementsAre('b', 'c')));
  EXPECT_THAT(prompts(R"({"prompt":""})"), ElementsAre(ElementsAre(kBos)));
  EXPECT_THAT(prompts(R"({"prompt":"abcd","truncate_prompt_tokens":2})"),
              ElementsAre(ElementsAre('c', 'd')));
}

struct ContextRow {
  size_t prompt_tokens;
  const char* fields;
  int64_t max_tokens;  // of the prepared request, or -1: refused
};

TEST(CompletionServiceTest, ContextArithmetic) {
  const FakeService service;  // a context of 256 tokens
  for (const ContextRow& row :
       {ContextRow{100, "", 16},
        ContextRow{250, "", 6},
        ContextRow{255, "", 1},
        ContextRow{256, "", -1},
        ContextRow{300, "", -1},
        ContextRow{100, R"(,"max_tokens":156)", 156},
        ContextRow{100, R"(,"max_tokens":157)", -1},
        ContextRow{256, R"(,"max_tokens":0)", 0},
        ContextRow{257, R"(,"max_tokens":0)", -1},
        ContextRow{256, R"(,"max_tokens":1)", -1},
        ContextRow{300, R"(,"truncate_prompt_tokens":-1)", 1},
        ContextRow{300, R"(,"truncate_prompt_tokens":-1,"max_tokens":56)", 56}}) {
    SCOPED_TRACE(testing::Message() << row.prompt_tokens << row.fields);
    const Result<PreparedRequest> result =
        service.Prepare(Endpoint::kCompletions, PromptBody(row.prompt_tokens, row.fields));
    ASSERT_EQ(result.ok(), row.max_tokens >= 0);
    if (result.ok()) {
      EXPECT_EQ(result.value().sampling.max_tokens, row.max_tokens);
    } else {
      EXPECT_EQ(result.error().code, "context_length_exceeded");
      EXPECT_EQ(result.error().param, "prompt");
    }
  }
}

TEST(CompletionServiceTest, ContextErrorsCarryTheirNumbers) {
  const FakeService service;
  const ApiError completion =
      service.Prepare(Endpoint::kCompletions, PromptBody(100, R"(,"max_tokens":200)")).error();
  EXPECT_THAT(completion.extras,
              ElementsAre(std::pair("n_prompt_tokens", 100),
                          std::pair("n_ctx", 256),
                          std::pair("max_tokens", 200)));
  const std::string long_chat =
      R"({"messages":[{"role":"user","content":")" + std::string(300, 'x') + R"("}]})";
  EXPECT_EQ(service.Prepare(Endpoint::kChat, long_chat).error().param, "messages");
  const ApiError one_of_two =
      service
          .Prepare(Endpoint::kCompletions, R"({"prompt":["a",")" + std::string(256, 'x') + R"("]})")
          .error();
  EXPECT_EQ(one_of_two.extras[0].second, 257);
}

TEST(CompletionServiceTest, LongPromptsHaveNoPromptLogprobs) {
  ServingOptions options;
  options.max_prompt_logprobs = 10;
  const FakeService service(options);
  EXPECT_TRUE(
      service.Prepare(Endpoint::kCompletions, PromptBody(10, R"(,"echo":true,"logprobs":1)")).ok());
  const Result<PreparedRequest> refused =
      service.Prepare(Endpoint::kCompletions, PromptBody(11, R"(,"echo":true,"logprobs":1)"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, "invalid_value");
  EXPECT_EQ(refused.error().param, "logprobs");
  EXPECT_TRUE(service.Prepare(Endpoint::kCompletions, PromptBody(11, R"(,"echo":true)")).ok());
}

TEST(CompletionServiceTest, SeedsAreResolvedOnceAndDifferWithoutOne) {
  const FakeService service;
  const auto seed = [&service](const char* body) {
    return MustPrepare(service, Endpoint::kCompletions, body).sampling.seed;
  };
  EXPECT_EQ(seed(R"({"prompt":"x","seed":42})"), 42U);
  EXPECT_NE(seed(R"({"prompt":"x"})"), seed(R"({"prompt":"x"})"));
}

TEST(CompletionServiceTest, StartSubmitsOneEngineRequestPerPrompt) {
  FakeService service;
  service.caller.key_name = "ci";
  service.caller.deadline = service.clock.Now() + std::chrono::seconds(5);
  const PreparedRequest request =
      MustPrepare(service,
                  Endpoint::kCompletions,
                  R"({"prompt":[[97],[98,99]],"n":2,"stop":"x","priority":3,"cache_prompt":false,
          "spindle":{"progress":true}})");
  const auto started = service.api.Start(request, service.caller);
  ASSERT_TRUE(started.ok());
  ASSERT_EQ(service.engine->requests.size(), 2U);
  const engine::EngineRequest& first = service.engine->requests[0];
  EXPECT_EQ(first.id, "req-1");
  EXPECT_EQ(service.engine->requests[1].id, "req-1.1");
  EXPECT_THAT(service.engine->requests[1].prompt, ElementsAre('b', 'c'));
  EXPECT_EQ(first.sampling.num_choices, 2U);
  EXPECT_EQ(first.sampling.max_tokens, 16U);
  EXPECT_EQ(first.priority, 3);
  EXPECT_EQ(first.key_name, "ci");
  EXPECT_EQ(first.deadline, service.caller.deadline);
  EXPECT_FALSE(first.cache_prompt);
  EXPECT_TRUE(first.may_stop_early);
  EXPECT_TRUE(first.report_progress);
  EXPECT_FALSE(first.max_tokens_given);
  EXPECT_EQ(started.value()->usage().prompt_tokens, 3U);
}

TEST(CompletionServiceTest, SendersAreKeysOrTheirUsers) {
  struct Row {
    FairShareBy by;
    std::string tenant;
    std::string fairness_id;
    std::string fields;
  };

  const auto sender = [](const Row& row) {
    ServingOptions options;
    options.fair_share = row.by;
    FakeService service(options);
    service.caller.tenant = row.tenant;
    service.caller.fairness_id = row.fairness_id;
    const PreparedRequest request =
        MustPrepare(service, Endpoint::kCompletions, R"({"prompt":"a")" + row.fields + "}");
    EXPECT_TRUE(service.api.Start(request, service.caller).ok());
    return service.engine->requests.back().sender;
  };
  using enum FairShareBy;
  const std::string u = R"(,"user":"u")";
  EXPECT_EQ(sender({kNobody, "t", "f", u}), "");
  EXPECT_NE(sender({kKey, "", "", ""}), "");
  EXPECT_EQ(sender({kKey, "t", "", u}), sender({kKey, "t", "", ""}));
  EXPECT_NE(sender({kKey, "t", "", ""}), sender({kKey, "s", "", ""}));
  EXPECT_NE(sender({kKey, "t", "f", ""}), sender({kKey, "t", "g", ""}));
  EXPECT_NE(sender({kUser, "t", "", u}), sender({kUser, "t", "", ""}));
  EXPECT_NE(sender({kUser, "t", "", u}), sender({kUser, "s", "", u}));
  EXPECT_EQ(sender({kUser, "t", "f", u}), sender({kUser, "t", "f", ""}));
  EXPECT_EQ(sender({kUser, "t", "", R"(,"safety_identifier":"u","user":"v")"}),
            sender({kUser, "t", "", u}));
  EXPECT_EQ(sender({kUser, "t", "", R"(,"user":"v","safety_identifier":"u")"}),
            sender({kUser, "t", "", u}));
  EXPECT_EQ(sender({kUser, "t", "", R"(,"user":"u","safety_identifier":"")"}),
            sender({kUser, "t", "", R"(,"safety_identifier":"","user":"u")"}));
}

TEST(CompletionServiceTest, RetentionReachesTheEngineUnderTheTenant) {
  FakeService service;
  service.caller.tenant = "t";
  const auto start = [&](std::string_view fields) {
    const PreparedRequest request = MustPrepare(
        service, Endpoint::kCompletions, R"({"prompt":"a",)" + std::string(fields) + "}");
    EXPECT_TRUE(service.api.Start(request, service.caller).ok());
    return service.engine->requests.back().retention;
  };
  EXPECT_FALSE(start(R"("spindle":{"kv":{"retention_seconds":0}})").has_value());
  const auto unnamed = start(R"("spindle":{"kv":{"retention_seconds":7}})");
  ASSERT_TRUE(unnamed.has_value());
  EXPECT_EQ(unnamed->seconds, 7U);
  EXPECT_EQ(unnamed->session.id, "");
  const auto named = start(R"("spindle":{"kv":{"session":"chat"}})");
  ASSERT_TRUE(named.has_value());
  EXPECT_EQ(named->seconds, 86400U);
  EXPECT_EQ(named->session.tenant, "t");
  EXPECT_EQ(named->session.id, "chat");
}

TEST(CompletionServiceTest, RetentionNeedsPermission) {
  FakeService service;
  service.caller.retention = false;
  for (const char* field : {"retention_seconds\":5", "session\":\"a\""}) {
    const auto result = service.Prepare(
        Endpoint::kCompletions, R"({"prompt":"a","spindle":{"kv":{")" + std::string(field) + "}}}");
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().http_status, 403);
    EXPECT_EQ(result.error().code, "insufficient_permissions");
  }
  EXPECT_TRUE(service
                  .Prepare(Endpoint::kCompletions,
                           R"({"prompt":"a","spindle":{"kv":{"retention_seconds":0}}})")
                  .ok());
}

TEST(CompletionServiceTest, ADefaultLimitIsCutToEachPromptsRest) {
  FakeService service;
  const PreparedRequest request = MustPrepare(
      service, Endpoint::kCompletions, R"({"prompt":["a",")" + std::string(250, 'x') + R"("]})");
  ASSERT_TRUE(service.api.Start(request, service.caller).ok());
  EXPECT_EQ(service.engine->requests[0].sampling.max_tokens, 16U);
  EXPECT_EQ(service.engine->requests[1].sampling.max_tokens, 5U);
}

TEST(CompletionServiceTest, BestOfAsksTheEngineForMoreChoicesAndTheirLogprobs) {
  FakeService service;
  const PreparedRequest request =
      MustPrepare(service, Endpoint::kCompletions, R"({"prompt":"x","n":2,"best_of":5})");
  ASSERT_TRUE(service.api.Start(request, service.caller).ok());
  EXPECT_EQ(service.engine->requests[0].sampling.num_choices, 5U);
  EXPECT_EQ(service.engine->requests[0].sampling.logprobs, 0U);
}

TEST(CompletionServiceTest, RootKeysSeparateTenantsAndSalts) {
  FakeService service;
  std::vector<Digest> roots;
  const auto root = [&service](const char* tenant, const char* fields) {
    service.caller.tenant = tenant;
    const PreparedRequest request = MustPrepare(
        service, Endpoint::kCompletions, R"({"prompt":"x")" + std::string(fields) + "}");
    EXPECT_TRUE(service.api.Start(request, service.caller).ok());
    return service.engine->requests.back().prefix_root;
  };
  const Digest plain = root("", "");
  EXPECT_EQ(root("", ""), plain);
  EXPECT_EQ(root("", R"(,"prompt_cache_key":"k","user":"u")"), plain) << "hints split nothing";
  roots = {plain,
           root("a", ""),
           root("b", ""),
           root("", R"(,"cache_salt":"a")"),
           root("a", R"(,"cache_salt":"a")"),
           root("a", R"(,"cache_salt":"b")")};
  std::sort(roots.begin(), roots.end());
  EXPECT_EQ(std::unique(roots.begin(), roots.end()), roots.end());
}

struct RefusalRow {
  SubmitRefusal refusal;
  int status;
  const char* code;
  const char* type;
};

// Small values take many times their text once they are read.
TEST(CompletionServiceTest, BodiesMayHoldSoManyValues) {
  const FakeService service;
  const auto with_values = [](std::string_view body, size_t num_values) {
    std::string text(body);
    text.back() = ',';
    text += R"("x_values":[0)";
    for (size_t i = 1; i < num_values; ++i) {
      text += ",0";
    }
    return text + "]}";
  };
  const size_t limit = (size_t{1} << 18) + 16 * 256;
  const Result<PreparedRequest> refused =
      service.Prepare(Endpoint::kCompletions, with_values(R"({"prompt":"a"})", limit));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, "invalid_json");
  EXPECT_THAT(refused.error().message, HasSubstr(std::to_string(limit) + " values and names"));
  EXPECT_THAT(service.api.Tokenize(with_values(R"({"prompt":"a"})", limit)).error().message,
              HasSubstr("values and names"));
  // A chat less, since the template gets a tree of its own.
  const std::string chat = with_values(kHello, (size_t{1} << 18) - 20);
  EXPECT_TRUE(service.Prepare(Endpoint::kChat, chat).ok());
  const Result<PreparedRequest> template_refused =
      service.Prepare(Endpoint::kChat, with_values(kHello, size_t{1} << 18));
  ASSERT_FALSE(template_refused.ok());
  EXPECT_THAT(template_refused.error().message, HasSubstr("at most 262144 JSON values and names"));
}

TEST(CompletionServiceTest, TemplatesGetNoMoreThanCouldFitTheContext) {
  const FakeService service;
  const json chat = {{"messages", {{{"role", "user"}, {"content", std::string(80'000, 'x')}}}}};
  const Result<PreparedRequest> refused = service.Prepare(Endpoint::kChat, chat.dump());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, "context_length_exceeded");
  EXPECT_THAT(refused.error().message, HasSubstr("'messages' and 'chat_template_kwargs'"));
  EXPECT_THAT(refused.error().extras, ElementsAre(std::pair("n_ctx", 256)));
  const json kwargs = {{"messages", {{{"role", "user"}, {"content", "hello"}}}},
                       {"chat_template_kwargs", {{"date", std::string(80'000, 'x')}}}};
  EXPECT_EQ(service.api.ApplyTemplate(kwargs.dump(), false).error().code,
            "context_length_exceeded");
}

TEST(CompletionServiceTest, ParametersTakeAnswerMemory) {
  ServingOptions options;
  options.answer_memory_bytes = 4096;
  FakeService service(options);
  json body = {{"prompt", {"a", "b", "c", "d"}},
               {"stop", {std::string(1000, 's'), std::string(1000, 't')}}};
  for (int id = 0; id < 250; ++id) {
    body["logit_bias"][std::to_string(id)] = 1;
    body["allowed_token_ids"].push_back(id);
  }
  const PreparedRequest large = MustPrepare(service, Endpoint::kCompletions, body.dump());
  const auto refused = service.api.Start(large, service.caller);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().http_status, 400);
  EXPECT_EQ(refused.error().code, "answer_too_large");
  EXPECT_TRUE(service.engine->requests.empty());
  body.erase("logit_bias");
  body.erase("stop");
  EXPECT_TRUE(
      service.api.Start(MustPrepare(service, Endpoint::kCompletions, body.dump()), service.caller)
          .ok());
}

TEST(CompletionServiceTest, EngineRefusalsBecomeApiErrors) {
  using enum SubmitRefusal::Kind;
  FakeService service;
  const PreparedRequest request = MustPrepare(service, Endpoint::kChat, kHello);
  for (const RefusalRow& row :
       {RefusalRow{{.kind = kQueueFull, .retry_after = std::chrono::milliseconds(1500)},
                   429,
                   "queue_full",
                   "rate_limit_error"},
        RefusalRow{{.kind = kNeverFits, .needed_bytes = 7, .capacity_bytes = 5},
                   400,
                   "kv_capacity_exceeded",
                   "invalid_request_error"},
        RefusalRow{{.kind = kFastNeverFits, .needed_bytes = 7, .capacity_bytes = 5},
                   400,
                   "kv_capacity_exceeded",
                   "invalid_request_error"},
        RefusalRow{
            {.kind = kContextExceeded}, 400, "context_length_exceeded", "invalid_request_error"},
        RefusalRow{{.kind = kShuttingDown}, 503, "shutting_down", "overloaded_error"},
        RefusalRow{{.kind = kDeadlinePassed}, 504, "generation_timeout", "timeout_error"}}) {
    service.engine->refusal = row.refusal;
    const auto result = service.api.Start(request, service.caller);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().http_status, row.status);
    EXPECT_EQ(result.error().code, row.code);
    EXPECT_EQ(result.error().type, row.type);
    if (row.status == 429) {
      EXPECT_EQ(result.error().retry_after, std::chrono::seconds(2)) << "whole seconds";
      EXPECT_EQ(result.error().should_retry, true);
    }
    if (result.error().code == "kv_capacity_exceeded") {
      EXPECT_THAT(result.error().extras,
                  ElementsAre(std::pair("needed_bytes", 7), std::pair("capacity_bytes", 5)));
    }
  }
}

TEST(CompletionServiceTest, ARefusedFastBudgetNamesTheFieldThatGaveIt) {
  using enum SubmitRefusal::Kind;
  FakeService service;
  const auto refuse = [&service](SubmitRefusal::Kind kind, const std::string& kv) {
    service.engine->refusal = {.kind = kind, .needed_bytes = 7, .capacity_bytes = 5};
    const PreparedRequest request = MustPrepare(
        service, Endpoint::kCompletions, R"({"prompt":"a","spindle":{"kv":{)" + kv + "}}}");
    return service.api.Start(request, service.caller).error();
  };
  const ApiError small = refuse(kFastBudgetTooSmall, R"("fast_tier_budget_bytes":1)");
  EXPECT_EQ(small.code, "fast_tier_budget_too_small");
  EXPECT_EQ(small.param, "spindle.kv.fast_tier_budget_bytes");
  EXPECT_THAT(small.extras, ElementsAre(std::pair("min_bytes", 7)));
  const ApiError share = refuse(kFastBudgetTooSmall, R"("fast_tier_budget_fraction":0.1)");
  EXPECT_EQ(share.param, "spindle.kv.fast_tier_budget_fraction");
  const ApiError large = refuse(kFastBudgetTooLarge, R"("fast_tier_budget_bytes":9)");
  EXPECT_EQ(large.code, "fast_tier_budget_too_large");
  EXPECT_EQ(large.param, "spindle.kv.fast_tier_budget_bytes");
  EXPECT_THAT(large.extras, ElementsAre(std::pair("max_bytes", 5)));
}

TEST(CompletionServiceTest, ARefusedPromptCancelsTheOnesBeforeIt) {
  FakeService service;
  service.engine->refusal = SubmitRefusal{.kind = SubmitRefusal::Kind::kQueueFull};
  service.engine->accepted_before_refusal = 1;
  const PreparedRequest request =
      MustPrepare(service, Endpoint::kCompletions, R"({"prompt":["a","b"]})");
  EXPECT_FALSE(service.api.Start(request, service.caller).ok());
  ASSERT_EQ(service.engine->streams.size(), 1U);
  EXPECT_TRUE(service.engine->streams[0]->cancelled().has_value());
}

TEST(CompletionServiceTest, QueuedRequestsReportTheirPosition) {
  FakeService service;
  service.engine->waiting = 3;
  const PreparedRequest request =
      MustPrepare(service, Endpoint::kCompletions, R"({"prompt":"x","spindle":{"progress":true}})");
  auto started = service.api.Start(request, service.caller);
  ASSERT_TRUE(started.ok());
  std::vector<GenerationEvent> events;
  ASSERT_EQ(started.value()->Poll(10, &events), 1U);
  EXPECT_EQ(std::get<ProgressEvent>(events[0]).queue_position, 3U);
}

TEST(CompletionServiceTest, TypedRequestsAreCheckedLikeJson) {
  const FakeService service;
  const auto code_and_param = [&service](auto change) {
    PreparedRequest request;
    request.endpoint = Endpoint::kCompletions;
    request.prompts = {{kBos, 'x'}};
    request.sampling = service.api.DefaultSampling();
    change(request);
    const Result<PreparedRequest> result = service.api.Validate(std::move(request));
    return result.ok() ? std::pair<std::string, std::string>("", result.value().model)
                       : std::pair(result.error().code, result.error().param.value_or(""));
  };
  using P = std::pair<std::string, std::string>;
  EXPECT_EQ(code_and_param([](auto&) {}), P("", "smol"));
  EXPECT_EQ(code_and_param([](auto& r) { r.model = "nope"; }), P("model_not_found", "model"));
  EXPECT_EQ(code_and_param([](auto& r) { r.prompts.clear(); }),
            P("missing_required_parameter", "prompt"));
  EXPECT_EQ(code_and_param([](auto& r) { r.prompts[0].clear(); }), P("invalid_value", "prompt"));
  EXPECT_EQ(code_and_param([](auto& r) { r.prompts[0][1] = 9999; }),
            P("invalid_value", "prompt[1]"));
  EXPECT_EQ(code_and_param([](auto& r) { r.prompts[0].assign(256, 'x'); }),
            P("context_length_exceeded", "prompt"));
  EXPECT_EQ(code_and_param([](auto& r) { r.sampling.temperature = 3; }),
            P("invalid_value", "temperature"));
  EXPECT_EQ(code_and_param([](auto& r) { r.sampling.temperature = NAN; }),
            P("invalid_value", "temperature"));
  EXPECT_EQ(code_and_param([](auto& r) { r.sampling.top_p = -1; }), P("invalid_value", "top_p"));
  EXPECT_EQ(code_and_param([](auto& r) { r.sampling.num_choices = 0; }), P("invalid_value", "n"));
  EXPECT_EQ(code_and_param([](auto& r) { r.sampling.repetition_penalty = 0; }),
            P("invalid_value", "repetition_penalty"));
  EXPECT_EQ(code_and_param([](auto& r) { r.sampling.logprobs = 21; }),
            P("invalid_value", "top_logprobs"));
  EXPECT_EQ(code_and_param([](auto& r) { r.priority = 101; }), P("invalid_value", "priority"));
  EXPECT_EQ(code_and_param([](auto& r) { r.stop = {""}; }), P("invalid_value", "stop"));
  EXPECT_EQ(code_and_param([](auto& r) {
              r.sampling.logit_bias = {{1, 1.F}, {1, 2.F}};
            }),
            P("invalid_value", "logit_bias"));
  EXPECT_EQ(code_and_param([](auto& r) { r.sampling.stop_token_ids = {-1}; }),
            P("invalid_value", "stop_token_ids[0]"));
  EXPECT_EQ(code_and_param([](auto& r) { r.sampling.min_tokens = 255; }),
            P("invalid_value", "min_tokens"));
}

TEST(CompletionServiceTest, ListsModels) {
  ServingOptions options;
  options.served_names = {"smol", "org/smol"};
  options.model_path = "/models/smol.gguf";
  options.max_num_seqs = 4;
  const FakeService service(options);
  const json list = json::parse(service.api.ListModels().value());
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2U);
  const json entry = list["data"][1];
  EXPECT_EQ(entry["id"], "org/smol");
  EXPECT_EQ(entry["object"], "model");
  EXPECT_EQ(entry["owned_by"], "spindle");
  EXPECT_EQ(entry["max_model_len"], 256);
  EXPECT_EQ(entry["meta"]["n_ctx_train"], 2048);
  EXPECT_EQ(entry["meta"]["quantization"], "Q4_1");
  EXPECT_EQ(entry["spindle"]["capabilities"]["chat"], true);
  EXPECT_EQ(entry["spindle"]["sparse"]["algorithms"][0]["name"], "dense");
  EXPECT_EQ(entry["spindle"]["kv"]["tiers"][0]["capacity_bytes"], 10000);
  EXPECT_EQ(entry["spindle"]["limits"]["max_num_seqs"], 4);
  EXPECT_EQ(json::parse(service.api.GetModel("org/smol").value()), entry);
  EXPECT_EQ(service.api.GetModel("nope").error().http_status, 404);
}

TEST(CompletionServiceTest, TokenizesInBothForms) {
  const FakeService service;
  const auto tokenize = [&service](const char* body) {
    const Result<std::string> result = service.api.Tokenize(body);
    EXPECT_TRUE(result.ok()) << body;
    return result.ok() ? json::parse(result.value()) : json();
  };
  EXPECT_EQ(
      tokenize(R"({"prompt":"hello!"})"),
      json::parse(R"({"count":3,"max_model_len":256,"tokens":[256,260,33],"token_strs":null})"));
  EXPECT_EQ(
      tokenize(
          R"({"prompt":"a","add_special_tokens":false,"return_token_strs":true})")["token_strs"],
      json::array({"a"}));
  EXPECT_EQ(tokenize(R"({"content":"a<s>"})"), json::parse(R"({"tokens":[97,256]})"));
  EXPECT_EQ(tokenize(R"({"content":"a","add_special":true})"),
            json::parse(R"({"tokens":[256,97]})"));
  EXPECT_EQ(tokenize(R"({"content":"<s>","parse_special":false})")["tokens"].size(), 3U);
  EXPECT_EQ(tokenize(R"({"content":"\u00e9","with_pieces":true})"),
            json::parse(R"({"tokens":[{"id":195,"piece":[195]},{"id":169,"piece":[169]}]})"));
  const PreparedRequest chat = MustPrepare(service, Endpoint::kChat, kHello);
  EXPECT_EQ(tokenize(kHello)["count"], chat.prompts[0].size());
  EXPECT_EQ(tokenize(kHello)["tokens"].get<std::vector<TokenId>>(), chat.prompts[0]);
  EXPECT_EQ(service.api.Tokenize("{}").error().code, "missing_required_parameter");
  EXPECT_EQ(service.api.Tokenize(R"({"model":"x","prompt":"a"})").error().http_status, 404);
  EXPECT_EQ(service.api.Tokenize(R"({"prompt":5})").error().param, "prompt");
  EXPECT_EQ(service.api.Tokenize(R"({"messages":[]})").error().param, "messages");
}

TEST(CompletionServiceTest, DetokenizeIsTheInverse) {
  const FakeService service;
  for (const std::string& text : {std::string("hello world"),
                                  std::string("\xF0\x9F\x98\x80\xE2\x82\xAC \n\t\"\\"),
                                  std::string("\xE4\xBD\xA0\xE5\xA5\xBD")}) {
    const json body = {{"prompt", text}, {"add_special_tokens", false}};
    const json tokens = json::parse(service.api.Tokenize(body.dump()).value())["tokens"];
    const json back = json::parse(service.api.Detokenize(json{{"tokens", tokens}}.dump()).value());
    EXPECT_EQ(back["prompt"], text);
    EXPECT_EQ(back["content"], text);
  }
  EXPECT_EQ(service.api.Detokenize(R"({"tokens":[99999]})").error().param, "tokens[0]");
  EXPECT_EQ(service.api.Detokenize("{}").error().code, "missing_required_parameter");
  // A context full, as of text that is to be tokenized.
  EXPECT_TRUE(service.api.Detokenize(json{{"tokens", std::vector<int>(256, 65)}}.dump()).ok());
  const Result<std::string> longer =
      service.api.Detokenize(json{{"tokens", std::vector<int>(257, 65)}}.dump());
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(longer.error().http_status, 400);
  EXPECT_EQ(longer.error().param, "tokens");
}

TEST(CompletionServiceTest, RendersTemplates) {
  const FakeService service;
  const json plain = json::parse(service.api.ApplyTemplate(kHello, false).value());
  EXPECT_EQ(plain["prompt"], "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_FALSE(plain.contains("token_ids"));
  const json rendered = json::parse(service.api.ApplyTemplate(kHello, true).value());
  const PreparedRequest chat = MustPrepare(service, Endpoint::kChat, kHello);
  EXPECT_EQ(rendered["token_ids"].get<std::vector<TokenId>>(), chat.prompts[0]);
  const json count = json::parse(service.api.CountInputTokens(kHello).value());
  EXPECT_EQ(count["object"], "response.input_tokens");
  EXPECT_EQ(count["input_tokens"], chat.prompts[0].size());
  EXPECT_EQ(service.api.ApplyTemplate(R"({"messages":[]})", false).error().code, "invalid_value");
}

TEST(CompletionServiceTest, AnswersWhileLoadingAndDraining) {
  VirtualClock clock;
  metrics::Registry registry(metrics::Labels{});
  ServingOptions options;
  options.served_names = {"smol"};
  CompletionService empty(options, registry, clock, {});
  empty.SetLoadProgress(0.25);
  clock.Advance(std::chrono::seconds(10));
  const Result<PreparedRequest> loading = empty.Prepare(Endpoint::kChat, "not json", Caller{});
  ASSERT_FALSE(loading.ok());
  EXPECT_EQ(loading.error().code, "model_loading");
  EXPECT_EQ(loading.error().http_status, 503);
  EXPECT_EQ(loading.error().progress, 0.25);
  EXPECT_EQ(loading.error().retry_after, std::chrono::seconds(30)) << "three quarters are left";
  EXPECT_EQ(loading.error().should_retry, true);
  EXPECT_EQ(empty.ListModels().error().code, "model_loading");
  EXPECT_EQ(empty.Tokenize("{}").error().code, "model_loading");
  EXPECT_EQ(empty.SystemFingerprint(), "");

  FakeService service;
  const PreparedRequest request = MustPrepare(service, Endpoint::kChat, kHello);
  service.api.BeginDrain();
  EXPECT_TRUE(service.engine->draining);
  EXPECT_EQ(service.api.state(), CompletionService::State::kDraining);
  EXPECT_EQ(service.Prepare(Endpoint::kChat, kHello).error().code, "shutting_down");
  EXPECT_EQ(service.api.Start(request, service.caller).error().code, "shutting_down");
  EXPECT_TRUE(service.api.ListModels().ok()) << "only inference is refused";
  const TimePoint deadline = service.clock.Now() + std::chrono::seconds(20);
  service.api.Shutdown(deadline);
  EXPECT_EQ(service.engine->shutdown_deadline, deadline);
  EXPECT_EQ(service.api.Unavailable()->retry_after, std::chrono::seconds(20));
}

TEST(CompletionServiceTest, TheFingerprintFollowsTheDefaults) {
  const FakeService plain;
  const FakeService same;
  ServingOptions options;
  options.temperature = 0.5F;
  const FakeService tuned(options);
  EXPECT_THAT(plain.api.SystemFingerprint(), testing::MatchesRegex("fp_[0-9a-f]{12}"));
  EXPECT_EQ(plain.api.SystemFingerprint(), same.api.SystemFingerprint());
  EXPECT_NE(plain.api.SystemFingerprint(), tuned.api.SystemFingerprint());
}

TEST(CompletionServiceTest, MetricFamiliesExistFromTheStartAndMove) {
  FakeService service;
  std::string text = service.registry_text();
  for (const char* family : {"vllm:time_to_first_token_seconds",
                             "vllm:inter_token_latency_seconds",
                             "vllm:request_time_per_output_token_seconds",
                             "vllm:e2e_request_latency_seconds"}) {
    EXPECT_THAT(text,
                HasSubstr(std::string(family) + "_count{model_name=\"smol\",engine=\"0\"} 0"));
  }
  EXPECT_THAT(text, HasSubstr("spindle_ignored_fields_total{model_name=\"smol\"} 0"));
  EXPECT_THAT(text, HasSubstr("reason=\"queue_full\"} 0"));

  const PreparedRequest request =
      MustPrepare(service, Endpoint::kCompletions, R"({"prompt":"x","n":2,"max_tokens":20})");
  ASSERT_TRUE(service.api.Start(request, service.caller).ok());
  EXPECT_FALSE(service.Prepare(Endpoint::kChat, "{}").ok());
  EXPECT_FALSE(service.Prepare(Endpoint::kCompletions, PromptBody(300)).ok());
  service.engine->refusal = SubmitRefusal{.kind = SubmitRefusal::Kind::kQueueFull};
  EXPECT_FALSE(service.api.Start(request, service.caller).ok());
  ApiError limited;
  limited.code = "rate_limit_exceeded";
  service.api.RecordRejection(limited);
  text = service.registry_text();
  // The engine's: a second registration would count each request twice.
  EXPECT_THAT(text, Not(HasSubstr("vllm:request_params")));
  EXPECT_THAT(text, HasSubstr("reason=\"queue_full\"} 1"));
  EXPECT_THAT(text, HasSubstr("reason=\"invalid_request\"} 1"));
  EXPECT_THAT(text, HasSubstr("reason=\"context_length_exceeded\"} 1"));
  EXPECT_THAT(text, HasSubstr("reason=\"rate_limit_exceeded\"} 1"));
}

}  // namespace
}  // namespace spindle::serving
