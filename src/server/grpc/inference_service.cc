#include <utility>

#include "server/grpc/conversion.h"
#include "server/grpc/generate_call.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/messages.h"
#include "server/grpc/services.h"
#include "serving/work_turn.h"

namespace spindle::server {
namespace {

using serving::ApiError;
using serving::MaybeError;
using serving::Result;

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace

template <typename MakeCall>
auto InferenceService::StartCall(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer& bytes,
                                 const MakeCall& make) {
  const auto refuse = [&make](const ApiError& error) {
    auto call = make(OutputView(), CallTicket());
    call->Refuse(error);
    return call;
  };
  const Result<ApiKeys::Grant> grant = admission_.Authenticate(*context, KeyScope::kUser);
  if (!grant.ok()) {
    return refuse(grant.error());
  }
  if (const std::optional<ApiError> unavailable = service_.Unavailable()) {
    return refuse(*unavailable);
  }
  const serving::WorkTurn turn(large_messages_, bytes.Length());
  v1::GenerateRequest request;
  if (const MaybeError error =
          Decode(bytes,
                 {v1::GenerateRequest::kTextFieldNumber, v1::GenerateRequest::kChatJsonFieldNumber},
                 service_.max_model_len(),
                 &request)) {
    return refuse(*error);
  }
  // gRPC would keep them for as long as the call lives.
  const_cast<grpc::ByteBuffer&>(bytes).Clear();
  Result<AdmittedCall> admitted = admission_.Admit(*context, grant.value(), request.request_id());
  if (!admitted.ok()) {
    return refuse(admitted.error());
  }
  auto call = make(ViewOf(request), std::move(admitted.value().ticket));
  const serving::Caller& caller = admitted.value().caller;
  const Result<serving::PreparedRequest> prepared = PrepareGenerate(request, caller, service_);
  if (!prepared.ok()) {
    call->Refuse(prepared.error());
    return call;
  }
  Result<std::unique_ptr<serving::Generation>> generation =
      service_.Start(prepared.value(), caller);
  if (!generation.ok()) {
    call->Refuse(WithGrpcNames(generation.error(), request.input_case()));
    return call;
  }
  call->Begin(std::move(generation).value());
  return call;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto make = [&](const OutputView& view, CallTicket ticket) {
    return std::make_shared<StreamingCall>(context, worker_, view, std::move(ticket));
  };
  return StartCall(context, *request, make).get();
}

grpc::ServerUnaryReactor* InferenceService::GenerateUnary(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request,
                                                          grpc::ByteBuffer* reply) {
  const auto make = [&](const OutputView& view, CallTicket ticket) {
    return std::make_shared<UnaryCall>(
        context, worker_, view, std::move(ticket), service_.answer_memory(), reply);
  };
  return StartCall(context, *request, make).get();
}

MaybeError InferenceService::Receive(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer& bytes,
                                     std::initializer_list<int> text_fields,
                                     google::protobuf::Message* request) const {
  const Result<ApiKeys::Grant> grant = admission_.Authenticate(*context, KeyScope::kUser);
  if (!grant.ok()) {
    return grant.error();
  }
  if (std::optional<ApiError> unavailable = service_.Unavailable()) {
    return unavailable;
  }
  return Decode(bytes, text_fields, service_.max_model_len(), request);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* bytes,
                                                     grpc::ByteBuffer* reply) {
  const serving::WorkTurn turn(large_messages_, bytes->Length());
  v1::TokenizeRequest request;
  if (const MaybeError error = Receive(
          context,
          *bytes,
          {v1::TokenizeRequest::kTextFieldNumber, v1::TokenizeRequest::kChatJsonFieldNumber},
          &request)) {
    return Answer(context, ToGrpcStatus(*error, context));
  }
  std::vector<TokenId> ids;
  if (request.input_case() == v1::TokenizeRequest::kChatJson) {
    auto prepared =
        service_.Prepare(serving::Endpoint::kChat, request.chat_json(), serving::Caller());
    if (!prepared.ok()) {
      return Answer(context, ToGrpcStatus(prepared.error(), context));
    }
    ids = std::move(prepared.value().prompts.front());
  } else {
    const bool add_special = !request.has_add_special_tokens() || request.add_special_tokens();
    auto encoded = service_.EncodeText(request.text(), add_special, "text");
    if (!encoded.ok()) {
      return Answer(context, ToGrpcStatus(encoded.error(), context));
    }
    ids = std::move(encoded).value();
  }
  v1::TokenizeReply answer;
  for (const TokenId id : ids) {
    answer.add_ids(static_cast<uint32_t>(id));
  }
  answer.set_max_model_len(service_.max_model_len());
  *reply = Encode(answer);
  return Answer(context, grpc::Status::OK);
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes,
                                                       grpc::ByteBuffer* reply) {
  const serving::WorkTurn turn(large_messages_, bytes->Length());
  v1::DetokenizeRequest request;
  if (const MaybeError error = Receive(context, *bytes, {}, &request)) {
    return Answer(context, ToGrpcStatus(*error, context));
  }
  const std::vector<TokenId> ids(request.ids().begin(), request.ids().end());
  Result<std::string> text = service_.DecodeIds(ids, request.skip_special_tokens(), "ids");
  if (!text.ok()) {
    return Answer(context, ToGrpcStatus(text.error(), context));
  }
  v1::DetokenizeReply answer;
  answer.set_text(std::move(text).value());
  *reply = Encode(answer);
  return Answer(context, grpc::Status::OK);
}

}  // namespace spindle::server
