#include "config/memory_plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/ids.h"
#include "base/prefix_key.h"
#include "engine/request_bytes.h"
#include "kv/disk/disk_options.h"
#include "kv/tier_bytes.h"
#include "kv/trace/kv_trace.h"
#include "model/model.h"
#include "platform/compute_pool.h"
#include "serving/answer_memory.h"
#include "serving/body_limits.h"
#include "serving/held_bytes.h"
#include "sparse/scratch_bytes.h"
#include "sparse/selected_pages.h"

namespace spindle::config {
namespace {

// Measured: code and libraries, threads and their part of the allocator, gRPC and metrics at rest.
constexpr uint64_t kProgramBytes = 64ULL << 20;
// Of an entry of the vocabulary, in the tables of the tokenizer and their copies by text and id.
constexpr uint64_t kVocabularyBytes = 640;
// Tokens of most vocabularies are shorter.
constexpr uint64_t kLongTokenBytes = 128;
// Rows of logits that a sampler sorts and edits.
constexpr uint64_t kSamplerBytes = 24;
constexpr uint64_t kMinFastMetadataBytes = 4ULL << 20;
// Of 64 pages of a cache group: directory entry and refault map. Of a frame: its leaf's and run
// table's share, stamp and word.
constexpr uint64_t kRegionBytes = 32;
constexpr uint64_t kRegionPages = 64;
constexpr uint64_t kFrameTableBytes = 8;

void PlanKv(const LoadOptions& options,
            const model::ModelConfig& model,
            uint64_t total_memory_bytes,
            const sparse::AlgorithmSet& algorithms,
            MemoryPlan* plan) {
  const kv::KvGeometry geometry = GeometryOf(options, model);
  const uint64_t host_bytes = ResolveHostBytes(options, model, total_memory_bytes);
  plan->Add("KV in host memory", host_bytes, "--kv-host-bytes");
  plan->Add("index of the host tier", kv::HostIndexBytes(geometry, host_bytes), "--kv-host-bytes");
  plan->Add("indexes of sparse attention",
            sparse::AllIndexBytes(geometry, host_bytes / geometry.stripe_bytes(), algorithms),
            "--kv-host-bytes");
  if (const uint64_t fast_bytes = ResolveFastBytes(options, model, total_memory_bytes);
      fast_bytes != 0) {
    plan->Add("fast tier", fast_bytes, "--kv-fast-bytes");
    plan->Add("tables of the fast tier",
              FastMetadataBytes(options, model, fast_bytes),
              "--kv-fast-bytes");
  }
  if (!options.kv.trace_path.empty()) {
    plan->Add("buffers of traces", kv::kTraceMemoryBytes, "--kv-trace");
  }
  if (options.kv.disk_path.empty()) {
    return;
  }
  kv::disk::DiskOptions disk;
  disk.capacity_bytes = options.kv.disk_bytes == 0 ? kMaxDefaultDiskBytes : options.kv.disk_bytes;
  const kv::DiskTierBytes bytes =
      kv::DiskTierBytesOf({.sessions = {.max_sessions = options.kv.max_sessions}},
                          disk,
                          geometry,
                          host_bytes,
                          model.max_model_len);
  plan->Add("index of the disk tier", bytes.index, "--kv-disk-bytes");
  plan->Add("transfers of the disk tier", bytes.transfers);
  plan->Add("sessions", bytes.sessions, "--kv-max-sessions");
}

void PlanModel(const LoadOptions& options, const model::ModelConfig& model, MemoryPlan* plan) {
  const engine::StepBounds step =
      engine::StepBoundsOf(ResolveEngineOptions(options, model.max_model_len), model.max_model_len);
  const uint32_t num_workers = options.threads == 0 ? platform::UsableCpus() : options.threads;
  plan->Add("position tables",
            uint64_t{model.max_model_len} * model.rope.dim * sizeof(float),
            "--max-model-len");
  plan->Add("activations",
            model::ActivationBytes(model, step.max_rows, step.max_logit_rows),
            "--max-num-batched-tokens");
  plan->Add("attention",
            sparse::ScratchBytes(GeometryOf(options, model),
                                 {.num_q_heads = model.num_q_heads,
                                  .max_rows = step.max_rows,
                                  .max_selections = step.max_selections,
                                  .max_model_len = model.max_model_len,
                                  .num_workers = num_workers}),
            "--max-model-len");
  plan->Add("vocabulary", model.vocab_size * (kVocabularyBytes + kSamplerBytes));
}

void PlanFrontEnds(const FrontEndOptions& options,
                   const model::ModelConfig& model,
                   MemoryPlan* plan) {
  const server::HttpOptions& http = options.http;
  plan->Add("HTTP connections",
            http.max_connections * server::ConnectionBytes(http, serving::kSmallAnswerBytes),
            "--max-connections");
  plan->Add("large HTTP bodies", server::kBodiesAtOnce * http.max_body_bytes, "--max-body-size");
  const uint64_t largest_body = options.grpc.port == 0
                                    ? http.max_body_bytes
                                    : std::max(http.max_body_bytes, options.grpc.max_message_bytes);
  plan->Add("work on a large body",
            serving::BodyWorkBytes(largest_body, model.max_model_len, kLongTokenBytes),
            "--max-body-size");
  plan->Add("large answers", options.answer_memory_bytes, "--answer-memory");
  if (options.grpc.port != 0) {
    plan->Add("gRPC",
              server::GrpcMemoryBytes(options.grpc.max_message_bytes, model.max_model_len),
              "--grpc-max-message");
  }
}

}  // namespace

uint64_t MemoryPlan::total_bytes() const {
  uint64_t total = 0;
  for (const MemoryPart& part : parts_) {
    total += part.bytes;
  }
  return total;
}

absl::Status MemoryPlan::Check(uint64_t available_bytes) const {
  const uint64_t limit = LimitOf(available_bytes);
  if (total_bytes() <= limit) {
    return absl::OkStatus();
  }
  std::vector<MemoryPart> sorted = parts_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const MemoryPart& a, const MemoryPart& b) {
    return a.bytes > b.bytes;
  });
  std::string message = fmt::format("the memory plan of {} passes {}, 95 % of what is available:",
                                    HumanBytes(total_bytes()),
                                    HumanBytes(limit));
  const char* separator = "";
  for (const MemoryPart& part : sorted) {
    message += fmt::format("{} {} {}{}",
                           std::exchange(separator, ";"),
                           part.name,
                           HumanBytes(part.bytes),
                           part.option.empty() ? "" : fmt::format(" ({})", part.option));
  }
  return absl::ResourceExhaustedError(message);
}

kv::KvGeometry GeometryOf(const LoadOptions& options, const model::ModelConfig& model) {
  return {.num_layers = model.num_layers,
          .num_kv_heads = model.num_kv_heads,
          .head_dim = model.head_dim,
          .type = ResolveKvType(options)};
}

uint64_t ResolveHostBytes(const LoadOptions& options,
                          const model::ModelConfig& model,
                          uint64_t total_memory_bytes) {
  if (options.kv.host_bytes != 0) {
    return options.kv.host_bytes;
  }
  const uint64_t stripe_bytes = GeometryOf(options, model).stripe_bytes();
  const uint64_t stripes_per_sequence =
      (uint64_t{model.max_model_len} + kStripeTokens - 1) / kStripeTokens;
  const uint64_t all_sequences = options.engine.max_num_seqs * stripes_per_sequence * stripe_bytes;
  const uint64_t share = total_memory_bytes / 4 / stripe_bytes * stripe_bytes;
  return std::max(std::min(all_sequences, share), 2 * stripe_bytes);
}

uint64_t ResolveFastBytes(const LoadOptions& options,
                          const model::ModelConfig& model,
                          uint64_t total_memory_bytes) {
  if (options.kv.mode == kv::KvMode::kInPlace) {
    return 0;
  }
  return options.kv.fast_bytes != 0 ? options.kv.fast_bytes
                                    : ResolveHostBytes(options, model, total_memory_bytes) / 4;
}

uint64_t FastMetadataBytes(const LoadOptions& options,
                           const model::ModelConfig& model,
                           uint64_t fast_bytes) {
  const kv::KvGeometry geometry = GeometryOf(options, model);
  const uint64_t num_groups = uint64_t{geometry.num_layers} * geometry.num_kv_heads;
  // Of the algorithm with the most ids: pieces of clusters beside pages.
  const uint64_t segments = (model.max_model_len + kSegmentTokens - 1) / kSegmentTokens;
  const uint64_t ids_per_segment =
      kSegmentTokens / geometry.page_tokens() + sparse::MostPagesOfSegment(geometry);
  const uint64_t pages = num_groups * options.engine.max_num_seqs * segments * ids_per_segment;
  const uint64_t frames = fast_bytes / geometry.page_bytes();
  return std::max(kMinFastMetadataBytes,
                  2 * (pages * kRegionBytes / kRegionPages + frames * kFrameTableBytes));
}

MemoryPlan PlanServing(const LoadOptions& options,
                       const model::ModelConfig& model,
                       uint64_t weight_bytes,
                       uint64_t total_memory_bytes,
                       const FrontEndOptions* front_ends,
                       const sparse::AlgorithmSet& algorithms) {
  const engine::EngineOptions engine = ResolveEngineOptions(options, model.max_model_len);
  const uint32_t max_choices = front_ends == nullptr ? 1 : front_ends->max_choices;
  const engine::RequestBounds requests = engine::RequestBoundsOf(engine, model.max_model_len);
  MemoryPlan plan;
  plan.Add("weights", weight_bytes);
  if (const uint64_t gates = sparse::AllWeightBytes(algorithms); gates != 0) {
    plan.Add("weights of sparse attention", gates, "--sparse-gates");
  }
  PlanKv(options, model, total_memory_bytes, algorithms, &plan);
  PlanModel(options, model, &plan);
  // The engine's part, and the transport's prompts and objects.
  plan.Add("requests",
           engine::RequestBytes(engine, model.max_model_len, max_choices, model.num_layers) +
               requests.num_tokens * sizeof(TokenId) +
               requests.num_requests * serving::RequestBytes(max_choices),
           "--max-queue-size");
  if (front_ends != nullptr) {
    PlanFrontEnds(*front_ends, model, &plan);
  }
  plan.Add("program", kProgramBytes);
  return plan;
}

std::string HumanBytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace spindle::config
