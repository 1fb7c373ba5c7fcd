#include "serving/model_listing.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "serving/sparse_names.h"

namespace spindle::serving {
namespace {

using nlohmann::json;

json Meta(const ServedModel& model) {
  const model::ModelConfig& config = model.engine->model_config();
  return {{"vocab_type", ToValidUtf8(model.tokenizer->kind())},
          {"n_vocab", config.vocab_size},
          {"n_ctx", config.max_model_len},
          {"n_ctx_train", config.trained_context},
          {"n_embd", config.hidden_size},
          {"n_params", model.num_parameters},
          {"size", model.file_bytes},
          {"n_layer", config.num_layers},
          {"n_head", config.num_q_heads},
          {"n_head_kv", config.num_kv_heads},
          {"head_dim", config.head_dim},
          {"architecture", ToValidUtf8(config.architecture)},
          {"quantization", ToValidUtf8(config.quantization)}};
}

json Capabilities(const ServedModel& model) {
  return {{"chat", model.chat_template != nullptr},
          {"completions", true},
          {"tools", "none"},
          {"fim", false},
          {"json_schema", false},
          {"logprobs", true},
          {"embeddings", false}};
}

// What an algorithm selects; null: positions.
json PartitionOf(std::string_view algorithm) {
  return algorithm == "quest"        ? json("block")
         : algorithm == "shadowkv"   ? json("chunk")
         : algorithm == "retroinfer" ? json("cluster")
                                     : json(nullptr);
}

json Sparse(const ServingOptions& options) {
  json algorithms = json::array();
  for (const std::string_view name : kOfferedAlgorithms) {
    algorithms.push_back({{"name", name},
                          {"partition", PartitionOf(name)},
                          {"knobs", json::array()},
                          {"prefill_sparse", false},
                          {"extra_weights", false},
                          {"exact_kv", true},
                          {"mass_estimate", false}});
  }
  const std::string& preset = options.sparse.algorithm;
  return {{"default", preset.empty() ? kOfferedAlgorithms.front() : preset},
          {"algorithms", std::move(algorithms)}};
}

json Kv(const ServedModel& model) {
  const kv::KvGeometry& geometry = model.engine->kv_geometry();
  const engine::EngineLoad load = model.engine->Load();
  json tiers = json::array(
      {{{"name", "host"}, {"capacity_bytes", load.kv.capacity_stripes * load.kv.stripe_bytes}}});
  if (load.disk.has_value()) {
    tiers.push_back({{"name", "disk"}, {"capacity_bytes", load.disk->disk.capacity_bytes}});
  }
  return {{"page_tokens", geometry.page_tokens()},
          {"bytes_per_token", geometry.bytes_per_token()},
          {"dtype", geometry.type == DType::kF32 ? "f32" : "bf16"},
          {"tiers", std::move(tiers)}};
}

json Limits(const ServingOptions& options) {
  json limits = {{"max_n", options.max_n}};
  if (options.max_num_seqs > 0) {
    limits["max_num_seqs"] = options.max_num_seqs;
  }
  if (options.max_queue_size > 0) {
    limits["max_queue_size"] = options.max_queue_size;
  }
  if (options.max_body_bytes > 0) {
    limits["max_body_size"] = options.max_body_bytes;
  }
  return limits;
}

json Entry(std::string_view id, const ServingOptions& options, const ServedModel& model) {
  return {{"id", ToValidUtf8(id)},
          {"object", "model"},
          {"created", model.created_unix_seconds},
          {"owned_by", "spindle"},
          {"root", ToValidUtf8(options.model_path)},
          {"parent", nullptr},
          {"max_model_len", model.facts.max_model_len},
          {"meta", Meta(model)},
          {"spindle",
           {{"capabilities", Capabilities(model)},
            {"sparse", Sparse(options)},
            {"kv", Kv(model)},
            {"limits", Limits(options)}}}};
}

}  // namespace

std::string ModelListJson(const ServingOptions& options, const ServedModel& model) {
  json list = json::array();
  for (const std::string& name : options.served_names) {
    list.push_back(Entry(name, options, model));
  }
  return json{{"object", "list"}, {"data", std::move(list)}}.dump();
}

std::string ModelEntryJson(std::string_view id,
                           const ServingOptions& options,
                           const ServedModel& model) {
  return Entry(id, options, model).dump();
}

}  // namespace spindle::serving
