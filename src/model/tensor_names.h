// Names of a model's tensors in the two file formats.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "formats/model_file.h"

namespace spindle::model {

// What a tensor is for; those after kHead exist once per layer.
enum class Role : uint8_t {
  kEmbedding,
  kFinalNorm,
  kHead,
  kAttentionNorm,
  kQ,
  kK,
  kV,
  kAttentionOutput,
  kQBias,
  kKBias,
  kVBias,
  kQNorm,
  kKNorm,
  kFfnNorm,
  kGate,
  kUp,
  kDown,
};

// `layer` is ignored for the roles that exist once.
[[nodiscard]] std::string TensorName(formats::FileKind kind, Role role, uint32_t layer);

// Tensors that carry no weights of the forward pass and may be left unread: precomputed rotation
// frequencies.
[[nodiscard]] bool IsIgnorable(formats::FileKind kind, std::string_view name);

// For messages: [2, 3].
[[nodiscard]] std::string ShapeText(std::span<const uint64_t> shape);

}  // namespace spindle::model
