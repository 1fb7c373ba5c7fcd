#include "app/server_process.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include <unistd.h>

#include "app/build_facts.h"
#include "app/commands.h"
#include "app/config_report.h"
#include "app/load_progress.h"
#include "app/model_loader.h"
#include "app/signals.h"
#include "base/log.h"
#include "base/mutex.h"
#include "kernels/registry.h"
#include "server/common/api_keys.h"
#include "server/common/request_ids.h"
#include "server/http/http_server.h"
#include "serving/completion_service.h"
#ifdef SPINDLE_WITH_GRPC
#include "server/grpc/grpc_server.h"
#endif

namespace spindle::app {
namespace {

// Time for the last bytes of ended requests to leave after the engine has stopped.
constexpr auto kFlushTime = std::chrono::seconds(2);

std::string KernelName(const std::string& isa) {
  const kernels::KernelTable* table = kernels::FindKernelsByName(isa);
  return table == nullptr ? isa : std::string(table->name);
}

}  // namespace

class ServerProcess::Impl {
 public:
  Impl(config::ServeOptions options,
       std::vector<config::EffectiveOption> effective,
       const DiskEnvironment& disk)
      : options_(std::move(options)),
        disk_(disk),
        config_values_(ValuesJson(effective)),
        config_(std::move(effective)),
        registry_({{"model_name", options_.serving.served_names.front()}}),
        service_(options_.serving, registry_, SteadyClock()) {}

  int Run() {
    LogStart();
    if (const std::optional<int> code = OpenPorts()) {
      return *code;
    }
    loader_ = std::thread([this] { Load(); });
    return WaitForEnd();
  }

 private:
  void LogStart() {
    log::Info("start",
              {{"version", kVersion},
               {"commit", kCommit},
               {"build", kBuild},
               {"isa", KernelName(options_.load.isa)},
               {"model", options_.load.model_path}});
    log::Info("config", {{"options", config_values_}});
    const bool open = options_.keys.keys.empty() && options_.keys.key_file.empty();
    if (open && options_.http.uds.empty() && options_.http.host != "127.0.0.1" &&
        options_.http.host != "localhost" && options_.http.host != "::1") {
      log::Warn("open_server",
                {{"host", options_.http.host},
                 {"hint", "anyone who reaches it may use it; set --api-key-file"}});
    }
  }

  // An exit code when the server cannot start.
  std::optional<int> OpenPorts() {
    absl::StatusOr<std::unique_ptr<server::ApiKeys>> keys =
        server::ApiKeys::Create(options_.keys, SteadyClock());
    if (!keys.ok()) {
      return Fatal(kExitUsage, keys.status());
    }
    keys_ = *std::move(keys);
    options_.http.build = {.version = std::string(kVersion),
                           .commit = std::string(kCommit),
                           .build = std::string(kBuild),
                           .backend = "cpu",
                           .isa = KernelName(options_.load.isa)};
    absl::StatusOr<std::unique_ptr<server::HttpServer>> http = server::HttpServer::Create(
        options_.http,
        service_,
        {.keys = *keys_, .ids = request_ids_, .registry = registry_, .clock = SteadyClock()},
        {.drain = [this] { BeginDrain(); }, .config_json = [this] { return config_.Json(); }});
    if (!http.ok()) {
      return Fatal(kExitUsage, http.status());
    }
    http_ = *std::move(http);
    if (const absl::Status status = http_->Listen(); !status.ok()) {
      return Fatal(kExitListen, status);
    }
    log::Info("listening", {{"http", http_->address()}});
    return OpenGrpc();
  }

  std::optional<int> OpenGrpc() {
#ifdef SPINDLE_WITH_GRPC
    if (options_.grpc.port == 0) {
      return std::nullopt;
    }
    const server::HttpOptions& http = options_.http;
    absl::StatusOr<std::unique_ptr<server::GrpcServer>> grpc =
        server::GrpcServer::Create(options_.grpc,
                                   service_,
                                   *keys_,
                                   request_ids_,
                                   {.version = http.build.version,
                                    .commit = http.build.commit,
                                    .backend = http.build.backend,
                                    .isa = http.build.isa});
    if (!grpc.ok()) {
      return Fatal(kExitListen, grpc.status());
    }
    MutexLock lock(mutex_);
    grpc_ = *std::move(grpc);
    log::Info("listening", {{"grpc", options_.grpc.host + ":" + std::to_string(grpc_->port())}});
#endif
    return std::nullopt;
  }

  // Loader thread.
  void Load() {
    const TimePoint started = SteadyClock().Now();
    absl::StatusOr<LoadResult> loaded = [this] {
      LoadProgressBar bar("loading");
      const config::FrontEndOptions front_ends{
          .http = options_.http,
          .grpc = options_.grpc,
          .answer_memory_bytes = options_.serving.answer_memory_bytes,
          .max_choices = options_.serving.max_n};
      return LoadModel(
          options_.load,
          &front_ends,
          registry_,
          SteadyClock(),
          [this, &bar](double fraction) {
            service_.SetLoadProgress(fraction);
            bar.Show(fraction);
          },
          disk_);
    }();
    MutexLock lock(mutex_);
    if (!loaded.ok()) {
      load_error_ = loaded.status();
      signals_.Wake();
      return;
    }
    ResolveConfig(*loaded);
    service_.SetModel(std::move(loaded->model));
    http_->SetModelLoadTime(SteadyClock().Now() - started);
    SetGrpcServing(true);
    loaded_ = true;
    log::Info("ready",
              {{"address", http_->address()}, {"model", options_.serving.served_names.front()}});
  }

  // What was left to the model and the machine is known now.
  void ResolveConfig(const LoadResult& loaded) {
    const serving::ServingOptions& serving = options_.serving;
    ResolvedOptions resolved = loaded.resolved;
    resolved.emplace_back("temperature",
                          config::AsWritten(serving.temperature.value_or(
                              loaded.model.temperature.value_or(SamplingParams().temperature))));
    resolved.emplace_back("top-p",
                          config::AsWritten(serving.top_p.value_or(
                              loaded.model.top_p.value_or(SamplingParams().top_p))));
    const int32_t top_k = serving.top_k.value_or(loaded.model.top_k.value_or(0));
    resolved.emplace_back("top-k", static_cast<uint64_t>(std::max(top_k, 0)));
    config_.Resolve(resolved);
    log::Info("config_resolved", {{"options", ValuesJson(resolved)}});
  }

  int WaitForEnd() {
    for (;;) {
      const int signal = signals_.Wait();
      if (signal == SIGHUP) {
        Reload();
        continue;
      }
      if (signal != 0) {
        return OnEndSignal(signal);
      }
      loader_.join();
      MutexLock lock(mutex_);
      return Fatal(LoadExitCode(load_error_), load_error_);
    }
  }

  int OnEndSignal(int signal) {
    {
      MutexLock lock(mutex_);
      if (!loaded_) {
        // Loading cannot be interrupted, and nothing is worth saving yet.
        log::Info("stop", {{"reason", "signal while loading"}});
        if (!options_.http.uds.empty()) {
          unlink(options_.http.uds.c_str());
        }
        std::_Exit(kExitOk);
      }
    }
    loader_.join();
    log::Info("drain", {{"seconds", ToSeconds(options_.shutdown_timeout)}});
    BeginDrain();
    std::thread stopper([this] {
      const TimePoint deadline = SteadyClock().Now() + options_.shutdown_timeout;
      service_.Shutdown(deadline);
      StopFrontEnds();
      signals_.Wake();
    });
    while (const int again = signals_.Wait()) {
      if (again != SIGHUP) {
        log::Warn("abort", {{"reason", "second signal"}});
        std::_Exit(128 + again);
      }
    }
    stopper.join();
    log::Info("stop", {{"signal", signal}});
    return kExitOk;
  }

  void BeginDrain() {
    // In this order a refused request is told the time left and that its connection ends.
    http_->Drain(SteadyClock().Now() + options_.shutdown_timeout);
    service_.BeginDrain();
    MutexLock lock(mutex_);
    SetGrpcServing(false);
  }

  void StopFrontEnds() {
    const TimePoint deadline = SteadyClock().Now() + kFlushTime;
    http_->Stop(deadline);
#ifdef SPINDLE_WITH_GRPC
    MutexLock lock(mutex_);
    if (grpc_ != nullptr) {
      grpc_->Shutdown(deadline);
    }
#endif
  }

  void SetGrpcServing([[maybe_unused]] bool serving) SPINDLE_REQUIRES(mutex_) {
#ifdef SPINDLE_WITH_GRPC
    if (grpc_ != nullptr) {
      grpc_->SetServing(serving);
    }
#endif
  }

  void Reload() {
    for (const absl::Status& status :
         {keys_->Reload(), http_->ReloadTls(), log::Configure(options_.log)}) {
      if (!status.ok()) {
        log::Error("reload", {{"error", std::string(status.message())}});
        return;
      }
    }
    log::Info("reload");
  }

  config::ServeOptions options_;
  const DiskEnvironment disk_;
  const std::string config_values_;
  ConfigReport config_;
  Signals signals_;  // before everything that starts threads
  metrics::Registry registry_;
  serving::CompletionService service_;
  std::unique_ptr<server::ApiKeys> keys_;
  server::RequestIds request_ids_;
  std::unique_ptr<server::HttpServer> http_;
  std::thread loader_;

  Mutex mutex_;
#ifdef SPINDLE_WITH_GRPC
  std::unique_ptr<server::GrpcServer> grpc_ SPINDLE_GUARDED_BY(mutex_);
#endif
  absl::Status load_error_ SPINDLE_GUARDED_BY(mutex_);
  bool loaded_ SPINDLE_GUARDED_BY(mutex_) = false;
};

ServerProcess::ServerProcess(config::ServeOptions options,
                             std::vector<config::EffectiveOption> effective,
                             const DiskEnvironment& disk)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(effective), disk)) {}

ServerProcess::~ServerProcess() = default;

int ServerProcess::Run() {
  return impl_->Run();
}

}  // namespace spindle::app
