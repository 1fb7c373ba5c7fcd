#include "cli/inspect.h"

#include <cstdio>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/status_macros.h"
#include "cli/model_options.h"
#include "config/memory_plan.h"
#include "formats/model_file.h"
#include "kernels/registry.h"
#include "kv/kv_geometry.h"
#include "model/model.h"
#include "platform/compute_pool.h"

namespace spindle::cli {
namespace {

using nlohmann::ordered_json;

std::string Shape(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// What `spindle serve` with these options takes, over front ends with default options.
ordered_json DescribePlan(const config::MemoryPlan& plan) {
  const uint64_t available = platform::AvailableMemoryBytes();
  ordered_json out;
  for (const config::MemoryPart& part : plan.parts()) {
    out["parts"].push_back({{"name", part.name}, {"bytes", part.bytes}, {"option", part.option}});
  }
  out["total_bytes"] = plan.total_bytes();
  out["available_bytes"] = available;
  out["limit_bytes"] = config::MemoryPlan::LimitOf(available);
  out["fits"] = plan.Check(available).ok();
  return out;
}

ordered_json Describe(const formats::ModelFile& file,
                      const model::ModelConfig& config,
                      const config::LoadOptions& options,
                      const kernels::KernelTable& kernels) {
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
  const kv::KvGeometry geometry = config::GeometryOf(options, config);
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
  const config::FrontEndOptions front_ends;
  out["memory_plan"] = DescribePlan(
      config::PlanServing(options,
                          config,
                          model::EstimateWeightBytes(file, options.model.mode, kernels),
                          platform::TotalMemoryBytes(),
                          &front_ends,
                          sparse::AlgorithmSet(options.sparse_index_type)));
  return out;
}

void PrintPlan(const ordered_json& plan) {
  const auto row = [](const std::string& name, const ordered_json& bytes, const std::string& note) {
    fmt::print("  {:<26}{:>12}  {}\n", name, config::HumanBytes(bytes.get<uint64_t>()), note);
  };
  fmt::print("memory plan of spindle serve\n");
  for (const ordered_json& part : plan["parts"]) {
    row(part["name"].get<std::string>(), part["bytes"], part["option"].get<std::string>());
  }
  row("total", plan["total_bytes"], plan["fits"].get<bool>() ? "fits" : "does not fit");
  row("limit", plan["limit_bytes"], "95 % of what is available");
}

void PrintText(const ordered_json& description) {
  for (const auto& [key, value] : description.items()) {
    if (key == "memory_plan") {
      PrintPlan(value);
      continue;
    }
    if (key.find("bytes") != std::string::npos && value.is_number_unsigned()) {
      fmt::print("{:<28}{}\n", key, config::HumanBytes(value.get<uint64_t>()));
      continue;
    }
    fmt::print("{:<28}{}\n", key, value.is_string() ? value.get<std::string>() : DumpJson(value));
  }
}

}  // namespace

absl::Status Inspect(const InspectOptions& options) {
  SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<formats::ModelFile> file,
                           formats::ModelFile::Open(options.load.model_path));
  SPINDLE_ASSIGN_OR_RETURN(const model::ModelConfig config, ShapeOf(options.load, *file));
  SPINDLE_ASSIGN_OR_RETURN(const kernels::KernelTable* const kernels, KernelsOf(options.load));
  ordered_json description = Describe(*file, config, options.load, *kernels);
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
