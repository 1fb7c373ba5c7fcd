#include "cli/inspect.h"

#include <cstdio>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/status_macros.h"
#include "formats/model_file.h"
#include "kv/kv_store.h"
#include "model/config_reader.h"
#include "platform/compute_pool.h"

namespace spindle::cli {
namespace {

using nlohmann::ordered_json;

std::string Shape(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string Human(uint64_t bytes) {
  if (bytes < 1U << 20) {
    return fmt::format("{} bytes", bytes);
  }
  constexpr uint64_t kGiB = 1U << 30;
  return bytes < kGiB ? fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1U << 20))
                      : fmt::format("{:.1f} GiB", static_cast<double>(bytes) / kGiB);
}

ordered_json Describe(const formats::ModelFile& file,
                      const model::ModelConfig& config,
                      const config::LoadOptions& options) {
  uint64_t parameters = 0;
  uint64_t bytes = 0;
  std::map<std::string, uint64_t> types;
  for (const formats::TensorInfo& tensor : file.tensors()) {
    uint64_t elements = 1;
    for (const uint64_t extent : tensor.shape) {
      elements *= extent;
    }
    parameters += elements;
    bytes += tensor.bytes.size();
    types[std::string(spindle::Describe(tensor.type).name)] += tensor.bytes.size();
  }
  const kv::KvGeometry geometry{.num_layers = config.num_layers,
                                .num_kv_heads = config.num_kv_heads,
                                .head_dim = config.head_dim,
                                .type = config::ResolveKvType(options)};
  const uint64_t per_sequence = geometry.bytes_per_token() * config.max_model_len;
  ordered_json out;
  out["files"] = std::vector<std::string>(file.paths().begin(), file.paths().end());
  out["name"] = config.name;
  out["architecture"] = config.architecture;
  out["parameters"] = parameters;
  out["weight_bytes"] = bytes;
  out["weight_types"] = types;
  out["layers"] = config.num_layers;
  out["hidden_size"] = config.hidden_size;
  out["ffn_size"] = config.ffn_size;
  out["query_heads"] = config.num_q_heads;
  out["kv_heads"] = config.num_kv_heads;
  out["head_dim"] = config.head_dim;
  out["vocabulary"] = config.vocab_size;
  out["trained_context"] = config.trained_context;
  out["context"] = config.max_model_len;
  out["kv_page_tokens"] = geometry.page_tokens();
  out["kv_bytes_per_token"] = geometry.bytes_per_token();
  out["kv_bytes_per_full_sequence"] = per_sequence;
  out["kv_bytes_all_sequences"] = per_sequence * options.engine.max_num_seqs;
  out["weights_and_kv_bytes"] = bytes + per_sequence * options.engine.max_num_seqs;
  out["memory_total"] = platform::TotalMemoryBytes();
  out["memory_available"] = platform::AvailableMemoryBytes();
  return out;
}

void PrintText(const ordered_json& description) {
  for (const auto& [key, value] : description.items()) {
    const bool is_bytes = key.find("bytes") != std::string::npos || key.starts_with("memory_");
    if (is_bytes && value.is_number_unsigned()) {
      fmt::print("{:<28}{}\n", key, Human(value.get<uint64_t>()));
      continue;
    }
    fmt::print("{:<28}{}\n", key, value.is_string() ? value.get<std::string>() : DumpJson(value));
  }
}

}  // namespace

absl::Status Inspect(const InspectOptions& options) {
  SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<formats::ModelFile> file,
                           formats::ModelFile::Open(options.load.model_path));
  SPINDLE_ASSIGN_OR_RETURN(model::ModelConfig config, model::ReadConfig(*file));
  SPINDLE_RETURN_IF_ERROR(model::ApplyOptions(options.load.model, &config));
  ordered_json description = Describe(*file, config, options.load);
  if (options.json && options.tensors) {
    for (const formats::TensorInfo& tensor : file->tensors()) {
      description["tensors"].push_back({{"name", tensor.name},
                                        {"type", spindle::Describe(tensor.type).name},
                                        {"shape", tensor.shape}});
    }
  }
  if (options.json) {
    fmt::print("{}\n", DumpJson(description, 2));
    return absl::OkStatus();
  }
  PrintText(description);
  if (options.tensors) {
    for (const formats::TensorInfo& tensor : file->tensors()) {
      fmt::print(
          "{:<44}{:<6}{}\n", tensor.name, spindle::Describe(tensor.type).name, Shape(tensor.shape));
    }
  }
  return absl::OkStatus();
}

}  // namespace spindle::cli
