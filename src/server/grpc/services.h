// The two services of spindle.v1 over the completion service.
// Thread-safety: thread-safe (gRPC calls them from its own threads). Borrows everything it is
// given.
#pragma once

#include <initializer_list>

#include "spindle/v1/inference.grpc.pb.h"

#include "base/mutex.h"
#include "server/grpc/admission.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/stream_worker.h"
#include "serving/completion_service.h"

namespace spindle::server {

// Its messages come as bytes, see messages.h.
class InferenceService final
    : public v1::Inference::WithRawCallbackMethod_Generate<
          v1::Inference::WithRawCallbackMethod_GenerateUnary<
              v1::Inference::WithRawCallbackMethod_Tokenize<
                  v1::Inference::WithRawCallbackMethod_Detokenize<v1::Inference::Service>>>> {
 public:
  InferenceService(serving::CompletionService& service,
                   const Admission& admission,
                   StreamWorker& worker)
      : service_(service), admission_(admission), worker_(worker) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* GenerateUnary(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* reply) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* reply) override;

 private:
  // Admission, preparation and start of a generation, then hands it to the call that `make` builds.
  template <typename MakeCall>
  auto StartCall(grpc::CallbackServerContext* context,
                 const grpc::ByteBuffer& bytes,
                 const MakeCall& make);
  // Authenticates, and decodes the request of a call without a generation.
  [[nodiscard]] serving::MaybeError Receive(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer& bytes,
                                            std::initializer_list<int> text_fields,
                                            google::protobuf::Message* request) const;

  serving::CompletionService& service_;
  const Admission& admission_;
  StreamWorker& worker_;
  mutable Mutex large_messages_;  // whose turn it is to be decoded and prepared
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
