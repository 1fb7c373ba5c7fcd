// Gates, rotations and the choice of SeerAttention-R written from their definition in doubles.
// Thread-safety: pure functions.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/codes.h"
#include "sparse/seer_r/seer_gates.h"
#include "tensor/attention_spec.h"

namespace spindle::sparse {

struct GateShape {
  uint32_t num_layers = 1;
  uint32_t num_kv_heads = 1;
  uint32_t group = 1;
  uint32_t head_dim = 64;
  uint32_t width = 64;
  bool qk_norm = false;
  float rope_base = 10000.0F;
};

inline SeerGates EmptyGates(const GateShape& shape) {
  SeerGates gates;
  gates.num_kv_heads = shape.num_kv_heads;
  gates.group = shape.group;
  gates.head_dim = shape.head_dim;
  gates.width = shape.width;
  gates.rope_base = shape.rope_base;
  gates.layers.resize(shape.num_layers);
  const size_t per_input = size_t{shape.num_kv_heads} * shape.head_dim * shape.width;
  for (SeerGates::Layer& layer : gates.layers) {
    layer.q.resize(shape.group * per_input);
    layer.k.resize(3 * per_input);
    layer.q_norm.assign(shape.qk_norm ? shape.width : 0, 1.0F);
    layer.k_norm = layer.q_norm;
  }
  return gates;
}

inline SeerGates RandomGates(const GateShape& shape, std::mt19937& rng) {
  SeerGates gates = EmptyGates(shape);
  std::normal_distribution<float> normal;
  for (SeerGates::Layer& layer : gates.layers) {
    for (std::vector<uint16_t>* weights : {&layer.q, &layer.k}) {
      for (uint16_t& weight : *weights) {
        weight = kernels::FloatToBf16(0.2F * normal(rng));
      }
    }
    for (std::vector<float>* weights : {&layer.q_norm, &layer.k_norm}) {
      for (float& weight : *weights) {
        weight = 1.0F + 0.2F * normal(rng);
      }
    }
  }
  return gates;
}

// Untrained: the mean query of the group against the mean key. Width = head_dim.
inline SeerGates MeanKeyGates(const GateShape& shape) {
  SeerGates gates = EmptyGates(shape);
  const uint32_t d = shape.head_dim;
  const uint16_t one = kernels::FloatToBf16(1.0F);
  const uint16_t share = kernels::FloatToBf16(1.0F / static_cast<float>(shape.group));
  for (SeerGates::Layer& layer : gates.layers) {
    for (uint32_t i = 0; i < shape.num_kv_heads * shape.group * d; ++i) {
      layer.q[size_t{i} * d + i % d] = share;
    }
    for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
      for (uint32_t i = 0; i < d; ++i) {
        layer.k[((size_t{head} * 3 + 2) * d + i) * d + i] = one;
      }
    }
  }
  return gates;
}

// The plain rotation, or one of the YaRN kind.
inline tensor::RopeTable MakeRope(uint32_t max_positions, uint32_t dim, float factor = 1.0F) {
  tensor::RopeTable rope;
  rope.max_positions = max_positions;
  rope.rope_dim = dim;
  rope.attention_factor = factor;
  for (uint32_t position = 0; position < max_positions; ++position) {
    for (uint32_t i = 0; i < dim / 2; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * i / dim);
      rope.cos.push_back(static_cast<float>(std::cos(angle) * double{factor}));
      rope.sin.push_back(static_cast<float>(std::sin(angle) * double{factor}));
    }
  }
  return rope;
}

using Doubles = std::vector<double>;

// Turns pairs of a head by `sign` · the table's angles, and divides by the factor squared where the
// rotation is undone.
inline Doubles Turn(const Doubles& head,
                    const tensor::AttentionSpec& spec,
                    uint32_t position,
                    double sign) {
  const tensor::RopeTable& rope = *spec.rope;
  const double factor = double{rope.attention_factor};
  const double share = sign < 0 ? 1 / (factor * factor) : 1;
  Doubles out = head;
  for (uint32_t i = 0; i < rope.rope_dim / 2; ++i) {
    const bool is_split = spec.pairing == kernels::RopePairing::kHalfSplit;
    const uint32_t a = is_split ? i : 2 * i;
    const uint32_t b = is_split ? i + rope.rope_dim / 2 : 2 * i + 1;
    const size_t at = size_t{position} * (rope.rope_dim / 2) + i;
    const double cosine = double{rope.cos[at]} * share;
    const double sine = sign * double{rope.sin[at]} * share;
    out[a] = head[a] * cosine - head[b] * sine;
    out[b] = head[a] * sine + head[b] * cosine;
  }
  return out;
}

// Norm and rotation of a gate vector.
inline Doubles FinishGateVector(Doubles vector,
                                const std::vector<float>& norm,
                                float base,
                                uint32_t position) {
  const auto width = static_cast<uint32_t>(vector.size());
  if (!norm.empty()) {
    double squares = 0;
    for (const double x : vector) {
      squares += x * x;
    }
    for (uint32_t i = 0; i < width; ++i) {
      vector[i] *= double{norm[i]} / std::sqrt(squares / width + 1e-6);
    }
  }
  Doubles out = vector;
  for (uint32_t i = 0; base > 0 && i < width / 2; ++i) {
    const double angle = position * std::pow(double{base}, -2.0 * i / width);
    const double x = vector[i];
    const double y = vector[i + width / 2];
    out[i] = x * std::cos(angle) - y * std::sin(angle);
    out[i + width / 2] = x * std::sin(angle) + y * std::cos(angle);
  }
  return out;
}

// Σ_i x[i] · weights[i][·].
inline void AddProduct(const Doubles& x, const uint16_t* weights, Doubles* out) {
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < out->size(); ++j) {
      (*out)[j] += x[i] * double{kernels::Bf16ToFloat(weights[i * out->size() + j])};
    }
  }
}

// The gate query of a group's rotated heads.
inline Doubles NaiveGateQuery(const SeerGates& gates,
                              const tensor::AttentionSpec& spec,
                              uint32_t layer,
                              uint32_t head,
                              const std::vector<float>& q,
                              uint32_t position) {
  Doubles out(gates.width, 0.0);
  const uint32_t d = gates.head_dim;
  for (uint32_t g = 0; g < gates.group; ++g) {
    const Doubles rotated(q.begin() + g * d, q.begin() + (g + 1) * d);
    AddProduct(Turn(rotated, spec, position, -1),
               gates.QueryWeights(layer, head) + size_t{g} * d * gates.width,
               &out);
  }
  return FinishGateVector(out, gates.layers[layer].q_norm, gates.rope_base, position);
}

// The gate key of a block; `keys`: its 64 stored keys.
inline Doubles NaiveGateKey(const SeerGates& gates,
                            const tensor::AttentionSpec& spec,
                            uint32_t layer,
                            uint32_t head,
                            const std::vector<Doubles>& keys,
                            uint32_t first_position) {
  const uint32_t d = gates.head_dim;
  Doubles pooled(3 * size_t{d});
  for (uint32_t i = 0; i < d; ++i) {
    pooled[i] = -1e300;
    pooled[d + i] = 1e300;
  }
  for (uint32_t lane = 0; lane < keys.size(); ++lane) {
    const Doubles key = Turn(keys[lane], spec, first_position + lane, -1);
    for (uint32_t i = 0; i < d; ++i) {
      pooled[i] = std::max(pooled[i], key[i]);
      pooled[d + i] = std::min(pooled[d + i], key[i]);
      pooled[2 * size_t{d} + i] += key[i] / static_cast<double>(keys.size());
    }
  }
  Doubles out(gates.width, 0.0);
  AddProduct(pooled, gates.KeyWeights(layer, head), &out);
  out = FinishGateVector(out, gates.layers[layer].k_norm, gates.rope_base, first_position);
  for (double& x : out) {
    x = double{kernels::Bf16ToFloat(kernels::FloatToBf16(static_cast<float>(x)))};
  }
  return out;
}

}  // namespace spindle::sparse
