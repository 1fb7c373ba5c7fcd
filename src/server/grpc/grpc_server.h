// The gRPC front end: spindle.v1.Inference and Control, health checking, reflection.
// Thread-safety: thread-compatible; calls run on gRPC's threads and one stream worker.
// Borrows the completion service, the keys and the id registry, which must outlive the server.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/common/api_keys.h"
#include "server/common/request_ids.h"
#include "server/grpc/grpc_options.h"
#include "serving/completion_service.h"

namespace spindle::server {

// Facts about this build for GetServerInfo.
struct BuildFacts {
  std::string version;
  std::string commit;
  std::string backend;
  std::string isa;
};

class GrpcServer {
 public:
  // Opens the port. ERRORS: kUnavailable (address in use or not bindable), kInvalidArgument (TLS
  // files).
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Create(const GrpcOptions& options,
                                                            serving::CompletionService& service,
                                                            const ApiKeys& keys,
                                                            RequestIds& request_ids,
                                                            BuildFacts facts);
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  // The bound port (useful with port 0 in tests).
  [[nodiscard]] uint32_t port() const;

  // Health becomes SERVING (model loaded) or NOT_SERVING (draining).
  void SetServing(bool serving);

  // Running calls continue until `deadline`, then they are cancelled. Blocks.
  void Shutdown(TimePoint deadline);

 private:
  class Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace spindle::server
