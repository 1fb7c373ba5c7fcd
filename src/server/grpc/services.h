// The two services of spindle.v1 over the completion service.
// Thread-safety: thread-safe (gRPC calls them from its own threads). Borrows everything it is
// given.
#pragma once

#include "spindle/v1/inference.grpc.pb.h"

#include "server/grpc/admission.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/stream_worker.h"
#include "serving/completion_service.h"

namespace spindle::server {

class InferenceService final : public v1::Inference::CallbackService {
 public:
  InferenceService(serving::CompletionService& service,
                   const Admission& admission,
                   StreamWorker& worker)
      : service_(service), admission_(admission), worker_(worker) {}

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* GenerateUnary(grpc::CallbackServerContext* context,
                                          const v1::GenerateRequest* request,
                                          v1::GenerateResult* result) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeReply* reply) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeReply* reply) override;

 private:
  serving::CompletionService& service_;
  const Admission& admission_;
  StreamWorker& worker_;
};

class ControlService final : public v1::Control::CallbackService {
 public:
  ControlService(serving::CompletionService& service, const Admission& admission, BuildFacts facts)
      : service_(service), admission_(admission), facts_(std::move(facts)) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::ServerInfo* reply) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ModelList* reply) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context,
                                    const v1::GetLoadRequest* request,
                                    v1::Load* reply) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortReply* reply) override;

 private:
  serving::CompletionService& service_;
  const Admission& admission_;
  const BuildFacts facts_;
};

}  // namespace spindle::server
