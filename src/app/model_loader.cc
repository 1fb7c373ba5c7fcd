#include "app/model_loader.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "app/synthetic_selection.h"
#include "app/tier_setup.h"
#include "app/trace_files.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "cli/model_options.h"
#include "config/option_error.h"
#include "kernels/registry.h"
#include "kv/kv_tiers.h"
#include "model/sparse_gates.h"
#include "platform/compute_pool.h"
#include "sparse/seer_r/seer_algorithm.h"

namespace spindle::app {
namespace {

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

absl::Status CheckVocabulary(const config::LoadOptions& options,
                             const text::Tokenizer& tokenizer,
                             const model::ModelConfig& shape) {
  if (tokenizer.vocab_size() <= shape.vocab_size) {
    return absl::OkStatus();
  }
  absl::Status status =
      absl::InvalidArgumentError("the tokenizer has more tokens than the model's vocabulary");
  return options.tokenizer_path.empty() ? status : config::OptionError("--tokenizer", status);
}

// Of requests that name no algorithm.
absl::StatusOr<engine::SparseDecode> MakeDecode(const config::LoadOptions& options,
                                                const kv::KvGeometry& geometry,
                                                const sparse::AlgorithmSet& algorithms,
                                                uint32_t max_model_len) {
  if (!options.selection.profile.empty()) {
    absl::StatusOr<engine::SparseDecode> drawn =
        MakeSyntheticDecode(options.selection, geometry, max_model_len);
    if (!drawn.ok()) {
      return config::OptionError(drawn.status());
    }
    return drawn;
  }
  absl::StatusOr<engine::SparseDecode> decode =
      engine::ResolveSparse({}, config::SparseDefaults(options), geometry, algorithms);
  if (!decode.ok()) {
    return config::OptionError("--sparse-algorithm, --sparse-preset and their like",
                               decode.status());
  }
  return decode;
}

absl::Status CheckServedPresets(const config::LoadOptions& options,
                                const kv::KvGeometry& geometry,
                                const sparse::AlgorithmSet& algorithms) {
  for (const engine::SparseRequest& preset : options.served_presets) {
    const auto decode = engine::ResolveSparse({}, preset, geometry, algorithms);
    if (!decode.ok()) {
      return config::OptionError("--served-model-name", decode.status());
    }
  }
  return absl::OkStatus();
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

// What is made of the options before there are weights, so that a wrong one is refused at once.
struct Prepared {
  kv::KvTiers tiers;  // in memory
  engine::EngineOptions engine;
  kv::disk::DiskOptions disk;
};

absl::StatusOr<Prepared> Prepare(const config::LoadOptions& options,
                                 const model::ModelConfig& shape,
                                 const sparse::AlgorithmSet& algorithms,
                                 const kernels::KernelTable& kernels,
                                 uint32_t num_workers,
                                 const DiskEnvironment& disk) {
  Prepared prepared;
  SPINDLE_ASSIGN_OR_RETURN(prepared.tiers, MakeMemoryTiers(options, shape, kernels, num_workers));
  const kv::KvGeometry& geometry = prepared.tiers.host->geometry();
  SPINDLE_RETURN_IF_ERROR(CheckServedPresets(options, geometry, algorithms));
  prepared.engine = config::ResolveEngineOptions(options, shape.max_model_len);
  prepared.engine.algorithms = algorithms;
  SPINDLE_ASSIGN_OR_RETURN(prepared.engine.decode,
                           MakeDecode(options, geometry, algorithms, shape.max_model_len));
  if (!options.kv.disk_path.empty()) {
    SPINDLE_ASSIGN_OR_RETURN(prepared.disk, PrepareDisk(options, geometry, disk));
  }
  SPINDLE_RETURN_IF_ERROR(PrepareTraceFolder(options, prepared.tiers, shape.max_model_len));
  return prepared;
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
  absl::StatusOr<sparse::SeerGates> gates = model::LoadSeerGates(path, file, shape);
  if (!gates.ok()) {
    return options.sparse_gates.empty() ? gates.status()
                                        : config::OptionError("--sparse-gates", gates.status());
  }
  log::Info(
      "sparse_gates_loaded",
      {{"path", path}, {"width", gates->width}, {"weights", config::HumanBytes(gates->bytes())}});
  algorithms.Add(
      std::make_shared<const sparse::SeerAlgorithm>(*std::move(gates), shape.max_model_len));
  return algorithms;
}

absl::StatusOr<LoadResult> LoadModel(const config::LoadOptions& options,
                                     const config::FrontEndOptions* front_ends,
                                     metrics::Registry& registry,
                                     const Clock& clock,
                                     const model::LoadProgress& progress,
                                     const DiskEnvironment& disk) {
  const TimePoint started = clock.Now();
  SPINDLE_ASSIGN_OR_RETURN(const kernels::KernelTable* const kernels, cli::KernelsOf(options));
  SPINDLE_ASSIGN_OR_RETURN(
      const std::shared_ptr<const formats::ModelFile> file,  // shared with the model

      formats::ModelFile::Open(options.model_path));
  LoadResult result;
  serving::LoadedModel& loaded = result.model;
  SPINDLE_ASSIGN_OR_RETURN(const model::ModelConfig planned, cli::ShapeOf(options, *file));
  SPINDLE_ASSIGN_OR_RETURN(loaded.algorithms, LoadAlgorithms(options, *file, planned));
  SPINDLE_RETURN_IF_ERROR(
      CheckMemory(options, front_ends, *file, planned, loaded.algorithms, *kernels));
  SPINDLE_ASSIGN_OR_RETURN(loaded.tokenizer, LoadTokenizer(*file, options.tokenizer_path));
  SPINDLE_RETURN_IF_ERROR(CheckVocabulary(options, *loaded.tokenizer, planned));
  SPINDLE_ASSIGN_OR_RETURN(loaded.chat_template,
                           LoadChatTemplate(*file, *loaded.tokenizer, options.chat_template));
  SPINDLE_ASSIGN_OR_RETURN(
      std::unique_ptr<platform::ComputePool> pool,
      platform::ComputePool::Create({.num_threads = options.threads, .pin = options.pin_threads}));
  SPINDLE_ASSIGN_OR_RETURN(
      Prepared prepared,
      Prepare(options, planned, loaded.algorithms, *kernels, pool->num_workers(), disk));
  kv::KvTiers& tiers = prepared.tiers;
  SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<model::Model> model,
                           model::Model::Load(file, options.model, *pool, *kernels, progress));
  const model::ModelConfig& shape = model->config();
  log::Info("model_loaded",
            {{"name", shape.name},
             {"architecture", shape.architecture},
             {"quantization", shape.quantization},
             {"context", shape.max_model_len},
             {"weights", config::HumanBytes(model->weight_bytes())},
             {"isa", kernels->name},
             {"threads", pool->num_workers()},
             {"seconds", ToSeconds(clock.Now() - started)}});
  if (!options.kv.disk_path.empty()) {
    SPINDLE_ASSIGN_OR_RETURN(
        tiers.disk,
        OpenDiskTier(options, prepared.disk, *model, *kernels, clock, disk, *tiers.host));
  }
  loaded.file_bytes = FileBytes(*file);
  loaded.num_parameters = model->num_parameters();
  loaded.kernel_name = kernels->name;
  loaded.created_unix_seconds = std::chrono::duration_cast<std::chrono::seconds>(
                                    std::chrono::system_clock::now().time_since_epoch())
                                    .count();
  ReadSamplingDefaults(*file, &loaded);
  result.resolved = Resolve(options, loaded, tiers, pool->num_workers(), shape.max_model_len);
  SPINDLE_ASSIGN_OR_RETURN(tiers.trace, OpenTraceFiles(options, tiers, clock));
  const std::span<const TokenId> ends = loaded.tokenizer->end_ids();
  SPINDLE_ASSIGN_OR_RETURN(loaded.engine,
                           engine::Engine::Create(prepared.engine,
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
