#include <gtest/gtest.h>

#include "server/grpc/conversion.h"

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

}  // namespace
}  // namespace spindle::server
