#include "app/model_loader.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "app/memory_plan.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/registry.h"
#include "kv/kv_tiers.h"
#include "platform/compute_pool.h"

namespace spindle::app {
namespace {

// Start-up memory beyond weights, KV and activations: code, tokenizer, buffers of connections.
constexpr uint64_t kOverheadBytes = 150ULL << 20;
// The disk tier's share of a file system that nobody gave a size.
constexpr uint64_t kMaxDefaultDiskBytes = 32ULL << 30;
constexpr uint64_t kMinDiskStripes = 64;
constexpr uint64_t kSegmentsOfSmallTier = 16;

uint64_t FileBytes(const formats::ModelFile& file) {
  uint64_t bytes = 0;
  for (const formats::TensorInfo& tensor : file.tensors()) {
    bytes += tensor.bytes.size();
  }
  return bytes;
}

void ReadSamplingDefaults(const formats::ModelFile& file, serving::LoadedModel* loaded) {
  const std::string text = file.SideFile("generation_config.json").value_or("");
  const nlohmann::json config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return;
  }
  if (config.contains("temperature") && config["temperature"].is_number()) {
    loaded->temperature = config["temperature"].get<float>();
  }
  if (config.contains("top_p") && config["top_p"].is_number()) {
    loaded->top_p = config["top_p"].get<float>();
  }
  if (config.contains("top_k") && config["top_k"].is_number_integer()) {
    loaded->top_k = config["top_k"].get<int32_t>();
  }
}

absl::StatusOr<const kernels::KernelTable*> ChooseKernels(const std::string& name) {
  const kernels::KernelTable* table = kernels::FindKernelsByName(name);
  if (table == nullptr) {
    return absl::InvalidArgumentError("--isa " + name + " is unknown or not supported by this CPU");
  }
  return table;
}

// `kernels` decide bits of stored KV, as the model does.
absl::StatusOr<std::unique_ptr<kv::DiskTier>> OpenDiskTier(kv::KvOptions options,
                                                           const model::Model& model,
                                                           const kernels::KernelTable& kernels,
                                                           const Clock& clock,
                                                           kv::KvStore& host) {
  if (!options.prefix_cache) {
    return absl::InvalidArgumentError("--kv-disk-path needs --enable-prefix-caching");
  }
  kv::disk::DiskFiles& files = kv::disk::SystemFiles();
  SPINDLE_RETURN_IF_ERROR(files.MakeDirectory(options.disk_path));
  if (options.disk_bytes == 0) {
    SPINDLE_ASSIGN_OR_RETURN(const kv::disk::FreeSpaceInfo space,
                             files.FreeSpace(options.disk_path));
    options.disk_bytes = std::min(kMaxDefaultDiskBytes, space.free_bytes / 2);
  }
  const uint64_t smallest = kMinDiskStripes * host.geometry().stripe_bytes();
  if (options.disk_bytes < smallest) {
    return absl::InvalidArgumentError("--kv-disk-bytes must be at least " + HumanBytes(smallest) +
                                      " for this model, got " + HumanBytes(options.disk_bytes));
  }
  kv::disk::DiskOptions disk_options;
  // Space comes back segment by segment, so a small tier has small ones.
  disk_options.segment_bytes = kv::disk::RoundUp(
      std::min(disk_options.segment_bytes, options.disk_bytes / kSegmentsOfSmallTier));
  disk_options.path = options.disk_path;
  disk_options.capacity_bytes = options.disk_bytes;
  disk_options.min_free_bytes = options.disk_min_free_bytes;
  SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<kv::DiskTier> tier,
                           kv::DiskTier::Open({},
                                              disk_options,
                                              {.fingerprint = model.fingerprint(),
                                               .geometry = host.geometry(),
                                               .numerics_class = kernels.family},
                                              files,
                                              clock,
                                              host));
  const kv::disk::DiskStats stats = tier->Stats().disk;
  log::Info("kv_disk_open",
            {{"path", options.disk_path},
             {"capacity", HumanBytes(stats.capacity_bytes)},
             {"used", HumanBytes(stats.used_bytes)},
             {"stripes", stats.entries},
             {"direct", stats.direct_active},
             {"io_uring", stats.ring_active}});
  return tier;
}

absl::StatusOr<kv::KvTiers> MakeTiers(const config::LoadOptions& options,
                                      const model::Model& model,
                                      const kernels::KernelTable& kernels,
                                      const Clock& clock) {
  const model::ModelConfig& shape = model.config();
  const kv::KvGeometry geometry{.num_layers = shape.num_layers,
                                .num_kv_heads = shape.num_kv_heads,
                                .head_dim = shape.head_dim,
                                .type = config::ResolveKvType(options)};
  kv::KvOptions kv_options = options.kv;
  if (kv_options.host_bytes == 0) {
    kv_options.host_bytes = DefaultKvBytes(platform::TotalMemoryBytes(),
                                           options.engine.max_num_seqs,
                                           shape.max_model_len,
                                           geometry.stripe_bytes());
  }
  MemoryPlan plan;
  plan.Add("KV", kv_options.host_bytes);
  plan.Add("overhead", kOverheadBytes);
  // The weights are resident already, so available memory has been reduced by them.
  SPINDLE_RETURN_IF_ERROR(plan.Check(platform::AvailableMemoryBytes()));
  log::Info("memory_plan",
            {{"weights", HumanBytes(model.weight_bytes())},
             {"kv", HumanBytes(kv_options.host_bytes)},
             {"kv_bytes_per_token", geometry.bytes_per_token()},
             {"overhead", HumanBytes(kOverheadBytes)},
             {"available", HumanBytes(platform::AvailableMemoryBytes())}});
  kv::KvTiers tiers;
  SPINDLE_ASSIGN_OR_RETURN(tiers.host, kv::KvStore::Create(kv_options, geometry));
  if (!kv_options.disk_path.empty()) {
    SPINDLE_ASSIGN_OR_RETURN(tiers.disk,
                             OpenDiskTier(kv_options, model, kernels, clock, *tiers.host));
  }
  return tiers;
}

}  // namespace

absl::StatusOr<serving::LoadedModel> LoadModel(const config::LoadOptions& options,
                                               metrics::Registry& registry,
                                               const Clock& clock,
                                               const model::LoadProgress& progress) {
  const TimePoint started = clock.Now();
  SPINDLE_ASSIGN_OR_RETURN(const kernels::KernelTable* kernels, ChooseKernels(options.isa));
  SPINDLE_ASSIGN_OR_RETURN(
      const std::shared_ptr<const formats::ModelFile> file,  // shared with the model

      formats::ModelFile::Open(options.model_path));
  serving::LoadedModel loaded;
  SPINDLE_ASSIGN_OR_RETURN(loaded.tokenizer, LoadTokenizer(*file, options.tokenizer_path));
  SPINDLE_ASSIGN_OR_RETURN(loaded.chat_template,
                           LoadChatTemplate(*file, *loaded.tokenizer, options.chat_template));
  SPINDLE_ASSIGN_OR_RETURN(
      std::unique_ptr<platform::ComputePool> pool,
      platform::ComputePool::Create({.num_threads = options.threads, .pin = options.pin_threads}));
  SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<model::Model> model,
                           model::Model::Load(file, options.model, *pool, *kernels, progress));
  const model::ModelConfig& shape = model->config();
  if (loaded.tokenizer->vocab_size() > shape.vocab_size) {
    return absl::InvalidArgumentError("the tokenizer has more tokens than the model's vocabulary");
  }
  log::Info("model_loaded",
            {{"name", shape.name},
             {"architecture", shape.architecture},
             {"quantization", shape.quantization},
             {"context", shape.max_model_len},
             {"isa", kernels->name},
             {"threads", pool->num_workers()},
             {"seconds", ToSeconds(clock.Now() - started)}});
  SPINDLE_ASSIGN_OR_RETURN(kv::KvTiers tiers, MakeTiers(options, *model, *kernels, clock));
  loaded.file_bytes = FileBytes(*file);
  loaded.num_parameters = model->num_parameters();
  loaded.kernel_name = kernels->name;
  loaded.created_unix_seconds = std::chrono::duration_cast<std::chrono::seconds>(
                                    std::chrono::system_clock::now().time_since_epoch())
                                    .count();
  ReadSamplingDefaults(*file, &loaded);
  const std::span<const TokenId> ends = loaded.tokenizer->end_ids();
  SPINDLE_ASSIGN_OR_RETURN(
      loaded.engine,
      engine::Engine::Create(config::ResolveEngineOptions(options, shape.max_model_len),
                             std::move(model),
                             std::move(tiers),
                             std::move(pool),
                             *kernels,
                             {ends.begin(), ends.end()},
                             registry,
                             clock));
  return loaded;
}

}  // namespace spindle::app
