#include "app/model_loader.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "app/synthetic_selection.h"
#include "app/trace_files.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/registry.h"
#include "kv/kv_tiers.h"
#include "model/config_reader.h"
#include "model/sparse_gates.h"
#include "platform/compute_pool.h"
#include "sparse/seer_r/seer_algorithm.h"
#include "sparse/selected_pages.h"

namespace spindle::app {
namespace {

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
                                                           const DiskEnvironment& environment,
                                                           kv::KvStore& host) {
  if (!options.prefix_cache) {
    return absl::InvalidArgumentError("--kv-disk-path needs --enable-prefix-caching");
  }
  kv::disk::DiskFiles& files = environment.files;
  SPINDLE_RETURN_IF_ERROR(files.MakeDirectory(options.disk_path));
  if (options.disk_bytes == 0) {
    SPINDLE_ASSIGN_OR_RETURN(const kv::disk::FreeSpaceInfo space,
                             files.FreeSpace(options.disk_path));
    options.disk_bytes = std::min(config::kMaxDefaultDiskBytes, space.free_bytes / 2);
  }
  const uint64_t smallest = kMinDiskStripes * host.geometry().stripe_bytes();
  if (options.disk_bytes < smallest) {
    return absl::InvalidArgumentError("--kv-disk-bytes must be at least " +
                                      config::HumanBytes(smallest) + " for this model, got " +
                                      config::HumanBytes(options.disk_bytes));
  }
  kv::disk::DiskOptions disk_options = environment.options;
  // Space comes back segment by segment, so a small tier has small ones.
  disk_options.segment_bytes = kv::disk::RoundUp(
      std::min(disk_options.segment_bytes, options.disk_bytes / kSegmentsOfSmallTier));
  disk_options.path = options.disk_path;
  disk_options.capacity_bytes = options.disk_bytes;
  disk_options.min_free_bytes = options.disk_min_free_bytes;
  SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<kv::DiskTier> tier,
                           kv::DiskTier::Open({.sessions = {.max_sessions = options.max_sessions}},
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
             {"capacity", config::HumanBytes(stats.capacity_bytes)},
             {"used", config::HumanBytes(stats.used_bytes)},
             {"stripes", stats.entries},
             {"direct", stats.direct_active},
             {"io_uring", stats.ring_active}});
  return tier;
}

// The fast tier of the modes that have one: a ring per worker, the rest for sequences.
absl::StatusOr<std::unique_ptr<kv::FastTier>> MakeFastTier(const config::LoadOptions& options,
                                                           const model::ModelConfig& model,
                                                           const kernels::KernelTable& kernels,
                                                           uint32_t num_workers) {
  kv::FastTierOptions fast;
  fast.geometry = config::GeometryOf(options, model);
  fast.fast_bytes = config::ResolveFastBytes(options, model, platform::TotalMemoryBytes());
  fast.metadata_bytes = config::FastMetadataBytes(options, model, fast.fast_bytes);
  fast.num_workers = num_workers;
  fast.num_rings = num_workers;
  // Whatever is selected of a segment.
  fast.ring_frames = (sparse::MostPagesOfSegment(fast.geometry) + kv::kRunFrames - 1) /
                     kv::kRunFrames * kv::kRunFrames;
  const uint64_t least = uint64_t{fast.num_rings} * fast.ring_frames * fast.geometry.page_bytes();
  if (fast.fast_bytes < least) {
    return absl::InvalidArgumentError(
        "--kv-fast-bytes must be at least " + std::to_string(least) + " (" +
        std::to_string(fast.ring_frames) + " pages, whatever a head selects of " +
        std::to_string(kSegmentTokens) + " tokens, for each of " + std::to_string(num_workers) +
        " threads), got " + std::to_string(fast.fast_bytes));
  }
  return kv::FastTier::Create(fast, kernels);
}

absl::StatusOr<kv::KvTiers> MakeTiers(const config::LoadOptions& options,
                                      const model::Model& model,
                                      const kernels::KernelTable& kernels,
                                      uint32_t num_workers,
                                      const Clock& clock,
                                      const DiskEnvironment& environment) {
  kv::KvOptions kv_options = options.kv;
  kv_options.host_bytes =
      config::ResolveHostBytes(options, model.config(), platform::TotalMemoryBytes());
  kv::KvTiers tiers;
  SPINDLE_ASSIGN_OR_RETURN(
      tiers.host, kv::KvStore::Create(kv_options, config::GeometryOf(options, model.config())));
  if (kv_options.mode != kv::KvMode::kInPlace) {
    SPINDLE_ASSIGN_OR_RETURN(tiers.fast,
                             MakeFastTier(options, model.config(), kernels, num_workers));
  }
  if (kv_options.mode == kv::KvMode::kEmulatedLink) {
    SPINDLE_RETURN_IF_ERROR(kv::ValidateLinkOptions(kv_options.link));
    tiers.link = std::make_unique<kv::EmulatedLink>(kv_options.link);
  }
  if (!kv_options.disk_path.empty()) {
    SPINDLE_ASSIGN_OR_RETURN(
        tiers.disk, OpenDiskTier(kv_options, model, kernels, clock, environment, *tiers.host));
  }
  return tiers;
}

// Refuses what does not fit before anything large is taken.
absl::Status CheckMemory(const config::LoadOptions& options,
                         const config::FrontEndOptions* front_ends,
                         const formats::ModelFile& file,
                         const model::ModelConfig& shape,
                         const sparse::AlgorithmSet& algorithms,
                         const kernels::KernelTable& kernels) {
  const uint64_t available = platform::AvailableMemoryBytes();
  const config::MemoryPlan plan =
      config::PlanServing(options,
                          shape,
                          model::EstimateWeightBytes(file, options.model.mode, kernels),
                          platform::TotalMemoryBytes(),
                          front_ends,
                          algorithms);
  std::vector<std::string> names;  // outlive the fields
  for (const config::MemoryPart& part : plan.parts()) {
    names.push_back(part.name);
    std::ranges::replace(names.back(), ' ', '_');
  }
  std::vector<log::Field> fields;
  for (size_t i = 0; i < names.size(); ++i) {
    fields.emplace_back(names[i], config::HumanBytes(plan.parts()[i].bytes));
  }
  fields.emplace_back("total", config::HumanBytes(plan.total_bytes()));
  fields.emplace_back("total_bytes", plan.total_bytes());
  fields.emplace_back("limit", config::HumanBytes(config::MemoryPlan::LimitOf(available)));
  log::Write(log::Level::kInfo, "memory_plan", fields);
  return plan.Check(available);
}

ResolvedOptions Resolve(const config::LoadOptions& options,
                        const serving::LoadedModel& loaded,
                        const kv::KvTiers& tiers,
                        uint32_t num_threads,
                        uint32_t max_model_len) {
  const engine::EngineOptions engine = config::ResolveEngineOptions(options, max_model_len);
  const kv::KvStats host = tiers.host->Stats();
  ResolvedOptions resolved = {
      {"max-model-len", uint64_t{max_model_len}},
      {"max-queue-size", uint64_t{engine.max_queue_size}},
      {"max-queue-tokens", engine.max_queue_tokens},
      {"kv-host-bytes", host.capacity_stripes * host.stripe_bytes},
      {"kv-cache-dtype",
       std::string(config::ResolveKvType(options) == DType::kF32 ? "f32" : "bf16")},
      {"threads", uint64_t{num_threads}},
      {"isa", std::string(loaded.kernel_name)}};
  if (tiers.disk != nullptr) {
    const kv::disk::DiskStats disk = tiers.disk->Stats().disk;
    resolved.emplace_back("kv-disk-bytes", disk.capacity_bytes + disk.other_bytes);
  }
  return resolved;
}

}  // namespace

absl::StatusOr<sparse::AlgorithmSet> LoadAlgorithms(const config::LoadOptions& options,
                                                    const formats::ModelFile& file,
                                                    const model::ModelConfig& shape) {
  sparse::AlgorithmSet algorithms(options.sparse_index_type);
  const std::string path = options.sparse_gates.empty() ? model::FindGatesBeside(options.model_path)
                                                        : options.sparse_gates;
  if (path.empty()) {
    return algorithms;
  }
  SPINDLE_ASSIGN_OR_RETURN(sparse::SeerGates gates, model::LoadSeerGates(path, file, shape));
  log::Info(
      "sparse_gates_loaded",
      {{"path", path}, {"width", gates.width}, {"weights", config::HumanBytes(gates.bytes())}});
  algorithms.Add(
      std::make_shared<const sparse::SeerAlgorithm>(std::move(gates), shape.max_model_len));
  return algorithms;
}

absl::StatusOr<LoadResult> LoadModel(const config::LoadOptions& options,
                                     const config::FrontEndOptions* front_ends,
                                     metrics::Registry& registry,
                                     const Clock& clock,
                                     const model::LoadProgress& progress,
                                     const DiskEnvironment& disk) {
  const TimePoint started = clock.Now();
  SPINDLE_ASSIGN_OR_RETURN(const kernels::KernelTable* kernels, ChooseKernels(options.isa));
  SPINDLE_ASSIGN_OR_RETURN(
      const std::shared_ptr<const formats::ModelFile> file,  // shared with the model

      formats::ModelFile::Open(options.model_path));
  LoadResult result;
  serving::LoadedModel& loaded = result.model;
  SPINDLE_ASSIGN_OR_RETURN(model::ModelConfig planned, model::ReadConfig(*file));
  SPINDLE_RETURN_IF_ERROR(model::ApplyOptions(options.model, &planned));
  SPINDLE_ASSIGN_OR_RETURN(loaded.algorithms, LoadAlgorithms(options, *file, planned));
  SPINDLE_RETURN_IF_ERROR(
      CheckMemory(options, front_ends, *file, planned, loaded.algorithms, *kernels));
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
             {"weights", config::HumanBytes(model->weight_bytes())},
             {"isa", kernels->name},
             {"threads", pool->num_workers()},
             {"seconds", ToSeconds(clock.Now() - started)}});
  SPINDLE_ASSIGN_OR_RETURN(kv::KvTiers tiers,
                           MakeTiers(options, *model, *kernels, pool->num_workers(), clock, disk));
  loaded.file_bytes = FileBytes(*file);
  loaded.num_parameters = model->num_parameters();
  loaded.kernel_name = kernels->name;
  loaded.created_unix_seconds = std::chrono::duration_cast<std::chrono::seconds>(
                                    std::chrono::system_clock::now().time_since_epoch())
                                    .count();
  ReadSamplingDefaults(*file, &loaded);
  result.resolved = Resolve(options, loaded, tiers, pool->num_workers(), shape.max_model_len);
  engine::EngineOptions engine_options = config::ResolveEngineOptions(options, shape.max_model_len);
  engine_options.algorithms = loaded.algorithms;
  for (const engine::SparseRequest& preset : options.served_presets) {
    SPINDLE_RETURN_IF_ERROR(
        engine::ResolveSparse({}, preset, tiers.host->geometry(), loaded.algorithms).status());
  }
  if (options.selection.profile.empty()) {
    SPINDLE_ASSIGN_OR_RETURN(
        engine_options.decode,
        engine::ResolveSparse(
            {}, config::SparseDefaults(options), tiers.host->geometry(), loaded.algorithms));
  } else {
    SPINDLE_ASSIGN_OR_RETURN(
        engine_options.decode,
        MakeSyntheticDecode(options.selection, tiers.host->geometry(), shape.max_model_len));
  }
  SPINDLE_ASSIGN_OR_RETURN(tiers.trace, OpenTraceFiles(options, tiers, shape.max_model_len, clock));
  const std::span<const TokenId> ends = loaded.tokenizer->end_ids();
  SPINDLE_ASSIGN_OR_RETURN(loaded.engine,
                           engine::Engine::Create(engine_options,
                                                  std::move(model),
                                                  std::move(tiers),
                                                  std::move(pool),
                                                  *kernels,
                                                  {ends.begin(), ends.end()},
                                                  registry,
                                                  clock));
  return result;
}

}  // namespace spindle::app
