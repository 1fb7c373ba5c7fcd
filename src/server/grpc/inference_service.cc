#include <utility>

#include "server/grpc/conversion.h"
#include "server/grpc/generate_call.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/services.h"

namespace spindle::server {
namespace {

using serving::ApiError;
using serving::Result;

// Admission, preparation and start of a generation, then hands it to the call that `make` builds.
template <typename MakeCall>
auto StartCall(grpc::CallbackServerContext* context,
               const v1::GenerateRequest& request,
               serving::CompletionService& service,
               const Admission& admission,
               const MakeCall& make) {
  Result<AdmittedCall> admitted = admission.Admit(*context, request.request_id());
  if (!admitted.ok()) {
    auto call = make(CallTicket());
    call->Refuse(admitted.error());
    return call;
  }
  auto call = make(std::move(admitted.value().ticket));
  const serving::Caller& caller = admitted.value().caller;
  if (const std::optional<ApiError> unavailable = service.Unavailable()) {
    call->Refuse(*unavailable);
    return call;
  }
  const Result<serving::PreparedRequest> prepared = PrepareGenerate(request, caller, service);
  if (!prepared.ok()) {
    call->Refuse(prepared.error());
    return call;
  }
  Result<std::unique_ptr<serving::Generation>> generation = service.Start(prepared.value(), caller);
  if (!generation.ok()) {
    call->Refuse(WithGrpcNames(generation.error(), request.input_case()));
    return call;
  }
  call->Begin(std::move(generation).value());
  return call;
}

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace

grpc::ServerWriteReactor<v1::GenerateEvent>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const auto make = [&](CallTicket ticket) {
    return std::make_shared<StreamingCall>(context, worker_, ViewOf(*request), std::move(ticket));
  };
  return StartCall(context, *request, service_, admission_, make).get();
}

grpc::ServerUnaryReactor* InferenceService::GenerateUnary(grpc::CallbackServerContext* context,
                                                          const v1::GenerateRequest* request,
                                                          v1::GenerateResult* result) {
  const auto make = [&](CallTicket ticket) {
    return std::make_shared<UnaryCall>(
        context, worker_, ViewOf(*request), std::move(ticket), service_.answer_memory(), result);
  };
  return StartCall(context, *request, service_, admission_, make).get();
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeReply* reply) {
  const auto grant = admission_.Authenticate(*context, KeyScope::kUser);
  if (!grant.ok()) {
    return Answer(context, ToGrpcStatus(grant.error(), context));
  }
  if (const std::optional<ApiError> unavailable = service_.Unavailable()) {
    return Answer(context, ToGrpcStatus(*unavailable, context));
  }
  std::vector<TokenId> ids;
  if (request->input_case() == v1::TokenizeRequest::kChatJson) {
    auto prepared =
        service_.Prepare(serving::Endpoint::kChat, request->chat_json(), serving::Caller());
    if (!prepared.ok()) {
      return Answer(context, ToGrpcStatus(prepared.error(), context));
    }
    ids = std::move(prepared.value().prompts.front());
  } else {
    const bool add_special = !request->has_add_special_tokens() || request->add_special_tokens();
    auto encoded = service_.EncodeText(request->text(), add_special, "text");
    if (!encoded.ok()) {
      return Answer(context, ToGrpcStatus(encoded.error(), context));
    }
    ids = std::move(encoded).value();
  }
  for (const TokenId id : ids) {
    reply->add_ids(static_cast<uint32_t>(id));
  }
  reply->set_max_model_len(service_.max_model_len());
  return Answer(context, grpc::Status::OK);
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeReply* reply) {
  const auto grant = admission_.Authenticate(*context, KeyScope::kUser);
  if (!grant.ok()) {
    return Answer(context, ToGrpcStatus(grant.error(), context));
  }
  if (const std::optional<ApiError> unavailable = service_.Unavailable()) {
    return Answer(context, ToGrpcStatus(*unavailable, context));
  }
  const std::vector<TokenId> ids(request->ids().begin(), request->ids().end());
  const auto text = service_.tokenizer()->Decode(ids, request->skip_special_tokens());
  if (!text.ok()) {
    return Answer(context,
                  {grpc::StatusCode::INVALID_ARGUMENT, std::string(text.status().message())});
  }
  reply->set_text(*text);
  return Answer(context, grpc::Status::OK);
}

}  // namespace spindle::server
