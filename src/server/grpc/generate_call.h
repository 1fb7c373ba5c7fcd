// One Generate or GenerateUnary call: pulls events from its generation and hands them to gRPC, one
// write at a time, so that a slow reader pauses its own request only. Thread-safety: callbacks of
// gRPC, the stream worker and the engine's ready callback meet here under one mutex. Lifetime: a
// call owns itself from Begin until gRPC reports it done.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "base/byte_quota.h"
#include "base/mutex.h"
#include "server/common/api_keys.h"
#include "server/common/request_ids.h"
#include "server/grpc/conversion.h"
#include "server/grpc/stream_worker.h"
#include "serving/generation.h"

namespace spindle::server {

// What a call holds while it lives: its id and its place under its key's limits.
struct CallTicket {
  RequestIds::Lease id;
  ApiKeys::Slot slot;
};

// State common to both kinds of call.
class GenerateCall : public std::enable_shared_from_this<GenerateCall> {
 public:
  GenerateCall(grpc::CallbackServerContext* context,
               StreamWorker& worker,
               OutputView view,
               CallTicket ticket);
  virtual ~GenerateCall() = default;
  GenerateCall(const GenerateCall&) = delete;
  GenerateCall& operator=(const GenerateCall&) = delete;

  // Starts pumping; keeps the call alive until Done().
  void Begin(std::unique_ptr<serving::Generation> generation) SPINDLE_EXCLUDES(mutex_);
  // Ends a call that has no generation.
  void Refuse(const serving::ApiError& error);

 protected:
  // Delivers one event; true when the next may follow at once, false when a write is under way (its
  // completion calls WriteDone). Called without the mutex, by one thread at a time.
  virtual bool Deliver(const serving::GenerationEvent& event) = 0;
  // Ends the call.
  virtual void End(const grpc::Status& status) = 0;

  // Called by Deliver: the generation ends with this error.
  void FailGeneration(const serving::ApiError& error) SPINDLE_EXCLUDES(mutex_);
  void WriteDone(bool ok) SPINDLE_EXCLUDES(mutex_);
  void ClientCancelled() SPINDLE_EXCLUDES(mutex_);
  void Done() SPINDLE_EXCLUDES(mutex_);

  grpc::CallbackServerContext* context() { return context_; }

  const OutputView& view() const { return view_; }

  const std::string& request_id() const { return ticket_.id.id(); }

 private:
  void Pump() SPINDLE_EXCLUDES(mutex_);
  // The next event to deliver, or nothing when the pump must rest.
  std::optional<serving::GenerationEvent> Next() SPINDLE_REQUIRES(mutex_);

  grpc::CallbackServerContext* const context_;
  StreamWorker& worker_;
  const OutputView view_;
  const CallTicket ticket_;

  Mutex mutex_;
  std::unique_ptr<serving::Generation> generation_ SPINDLE_GUARDED_BY(mutex_);
  std::vector<serving::GenerationEvent> polled_ SPINDLE_GUARDED_BY(mutex_);  // reused
  bool pumping_ SPINDLE_GUARDED_BY(mutex_) = false;                          // a thread is in Pump
  bool again_ SPINDLE_GUARDED_BY(mutex_) = false;  // something became ready meanwhile
  bool writing_ SPINDLE_GUARDED_BY(mutex_) = false;
  bool ended_ SPINDLE_GUARDED_BY(mutex_) = false;
  std::shared_ptr<GenerateCall> self_;  // set by Begin or Refuse, cleared by Done
};

// The reactors that gRPC sees: made with std::make_shared, then Begin or Refuse must follow. What a
// unary call has collected takes leases of `memory`, which must outlive it.
class StreamingCall final : public GenerateCall, public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  using GenerateCall::GenerateCall;

  void OnWriteDone(bool ok) override { WriteDone(ok); }

  void OnCancel() override { ClientCancelled(); }

  void OnDone() override { Done(); }

 private:
  bool Deliver(const serving::GenerationEvent& event) override;

  void End(const grpc::Status& status) override { Finish(status); }

  v1::GenerateEvent message_;  // reused
  grpc::ByteBuffer bytes_;     // being written
};

class UnaryCall final : public GenerateCall, public grpc::ServerUnaryReactor {
 public:
  UnaryCall(grpc::CallbackServerContext* context,
            StreamWorker& worker,
            OutputView view,
            CallTicket ticket,
            ByteQuota& memory,
            grpc::ByteBuffer* reply)
      : GenerateCall(context, worker, view, std::move(ticket)),
        memory_(memory),
        lease_(memory),
        reply_(reply) {}

  void OnCancel() override { ClientCancelled(); }

  void OnDone() override { Done(); }

 private:
  bool Deliver(const serving::GenerationEvent& event) override;
  void End(const grpc::Status& status) override;

  ByteQuota& memory_;
  ByteQuota::Lease lease_;
  uint64_t held_bytes_ = 0;
  bool failed_ = false;
  v1::GenerateResult result_;
  grpc::ByteBuffer* const reply_;
};

}  // namespace spindle::server
