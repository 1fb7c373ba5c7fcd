#include <string>

#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include "spindle/v1/inference.pb.h"

#include "server/grpc/messages.h"

namespace spindle::server {
namespace {

constexpr uint32_t kContext = 1000;
constexpr int kTextField = v1::GenerateRequest::kTextFieldNumber;
constexpr int kChatJson = v1::GenerateRequest::kChatJsonFieldNumber;

grpc::ByteBuffer BytesOf(const std::string& text) {
  const grpc::Slice slice(text);
  return {&slice, 1};
}

TEST(GrpcMessages, ComeBackAsTheyWere) {
  v1::GenerateRequest request;
  request.set_request_id("a");
  request.set_text(std::string(3 << 20, 'x'));
  request.mutable_sampling()->set_seed(-1);
  (*request.mutable_sampling()->mutable_logit_bias())[7] = 1.5F;
  const grpc::ByteBuffer bytes = Encode(request);
  EXPECT_EQ(bytes.Length(), request.ByteSizeLong());
  for (int round = 0; round < 2; ++round) {  // reading takes nothing away
    v1::GenerateRequest back;
    ASSERT_FALSE(Decode(bytes, {kTextField, kChatJson}, kContext, &back).has_value());
    EXPECT_EQ(back.SerializeAsString(), request.SerializeAsString());
  }
}

TEST(GrpcMessages, TextsMayBeLongAndOtherFieldsMayNot) {
  const auto decode = [](const v1::GenerateRequest& request) {
    v1::GenerateRequest back;
    return Decode(Encode(request), {kTextField, kChatJson}, kContext, &back);
  };
  const size_t limit = MaxFieldBytes(kContext);
  v1::GenerateRequest request;
  request.set_chat_json(std::string(2 * limit, 'x'));
  EXPECT_FALSE(decode(request).has_value());
  // The shortest field that becomes an object.
  for (size_t i = 0; i < limit / 2; ++i) {
    request.mutable_stopping()->add_stop_strings();
  }
  const serving::MaybeError many = decode(request);
  ASSERT_TRUE(many.has_value());
  EXPECT_EQ(many->http_status, 413);
  EXPECT_EQ(many->code, "request_too_large");
  EXPECT_NE(many->message.find(std::to_string(limit)), std::string::npos) << many->message;
  request.mutable_stopping()->mutable_stop_strings()->DeleteSubrange(0, 100);
  EXPECT_FALSE(decode(request).has_value());
}

TEST(GrpcMessages, WhatIsNoMessageIsRefused) {
  v1::GenerateRequest request;
  request.set_text("hello");
  request.set_model("smol");
  const std::string good = request.SerializeAsString();
  for (const std::string& bad : {good.substr(0, good.size() - 1),
                                 good + std::string(1, '\0'),
                                 std::string("\x0B", 1),  // a group that never ends
                                 std::string("\x0A\xFF\xFF\xFF\xFF\x7F", 6),
                                 std::string("\x1A\x02\xC3\x28", 4)}) {  // no UTF-8
    v1::GenerateRequest back;
    const serving::MaybeError error =
        Decode(BytesOf(bad), {kTextField, kChatJson}, kContext, &back);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code, "invalid_message");
    EXPECT_EQ(error->http_status, 400);
  }
  v1::GenerateRequest back;
  EXPECT_FALSE(Decode(BytesOf(good), {kTextField, kChatJson}, kContext, &back).has_value());
  EXPECT_FALSE(Decode(BytesOf(""), {}, kContext, &back).has_value()) << "a message of defaults";
}

}  // namespace
}  // namespace spindle::server
