// What it takes to bring a model up: shared by `serve`, `chat` and, in part, `eval`.
// Thread-safety: plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "config/option_table.h"
#include "engine/engine_options.h"
#include "engine/sparse_request.h"
#include "kv/kv_options.h"
#include "model/model_options.h"
#include "sparse/index_type.h"

namespace spindle::config {

// The disk tier's share of a file system that nobody gave a size.
inline constexpr uint64_t kMaxDefaultDiskBytes = uint64_t{32} << 30;

enum class KvType : uint8_t { kAuto, kBf16, kF32 };

// Decoding over drawn pages instead of all: to measure the tiers before algorithms choose.
struct SyntheticSelection {
  std::string profile;  // empty: none
  uint32_t pages = 32;  // per step, layer and KV head
};

struct LoadOptions {
  std::string model_path;      // --model or positional
  std::string tokenizer_path;  // empty = from the model
  std::string chat_template;   // file or text; empty = from the model
  model::ModelOptions model;
  engine::EngineOptions engine;
  std::optional<uint32_t> max_queue_size;    // unset = max(16, 4 × max_num_seqs)
  std::optional<uint32_t> max_queue_tokens;  // unset = 8 × max_model_len
  kv::KvOptions kv;                          // host_bytes 0 = chosen from the machine
  SyntheticSelection selection;
  engine::SparseRequest sparse;  // of requests that say nothing else; see SparseDefaults
  std::string sparse_preset_path;
  engine::SparseRequest sparse_preset;                // what that file says
  std::vector<engine::SparseRequest> served_presets;  // of served names; must fit the model too
  std::string sparse_gates;  // weights of seer_r; empty = beside the model, if they are there
  sparse::IndexType sparse_index_type = sparse::IndexType::kBf16;  // not of seer_r
  KvType kv_type = KvType::kAuto;  // auto: bf16, or f32 with --dtype f32
  uint32_t threads = 0;            // 0 = usable CPUs
  bool pin_threads = false;
  std::string isa = "auto";  // kernel table
};

// Which model, its tokenizer, arithmetic and context; what it is computed on; what attention
// algorithms are made with. All are part of AddLoadOptions. Fields are borrowed.
void AddModelOptions(OptionTable& table, LoadOptions& options);
void AddComputeOptions(OptionTable& table, LoadOptions& options);
void AddAlgorithmOptions(OptionTable& table, LoadOptions& options);

// Defaults of a request's `spindle.sparse`, with AddAlgorithmOptions; part of AddLoadOptions, too.
void AddSparseOptions(OptionTable& table, LoadOptions& options);

// Adds the flags of the structure, with llama.cpp's and vLLM's spellings, to a table. Fields are
// borrowed.
void AddLoadOptions(OptionTable& table, LoadOptions& options);

// Whether the options may stand beside each other. ERRORS: kInvalidArgument naming the options.
[[nodiscard]] absl::Status CheckLoadOptions(const LoadOptions& options);

// Of requests that say nothing else: the options, and where they say nothing the preset.
[[nodiscard]] engine::SparseRequest SparseDefaults(const LoadOptions& options);

// --max-queue-size or its default.
[[nodiscard]] uint32_t ResolveMaxQueueSize(const LoadOptions& options);

// Engine options with what depends on other options or on the model filled in.
[[nodiscard]] engine::EngineOptions ResolveEngineOptions(const LoadOptions& options,
                                                         uint32_t max_model_len);

// The element type the KV store uses.
[[nodiscard]] DType ResolveKvType(const LoadOptions& options);

}  // namespace spindle::config
