// Shape and constants of a model, from GGUF metadata or config.json.
// Thread-safety: plain value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "kernels/api/rope_append.h"

namespace spindle::model {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  float base = 10000.0F;
  uint32_t dim = 0;  // rotated elements of a head
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0F;
  uint32_t original_context = 0;  // kLlama3, kYarn
  float low_freq_factor = 1.0F;   // kLlama3
  float high_freq_factor = 4.0F;
  float beta_fast = 32.0F;  // kYarn
  float beta_slow = 1.0F;
  float attention_factor = 0.0F;  // kYarn; 0 = 0.1 ln(factor) + 1
  kernels::RopePairing pairing = kernels::RopePairing::kHalfSplit;
  std::vector<float>
      frequency_factors;  // [dim / 2] divisors stored in a GGUF (rope_freqs.weight), or empty
};

struct ModelConfig {
  std::string architecture;  // "llama", "mistral", "qwen2", "qwen3"
  std::string name;
  std::string quantization;  // most common weight type, for display
  uint32_t num_layers = 0;
  uint32_t hidden_size = 0;
  uint32_t ffn_size = 0;
  uint32_t num_q_heads = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t vocab_size = 0;
  uint32_t trained_context = 0;
  uint32_t max_model_len = 0;  // in force
  float norm_eps = 1e-5F;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  std::vector<uint32_t> layer_window;  // [num_layers], 0 = full attention
  RopeConfig rope;
};

}  // namespace spindle::model
