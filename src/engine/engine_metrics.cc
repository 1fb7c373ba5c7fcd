#include "engine/engine_metrics.h"

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spindle::engine {
namespace {

using metrics::EngineLabels;
using metrics::Labels;

// Buckets of the compatibility families: those that vLLM's dashboards expect.
const std::vector<double>& LatencyBounds() {
  static const std::vector<double> bounds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                             30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
  return bounds;
}

const std::vector<double>& IterationBounds() {
  static const std::vector<double> bounds = {
      1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
  return bounds;
}

// From a decode step of a tiny model (100 µs) to a long chunk on a small machine (20 s).
const std::vector<double>& StepSecondsBounds() {
  static const std::vector<double> bounds = {
      0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 20};
  return bounds;
}

std::string_view DTypeName(DType type) {
  return type == DType::kF32 ? "float32" : "bfloat16";
}

uint64_t PagesPerStripe(const kv::KvGeometry& geometry) {
  return uint64_t{geometry.num_layers} * geometry.num_kv_heads *
         (kStripeTokens / geometry.page_tokens());
}

constexpr std::array<const char*, kNumCancelCauses> kCancelCauses = {
    "client_gone", "admin", "deadline", "slow_reader", "timeout", "shutdown"};

// Among kCancelCauses; nothing where a request was complete or failed.
std::optional<size_t> CancelCauseOf(EndCause cause) {
  switch (cause) {
    case EndCause::kClientGone:
      return 0;
    case EndCause::kAdmin:
      return 1;
    case EndCause::kDeadline:
      return 2;
    case EndCause::kSlowReader:
      return 3;
    case EndCause::kRequestTimeout:
    case EndCause::kQueueTimeout:
      return 4;
    case EndCause::kShutdown:
      return 5;
    default:
      return std::nullopt;
  }
}

}  // namespace

EngineMetrics::EngineMetrics(metrics::Registry& registry,
                             const kv::KvStore& store,
                             const Shape& shape)
    : kv(registry),
      fast(registry),
      sessions(registry),
      sparse(registry, *shape.algorithms),
      trace(registry),
      pages_per_stripe_(PagesPerStripe(store.geometry())),
      stripe_bytes_(store.geometry().stripe_bytes()) {
  AddRequestFamilies(registry, shape);
  AddStepFamilies(registry);
  AddCacheInfo(registry, store, shape);
  AddTierFamilies(registry, store);
  Publish({}, store.Stats());
}

void EngineMetrics::AddRequestFamilies(metrics::Registry& registry, const Shape& shape) {
  prompt_tokens = registry.AddCounter(
      "vllm:prompt_tokens_total", "Prompt tokens of admitted requests.", EngineLabels());
  generation_tokens =
      registry.AddCounter("vllm:generation_tokens_total", "Tokens sampled.", EngineLabels());
  prompt_tokens_cached = registry.AddCounter("vllm:prompt_tokens_cached_total",
                                             "Prompt tokens taken from the prefix cache.",
                                             EngineLabels());
  prefix_queries = registry.AddCounter("vllm:prefix_cache_queries_total",
                                       "Prompt tokens looked up in the prefix cache.",
                                       EngineLabels());
  prefix_hits = registry.AddCounter("vllm:prefix_cache_hits_total",
                                    "Prompt tokens found in the tier that attention reads.",
                                    EngineLabels());
  external_queries = registry.AddCounter("vllm:external_prefix_cache_queries_total",
                                         "Prompt tokens looked up in lower tiers.",
                                         EngineLabels());
  external_hits = registry.AddCounter("vllm:external_prefix_cache_hits_total",
                                      "Prompt tokens found in lower tiers.",
                                      EngineLabels());
  preemptions = registry.AddCounter("vllm:num_preemptions_total",
                                    "Sequences whose memory was taken back before their end.",
                                    EngineLabels());
  constexpr std::array<const char*, 4> kReasons = {"stop", "length", "abort", "error"};
  for (size_t i = 0; i < kReasons.size(); ++i) {
    success[i] = registry.AddCounter("vllm:request_success_total",
                                     "Choices that ended, by reason.",
                                     EngineLabels({{"finished_reason", kReasons[i]}}));
  }
  constexpr std::array<const char*, kNumCancelPhases> kPhases = {"queued", "prefill", "decode"};
  for (size_t phase = 0; phase < kPhases.size(); ++phase) {
    for (size_t cause = 0; cause < kCancelCauses.size(); ++cause) {
      cancelled[phase][cause] =
          registry.AddCounter("spindle_requests_cancelled_total",
                              "Requests ended before they were complete, by phase and cause.",
                              {{"phase", kPhases[phase]}, {"cause", kCancelCauses[cause]}});
    }
  }
  stream_stalls = registry.AddCounter("spindle_stream_stalls_total",
                                      "Times a request paused because its reader was slow.");

  const auto latency = [&registry](std::string_view name, std::string_view help) {
    return registry.AddHistogram(name, help, LatencyBounds(), EngineLabels());
  };
  queue_seconds =
      latency("vllm:request_queue_time_seconds", "Time from submission to first admission.");
  prefill_seconds =
      latency("vllm:request_prefill_time_seconds", "Time from admission to the first token.");
  decode_seconds =
      latency("vllm:request_decode_time_seconds", "Time from the first to the last token.");
  inference_seconds =
      latency("vllm:request_inference_time_seconds", "Time from admission to the last token.");

  const std::vector<double> tokens = metrics::OneTwoFive(shape.max_model_len);
  const auto counts = [&registry, &tokens](std::string_view name, std::string_view help) {
    return registry.AddHistogram(name, help, tokens, EngineLabels());
  };
  request_prompt_tokens = counts("vllm:request_prompt_tokens", "Prompt tokens per request.");
  request_generation_tokens =
      counts("vllm:request_generation_tokens", "Generated tokens per choice.");
  request_max_generation_tokens = counts("vllm:request_max_num_generation_tokens",
                                         "Generated tokens of the longest choice of a request.");
  params_max_tokens =
      counts("vllm:request_params_max_tokens", "Token limit of each choice as requested.");
  prefill_computed_tokens = counts("vllm:request_prefill_kv_computed_tokens",
                                   "Prompt tokens per request not taken from the cache.");
  params_n = registry.AddHistogram(
      "vllm:request_params_n", "Choices per request.", {1, 2, 5, 10, 20}, EngineLabels());
}

void EngineMetrics::AddStepFamilies(metrics::Registry& registry) {
  iteration_tokens = registry.AddHistogram(
      "vllm:iteration_tokens_total", "Rows computed per step.", IterationBounds(), EngineLabels());
  const auto phase = [&registry](const char* name) {
    return registry.AddHistogram("spindle_engine_step_seconds",
                                 "Duration of the parts of a step: plan, forward, sample.",
                                 StepSecondsBounds(),
                                 {{"phase", name}});
  };
  plan_seconds = phase("plan");
  forward_seconds = phase("forward");
  sample_seconds = phase("sample");
  batch_sequences = registry.AddHistogram(
      "spindle_batch_sequences", "Sequences per step.", {1, 2, 4, 8, 16, 32, 64, 128, 256, 512});
  batch_tokens = registry.AddHistogram("spindle_batch_tokens", "Rows per step.", IterationBounds());

  running_ = registry.AddGauge(
      "vllm:num_requests_running", "Sequences in prefill or decode.", EngineLabels());
  waiting_ = registry.AddGauge(
      "vllm:num_requests_waiting", "Queued requests and preempted sequences.", EngineLabels());
  constexpr std::string_view kByReason = "vllm:num_requests_waiting_by_reason";
  constexpr std::string_view kByReasonHelp =
      "Waiting requests by reason: for memory or a slot, or deferred on purpose.";
  waiting_capacity_ =
      registry.AddGauge(kByReason, kByReasonHelp, EngineLabels({{"reason", "capacity"}}));
  waiting_deferred_ =
      registry.AddGauge(kByReason, kByReasonHelp, EngineLabels({{"reason", "deferred"}}));
  kv_usage_ = registry.AddGauge("vllm:kv_cache_usage_perc",
                                "Share of the KV memory held by running sequences, 0 to 1.",
                                EngineLabels());
  router_running_ =
      registry.AddGauge("spindle_running_requests", "Sequences in prefill or decode.");
  router_queue_ =
      registry.AddGauge("spindle_queue_requests", "Queued requests and preempted sequences.");
  router_kv_usage_ = registry.AddGauge("spindle_kv_usage_ratio",
                                       "Share of the KV memory held by running sequences, 0 to 1.");
  queue_tokens_ =
      registry.AddGauge("spindle_queue_tokens", "Prompt tokens of the requests in the queue.");
  queue_oldest_seconds_ =
      registry.AddGauge("spindle_queue_oldest_seconds", "Age of the oldest request in the queue.");
}

void EngineMetrics::AddCacheInfo(metrics::Registry& registry,
                                 const kv::KvStore& store,
                                 const Shape& shape) {
  const kv::KvGeometry& geometry = store.geometry();
  const uint64_t num_pages = store.Stats().capacity_stripes * pages_per_stripe_;
  registry
      .AddGauge("vllm:cache_config_info",
                "Shape of the KV cache; always 1.",
                EngineLabels({{"block_size", std::to_string(kStripeTokens)},
                              {"num_gpu_blocks", std::to_string(num_pages)},
                              {"num_cpu_blocks", "0"},
                              {"cache_dtype", std::string(DTypeName(geometry.type))},
                              {"enable_prefix_caching", shape.prefix_cache ? "True" : "False"}}))
      .Set(1);
  registry
      .AddGauge("spindle_cache_info",
                "Shape of the KV cache; always 1.",
                {{"page_tokens", std::to_string(geometry.page_tokens())},
                 {"num_pages", std::to_string(num_pages)}})
      .Set(1);
  registry
      .AddGauge(
          "vllm:lora_requests_info",
          "Time of the last change of the adapters, in Unix seconds; there are none.",
          EngineLabels(
              {{"max_lora", "0"}, {"running_lora_adapters", ""}, {"waiting_lora_adapters", ""}}))
      .Set(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
               .count());
  registry.AddGauge("spindle_kv_page_tokens", "Tokens of a page.").Set(geometry.page_tokens());
}

void EngineMetrics::AddTierFamilies(metrics::Registry& registry, const kv::KvStore& store) {
  constexpr std::array<const char*, kNumStates> kStates = {
      "capacity", "committed", "buffered", "prefix", "free"};
  for (const char* name : {"fast", "host", "disk"}) {
    Tier tier;
    for (size_t state = 0; state < kNumStates; ++state) {
      const Labels labels = {{"tier", name}, {"state", kStates[state]}};
      tier.bytes[state] =
          registry.AddGauge("spindle_kv_tier_bytes", "KV bytes by tier and state.", labels);
      tier.pages[state] =
          registry.AddGauge("spindle_kv_tier_pages", "KV pages by tier and state.", labels);
    }
    const metrics::Gauge metadata = registry.AddGauge(
        "spindle_kv_metadata_bytes", "Bytes of page tables by tier.", {{"tier", name}});
    const auto evictions = [&registry, name](const char* cause) {
      return registry.AddCounter("spindle_kv_evictions_total",
                                 "Pages that left a tier, by kind of content: for room (capacity), "
                                 "with a segment that was "
                                 "collected (gc), because they could not be read (corrupt).",
                                 {{"tier", name}, {"kind", "prefix"}, {"cause", cause}});
    };
    if (std::string_view(name) == "disk") {
      disk_ = tier;
      disk_metadata_bytes_ = metadata;
      disk_collected_pages_.counter = evictions("gc");
      disk_corrupt_pages_.counter = evictions("corrupt");
      continue;
    }
    const metrics::Counter for_room = evictions("capacity");
    if (std::string_view(name) == "host") {
      host_ = tier;
      host_evicted_pages_.counter = for_room;
    }
  }
  const double largest = static_cast<double>(store.Stats().capacity_stripes) *
                         static_cast<double>(store.geometry().stripe_bytes());
  static_cast<void>(registry.AddHistogram(
      "spindle_kv_budget_bytes", "Fast-tier budget per request.", metrics::OneTwoFive(largest)));
  AddMoveFamilies(registry);
}

void EngineMetrics::AddMoveFamilies(metrics::Registry& registry) {
  struct Move {
    const char* from;
    const char* to;
    const char* cause;
  };

  constexpr std::array<Move, 8> kMoves = {{{"host", "fast", "fetch"},
                                           {"disk", "host", "fetch"},
                                           {"disk", "host", "prefetch"},
                                           {"host", "fast", "prefetch"},
                                           {"fast", "host", "evict"},
                                           {"fast", "host", "offload"},
                                           {"host", "disk", "offload"},
                                           {"host", "disk", "preempt"}}};
  for (const Move& move : kMoves) {
    const Labels labels = {{"from", move.from}, {"to", move.to}, {"cause", move.cause}};
    const auto pages =
        registry.AddCounter("spindle_kv_moves_total", "Pages moved between tiers.", labels);
    const auto bytes =
        registry.AddCounter("spindle_kv_move_bytes_total", "Bytes moved between tiers.", labels);
    const std::string_view from = move.from;
    const std::string_view cause = move.cause;
    if (from == "disk" && cause == "prefetch") {
      loaded_pages_.counter = pages;
      loaded_bytes_.counter = bytes;
    } else if (from == "host" && std::string_view(move.to) == "disk" && cause == "offload") {
      stored_pages_.counter = pages;
      stored_bytes_.counter = bytes;
    }
  }
  const auto fetch = [&registry](const char* from) {
    return registry.AddHistogram(
        "spindle_kv_fetch_seconds",
        "Time to bring the pages of a request to the tier that reads them.",
        StepSecondsBounds(),
        {{"from", from}});
  };
  static_cast<void>(fetch("host"));
  disk_fetch_seconds = fetch("disk");
  fetch_stall_seconds = registry.AddCounter("spindle_kv_fetch_stall_seconds_total",
                                            "Time that requests and steps waited for pages.");
}

void EngineMetrics::CountCancel(CancelPhase phase, EndCause cause) const {
  if (const std::optional<size_t> found = CancelCauseOf(cause); found.has_value()) {
    cancelled[static_cast<size_t>(phase)][*found].Add();
  }
}

void EngineMetrics::Publish(const StepLoad& load, const kv::KvStats& stats) {
  const uint32_t waiting = load.waiting_capacity + load.waiting_deferred;
  running_.Set(load.running);
  router_running_.Set(load.running);
  waiting_.Set(waiting);
  router_queue_.Set(waiting);
  waiting_capacity_.Set(load.waiting_capacity);
  waiting_deferred_.Set(load.waiting_deferred);
  queue_tokens_.Set(static_cast<double>(load.waiting_tokens));
  queue_oldest_seconds_.Set(load.oldest_wait_seconds);
  const double usage =
      static_cast<double>(stats.owned_stripes) / static_cast<double>(stats.capacity_stripes);
  kv_usage_.Set(usage);
  router_kv_usage_.Set(usage);
  const std::array<uint64_t, kNumStates> stripes = {
      stats.capacity_stripes, stats.owned_stripes, 0, stats.cached_stripes, stats.free_stripes};
  for (size_t state = 0; state < kNumStates; ++state) {
    host_.bytes[state].Set(static_cast<double>(stripes[state] * stats.stripe_bytes));
    host_.pages[state].Set(static_cast<double>(stripes[state] * pages_per_stripe_));
  }
  host_evicted_pages_.Follow(stats.prefix_evictions * pages_per_stripe_);
  kv.PublishHost(stats);
}

void EngineMetrics::PublishDisk(const kv::DiskTierStats& stats) {
  const kv::disk::DiskStats& disk = stats.disk;
  const uint64_t free =
      disk.capacity_bytes > disk.used_bytes ? disk.capacity_bytes - disk.used_bytes : 0;
  const std::array<uint64_t, kNumStates> bytes = {
      disk.capacity_bytes, disk.used_bytes, disk.store_bytes_pending, disk.live_bytes, free};
  for (size_t state = 0; state < kNumStates; ++state) {
    disk_.bytes[state].Set(static_cast<double>(bytes[state]));
    disk_.pages[state].Set(static_cast<double>(bytes[state] / stripe_bytes_ * pages_per_stripe_));
  }
  disk_metadata_bytes_.Set(static_cast<double>(disk.index_bytes));
  disk_collected_pages_.Follow(disk.collected_records * pages_per_stripe_);
  disk_corrupt_pages_.Follow(disk.tombstones * pages_per_stripe_);
  const size_t kind = kv::disk::KindIdx(kv::disk::RecordKind::kStripe);
  loaded_pages_.Follow(disk.loads[kind] * pages_per_stripe_);
  loaded_bytes_.Follow(disk.loaded_bytes[kind]);
  stored_pages_.Follow(disk.stores[kind] * pages_per_stripe_);
  stored_bytes_.Follow(disk.stored_bytes[kind]);
  sessions.Publish(stats);
  kv.PublishDisk(stats);
}

}  // namespace spindle::engine
