#include "config/load_options.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/prefix_key.h"
#include "base/status_macros.h"
#include "config/sparse_preset.h"
#include "engine/algorithm_facts.h"
#include "kv/trace/access_trace.h"

namespace spindle::config {
namespace {

using kernels::ComputeMode;

constexpr uint32_t kMaxContext = 1U << 24;
// Of a tier: 1 EiB.
constexpr uint64_t kMaxTierBytes = uint64_t{1} << 60;

// --rope-freq-scale and --rope-scale are reciprocal; model resolves them.
void AddRopeOptions(OptionTable& table, model::RopeOverrides& rope) {
  table.Add({.name = "rope-scaling",
             .value_name = "none|linear|yarn",
             .help = "RoPE scaling method",
             .shown_default = "from the model",
             .apply = [&rope](const std::vector<std::string>& values) -> absl::Status {
               const std::string& value = values.front();
               if (value != "none" && value != "linear" && value != "yarn") {
                 return absl::InvalidArgumentError("must be one of none|linear|yarn, got '" +
                                                   value + "'");
               }
               rope.scaling = value;
               return absl::OkStatus();
             },
             .show = [&rope]() -> OptionValue {
               return rope.scaling.has_value() ? OptionValue(*rope.scaling) : OptionValue();
             }});
  table.OptionalFloat(
      "rope-scale", &rope.scale, 1e-3F, 1e6F, "context multiplication factor of RoPE scaling");
  table.OptionalFloat("rope-freq-base", &rope.freq_base, 1.0F, 1e12F, "RoPE base frequency");
  table.OptionalFloat(
      "rope-freq-scale", &rope.freq_scale, 1e-6F, 1e3F, "RoPE frequency factor, 1 / scale");
  table.OptionalUint32(
      "yarn-orig-ctx", &rope.yarn_orig_ctx, 1, kMaxContext, "original context of YaRN");
}

// Empty: none.
void AddFolder(OptionTable& table, std::string name, std::string help, std::string* path) {
  table.Add({.name = std::move(name),
             .value_name = "FOLDER",
             .help = std::move(help),
             .apply = [path](const std::vector<std::string>& values) -> absl::Status {
               *path = values.front();
               return absl::OkStatus();
             },
             .show = [path]() -> OptionValue {
               return path->empty() ? OptionValue() : OptionValue(*path);
             }});
}

// Modes in which pages are copied before they are read, and what they are studied with.
void AddFastOptions(OptionTable& table, LoadOptions& options) {
  kv::KvOptions& kv = options.kv;
  table.Choice<kv::KvMode>("kv-mode",
                           &kv.mode,
                           {{"in-place", kv::KvMode::kInPlace},
                            {"mirror", kv::KvMode::kMirror},
                            {"emulated-link", kv::KvMode::kEmulatedLink}},
                           "where attention reads KV: in host memory, or in a bounded fast tier "
                           "that pages are copied to, for tests and studies");
  table
      .Bytes("kv-fast-bytes",
             &kv.fast_bytes,
             1,
             kMaxTierBytes,
             "memory of the fast tier of --kv-mode mirror and emulated-link")
      .shown_default = "a quarter of --kv-host-bytes";
  table.Float("kv-buffer-ratio",
              &options.engine.buffer_ratio,
              0.0F,
              64.0F,
              "wanted pages kept from earlier steps, per page that a step selects");
  table.Float("sim-link-gbps",
              &kv.link.gigabytes_per_second,
              0.001F,
              10000.0F,
              "rate of the emulated link, 10^9 bytes per second");
  table.Uint32(
      "sim-link-latency-us", &kv.link.latency_us, 0, 1'000'000, "latency of the emulated link");
  table.Choice<std::string>(
      "kv-synthetic-selection",
      &options.selection.profile,
      {{"none", ""}, {"sticky", "sticky"}, {"medium", "medium"}, {"loose", "loose"}},
      "decode over drawn pages, to study the tiers: answers are meaningless");
  table.Uint32("kv-synthetic-pages",
               &options.selection.pages,
               1,
               4096,
               "drawn pages per step, layer and KV head");
  AddFolder(table,
            "kv-trace",
            "record arrivals and prefixes of requests there and, in --kv-mode mirror and "
            "emulated-link, the pages that steps select, for spindle kv sim; default: none",
            &kv.trace_path);
  table.Bytes("kv-trace-bytes",
              &kv.trace_file_bytes,
              kv::kMinAccessTraceBytes,
              kv::kMaxAccessTraceBytes,
              "most bytes of each file of --kv-trace");
}

void AddKvOptions(OptionTable& table, LoadOptions& options) {
  Option& host = table.Bytes("kv-host-bytes",
                             &options.kv.host_bytes,
                             1,
                             kMaxTierBytes,
                             "memory for KV, running sequences and prefix cache together");
  host.shown_default = "the smaller of 25 % of RAM and what all sequences can fill";
  host.aliases = {"--kv-dram-bytes"};
  table.Switch(
      "enable-prefix-caching", &options.kv.prefix_cache, "reuse the KV of equal prompt beginnings");
  AddFolder(table,
            "kv-disk-path",
            "third tier: keeps the prefix cache there, over restarts too; default: none",
            &options.kv.disk_path);
  table
      .Bytes("kv-disk-bytes",
             &options.kv.disk_bytes,
             1,
             kMaxTierBytes,
             "space that the third tier may take")
      .shown_default = "the smaller of 32GiB and half of what is free";
  table
      .Bytes("kv-disk-min-free",
             &options.kv.disk_min_free_bytes,
             1,
             kMaxTierBytes,
             "space that stays free on that file system, and at least 5 % of it")
      .shown_default = "2GiB";
  table.Uint32("kv-max-sessions",
               &options.kv.max_sessions,
               1,
               1U << 16,
               "most sessions that the disk tier keeps");
  AddFastOptions(table, options);
  AddSparseOptions(table, options);
  table
      .Choice<KvType>("kv-cache-dtype",
                      &options.kv_type,
                      {{"auto", KvType::kAuto}, {"bf16", KvType::kBf16}, {"f32", KvType::kF32}},
                      "element type of KV; auto: bf16, or f32 with --dtype f32")
      .aliases = {"--cache-type-k", "-ctk"};
}

void AddSchedulerOptions(OptionTable& table, LoadOptions& options) {
  engine::EngineOptions& engine = options.engine;
  table.Uint32("max-num-seqs", &engine.max_num_seqs, 1, 4096, "sequences decoding together")
      .aliases = {"--parallel", "-np"};
  table
      .Uint32("max-num-batched-tokens",
              &engine.max_num_batched_tokens,
              kStripeTokens,
              65536,
              "tokens of one step")
      .aliases = {"--batch-size", "-b", "--ubatch-size", "-ub"};
  table.Switch("enable-chunked-prefill", &engine.chunked_prefill, "cut long prompts into steps");
  table.Choice<engine::SchedulingPolicy>("scheduling-policy",
                                         &engine.policy,
                                         {{"priority", engine::SchedulingPolicy::kPriority},
                                          {"fcfs", engine::SchedulingPolicy::kFcfs}},
                                         "order of waiting requests");
  table.OptionalUint32("max-queue-size", &options.max_queue_size, 1, 1U << 20, "requests waiting")
      .shown_default = "4 times --max-num-seqs, at least 16";
  table
      .OptionalUint32(
          "max-queue-tokens", &options.max_queue_tokens, 64, 1U << 30, "prompt tokens waiting")
      .shown_default = "8 times --max-model-len";
  table.Seconds("priority-aging",
                &engine.priority_aging,
                "waiting time that raises a request by one priority class");
  table.Seconds("queue-timeout", &engine.queue_timeout, "longest wait in the queue, 0 = none");
  table.Seconds("request-timeout", &engine.request_timeout, "longest run of a request, 0 = none")
      .aliases = {"--timeout", "-to"};
  table.Seconds("stream-stall-timeout",
                &engine.stream_stall_timeout,
                "a reader slower than this is cut off",
                std::chrono::milliseconds(1));
}

// What others let choose and this engine has decided: the value that says so is accepted.
void AddFixedLoadOptions(OptionTable& table) {
  constexpr const char* kOneProcess = "one process serves a model on one machine";
  table.Fixed("tensor-parallel-size", "N", {"1"}, kOneProcess).aliases = {"--tp", "-tp"};
  table.Fixed("pipeline-parallel-size", "N", {"1"}, kOneProcess).aliases = {"--pp", "-pp"};
  table.Fixed("data-parallel-size", "N", {"1"}, kOneProcess).aliases = {"--dp", "-dp"};
  table.Fixed("device", "NAME", {"auto", "cpu", "none"}, "this build computes on the CPU")
      .aliases = {"-dev"};
  table.Fixed("mmap", "", {"true"}, "weights are read through a mapping and kept packed");
  table.Fixed("mlock", "", {"false"}, "memory is not locked; leave the host room instead");
  table.Fixed("quantization", "NAME", {"auto", "none"}, "weights are used as the file has them")
      .aliases = {"-q"};
  table.Fixed("load-format", "NAME", {"auto", "gguf", "safetensors"}, "the file decides");
  table.Fixed("tokenizer-mode", "NAME", {"auto"}, "there is one tokenizer per model");
  table.Fixed("block-size", "N", {"64"}, "the prefix cache shares stripes of 64 tokens");
  table.Fixed("swap-space", "GIB", {"0"}, "set --kv-host-bytes");
  table.Fixed("cpu-offload-gb", "GIB", {"0"}, "weights stay in host memory");
  table.Fixed("kv-offloading-size", "GIB", {"0"}, "set --kv-host-bytes or --kv-disk-path");
  table.Fixed("cache-type-v", "TYPE", {"auto"}, "K and V have one type: --kv-cache-dtype")
      .aliases = {"-ctv"};
  table.Fixed("context-shift", "", {"false"}, "a full context ends the answer with 'length'");
  table.Fixed("cache-reuse", "N", {"0"}, "equal beginnings are shared, moved pieces are not");
  table.Fixed("grp-attn-n", "N", {"1"}, "use --rope-scaling").aliases = {"-gan"};
  table.Fixed("enable-lora", "", {"false"}, "adapters are not offered in this build");
}

}  // namespace

void AddModelOptions(OptionTable& table, LoadOptions& options) {
  table.Text("model", "PATH", &options.model_path, "GGUF file, safetensors file or model folder")
      .aliases = {"-m"};
  table.Text("tokenizer",
             "PATH",
             &options.tokenizer_path,
             "tokenizer.json or a folder with one; default: from the model");
  table.Choice<ComputeMode>("dtype",
                            &options.model.mode,
                            {{"auto", ComputeMode::kDefault}, {"f32", ComputeMode::kExact}},
                            "arithmetic: auto (int8 and bf16 products) or f32 (exact, slow)");
  table
      .OptionalUint32("max-model-len",
                      &options.model.max_model_len,
                      64,
                      kMaxContext,
                      "context per sequence; default: as trained")
      .aliases = {"--ctx-size", "-c"};
  AddRopeOptions(table, options.model.rope);
}

void AddAlgorithmOptions(OptionTable& table, LoadOptions& options) {
  table.Add({.name = "sparse-gates",
             .value_name = "FILE",
             .help = "trained gates of the algorithm seer_r for this model",
             .shown_default = "*.gates.safetensors beside the model, if there",
             .apply = [&options](const std::vector<std::string>& values) -> absl::Status {
               options.sparse_gates = values.front();
               return absl::OkStatus();
             },
             .show = [&options]() -> OptionValue {
               return options.sparse_gates.empty() ? OptionValue()
                                                   : OptionValue(options.sparse_gates);
             }});
  table.Choice<sparse::IndexType>(
      "sparse-index-dtype",
      &options.sparse_index_type,
      {{"bf16", sparse::IndexType::kBf16}, {"int8", sparse::IndexType::kInt8}},
      "what quest, shadowkv and retroinfer remember of keys; int8 takes half the memory and "
      "chooses slightly differently");
}

void AddSparseOptions(OptionTable& table, LoadOptions& options) {
  engine::SparseRequest& sparse = options.sparse;
  std::vector<std::pair<std::string, std::string>> algorithms = {{"auto", ""}};
  for (const std::string_view name : engine::KnownAlgorithms()) {
    algorithms.emplace_back(name, name);
  }
  table.Choice<std::string>("sparse-algorithm",
                            &sparse.algorithm,
                            std::move(algorithms),
                            "how generated tokens attend to the context, unless a request says; "
                            "auto: as the preset says, "
                            "else dense");
  table.Add({.name = "sparse-preset",
             .value_name = "FILE",
             .help = "YAML file with defaults of 'spindle.sparse' for the model; other options win",
             .apply = [&options](const std::vector<std::string>& values) -> absl::Status {
               options.sparse_preset_path = values.front();
               SPINDLE_ASSIGN_OR_RETURN(options.sparse_preset, ReadSparsePreset(values.front()));
               return absl::OkStatus();
             },
             .show = [&options]() -> OptionValue { return options.sparse_preset_path; }});
  AddAlgorithmOptions(table, options);
  constexpr uint32_t kMaxTokens = 1U << 30;
  table
      .OptionalUint32("sparse-budget",
                      &sparse.budget_tokens,
                      0,
                      kMaxTokens,
                      "tokens that a step selects per layer and KV head")
      .shown_default = "2048";
  table
      .OptionalUint32(
          "sparse-sink", &sparse.sink_tokens, 0, kMaxTokens, "first tokens, always attended")
      .shown_default = "4";
  table
      .OptionalUint32(
          "sparse-recent", &sparse.recent_tokens, 0, kMaxTokens, "last tokens, always attended")
      .shown_default = "64";
  table
      .OptionalUint32("sparse-min-context",
                      &sparse.min_context,
                      0,
                      kMaxTokens,
                      "shorter contexts are attended densely")
      .shown_default = "4096";
  table.Add({.name = "sparse-top-p",
             .value_name = "P",
             .help = "select until the estimate of attention mass reaches P, in (0, 1]",
             .apply = [&sparse](const std::vector<std::string>& values) -> absl::Status {
               SPINDLE_ASSIGN_OR_RETURN(const double share, ParseNumber(values.front(), 0, 1));
               if (share <= 0) {
                 return absl::InvalidArgumentError("must be in (0, 1]");
               }
               sparse.top_p_mass = share;
               return absl::OkStatus();
             },
             .show = [&sparse]() -> OptionValue {
               return sparse.top_p_mass.has_value() ? OptionValue(*sparse.top_p_mass)
                                                    : OptionValue();
             }});
  table.Add({.name = "sparse-dense-layers",
             .value_name = "LAYERS",
             .help = "layers that attend to everything: numbers, first:N, last:N, with commas",
             .apply = [&sparse](const std::vector<std::string>& values) -> absl::Status {
               SPINDLE_ASSIGN_OR_RETURN(sparse.dense_layers,
                                        engine::ParseDenseLayers(values.front()));
               return absl::OkStatus();
             },
             .show = [&sparse]() -> OptionValue {
               std::string text;
               for (const int32_t layer : sparse.dense_layers.value_or(std::vector<int32_t>())) {
                 text += (text.empty() ? "" : ",") + std::to_string(layer);
               }
               return text;
             }});
}

void AddComputeOptions(OptionTable& table, LoadOptions& options) {
  table.Add({.name = "threads",
             .aliases = {"-t", "--threads-batch", "-tb"},
             .value_name = "N",
             .help = "compute threads",
             .shown_default = "usable CPUs",
             .apply = [&options](const std::vector<std::string>& values) -> absl::Status {
               const absl::StatusOr<uint64_t> threads = ParseUint(values.front(), 1, 1024);
               if (threads.ok()) {
                 options.threads = static_cast<uint32_t>(*threads);
               }
               return threads.status();
             },
             .show = [&options]() -> OptionValue {
               return options.threads == 0 ? OptionValue() : OptionValue(uint64_t{options.threads});
             }});
  table.Switch("pin-threads",
               &options.pin_threads,
               "bind each compute thread to one CPU of the affinity mask");
  table.Text(
      "isa", "auto|baseline|avx2|avx512|amx", &options.isa, "instruction set of the kernels");
}

void AddLoadOptions(OptionTable& table, LoadOptions& options) {
  AddModelOptions(table, options);
  table
      .Text("chat-template",
            "FILE|TEXT",
            &options.chat_template,
            "chat template; default: from the model")
      .aliases = {"--chat-template-file"};
  AddSchedulerOptions(table, options);
  AddKvOptions(table, options);
  AddComputeOptions(table, options);
  AddFixedLoadOptions(table);
}

absl::Status CheckLoadOptions(const LoadOptions& options) {
  if (!options.kv.disk_path.empty() && !options.kv.prefix_cache) {
    return absl::InvalidArgumentError("--kv-disk-path needs --enable-prefix-caching");
  }
  return absl::OkStatus();
}

engine::SparseRequest SparseDefaults(const LoadOptions& options) {
  return engine::Overlay(options.sparse, options.sparse_preset);
}

uint32_t ResolveMaxQueueSize(const LoadOptions& options) {
  return options.max_queue_size.value_or(std::max<uint32_t>(16, 4 * options.engine.max_num_seqs));
}

engine::EngineOptions ResolveEngineOptions(const LoadOptions& options, uint32_t max_model_len) {
  engine::EngineOptions engine = options.engine;
  engine.max_queue_size = ResolveMaxQueueSize(options);
  engine.max_queue_tokens = options.max_queue_tokens.value_or(8 * max_model_len);
  engine.prefix_cache = options.kv.prefix_cache;
  return engine;
}

DType ResolveKvType(const LoadOptions& options) {
  switch (options.kv_type) {
    case KvType::kBf16:
      return DType::kBF16;
    case KvType::kF32:
      return DType::kF32;
    case KvType::kAuto:
      break;
  }
  return options.model.mode == ComputeMode::kExact ? DType::kF32 : DType::kBF16;
}

}  // namespace spindle::config
