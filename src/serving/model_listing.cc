#include "serving/model_listing.h"

#include <span>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "engine/algorithm_facts.h"

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

json Knobs(std::span<const sparse::Knob> listed) {
  json knobs = json::array();
  for (const sparse::Knob& knob : listed) {
    const auto number = [&knob](double value) {
      return knob.is_integer ? json(static_cast<int64_t>(value)) : json(value);
    };
    knobs.push_back({{"name", knob.name},
                     {"type", knob.is_integer ? "integer" : "number"},
                     {"min", number(knob.min)},
                     {"max", number(knob.max)},
                     {"default", number(knob.preset)}});
  }
  return knobs;
}

json Sparse(const engine::SparseRequest& defaults, const ServedModel& model) {
  json algorithms = json::array();
  for (const engine::AlgorithmFacts& algorithm : engine::FactsOf(model.algorithms)) {
    const bool has_partitions = !algorithm.partition.empty();
    algorithms.push_back({{"name", algorithm.name},
                          {"partition", has_partitions ? json(algorithm.partition) : json(nullptr)},
                          {"knobs", Knobs(algorithm.knobs)},
                          {"prefill_sparse", true},
                          {"extra_weights", algorithm.extra_weights},
                          {"exact_kv", true},
                          {"mass_estimate", algorithm.mass_estimate}});
  }
  json methods = json::array();
  for (const engine::PrefillFacts& method : engine::PrefillFactsOf()) {
    methods.push_back(
        {{"name", method.name}, {"partition", "block"}, {"knobs", Knobs(method.knobs)}});
  }
  const bool names_one = !defaults.algorithm.empty() && defaults.algorithm != "auto";
  const bool names_prefill = !defaults.prefill.empty();
  return {
      {"default", names_one ? std::string_view(defaults.algorithm) : std::string_view("dense")},
      {"algorithms", std::move(algorithms)},
      {"prefill",
       {{"default", names_prefill ? std::string_view(defaults.prefill) : std::string_view("dense")},
        {"methods", std::move(methods)}}}};
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
            {"sparse", Sparse(options.SparseOf(id), model)},
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
