#include "server/grpc/grpc_server.h"

#include <chrono>
#include <utility>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include "base/read_file.h"
#include "base/status_macros.h"
#include "server/grpc/services.h"

namespace spindle::server {
namespace {

constexpr size_t kMaxWaitingCalls = 65536;
constexpr int kMaxConcurrentCalls = 1024;  // per connection
constexpr uint64_t kMaxPemBytes = 16U << 20;
constexpr const char* kInferenceName = "spindle.v1.Inference";

absl::StatusOr<std::string> ReadPem(const std::string& path, const char* flag) {
  absl::StatusOr<std::string> pem = ReadFile(path, kMaxPemBytes);
  if (!pem.ok()) {
    return absl::InvalidArgumentError(std::string(flag) + ": " +
                                      std::string(pem.status().message()));
  }
  return pem;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> Credentials(const GrpcOptions& options) {
  if (options.tls_cert_path.empty()) {
    return grpc::InsecureServerCredentials();
  }
  grpc::SslServerCredentialsOptions ssl;
  grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
  SPINDLE_ASSIGN_OR_RETURN(pair.private_key, ReadPem(options.tls_key_path, "--tls-key"));
  SPINDLE_ASSIGN_OR_RETURN(pair.cert_chain, ReadPem(options.tls_cert_path, "--tls-cert"));
  ssl.pem_key_cert_pairs.push_back(std::move(pair));
  if (!options.tls_ca_path.empty()) {
    SPINDLE_ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadPem(options.tls_ca_path, "--tls-ca"));
    ssl.client_certificate_request = GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  }
  return grpc::SslServerCredentials(ssl);
}

}  // namespace

class GrpcServer::Impl {
 public:
  Impl(serving::CompletionService& service,
       const ApiKeys& keys,
       RequestIds& request_ids,
       BuildFacts facts)
      : admission_(keys, request_ids),
        worker_(kMaxWaitingCalls),
        inference_(service, admission_, worker_),
        control_(service, admission_, std::move(facts)) {}

  absl::Status Start(const GrpcOptions& options) {
    grpc::EnableDefaultHealthCheckService(true);
    if (options.reflection) {
      grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    }
    SPINDLE_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ServerCredentials> credentials,
                             Credentials(options));
    grpc::ServerBuilder builder;
    const std::string address = options.host + ":" + std::to_string(options.port);
    int bound_port = 0;
    builder.AddListeningPort(address, credentials, &bound_port);
    builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
    grpc::ResourceQuota memory("spindle");
    memory.Resize(GrpcQuotaBytes(options.max_message_bytes));
    builder.SetResourceQuota(memory);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxConcurrentCalls);
    // Two processes on one port would share its connections silently; a busy port must be an error.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(&inference_);
    builder.RegisterService(&control_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || bound_port == 0) {
      return absl::UnavailableError("gRPC: cannot listen on " + address);
    }
    port_ = static_cast<uint32_t>(bound_port);
    SetServing(false);
    return absl::OkStatus();
  }

  void SetServing(bool serving) {
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    health->SetServingStatus(serving);
    health->SetServingStatus(kInferenceName, serving);
  }

  void Shutdown(TimePoint deadline) {
    if (server_ == nullptr) {
      return;
    }
    const Duration left = std::max(deadline - SteadyClock().Now(), Duration(0));
    server_->Shutdown(std::chrono::system_clock::now() +
                      std::chrono::duration_cast<std::chrono::system_clock::duration>(left));
    server_->Wait();
    server_.reset();
  }

  [[nodiscard]] uint32_t port() const { return port_; }

 private:
  // Reverse order of destruction: the server ends its calls before the worker and the services go.
  Admission admission_;
  StreamWorker worker_;
  InferenceService inference_;
  ControlService control_;
  std::unique_ptr<grpc::Server> server_;
  uint32_t port_ = 0;
};

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcServer::~GrpcServer() {
  impl_->Shutdown(SteadyClock().Now());
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Create(const GrpcOptions& options,
                                                               serving::CompletionService& service,
                                                               const ApiKeys& keys,
                                                               RequestIds& request_ids,
                                                               BuildFacts facts) {
  auto impl = std::make_unique<Impl>(service, keys, request_ids, std::move(facts));
  SPINDLE_RETURN_IF_ERROR(impl->Start(options));
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

uint32_t GrpcServer::port() const {
  return impl_->port();
}

void GrpcServer::SetServing(bool serving) {
  impl_->SetServing(serving);
}

void GrpcServer::Shutdown(TimePoint deadline) {
  impl_->Shutdown(deadline);
}

}  // namespace spindle::server
