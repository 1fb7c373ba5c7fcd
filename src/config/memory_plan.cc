#include "config/memory_plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/ids.h"
#include "base/prefix_key.h"
#include "engine/output_stream.h"
#include "kv/disk/disk_options.h"
#include "kv/stripe_record.h"
#include "kv/trace/kv_trace.h"
#include "model/model.h"

namespace spindle::config {
namespace {

// Code, libraries, tokenizer, tables of kernels and metrics, stacks of threads.
constexpr uint64_t kOverheadBytes = 150ULL << 20;
// Of an entry of the disk tier's index: the entry (88) and its place in the hash table (4).
constexpr uint64_t kDiskEntryBytes = 92;
// A record of the host tier's index, its place in the hash table, in the list of free slots and in
// its sequence.
constexpr uint64_t kHostEntryBytes = sizeof(kv::StripeRecord) + 4 + 4 + 12;
// Of 64 pages of a cache group: directory entry and refault map. Of a frame: its leaf's and run
// table's share, stamp and word.
constexpr uint64_t kRegionBytes = 32;
constexpr uint64_t kRegionPages = 64;
constexpr uint64_t kFrameTableBytes = 8;
constexpr uint64_t kMinFastMetadataBytes = 4ULL << 20;
// A token of a request that waits or runs: its id, and its share of a stripe's key.
constexpr uint64_t kTokenBytes = sizeof(TokenId) + 1;
// An event that waits in a stream without log-probabilities.
constexpr uint64_t kEventBytes = sizeof(engine::StreamEvent);

void PlanKv(const LoadOptions& options,
            const model::ModelConfig& model,
            uint64_t total_memory_bytes,
            MemoryPlan* plan) {
  const uint64_t stripe_bytes = GeometryOf(options, model).stripe_bytes();
  const uint64_t host_bytes = ResolveHostBytes(options, model, total_memory_bytes);
  plan->Add("KV in host memory", host_bytes, "--kv-host-bytes");
  plan->Add(
      "index of the host tier", host_bytes / stripe_bytes * kHostEntryBytes, "--kv-host-bytes");
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
  const uint64_t disk_bytes =
      options.kv.disk_bytes == 0 ? kMaxDefaultDiskBytes : options.kv.disk_bytes;
  plan->Add(
      "index of the disk tier", disk_bytes / stripe_bytes * kDiskEntryBytes, "--kv-disk-bytes");
  plan->Add("queues of the disk tier", kv::disk::DiskOptions().max_store_bytes);
}

void PlanFrontEnds(const FrontEndOptions& options, uint64_t num_requests, MemoryPlan* plan) {
  const server::HttpOptions& http = options.http;
  plan->Add("HTTP connections",
            http.max_connections *
                (http.max_header_bytes + server::kLargeBodyBytes + server::kConnectionReadBytes),
            "--max-connections");
  plan->Add("large HTTP bodies", server::kBodiesAtOnce * http.max_body_bytes, "--max-body-size");
  plan->Add("output buffers", num_requests * http.stream_buffer_bytes, "--stream-buffer");
  if (options.grpc.port != 0) {
    plan->Add(
        "gRPC", server::GrpcMemoryBytes(options.grpc.max_message_bytes), "--grpc-max-message");
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
  const uint64_t pages =
      num_groups * options.engine.max_num_seqs * (model.max_model_len / geometry.page_tokens() + 1);
  const uint64_t frames = fast_bytes / geometry.page_bytes();
  return std::max(kMinFastMetadataBytes,
                  2 * (pages * kRegionBytes / kRegionPages + frames * kFrameTableBytes));
}

MemoryPlan PlanServing(const LoadOptions& options,
                       const model::ModelConfig& model,
                       uint64_t weight_bytes,
                       uint64_t total_memory_bytes,
                       const FrontEndOptions* front_ends) {
  const engine::EngineOptions engine = ResolveEngineOptions(options, model.max_model_len);
  const engine::StepBounds step = engine::StepBoundsOf(engine, model.max_model_len);
  const uint64_t num_requests = uint64_t{engine.max_num_seqs} + engine.max_queue_size;
  const uint64_t num_tokens =
      engine.max_queue_tokens + uint64_t{engine.max_num_seqs} * model.max_model_len;
  MemoryPlan plan;
  plan.Add("weights", weight_bytes);
  PlanKv(options, model, total_memory_bytes, &plan);
  plan.Add("position tables",
           uint64_t{model.max_model_len} * model.rope.dim * sizeof(float),
           "--max-model-len");
  plan.Add("activations",
           model::ActivationBytes(model, step.max_rows, step.max_logit_rows),
           "--max-num-batched-tokens");
  plan.Add("requests",
           num_tokens * kTokenBytes + num_requests * engine.stream_capacity_events * kEventBytes,
           "--max-queue-size");
  if (front_ends != nullptr) {
    PlanFrontEnds(*front_ends, num_requests, &plan);
  }
  plan.Add("program", kOverheadBytes);
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
