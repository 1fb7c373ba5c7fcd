// Options of model loading.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/api/gemm.h"

namespace spindle::model {

// Overrides of the file's RoPE parameters, with llama.cpp's names and meaning; unset = from the
// model.
struct RopeOverrides {
  std::optional<std::string> scaling;     // "none", "linear", "yarn"; --rope-scaling
  std::optional<float> scale;             // context multiplication factor > 0; --rope-scale
  std::optional<float> freq_base;         // > 0; --rope-freq-base
  std::optional<float> freq_scale;        // > 0, 1 / scale; --rope-freq-scale
  std::optional<uint32_t> yarn_orig_ctx;  // > 0; --yarn-orig-ctx
};

struct ModelOptions {
  kernels::ComputeMode mode = kernels::ComputeMode::kDefault;  // --dtype auto | f32
  RopeOverrides rope;
  std::optional<uint32_t>
      max_model_len;  // --max-model-len; unset = trained length (times the RoPE factor)
};

}  // namespace spindle::model
