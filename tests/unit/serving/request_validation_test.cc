// Every rule for request fields as a table: which code and param a field problem gets, and what is
// accepted.
#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/serving/serving_fakes.h"

namespace spindle::serving {
namespace {

constexpr auto kChat = Endpoint::kChat;
constexpr auto kText = Endpoint::kCompletions;

// `fields` are members added to a minimal valid body; duplicates win over it.
struct Row {
  Endpoint endpoint;
  const char* fields;
  const char* code;  // empty: accepted
  const char* param = "";
  int status = 400;
};

std::string BodyWith(Endpoint endpoint, std::string_view fields) {
  std::string body =
      endpoint == kChat ? R"({"messages":[{"role":"user","content":"hi"}])" : R"({"prompt":"hi")";
  if (!fields.empty()) {
    body += ',';
  }
  body += fields;
  return body + '}';
}

void Check(const FakeService& service, const Row& row) {
  SCOPED_TRACE(row.fields);
  const Result<PreparedRequest> result =
      service.Prepare(row.endpoint, BodyWith(row.endpoint, row.fields));
  if (*row.code == '\0') {
    EXPECT_TRUE(result.ok()) << result.error().message;
    return;
  }
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, row.code) << result.error().message;
  EXPECT_EQ(result.error().param.value_or(""), row.param);
  EXPECT_EQ(result.error().http_status, row.status);
  EXPECT_EQ(result.error().type,
            row.status == 404   ? "not_found_error"
            : row.status == 403 ? "permission_error"
                                : "invalid_request_error");
  EXPECT_FALSE(result.error().message.empty());
  EXPECT_LE(result.error().message.size(), 400U);
}

void CheckAll(const std::vector<Row>& rows, ServingOptions options = {}) {
  const FakeService service(std::move(options));
  for (const Row& row : rows) {
    Check(service, row);
  }
}

TEST(RequestValidation, ModelComesBeforeEverythingElse) {
  CheckAll({{kChat, R"("model":"smol")", ""},
            {kChat, R"("model":null)", ""},
            {kChat, R"("model":"nope","temperature":9)", "model_not_found", "model", 404},
            {kChat, R"("temperature":9,"model":"nope")", "model_not_found", "model", 404},
            {kChat, R"("model":"nope","temperature":1e999)", "model_not_found", "model", 404},
            {kText, R"("model":"nope")", "model_not_found", "model", 404},
            {kChat, R"("model":5,"temperature":9)", "invalid_type", "model"},
            {kChat, R"("model":"smol:adapter")", "model_not_found", "model", 404}});
  ServingOptions several;
  several.served_names = {"a", "b"};
  CheckAll({{kChat, "", "missing_required_parameter", "model"}, {kChat, R"("model":"b")", ""}},
           several);
}

TEST(RequestValidation, FieldsThatAreNotOfferedAreRefusedUnlessOff) {
  CheckAll({{kChat, R"("guided_json":{"type":"object"})", "unsupported_parameter", "guided_json"},
            {kText, R"("guided_regex":"a+")", "unsupported_parameter", "guided_regex"},
            {kChat, R"("guided_json":null)", ""},
            {kChat, R"("use_beam_search":true)", "unsupported_parameter", "use_beam_search"},
            {kChat, R"("use_beam_search":false)", ""},
            {kText, R"("mirostat":2)", "unsupported_parameter", "mirostat"},
            {kText, R"("mirostat":0)", ""},
            {kText, R"("tfs_z":1.0)", ""},
            {kText, R"("tfs_z":0.9)", "unsupported_parameter", "tfs_z"},
            {kText, R"("samplers":["top_k"])", "unsupported_parameter", "samplers"},
            {kText, R"("lora":[])", ""},
            {kText, R"("n_predict":5)", "unsupported_parameter", "n_predict"},
            {kChat, R"("echo":true)", "unsupported_parameter", "echo"},
            {kChat, R"("best_of":1)", ""},
            {kChat, R"("best_of":2)", "unsupported_parameter", "best_of"},
            {kChat, R"("suffix":"x")", "unsupported_parameter", "suffix"},
            {kText, R"("echo":true)", ""}});
}

TEST(RequestValidation, TextThatCannotFitIsRefusedBeforeTokenizing) {
  const FakeService service;
  const std::string text(1 << 20, 'x');
  const auto completion = service.Prepare(kText, R"({"model":"smol","prompt":")" + text + "\"}");
  ASSERT_FALSE(completion.ok());
  EXPECT_EQ(completion.error().code, "context_length_exceeded");
  EXPECT_NE(completion.error().message.find("bytes"), std::string::npos);
  const auto chat = service.Prepare(
      kChat, R"({"model":"smol","messages":[{"role":"user","content":")" + text + "\"}]}");
  ASSERT_FALSE(chat.ok());
  EXPECT_EQ(chat.error().code, "context_length_exceeded");
  EXPECT_EQ(chat.error().param, "messages");
}

TEST(RequestValidation, ListedAlgorithmsAreAcceptedAndOthersAreNot) {
  CheckAll(
      {{kChat, R"("spindle":{"sparse":{"algorithm":"dense"}})", ""},
       {kText, R"("spindle":{"sparse":{"algorithm":"auto"}})", ""},
       {kChat, R"("spindle":{"sparse":{"algorithm":"dense","budget_tokens":null}})", ""},
       {kChat,
        R"("spindle":{"sparse":{"algorithm":"seer_r"}})",
        "sparse_algorithm_unavailable",
        "spindle.sparse.algorithm"},
       {kChat,
        R"("spindle":{"sparse":{"algorithm":"telepathy"}})",
        "invalid_value",
        "spindle.sparse.algorithm"},
       {kChat,
        R"("spindle":{"sparse":{"algorithm":5}})",
        "invalid_type",
        "spindle.sparse.algorithm"},
       {kChat,
        R"("spindle":{"sparse":{"algorithm":"dense","budget_tokens":64}})",
        "unsupported_combination",
        "spindle.sparse.budget_tokens"},
       {kChat, R"("spindle":{"sparse":{"algorithm":"shadowkv","top_p_mass":0.5}})", ""},
       {kChat,
        R"("spindle":{"sparse":{"algorithm":"shadowkv","top_p_mass":1.5}})",
        "invalid_value",
        "spindle.sparse.top_p_mass"},
       {kChat,
        R"("spindle":{"sparse":{"algorithm":"quest","top_p_mass":0.5}})",
        "unsupported_combination",
        "spindle.sparse.top_p_mass"},
       {kChat,
        R"("spindle":{"sparse":{"algorithm":"shadowkv","min_mass":0.5}})",
        "unsupported_combination",
        "spindle.sparse.min_mass"},
       {kChat,
        R"("spindle":{"sparse":{"algorithm":"shadowkv","min_mass":0.5,"fallback":"dense"}})",
        ""},
       {kChat,
        R"("spindle":{"sparse":{"algorithm":"quest","reselect_interval":65}})",
        "invalid_value",
        "spindle.sparse.reselect_interval"},
       {kChat, R"("spindle":{"sparse":{"algorithm":"quest","reselect_interval":64}})", ""},
       {kChat, R"("spindle":{"sparse":{"algorithm":"quest","params":{"page_tokens":16}}})", ""},
       {kChat,
        R"("spindle":{"sparse":{"algorithm":"quest","params":{"page_tokens":8}}})",
        "invalid_value",
        "spindle.sparse.params.page_tokens"},
       {kChat,
        R"("spindle":{"sparse":{"algorithm":"quest","params":{"rank":160}}})",
        "unknown_parameter",
        "spindle.sparse.params.rank"}});
  const FakeService service;
  for (const char* name : {"Quest", "telepathy"}) {
    const auto refused = service.Prepare(
        kChat,
        BodyWith(kChat, std::string(R"("spindle":{"sparse":{"algorithm":")") + name + "\"}}"));
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, testing::HasSubstr("must be one of auto, dense"));
    EXPECT_THAT(refused.error().message, testing::HasSubstr(name));
  }
}

TEST(RequestValidation, NumbersOutOfRangeNameTheRange) {
  struct Case {
    Endpoint endpoint;
    const char* fields;
    const char* message;
  };

  const std::vector<Case> cases = {
      {kChat,
       R"("max_tokens":9223372036854775808)",
       "'max_tokens' must be in [1, 9223372036854775807]."},
      {kText, R"("max_tokens":1e30)", "'max_tokens' must be in [0, 9223372036854775807]."},
      {kChat,
       R"("max_completion_tokens":1e999)",
       "'max_completion_tokens' must be in [1, 9223372036854775807]."},
      {kChat, R"("max_tokens":-1)", "'max_tokens' must be in [1, 9223372036854775807]."},
      {kChat, R"("top_k":1e308)", "'top_k' must be in [-1, 9223372036854775807]."},
      {kChat, R"("top_k":-2)", "'top_k' must be in [-1, 9223372036854775807]."},
      {kChat, R"("n":1e308)", "'n' must be in [1, 128]."},
      {kChat, R"("n":0)", "'n' must be in [1, 128]."},
      {kChat, R"("seed":1e19)", "'seed' must be in [-9223372036854775808, 9223372036854775807]."},
      {kChat, R"("temperature":1e999)", "'temperature' must be in [0, 2]."},
      {kChat, R"("repetition_penalty":0)", "'repetition_penalty' must be in (0, 10]."},
      {kChat,
       R"("repetition_penalty":1e-60)",
       "'repetition_penalty' is so close to 0 that it is rounded to it."},
      {kChat, R"("priority":-1e300)", "'priority' must be in [-100, 100]."},
      {kChat,
       R"("spindle":{"kv":{"retention_seconds":1e30}})",
       "'spindle.kv.retention_seconds' must be in [0, 86400]."},
      {kChat,
       R"("spindle":{"kv":{"fast_tier_budget_bytes":9223372036854775808}})",
       "'spindle.kv.fast_tier_budget_bytes' must be in [1, 9223372036854775807]."},
      {kChat,
       R"("spindle":{"kv":{"fast_tier_budget_fraction":1e-300}})",
       "'spindle.kv.fast_tier_budget_fraction' is so close to 0 that it is rounded to it."},
  };
  const FakeService service;
  for (const Case& each : cases) {
    const auto refused = service.Prepare(each.endpoint, BodyWith(each.endpoint, each.fields));
    ASSERT_FALSE(refused.ok()) << each.fields;
    EXPECT_EQ(refused.error().message, each.message);
    EXPECT_EQ(refused.error().code, "invalid_value");
  }
}

TEST(RequestValidation, TokenLimits) {
  CheckAll({{kChat, R"("max_tokens":"8")", "invalid_type", "max_tokens"},
            {kChat, R"("max_tokens":8.5)", "invalid_type", "max_tokens"},
            {kChat, R"("max_tokens":true)", "invalid_type", "max_tokens"},
            {kChat, R"("max_tokens":8.0)", ""},
            {kChat, R"("max_tokens":8e0)", ""},
            {kChat, R"("max_tokens":0)", "invalid_value", "max_tokens"},
            {kChat, R"("max_tokens":-1)", "invalid_value", "max_tokens"},
            {kChat, R"("max_tokens":1e30)", "invalid_value", "max_tokens"},
            {kChat, R"("max_tokens":1e999)", "invalid_value", "max_tokens"},
            {kChat, R"("max_completion_tokens":0)", "invalid_value", "max_completion_tokens"},
            {kChat, R"("max_completion_tokens":5,"max_tokens":5)", ""},
            {kChat, R"("max_completion_tokens":5,"max_tokens":6)", "invalid_value", "max_tokens"},
            {kChat, R"("max_tokens":9007199254740993)", "context_length_exceeded", "messages"},
            {kText, R"("max_tokens":0)", ""},
            {kText, R"("max_completion_tokens":3)", ""},
            {kText, R"("max_tokens":-1)", "invalid_value", "max_tokens"}});
}

TEST(RequestValidation, SamplingNumbers) {
  CheckAll({{kChat, R"("temperature":2.1)", "invalid_value", "temperature"},
            {kChat, R"("temperature":-0.1)", "invalid_value", "temperature"},
            {kChat, R"("temperature":"1")", "invalid_type", "temperature"},
            {kChat, R"("temperature":1e999)", "invalid_value", "temperature"},
            {kChat, R"("temperature":2)", ""},
            {kChat, R"("temperature":0)", ""},
            {kChat, R"("temperature":null)", ""},
            {kChat, R"("top_p":-0.1)", "invalid_value", "top_p"},
            {kChat, R"("top_p":1.1)", "invalid_value", "top_p"},
            {kChat, R"("top_p":0)", ""},
            {kChat, R"("presence_penalty":3)", "invalid_value", "presence_penalty"},
            {kChat, R"("frequency_penalty":-2.5)", "invalid_value", "frequency_penalty"},
            {kChat, R"("n":0)", "invalid_value", "n"},
            {kChat, R"("n":129)", "invalid_value", "n"},
            {kChat, R"("n":128)", ""},
            {kChat, R"("seed":-9223372036854775808)", ""},
            {kChat, R"("seed":9223372036854775808)", "invalid_value", "seed"},
            {kChat, R"("seed":1.5)", "invalid_type", "seed"},
            {kChat, R"("top_k":-1)", ""},
            {kChat, R"("top_k":99999999999)", ""},
            {kChat, R"("top_k":-2)", "invalid_value", "top_k"},
            {kChat, R"("min_p":1.5)", "invalid_value", "min_p"},
            {kChat, R"("repetition_penalty":0)", "invalid_value", "repetition_penalty"},
            {kChat, R"("repetition_penalty":10.5)", "invalid_value", "repetition_penalty"},
            {kChat, R"("repeat_penalty":1.2)", ""},
            {kChat, R"("repeat_penalty":1.2,"repetition_penalty":1.2)", ""},
            {kChat,
             R"("repeat_penalty":1.2,"repetition_penalty":1.3)",
             "invalid_value",
             "repeat_penalty"},
            {kChat, R"("typical_p":1)", ""},
            {kChat, R"("typical_p":0.9)", "unsupported_parameter", "typical_p"},
            {kChat, R"("typical_p":2)", "invalid_value", "typical_p"}});
  ServingOptions few_choices;
  few_choices.max_n = 2;
  CheckAll({{kChat, R"("n":3)", "invalid_value", "n"}}, few_choices);
}

TEST(RequestValidation, Stops) {
  const std::string longest = R"("stop":")" + std::string(1024, 'x') + '"';
  const std::string too_long = R"("stop":")" + std::string(1025, 'x') + '"';
  CheckAll({{kChat, R"("stop":"")", "invalid_value", "stop"},
            {kChat, R"("stop":[""])", "invalid_value", "stop"},
            {kChat, R"("stop":["a","b","c","d","e"])", "invalid_value", "stop"},
            {kChat, R"("stop":[1])", "invalid_type", "stop[0]"},
            {kChat, R"("stop":["a",null])", "invalid_type", "stop[1]"},
            {kChat, R"("stop":[])", ""},
            {kChat, R"("stop":["a","b","c","d"])", ""},
            {kChat, R"("stop":7)", "invalid_type", "stop"},
            {kChat, longest.c_str(), ""},
            {kChat, too_long.c_str(), "invalid_value", "stop"},
            {kChat, R"("stop_token_ids":[5,267])", ""},
            {kChat, R"("stop_token_ids":[5,268])", "invalid_value", "stop_token_ids[1]"},
            {kChat, R"("stop_token_ids":[-1])", "invalid_value", "stop_token_ids[0]"},
            {kChat, R"("stop_token_ids":["5"])", "invalid_type", "stop_token_ids[0]"},
            {kChat, R"("stop_token_ids":5)", "invalid_type", "stop_token_ids"}});
}

TEST(RequestValidation, LogitBiasAndAllowedTokens) {
  CheckAll({{kChat, R"("logit_bias":{"5":100,"6":-100})", ""},
            {kChat, R"("logit_bias":{"99999999":1})", "invalid_value", "logit_bias"},
            {kChat, R"("logit_bias":{"268":1})", "invalid_value", "logit_bias"},
            {kChat, R"("logit_bias":{"5":101})", "invalid_value", "logit_bias.5"},
            {kChat, R"("logit_bias":{"x":1})", "invalid_value", "logit_bias"},
            {kChat, R"("logit_bias":{"":1})", "invalid_value", "logit_bias"},
            {kChat, R"("logit_bias":{"-1":1})", "invalid_value", "logit_bias"},
            {kChat, R"("logit_bias":{"5":"1"})", "invalid_type", "logit_bias.5"},
            {kChat, R"("logit_bias":[])", "invalid_type", "logit_bias"},
            {kChat, R"("allowed_token_ids":[7,3,7])", ""},
            {kChat, R"("allowed_token_ids":[])", "invalid_value", "allowed_token_ids"},
            {kChat, R"("allowed_token_ids":[999])", "invalid_value", "allowed_token_ids[0]"},
            {kChat, R"("bad_words":[])", ""},
            {kChat, R"("bad_words":["x"])", "unsupported_parameter", "bad_words"}});
}

TEST(RequestValidation, Logprobs) {
  CheckAll({{kChat, R"("top_logprobs":3)", "invalid_value", "top_logprobs"},
            {kChat, R"("top_logprobs":3,"logprobs":false)", "invalid_value", "top_logprobs"},
            {kChat, R"("top_logprobs":0)", ""},
            {kChat, R"("logprobs":true,"top_logprobs":20)", ""},
            {kChat, R"("logprobs":true,"top_logprobs":21)", "invalid_value", "top_logprobs"},
            {kChat, R"("logprobs":2)", "invalid_type", "logprobs"},
            {kText, R"("logprobs":0)", ""},
            {kText, R"("logprobs":5)", ""},
            {kText, R"("logprobs":21)", "invalid_value", "logprobs"},
            {kText, R"("logprobs":true)", "invalid_type", "logprobs"},
            {kText, R"("top_logprobs":2)", "unsupported_parameter", "top_logprobs"}});
}

TEST(RequestValidation, ToolsAndStructuredOutputsAreRefusedAfterTheirChecks) {
  CheckAll(
      {{kChat, R"("tools":[])", "invalid_value", "tools"},
       {kChat, R"("tools":{})", "invalid_type", "tools"},
       {kChat, R"("tools":null)", ""},
       {kChat, R"("tools":[{"type":"function"}])", "unsupported_parameter", "tools"},
       {kChat, R"("tool_choice":"required")", "invalid_value", "tool_choice"},
       {kChat, R"("tool_choice":"auto")", "invalid_value", "tool_choice"},
       {kChat, R"("tool_choice":{"type":"function"})", "invalid_value", "tool_choice"},
       {kChat, R"("tool_choice":"sometimes")", "invalid_value", "tool_choice"},
       {kChat, R"("tool_choice":3)", "invalid_type", "tool_choice"},
       {kChat, R"("tool_choice":"none")", ""},
       {kChat, R"("parallel_tool_calls":true)", ""},
       {kChat, R"("parallel_tool_calls":1)", "invalid_type", "parallel_tool_calls"},
       {kText, R"("tools":[])", "unsupported_parameter", "tools"},
       {kText, R"("tool_choice":"none")", ""},
       {kText, R"("tool_choice":"auto")", "unsupported_parameter", "tool_choice"},
       {kChat, R"("response_format":{"type":"text"})", ""},
       {kChat, R"("response_format":{})", "missing_required_parameter", "response_format.type"},
       {kChat, R"("response_format":{"type":"xml"})", "invalid_value", "response_format.type"},
       {kChat, R"("response_format":"text")", "invalid_type", "response_format"},
       {kChat,
        R"("response_format":{"type":"json_object"})",
        "unsupported_parameter",
        "response_format"},
       {kText,
        R"("response_format":{"type":"json_schema"})",
        "unsupported_parameter",
        "response_format"},
       {kChat, R"("structured_outputs":{})", "unsupported_parameter", "structured_outputs"},
       {kText, R"("grammar":"root ::= x")", "unsupported_parameter", "grammar"},
       {kChat, R"("json_schema":{})", "unsupported_parameter", "json_schema"},
       {kChat, R"("adapter":"x")", "unsupported_parameter", "adapter"}});
}

TEST(RequestValidation, StreamOptions) {
  CheckAll(
      {{kChat, R"("stream_options":{})", "invalid_value", "stream_options"},
       {kChat, R"("stream":false,"stream_options":{})", "invalid_value", "stream_options"},
       {kChat, R"("stream":true,"stream_options":[])", "invalid_type", "stream_options"},
       {kChat,
        R"("stream":true,"stream_options":{"include_usage":1})",
        "invalid_type",
        "stream_options.include_usage"},
       {kChat, R"("stream":"yes")", "invalid_type", "stream"},
       {kText, R"("stream_options":{"include_usage":true})", "invalid_value", "stream_options"},
       {kChat,
        R"("stream_options":{"include_usage":true,"include_obfuscation":true},"stream":true)",
        ""}});
}

TEST(RequestValidation, InformationalFields) {
  const std::string many_pairs = [] {
    std::string fields = R"("metadata":{)";
    for (int i = 0; i < 17; ++i) {
      fields += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + R"(":"v")";
    }
    return fields + "}";
  }();
  const std::string long_key = R"("metadata":{")" + std::string(65, 'k') + R"(":"v"})";
  const std::string long_value = R"("metadata":{"k":")" + std::string(513, 'v') + R"("})";
  const std::string long_id = R"("safety_identifier":")" + std::string(65, 'i') + '"';
  CheckAll({{kChat, R"("reasoning_effort":"none")", ""},
            {kChat, R"("reasoning_effort":"huge")", "invalid_value", "reasoning_effort"},
            {kChat, R"("verbosity":"low")", ""},
            {kChat, R"("verbosity":"max")", "invalid_value", "verbosity"},
            {kChat, R"("prediction":{"type":"content","content":"x"})", ""},
            {kChat,
             R"("prediction":{"type":"content"})",
             "missing_required_parameter",
             "prediction.content"},
            {kChat,
             R"("prediction":{"type":"other","content":"x"})",
             "invalid_value",
             "prediction.type"},
            {kChat,
             R"("prediction":{"type":"content","content":5})",
             "invalid_type",
             "prediction.content"},
            {kChat, R"("metadata":{"k":"v"})", ""},
            {kChat, R"("metadata":{"k":1})", "invalid_type", "metadata.k"},
            {kChat, many_pairs.c_str(), "invalid_value", "metadata"},
            {kChat, long_key.c_str(), "invalid_value", "metadata"},
            {kChat, long_value.c_str(), "invalid_value", "metadata.k"},
            {kChat, R"("user":"u","safety_identifier":"s")", ""},
            {kChat, R"("user":1)", "invalid_type", "user"},
            {kChat, long_id.c_str(), "invalid_value", "safety_identifier"},
            {kChat, R"("service_tier":"flex")", ""},
            {kChat, R"("service_tier":"gold")", "invalid_value", "service_tier"},
            {kChat, R"("store":true)", ""},
            {kChat, R"("store":"true")", "invalid_type", "store"},
            {kChat, R"("prompt_cache_key":"k","prompt_cache_retention":"24h","moderation":{})", ""},
            {kChat, R"("prompt_cache_key":1)", "invalid_type", "prompt_cache_key"},
            {kChat, R"("modalities":["text"])", ""},
            {kChat, R"("modalities":["text","audio"])", "unsupported_value", "modalities[1]"},
            {kChat, R"("modalities":"text")", "invalid_type", "modalities"}});
}

TEST(RequestValidation, FieldsThatAreNotOfferedNameTheirReplacement) {
  CheckAll({{kChat, R"("audio":{})", "unsupported_parameter", "audio"},
            {kChat, R"("audio":null)", ""},
            {kChat, R"("web_search_options":{})", "unsupported_parameter", "web_search_options"},
            {kChat, R"("functions":[])", "unsupported_parameter", "functions"},
            {kChat, R"("function_call":"auto")", "unsupported_parameter", "function_call"},
            {kText, R"("suffix":"x")", "unsupported_parameter", "suffix"},
            {kText, R"("suffix":"")", ""},
            {kText, R"("suffix":null)", ""}});
  const FakeService service;
  EXPECT_THAT(service.Prepare(kChat, BodyWith(kChat, R"("functions":[])")).error().message,
              testing::HasSubstr("'tools'"));
}

TEST(RequestValidation, ExtraFields) {
  const std::string salt = R"("cache_salt":")" + std::string(257, 's') + '"';
  CheckAll(
      {{kChat, R"("min_tokens":5,"max_tokens":4)", "invalid_value", "min_tokens"},
       {kChat, R"("min_tokens":4,"max_tokens":4)", ""},
       {kChat, R"("min_tokens":256)", "invalid_value", "min_tokens"},
       {kChat, R"("min_tokens":-1)", "invalid_value", "min_tokens"},
       {kText, R"("min_tokens":17)", "invalid_value", "min_tokens"},
       {kChat, R"("ignore_eos":1)", "invalid_type", "ignore_eos"},
       {kChat, R"("include_stop_str_in_output":"x")", "invalid_type", "include_stop_str_in_output"},
       {kChat, R"("skip_special_tokens":0)", "invalid_type", "skip_special_tokens"},
       {kChat, R"("truncate_prompt_tokens":0)", "invalid_value", "truncate_prompt_tokens"},
       {kChat, R"("truncate_prompt_tokens":-2)", "invalid_value", "truncate_prompt_tokens"},
       {kChat, R"("add_generation_prompt":"x")", "invalid_type", "add_generation_prompt"},
       {kChat,
        R"("continue_final_message":true,"add_generation_prompt":true)",
        "invalid_value",
        "continue_final_message"},
       {kChat, R"("continue_final_message":true)", ""},
       {kChat,
        R"("chat_template_kwargs":{"messages":[]})",
        "invalid_value",
        "chat_template_kwargs.messages"},
       {kChat,
        R"("chat_template_kwargs":{"bos_token":"x"})",
        "invalid_value",
        "chat_template_kwargs.bos_token"},
       {kChat, R"("chat_template_kwargs":[])", "invalid_type", "chat_template_kwargs"},
       {kChat, R"("chat_template":"x")", "unsupported_parameter", "chat_template"},
       {kChat, R"("return_token_ids":"x")", "invalid_type", "return_token_ids"},
       {kChat, R"("cache_salt":"")", "invalid_value", "cache_salt"},
       {kChat, salt.c_str(), "invalid_value", "cache_salt"},
       {kChat, R"("cache_prompt":"no")", "invalid_type", "cache_prompt"},
       {kChat, R"("priority":101)", "invalid_value", "priority"},
       {kChat, R"("priority":100)", ""},
       {kChat, R"("priority":-1)", "insufficient_permissions", "priority", 403},
       {kChat, R"("request_id":"a.B-9:_")", ""},
       {kChat, R"("request_id":"a b")", "invalid_value", "request_id"},
       {kChat, R"("request_id":"..")", "invalid_value", "request_id"},
       {kChat, R"("request_id":"")", "invalid_value", "request_id"}});
}

TEST(RequestValidation, TheSpindleObject) {
  CheckAll(
      {{kChat, R"("spindle":{})", ""},
       {kChat, R"("spindle":[])", "invalid_type", "spindle"},
       {kChat, R"("spindle":{"progress":true,"stats":"none","audit_every":0})", ""},
       {kChat, R"("spindle":{"progress":1})", "invalid_type", "spindle.progress"},
       {kChat, R"("spindle":{"stats":"summary"})", ""},
       {kChat, R"("spindle":{"stats":"per_layer"})", ""},
       {kChat, R"("spindle":{"stats":"all"})", "invalid_value", "spindle.stats"},
       {kChat,
        R"("spindle":{"audit_every":2})",
        "insufficient_permissions",
        "spindle.audit_every",
        403},
       {kChat, R"("spindle":{"audit_every":-1})", "invalid_value", "spindle.audit_every"},
       {kChat,
        R"("spindle":{"sparse":{"bugdet_tokens":1}})",
        "unknown_parameter",
        "spindle.sparse.bugdet_tokens"},
       {kChat,
        R"("spindle":{"sparse":{"budget_tokens":1}})",
        "unsupported_combination",
        "spindle.sparse.budget_tokens"},
       {kChat,
        R"("spindle":{"sparse":{"algorithm":"auto","layer_multipliers":[2]}})",
        "unsupported_combination",
        "spindle.sparse.layer_multipliers"},
       {kChat, R"("spindle":{"sparse":{"algorithm":"quest","budget_tokens":1}})", ""},
       {kChat, R"("spindle":{"sparse":{"min_context":0,"sink_tokens":8}})", ""},
       {kChat,
        R"("spindle":{"sparse":{"budget_tokens":1,"budget_fraction":0.5}})",
        "unsupported_combination",
        "spindle.sparse.budget_fraction"},
       {kChat, R"("spindle":{"sparse":{}})", ""},
       {kChat,
        R"("spindle":{"sparse":{"budget_tokens":1,"typo":1}})",
        "unknown_parameter",
        "spindle.sparse.typo"},
       {kChat, R"("spindle":{"kv":{"max_tier":"host"}})", ""},
       {kChat, R"("spindle":{"kv":{"max_tier":"fast"}})", "invalid_value", "spindle.kv.max_tier"},
       {kChat, R"("spindle":{"kv":{"max_tier":1}})", "invalid_type", "spindle.kv.max_tier"},
       {kChat, R"("spindle":{"kv":{"fast_tier_budget_bytes":1048576,"buffer_ratio":2.7}})", ""},
       {kText, R"("spindle":{"kv":{"fast_tier_budget_fraction":1}})", ""},
       {kChat,
        R"("spindle":{"kv":{"fast_tier_budget_bytes":0}})",
        "invalid_value",
        "spindle.kv.fast_tier_budget_bytes"},
       {kChat,
        R"("spindle":{"kv":{"fast_tier_budget_fraction":0}})",
        "invalid_value",
        "spindle.kv.fast_tier_budget_fraction"},
       {kChat,
        R"("spindle":{"kv":{"fast_tier_budget_fraction":1.5}})",
        "invalid_value",
        "spindle.kv.fast_tier_budget_fraction"},
       {kChat,
        R"("spindle":{"kv":{"fast_tier_budget_bytes":9,"fast_tier_budget_fraction":0.5}})",
        "unsupported_combination",
        "spindle.kv.fast_tier_budget_fraction"},
       {kChat,
        R"("spindle":{"kv":{"buffer_ratio":65}})",
        "invalid_value",
        "spindle.kv.buffer_ratio"},
       {kChat,
        R"("spindle":{"kv":{"buffer_ratio":-1}})",
        "invalid_value",
        "spindle.kv.buffer_ratio"},
       {kChat, R"("spindle":{"kv":{"reuse_sparse":false}})", ""},
       {kChat,
        R"("spindle":{"kv":{"reuse_sparse":true}})",
        "unsupported_parameter",
        "spindle.kv.reuse_sparse"},
       {kChat,
        R"("spindle":{"kv":{"max_tier":"host","retention_seconds":5}})",
        "unsupported_combination",
        "spindle.kv.retention_seconds"},
       {kChat, R"("spindle":{"kv":{"typo":null}})", "unknown_parameter", "spindle.kv.typo"},
       {kText, R"("spindle":{"kv":{"maxtier":"host"}})", "unknown_parameter", "spindle.kv.maxtier"},
       {kChat, R"("spindle":{"kv":{"retention_seconds":0}})", ""},
       {kChat, R"("spindle":{"kv":{"retention_seconds":86400,"session":"a.B_c:d-9"}})", ""},
       {kText, R"("n":2,"spindle":{"kv":{"retention_seconds":5}})", ""},
       {kChat,
        R"("spindle":{"kv":{"retention_seconds":86401}})",
        "invalid_value",
        "spindle.kv.retention_seconds"},
       {kChat,
        R"("spindle":{"kv":{"retention_seconds":-1}})",
        "invalid_value",
        "spindle.kv.retention_seconds"},
       {kChat,
        R"("spindle":{"kv":{"retention_seconds":"5"}})",
        "invalid_type",
        "spindle.kv.retention_seconds"},
       {kChat,
        R"("spindle":{"kv":{"retention_seconds":0,"session":"a"}})",
        "invalid_value",
        "spindle.kv.retention_seconds"},
       {kChat, R"("spindle":{"kv":{"session":""}})", "invalid_value", "spindle.kv.session"},
       {kChat, R"("spindle":{"kv":{"session":"a/b"}})", "invalid_value", "spindle.kv.session"},
       {kChat, R"("spindle":{"kv":{"session":"."}})", "invalid_value", "spindle.kv.session"},
       {kChat, R"("spindle":{"kv":{"session":".."}})", "invalid_value", "spindle.kv.session"},
       {kChat, R"("spindle":{"kv":{"session":"..."}})", ""},
       {kChat, R"("spindle":{"kv":{"session":7}})", "invalid_type", "spindle.kv.session"},
       {kChat,
        R"("n":2,"spindle":{"kv":{"session":"a"}})",
        "unsupported_combination",
        "spindle.kv.session"},
       {kText,
        R"("best_of":2,"spindle":{"kv":{"session":"a"}})",
        "unsupported_combination",
        "spindle.kv.session"},
       {kChat,
        R"("cache_prompt":false,"spindle":{"kv":{"retention_seconds":5}})",
        "unsupported_combination",
        "spindle.kv.retention_seconds"},
       {kChat, R"("spindle":{"sprase":{}})", "unknown_parameter", "spindle.sprase"},
       {kChat, R"("spindle":{"sparse":5})", "invalid_type", "spindle.sparse"}});
}

TEST(RequestValidation, CompletionPrompts) {
  const std::string many = R"("prompt":[)" + [] {
    std::string items = "\"a\"";
    for (int i = 1; i < 129; ++i) {
      items += ",\"a\"";
    }
    return items;
  }() + "]";
  CheckAll(
      {{kText, R"("prompt":null)", "missing_required_parameter", "prompt"},
       {kText, R"("prompt":5)", "invalid_type", "prompt"},
       {kText, R"("prompt":[])", "invalid_value", "prompt"},
       {kText, R"("prompt":[[]])", "invalid_value", "prompt[0]"},
       {kText, R"("prompt":[[1],[]])", "invalid_value", "prompt[1]"},
       {kText, R"("prompt":["a",1])", "invalid_type", "prompt[1]"},
       {kText, R"("prompt":[1,"a"])", "invalid_type", "prompt[1]"},
       {kText, R"("prompt":[[1],"a"])", "invalid_type", "prompt[1]"},
       {kText, R"("prompt":[[1],[268]])", "invalid_value", "prompt[1][0]"},
       {kText, R"("prompt":[1,-1])", "invalid_value", "prompt[1]"},
       {kText, R"("prompt":[1,1.5])", "invalid_type", "prompt[1]"},
       {kText, R"("prompt":[{}])", "invalid_type", "prompt[0]"},
       {kText, R"("prompt":"")", ""},
       {kText, R"("prompt":"","add_special_tokens":false)", "invalid_value", "prompt"},
       {kText, R"("prompt":["a",""],"add_special_tokens":false)", "invalid_value", "prompt[1]"},
       {kText, R"("prompt":[1,2.0])", ""},
       {kText, R"("prompt":["a","b"])", ""},
       {kText, many.c_str(), "invalid_value", "prompt"},
       {kText, R"("echo":1)", "invalid_type", "echo"},
       {kText, R"("best_of":0)", "invalid_value", "best_of"},
       {kText, R"("best_of":21)", "invalid_value", "best_of"},
       {kText, R"("n":3,"best_of":2)", "invalid_value", "best_of"},
       {kText, R"("best_of":2,"stream":true)", "invalid_value", "best_of"},
       {kText, R"("n":2,"best_of":2,"stream":true)", ""},
       {kText, R"("best_of":20)", ""},
       {kText, R"("add_special_tokens":1)", "invalid_type", "add_special_tokens"}});
}

TEST(RequestValidation, TheFirstProblemInTheOrderOfTheRulesIsReported) {
  CheckAll({{kChat,
             R"("spindle":{"x":1},"top_k":-9,"top_p":7,"messages":[])",
             "invalid_value",
             "messages"},
            {kChat, R"("spindle":{"x":1},"top_k":-9,"top_p":7)", "invalid_value", "top_p"},
            {kChat, R"("spindle":{"x":1},"top_k":-9,"audio":{})", "unsupported_parameter", "audio"},
            {kChat, R"("spindle":{"x":1},"top_k":-9)", "invalid_value", "top_k"}});
}

TEST(RequestValidation, UnknownFieldsAreReportedOrRefused) {
  const FakeService lenient;
  const Result<PreparedRequest> ignored = lenient.Prepare(
      kChat,
      BodyWith(kChat, R"("foo":1,"b r\u00e9":2,"foo":3,"gone":null,"top_p":1,"evil\r\nx":0)"));
  ASSERT_TRUE(ignored.ok());
  EXPECT_THAT(ignored.value().ignored_fields, testing::ElementsAre("foo", "b_r__", "evil__x"));
  EXPECT_THAT(lenient.registry_text(),
              testing::HasSubstr("spindle_ignored_fields_total{model_name=\"smol\"} 3"));

  ServingOptions strict_options;
  strict_options.unknown_fields = UnknownFields::kReject;
  CheckAll({{kChat, R"("foo":1)", "unknown_parameter", "foo"},
            {kChat, R"("foo":null)", ""},
            {kText, R"("messages":[])", "unknown_parameter", "messages"},
            {kChat, R"("foo":1,"top_p":7)", "invalid_value", "top_p"}},
           strict_options);

  std::string many;
  for (int i = 0; i < 40; ++i) {
    many += (i == 0 ? "\"u" : ",\"u") + std::to_string(i) + "\":1";
  }
  EXPECT_EQ(lenient.Prepare(kChat, BodyWith(kChat, many)).value().ignored_fields.size(), 16U);
}

TEST(RequestValidation, BodiesThatAreNotAJsonObject) {
  const FakeService service;

  struct BodyRow {
    std::string body;
    const char* code;
  };

  for (const BodyRow& row : {BodyRow{"", "invalid_json"},
                             BodyRow{R"({"model":"smol",)", "invalid_json"},
                             BodyRow{R"({"temperature":NaN})", "invalid_json"},
                             BodyRow{"[]", "invalid_type"},
                             BodyRow{"5", "invalid_type"},
                             BodyRow{"null", "invalid_type"}}) {
    const Result<PreparedRequest> result = service.Prepare(kChat, row.body);
    ASSERT_FALSE(result.ok()) << row.body;
    EXPECT_EQ(result.error().code, row.code) << row.body;
    EXPECT_EQ(result.error().http_status, 400);
    EXPECT_FALSE(result.error().param.has_value());
  }
  EXPECT_THAT(service.Prepare(kChat, "{\"a\":\x01}").error().message, testing::HasSubstr("byte 5"));
}

TEST(RequestValidation, MessagesRepeatAtMost100BytesOfInput) {
  const FakeService service;
  const std::string name(100000, 'x');
  const Result<PreparedRequest> result = service.Prepare(kChat, R"({"model":")" + name + R"("})");
  ASSERT_FALSE(result.ok());
  EXPECT_LT(result.error().message.size(), 200U);
}

std::string Filled(std::string_view head,
                   std::string_view unit,
                   std::string_view tail,
                   size_t bytes) {
  std::string body(head);
  while (body.size() < bytes) {
    body += unit;
  }
  body += tail;
  return body;
}

struct HostileBody {
  const char* name;
  Endpoint endpoint;
  const char* head;
  const char* unit;
  const char* tail;
};

double CpuSecondsToAnswer(const FakeService& service, Endpoint endpoint, const std::string& body) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const std::clock_t begin = std::clock();
    EXPECT_FALSE(service.Prepare(endpoint, body).ok());
    best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return best;
}

TEST(RequestValidation, HostileBodiesCostTimeInProportionToTheirSize) {
  const FakeService service;
  constexpr size_t kSmall = 64 << 10;
  constexpr size_t kFactor = 8;
  for (
      const HostileBody& row :
      {HostileBody{"unknown names", kChat, "{", R"("\u0061bcdefghijklmnopqrst":1,)", R"("n":0})"},
       HostileBody{"one name again and again", kChat, "{", R"("stop":["x"],)", R"("n":0})"},
       HostileBody{"messages",
                   kChat,
                   R"({"messages":[)",
                   R"({"role":"user","content":"x"},)",
                   R"({"role":"robot"}]})"},
       HostileBody{"members of a message",
                   kChat,
                   R"({"messages":[{"role":"user",)",
                   R"("content":"x",)",
                   R"("z":1}],"n":0})"},
       HostileBody{"parts",
                   kChat,
                   R"({"messages":[{"role":"user","content":[)",
                   R"({"type":"text","text":"x"},)",
                   R"({"type":"x"}]}]})"},
       HostileBody{"escapes",
                   kChat,
                   R"({"messages":[{"role":"user","content":")",
                   "\\ud800",
                   R"("}],"n":0})"},
       HostileBody{
           "arguments",
           kChat,
           R"({"messages":[{"role":"assistant","tool_calls":[{"id":"","function":{"name":"","arguments":")",
           "[],",
           R"("}}]}],"n":0})"},
       HostileBody{"a long prompt", kText, R"({"prompt":")", "hello", R"("})"},
       HostileBody{"many ids", kText, R"({"prompt":[)", "1,", R"(1]})"},
       HostileBody{"biases",
                   kChat,
                   R"({"messages":[{"role":"user","content":"x"}],"logit_bias":{)",
                   R"("5":1,)",
                   R"("5":1},"top_k":-5})"},
       HostileBody{"a long number",
                   kChat,
                   R"({"messages":[{"role":"user","content":"x"}],"n":1)",
                   "0",
                   "}"},
       HostileBody{"kwargs",
                   kChat,
                   R"({"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{)",
                   R"("\ud800":"\ud800",)",
                   R"("z":1},"priority":-200})"}}) {
    const double small =
        CpuSecondsToAnswer(service, row.endpoint, Filled(row.head, row.unit, row.tail, kSmall));
    const double large = CpuSecondsToAnswer(
        service, row.endpoint, Filled(row.head, row.unit, row.tail, kSmall * kFactor));
    // A quadratic path would cost 64 times as much; the constant absorbs the clock's grain.
    EXPECT_LT(large, 3.0 * kFactor * small + 0.02) << row.name;
    RecordProperty(row.name, std::to_string(large));
  }
}

}  // namespace
}  // namespace spindle::serving
