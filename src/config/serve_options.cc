#include "config/serve_options.h"

#include <filesystem>
#include <set>

#include "base/status_macros.h"
#include "base/utf8.h"
#include "config/sparse_preset.h"

namespace spindle::config {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 40;

void AddApiOptions(OptionTable& table, serving::ServingOptions& serving) {
  table
      .TextList("served-model-name",
                "NAME",
                &serving.served_names,
                "name in the API; default: the file's name. NAME=FILE: with the sparse preset of "
                "that file")
      .aliases = {"--alias", "-a"};
  table.Switch("allow-audit",
               &serving.allow_audit,
               "requests may have steps computed densely as well (audit_every); slow");
  table.Uint32("max-n", &serving.max_n, 1, 128, "most choices per request");
  table.Uint32(
      "max-stop-strings", &serving.max_stop_strings, 1, 64, "most stop strings per request");
  table.Uint32("max-logprobs", &serving.max_logprobs, 0, 100, "most alternatives per token");
  table.Uint32(
      "max-prompts", &serving.max_prompts, 1, 4096, "most prompts of a completions request");
  table.Uint32("max-prompt-logprobs",
               &serving.max_prompt_logprobs,
               0,
               1U << 20,
               "longest prompt with prompt log-probabilities");
  table.Bytes("answer-memory",
              &serving.answer_memory_bytes,
              1U << 20,
              kMaxBytes,
              "memory that answers above 16 KiB share while they wait for their end or their "
              "reader");
  table
      .OptionalUint32("default-max-tokens",
                      &serving.default_max_tokens,
                      1,
                      1U << 24,
                      "token limit of requests without one")
      .aliases = {"--n-predict", "-n", "--predict"};
  table.OptionalFloat("temperature", &serving.temperature, 0.0F, 2.0F, "default temperature")
      .aliases = {"--temp"};
  table.OptionalFloat("top-p", &serving.top_p, 0.0F, 1.0F, "default top-p");
  table.OptionalFloat("min-p", &serving.min_p, 0.0F, 1.0F, "default min-p");
  table.Add({.name = "top-k",
             .value_name = "N",
             .help = "default top-k, 0 = off",
             .apply = [&serving](const std::vector<std::string>& values) -> absl::Status {
               SPINDLE_ASSIGN_OR_RETURN(const uint64_t k, ParseUint(values.front(), 0, 1U << 24));
               serving.top_k = static_cast<int32_t>(k);
               return absl::OkStatus();
             },
             .show = [&serving]() -> OptionValue {
               return serving.top_k.has_value() ? OptionValue(static_cast<uint64_t>(*serving.top_k))
                                                : OptionValue();
             }});
  table.Add({.name = "seed",
             .aliases = {"-s"},
             .value_name = "N",
             .help = "seed of requests without one",
             .shown_default = "random",
             .apply = [&serving](const std::vector<std::string>& values) -> absl::Status {
               SPINDLE_ASSIGN_OR_RETURN(const uint64_t seed,
                                        ParseUint(values.front(), 0, UINT64_MAX));
               serving.seed = seed;
               return absl::OkStatus();
             },
             .show = [&serving]() -> OptionValue {
               return serving.seed.has_value() ? OptionValue(*serving.seed) : OptionValue();
             }});
  table.Choice<serving::FairShareBy>("fair-share",
                                     &serving.fair_share,
                                     {{"off", serving::FairShareBy::kNobody},
                                      {"key", serving::FairShareBy::kKey},
                                      {"user", serving::FairShareBy::kUser}},
                                     "whose waiting requests of one priority take turns");
  table.Choice<serving::UnknownFields>(
      "unknown-fields",
      &serving.unknown_fields,
      {{"ignore", serving::UnknownFields::kIgnore}, {"reject", serving::UnknownFields::kReject}},
      "what to do with request fields that are not known");
  table.Choice<bool>("logprobs-mode",
                     &serving.logprobs_processed,
                     {{"raw", false}, {"processed", true}},
                     "log-probabilities before or after bias, penalties and temperature");
  table.Switch("trust-request-chat-template",
               &serving.trust_request_chat_template,
               "allow requests to bring their own chat template");
}

void AddHttpOptions(OptionTable& table, server::HttpOptions& http) {
  table.Text("host", "ADDRESS", &http.host, "address to listen on");
  table.Add({.name = "port",
             .value_name = "N",
             .help = "HTTP port, 0 = any free one",
             .shown_default = std::to_string(http.port),
             .apply = [&http](const std::vector<std::string>& values) -> absl::Status {
               SPINDLE_ASSIGN_OR_RETURN(const uint64_t port, ParseUint(values.front(), 0, 65535));
               http.port = static_cast<uint16_t>(port);
               return absl::OkStatus();
             },
             .show = [&http]() -> OptionValue { return uint64_t{http.port}; }});
  table.Text("uds", "PATH", &http.uds, "listen on a Unix socket instead");
  table.Uint32("http-threads", &http.num_threads, 1, 64, "HTTP threads").aliases = {
      "--threads-http"};
  table.Text("root-path", "/PATH", &http.root_path, "prefix of all paths").aliases = {
      "--api-prefix"};
  table.Uint32("max-connections",
               &http.max_connections,
               1,
               65536,
               "HTTP connections at a time; more wait in the backlog");
  table.Bytes("max-body-size", &http.max_body_bytes, 1024, kMaxBytes, "largest request body");
  table
      .Seconds("sse-keepalive",
               &http.sse_keepalive,
               "time between keep-alive comments of a stream, 0 = off")
      .aliases = {"--sse-ping-interval"};
  table.Bytes("stream-buffer",
              &http.stream_buffer_bytes,
              4096,
              1U << 30,
              "unsent bytes of a stream before its request pauses");
  table.Seconds("watchdog", &http.watchdog, "engine silence after which /live fails");
  table.Switch("metrics", &http.metrics, "serve /metrics");
  table.Switch("metrics-auth", &http.metrics_auth, "/metrics needs a key");
  table
      .TextList("cors-origins",
                "ORIGIN",
                &http.cors_origins,
                "origins allowed to call from browsers, * = all")
      .aliases = {"--allowed-origins"};
  table.Text("tls-cert", "FILE", &http.tls.cert_file, "TLS certificate chain (PEM)").aliases = {
      "--ssl-certfile", "--ssl-cert-file"};
  table.Text("tls-key", "FILE", &http.tls.key_file, "TLS private key (PEM)").aliases = {
      "--ssl-keyfile", "--ssl-key-file"};
  table.Text("tls-ca", "FILE", &http.tls.ca_file, "CA of client certificates (PEM)");
  table.Choice<server::TlsClientAuth>("tls-client-auth",
                                      &http.tls.client_auth,
                                      {{"none", server::TlsClientAuth::kNone},
                                       {"optional", server::TlsClientAuth::kOptional},
                                       {"require", server::TlsClientAuth::kRequire}},
                                      "client certificates");
}

void AddGrpcAndKeyOptions(OptionTable& table, ServeOptions& options) {
  table.Text("grpc-host", "ADDRESS", &options.grpc.host, "address of the gRPC port");
  table.Uint32("grpc-port", &options.grpc.port, 0, 65535, "gRPC port, 0 = off");
  table.Bytes(
      "grpc-max-message", &options.grpc.max_message_bytes, 1024, INT32_MAX, "largest gRPC request");
  table.Switch("grpc-reflection", &options.grpc.reflection, "gRPC server reflection");
  table.TextList("api-key", "KEY", &options.keys.keys, "key that callers must send").secret = true;
  table.Text("api-key-file", "FILE", &options.keys.key_file, "file with one key per line");
  table.TextList("admin-api-key", "KEY", &options.keys.admin_keys, "key of administration paths")
      .secret = true;
  table.Text(
      "admin-api-key-file", "FILE", &options.keys.admin_key_file, "file with administration keys");
}

void AddLogOptions(OptionTable& table, log::Options& log) {
  table.Choice<log::Level>("log-level",
                           &log.level,
                           {{"trace", log::Level::kTrace},
                            {"debug", log::Level::kDebug},
                            {"info", log::Level::kInfo},
                            {"warn", log::Level::kWarn},
                            {"error", log::Level::kError}},
                           "least important lines to log");
  table.Choice<bool>(
      "log-format", &log.json, {{"text", false}, {"json", true}}, "form of log lines");
  table.Text("log-file", "FILE", &log.file, "log there instead of to standard error");
}

// Spellings of other servers that name nothing to choose here.
void AddForeignOptions(OptionTable& table) {
  for (const char* flag : {"--enforce-eager",
                           "--trust-remote-code",
                           "--warmup",
                           "--enable-auto-tool-choice",
                           "--disable-log-requests"}) {
    table.Ignore(flag, "", /*takes_value=*/false);
  }
  table.Ignore("--flash-attn", "-fa", /*takes_value=*/false);
  table.Ignore("--n-gpu-layers", "-ngl", /*takes_value=*/true);
  table.Ignore("--gpu-memory-utilization", "", /*takes_value=*/true);
  table.Fixed("jinja", "", {"true"}, "chat templates are Jinja templates");
  table.Fixed("cont-batching", "", {"true"}, "requests always join the running batch").aliases = {
      "-cb"};
  table.Fixed("webui", "", {"false"}, "there is no web page");
  table.Fixed("embeddings", "", {"false"}, "there is no embeddings endpoint").aliases = {
      "--embedding"};
  table.Fixed("reranking", "", {"false"}, "there is no rerank endpoint").aliases = {"--rerank"};
}

// NAME=FILE: requests to the name have defaults of their own.
absl::Status TakePreset(std::string* name, ServeOptions* options) {
  const size_t equals = name->find('=');
  if (equals == std::string::npos) {
    return absl::OkStatus();
  }
  absl::StatusOr<engine::SparseRequest> preset = ReadSparsePreset(name->substr(equals + 1));
  if (!preset.ok()) {
    return absl::InvalidArgumentError("--served-model-name: " +
                                      std::string(preset.status().message()));
  }
  name->resize(equals);
  const engine::SparseRequest defaults =
      engine::Overlay(*std::move(preset), SparseDefaults(options->load));
  options->load.served_presets.push_back(defaults);
  options->serving.presets.insert_or_assign(ToValidUtf8(*name), defaults);
  return absl::OkStatus();
}

}  // namespace

void AddServeOptions(OptionTable& table, ServeOptions& options) {
  table.Text("config", "FILE", &options.config_file, "YAML file with options");
  AddLoadOptions(table, options.load);
  AddApiOptions(table, options.serving);
  AddHttpOptions(table, options.http);
  AddGrpcAndKeyOptions(table, options);
  table.Seconds(
      "shutdown-timeout", &options.shutdown_timeout, "time that running requests get at the end");
  AddLogOptions(table, options.log);
  AddForeignOptions(table);
}

absl::Status FinishServeOptions(ServeOptions* options) {
  if (options->load.model_path.empty()) {
    return absl::InvalidArgumentError(
        "--model is required: a GGUF file, safetensors file or model folder");
  }
  SPINDLE_RETURN_IF_ERROR(CheckLoadOptions(options->load));
  for (std::string& name : options->serving.served_names) {
    SPINDLE_RETURN_IF_ERROR(TakePreset(&name, options));
  }
  if (options->serving.fair_share != serving::FairShareBy::kNobody &&
      options->load.engine.policy == engine::SchedulingPolicy::kFcfs) {
    return absl::InvalidArgumentError(
        "--fair-share must be off with --scheduling-policy fcfs, which is the order of arrival");
  }
  if (options->serving.served_names.empty()) {
    const std::filesystem::path path(options->load.model_path);
    std::filesystem::path name =
        path.has_filename() ? path.filename() : path.parent_path().filename();
    if (name.extension() == ".gguf" || name.extension() == ".safetensors") {
      name = name.stem();
    }
    options->serving.served_names.push_back(name.string());
  }
  for (std::string& name : options->serving.served_names) {
    name = ToValidUtf8(name);  // a file's name may hold any bytes
  }
  const std::set<std::string> names(options->serving.served_names.begin(),
                                    options->serving.served_names.end());
  if (names.size() != options->serving.served_names.size() || names.count("") > 0) {
    return absl::InvalidArgumentError(
        "--served-model-name must be given distinct, non-empty names");
  }
  options->serving.model_path = options->load.model_path;
  options->serving.max_num_seqs = options->load.engine.max_num_seqs;
  options->serving.max_queue_size = ResolveMaxQueueSize(options->load);
  options->serving.sparse = SparseDefaults(options->load);
  if (options->serving.allow_audit && options->load.kv.mode != kv::KvMode::kInPlace) {
    return absl::InvalidArgumentError(
        "--allow-audit needs --kv-mode in-place: audits would use the fast tier as well");
  }
  options->serving.max_body_bytes = options->http.max_body_bytes;
  // llama-server's way to ask for a Unix socket.
  if (options->http.host.ends_with(".sock")) {
    options->http.uds = options->http.host;
  }
  if (options->http.tls.cert_file.empty() != options->http.tls.key_file.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key must be given together");
  }
  if (!options->http.tls.ca_file.empty() && options->http.tls.cert_file.empty()) {
    return absl::InvalidArgumentError("--tls-ca needs --tls-cert and --tls-key");
  }
  for (const std::string& origin : options->http.cors_origins) {
    if (origin.empty() || origin.find(',') != std::string::npos) {
      return absl::InvalidArgumentError(
          "--cors-origins takes one origin each time, not empty and without a comma, got '" +
          origin + "'");
    }
  }
  options->http.stream_stall_timeout = options->load.engine.stream_stall_timeout;
  options->grpc.tls_cert_path = options->http.tls.cert_file;
  options->grpc.tls_key_path = options->http.tls.key_file;
  if (options->http.tls.client_auth == server::TlsClientAuth::kRequire) {
    options->grpc.tls_ca_path = options->http.tls.ca_file;
  }
  return absl::OkStatus();
}

}  // namespace spindle::config
