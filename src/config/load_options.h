// What it takes to bring a model up: shared by `serve` and `chat`.
// Thread-safety: plain value.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "config/option_table.h"
#include "engine/engine_options.h"
#include "kv/kv_options.h"
#include "model/model_options.h"

namespace spindle::config {

enum class KvType : uint8_t { kAuto, kBf16, kF32 };

struct LoadOptions {
  std::string model_path;      // --model or positional
  std::string tokenizer_path;  // empty = from the model
  std::string chat_template;   // file or text; empty = from the model
  model::ModelOptions model;
  engine::EngineOptions engine;
  kv::KvOptions kv;                // host_bytes 0 = chosen from the machine
  KvType kv_type = KvType::kAuto;  // auto: bf16, or f32 with --dtype f32
  uint32_t threads = 0;            // 0 = usable CPUs
  bool pin_threads = false;
  std::string isa = "auto";  // kernel table
};

// Adds the flags of the structure, with llama.cpp's and vLLM's spellings, to a table. Fields are
// borrowed.
void AddLoadOptions(OptionTable& table, LoadOptions& options);

// The element type the KV store uses.
[[nodiscard]] DType ResolveKvType(const LoadOptions& options);

}  // namespace spindle::config
