#include "server/grpc/grpc_status.h"
#include "server/grpc/services.h"

namespace spindle::server {
namespace {

const char* StateName(serving::CompletionService::State state) {
  switch (state) {
    case serving::CompletionService::State::kLoading:
      return "loading";
    case serving::CompletionService::State::kReady:
      return "ready";
    case serving::CompletionService::State::kDraining:
      return "draining";
  }
  return "";
}

// Authenticates, runs `body` (which returns a Status) and finishes.
template <typename Body>
grpc::ServerUnaryReactor* Guarded(grpc::CallbackServerContext* context,
                                  const Admission& admission,
                                  KeyScope scope,
                                  const Body& body) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto grant = admission.Authenticate(*context, scope);
  reactor->Finish(grant.ok() ? body() : ToGrpcStatus(grant.error(), context));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* ControlService::GetServerInfo(grpc::CallbackServerContext* context,
                                                        const v1::GetServerInfoRequest* /*request*/,
                                                        v1::ServerInfo* reply) {
  return Guarded(context, admission_, KeyScope::kUser, [&] {
    reply->set_version(facts_.version);
    reply->set_commit(facts_.commit);
    reply->set_backend(facts_.backend);
    reply->set_isa(facts_.isa);
    reply->set_state(StateName(service_.state()));
    if (service_.engine() != nullptr) {
      reply->set_system_fingerprint(service_.SystemFingerprint());
    }
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* ControlService::ListModels(grpc::CallbackServerContext* context,
                                                     const v1::ListModelsRequest* /*request*/,
                                                     v1::ModelList* reply) {
  return Guarded(context, admission_, KeyScope::kUser, [&] {
    const auto models = service_.ListModels();
    if (!models.ok()) {
      return ToGrpcStatus(models.error(), context);
    }
    reply->set_models_json(models.value());
    for (const std::string& name : service_.options().served_names) {
      reply->add_ids(name);
    }
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* ControlService::GetLoad(grpc::CallbackServerContext* context,
                                                  const v1::GetLoadRequest* /*request*/,
                                                  v1::Load* reply) {
  return Guarded(context, admission_, KeyScope::kUser, [&] {
    if (const auto unavailable = service_.Unavailable();
        unavailable.has_value() && service_.engine() == nullptr) {
      return ToGrpcStatus(*unavailable, context);
    }
    const engine::EngineLoad load = service_.engine()->Load();
    reply->set_running_sequences(load.running);
    reply->set_waiting_requests(load.waiting);
    reply->set_waiting_tokens(load.waiting_tokens);
    v1::TierLoad* host = reply->add_tiers();
    host->set_name("host");
    host->set_capacity_bytes(load.kv.capacity_stripes * load.kv.stripe_bytes);
    host->set_used_bytes(load.kv.owned_stripes * load.kv.stripe_bytes);
    host->set_prefix_bytes(load.kv.cached_stripes * load.kv.stripe_bytes);
    if (load.disk.has_value()) {
      v1::TierLoad* disk = reply->add_tiers();
      disk->set_name("disk");
      disk->set_capacity_bytes(load.disk->disk.capacity_bytes);
      disk->set_used_bytes(load.disk->disk.used_bytes);
      disk->set_prefix_bytes(load.disk->disk.live_bytes);
    }
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* ControlService::Abort(grpc::CallbackServerContext* context,
                                                const v1::AbortRequest* request,
                                                v1::AbortReply* reply) {
  return Guarded(context, admission_, KeyScope::kAdmin, [&] {
    engine::Engine* engine = service_.engine();
    reply->set_found(engine != nullptr &&
                     engine->Cancel(request->request_id(), engine::CancelCause::kAdmin));
    return grpc::Status::OK;
  });
}

}  // namespace spindle::server
