#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include <pthread.h>

#include "base/log.h"
#include "base/status_macros.h"
#include "engine/engine_core.h"
#include "engine/front_desk.h"
#include "engine/step_runner.h"

namespace spindle::engine {

class Engine::Impl {
 public:
  Impl(const EngineOptions& options,
       std::unique_ptr<StepRunner> runner,
       kv::KvTiers kv,
       const kernels::KernelTable& kernels,
       std::vector<TokenId> end_tokens,
       metrics::Registry& registry,
       const Clock& clock)
      : options_(options),
        runner_(std::move(runner)),
        store_(std::move(kv.host)),
        disk_(std::move(kv.disk)),
        fast_(std::move(kv.fast)),
        link_(std::move(kv.link)),
        trace_(std::move(kv.trace)),
        end_tokens_(std::move(end_tokens)),
        clock_(clock),
        metrics_(registry,
                 *store_,
                 {runner_->config().max_model_len, options.prefix_cache, &options.algorithms}),
        throughput_(options.max_num_seqs),
        inbox_(std::make_shared<Inbox>(options)),
        front_desk_(options_,
                    *runner_,
                    *store_,
                    fast_.get(),
                    trace_ == nullptr ? nullptr : &trace_->requests(),
                    inbox_,
                    throughput_,
                    clock),
        core_({options_,
               *runner_,
               *store_,
               disk_.get(),
               {.tier = fast_.get(),
                .link = link_.get(),
                .recorder = trace_ == nullptr ? nullptr : trace_->pages()},
               trace_.get(),
               kernels,
               end_tokens_,
               metrics_,
               *inbox_,
               throughput_,
               clock}) {}

  ~Impl() { Shutdown(clock_.Now()); }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  absl::Status Start() {
    SPINDLE_RETURN_IF_ERROR(core_.Reserve());
    if (disk_ != nullptr) {
      disk_->OnWake([inbox = inbox_] { inbox->Wake(); });
    }
    Tick();
    MutexLock lock(shutdown_mutex_);
    thread_ = std::thread([this] { Loop(); });
    return absl::OkStatus();
  }

  SubmitResult Submit(EngineRequest spec) { return front_desk_.Submit(std::move(spec)); }

  void Shutdown(TimePoint deadline);

  [[nodiscard]] std::vector<ActiveRequest> ActiveRequests() const;

  [[nodiscard]] Duration SinceLastTick() const {
    return idle_.load() ? Duration::zero() : clock_.Now() - TimePoint(Duration(last_tick_.load()));
  }

  [[nodiscard]] const StepRunner& runner() const { return *runner_; }

  [[nodiscard]] kv::KvStore& store() { return *store_; }

  // Null: none.
  [[nodiscard]] kv::DiskTier* disk() { return disk_.get(); }

  [[nodiscard]] Inbox& inbox() { return *inbox_; }

  [[nodiscard]] EngineCore& core() { return core_; }

 private:
  void Loop();

  void Tick() { last_tick_.store(clock_.Now().time_since_epoch().count()); }

  // Time of `clock_` as a time to wait for.
  [[nodiscard]] TimePoint ToSteady(TimePoint time) const {
    return SteadyClock().Now() + (time - clock_.Now());
  }

  const EngineOptions options_;
  const std::unique_ptr<StepRunner> runner_;
  const std::unique_ptr<kv::KvStore> store_;
  const std::unique_ptr<kv::DiskTier> disk_;
  const std::unique_ptr<kv::FastTier> fast_;
  const std::unique_ptr<kv::EmulatedLink> link_;
  const std::unique_ptr<kv::KvTrace> trace_;
  const std::vector<TokenId> end_tokens_;
  const Clock& clock_;
  EngineMetrics metrics_;
  Throughput throughput_;
  const std::shared_ptr<Inbox> inbox_;  // shared with streams, whose consumers may outlive us
  FrontDesk front_desk_;
  EngineCore core_;

  std::atomic<Duration::rep> last_tick_{0};
  std::atomic<bool> idle_{false};
  std::atomic<bool> abort_{false};

  Mutex shutdown_mutex_;  // one caller joins the thread
  std::thread thread_ SPINDLE_GUARDED_BY(shutdown_mutex_);
};

void Engine::Impl::Loop() {
  pthread_setname_np(pthread_self(), "engine");
  while (!abort_.load()) {
    const EngineCore::Outcome outcome = core_.Step();
    Tick();
    if (!outcome.worked) {
      idle_.store(true);
      inbox_->WaitForMail(outcome.wake_at.has_value() ? std::optional(ToSteady(*outcome.wake_at))
                                                      : std::nullopt);
      Tick();
      idle_.store(false);
    }
  }
  core_.EndAll(EndCause::kShutdown);
  if (disk_ != nullptr) {
    if (const absl::Status status = disk_->Close(); !status.ok()) {
      log::Warn("kv_disk_close_failed", {{"status", status.ToString()}});
    }
  }
  if (trace_ != nullptr) {
    trace_->Finish();
  }
  idle_.store(true);
  inbox_->Stop();
}

void Engine::Impl::Shutdown(TimePoint deadline) {
  inbox_->Close();
  static_cast<void>(inbox_->WaitUntilEmpty(ToSteady(deadline)));
  MutexLock lock(shutdown_mutex_);
  if (thread_.joinable()) {
    abort_.store(true);
    if (link_ != nullptr) {
      link_->Close();  // a step may have days of emulated copies before it
    }
    inbox_->Wake();
    thread_.join();
  }
}

std::vector<ActiveRequest> Engine::Impl::ActiveRequests() const {
  std::vector<ActiveRequest> active;
  const TimePoint now = clock_.Now();
  for (const std::shared_ptr<StreamState>& stream : inbox_->Active()) {
    const StreamState::Info& info = stream->info();
    const RequestProgress& progress = stream->progress();
    active.push_back({info.id,
                      progress.phase.load(),
                      info.priority,
                      info.prompt_tokens,
                      progress.generated_tokens.load(),
                      progress.cached_tokens.load(),
                      std::chrono::duration_cast<std::chrono::milliseconds>(now - info.submitted),
                      progress.kv_bytes.load(),
                      info.key_name});
  }
  return active;
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::CreateWithRunner(
    const EngineOptions& options,
    std::unique_ptr<StepRunner> runner,
    kv::KvTiers kv,
    const kernels::KernelTable& kernels,
    std::vector<TokenId> end_tokens,
    metrics::Registry& registry,
    const Clock& clock) {
  SPINDLE_RETURN_IF_ERROR(ValidateOptions(options));
  auto impl = std::make_unique<Impl>(
      options, std::move(runner), std::move(kv), kernels, std::move(end_tokens), registry, clock);
  SPINDLE_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

const model::ModelConfig& Engine::model_config() const {
  return impl_->runner().config();
}

const Digest& Engine::model_fingerprint() const {
  return impl_->runner().fingerprint();
}

const kv::KvGeometry& Engine::kv_geometry() const {
  return impl_->store().geometry();
}

SubmitResult Engine::Submit(EngineRequest request) {
  return impl_->Submit(std::move(request));
}

bool Engine::Cancel(const std::string& id, CancelCause cause) {
  const std::vector<std::shared_ptr<StreamState>> streams = impl_->inbox().Find(id);
  for (const std::shared_ptr<StreamState>& stream : streams) {
    stream->Cancel(cause);
  }
  return !streams.empty();
}

std::vector<ActiveRequest> Engine::ActiveRequests() const {
  return impl_->ActiveRequests();
}

EngineLoad Engine::Load() const {
  return impl_->core().Load();
}

uint64_t Engine::ResetPrefixCache() {
  uint64_t dropped = 0;
  impl_->inbox().RunCommand([this, &dropped] { dropped = impl_->store().ResetPrefixCache(); });
  return dropped;
}

template <typename Result, typename Command>
Result Engine::WithSessions(const Command& command) {
  Result result = absl::UnimplementedError("sessions need a disk tier: --kv-disk-path");
  if (impl_->disk() != nullptr) {
    impl_->inbox().RunCommand([&] { result = command(impl_->disk()->sessions()); });
  }
  return result;
}

bool Engine::keeps_sessions() const {
  return impl_->disk() != nullptr;
}

absl::StatusOr<std::vector<kv::SessionInfo>> Engine::ListSessions(
    const std::optional<std::string>& tenant) {
  return WithSessions<absl::StatusOr<std::vector<kv::SessionInfo>>>(
      [&](kv::SessionKeeper& sessions) { return sessions.List(tenant); });
}

absl::StatusOr<kv::SessionInfo> Engine::FindSession(const kv::SessionName& name) {
  return WithSessions<absl::StatusOr<kv::SessionInfo>>(
      [&](kv::SessionKeeper& sessions) { return sessions.Find(name); });
}

absl::Status Engine::RestoreSession(const kv::SessionName& name) {
  return WithSessions<absl::Status>(
      [&](kv::SessionKeeper& sessions) { return sessions.Restore(name); });
}

absl::Status Engine::SetSessionPinned(const kv::SessionName& name, bool pinned) {
  return WithSessions<absl::Status>(
      [&](kv::SessionKeeper& sessions) { return sessions.SetPinned(name, pinned); });
}

absl::Status Engine::DeleteSession(const kv::SessionName& name) {
  return WithSessions<absl::Status>(
      [&](kv::SessionKeeper& sessions) { return sessions.Delete(name); });
}

void Engine::BeginDrain() {
  impl_->inbox().Close();
}

void Engine::Shutdown(TimePoint deadline) {
  impl_->Shutdown(deadline);
}

Duration Engine::SinceLastTick() const {
  return impl_->SinceLastTick();
}

absl::Status Engine::CheckIntegrity() {
  absl::Status status;
  impl_->inbox().RunCommand([this, &status] { status = impl_->core().CheckIntegrity(); });
  return status;
}

}  // namespace spindle::engine
