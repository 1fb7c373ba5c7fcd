#include "model/tensor_names.h"

#include "base/status_macros.h"

namespace spindle::model {
namespace {

struct Names {
  Role role;
  std::string_view gguf;
  std::string_view hugging_face;
};

constexpr Names kNames[] = {
    {Role::kEmbedding, "token_embd.weight", "model.embed_tokens.weight"},
    {Role::kFinalNorm, "output_norm.weight", "model.norm.weight"},
    {Role::kHead, "output.weight", "lm_head.weight"},
    {Role::kAttentionNorm, "attn_norm.weight", "input_layernorm.weight"},
    {Role::kQ, "attn_q.weight", "self_attn.q_proj.weight"},
    {Role::kK, "attn_k.weight", "self_attn.k_proj.weight"},
    {Role::kV, "attn_v.weight", "self_attn.v_proj.weight"},
    {Role::kAttentionOutput, "attn_output.weight", "self_attn.o_proj.weight"},
    {Role::kQBias, "attn_q.bias", "self_attn.q_proj.bias"},
    {Role::kKBias, "attn_k.bias", "self_attn.k_proj.bias"},
    {Role::kVBias, "attn_v.bias", "self_attn.v_proj.bias"},
    {Role::kQNorm, "attn_q_norm.weight", "self_attn.q_norm.weight"},
    {Role::kKNorm, "attn_k_norm.weight", "self_attn.k_norm.weight"},
    {Role::kFfnNorm, "ffn_norm.weight", "post_attention_layernorm.weight"},
    {Role::kGate, "ffn_gate.weight", "mlp.gate_proj.weight"},
    {Role::kUp, "ffn_up.weight", "mlp.up_proj.weight"},
    {Role::kDown, "ffn_down.weight", "mlp.down_proj.weight"},
};

}  // namespace

std::string TensorName(formats::FileKind kind, Role role, uint32_t layer) {
  const bool gguf = kind == formats::FileKind::kGguf;
  for (const Names& names : kNames) {
    if (names.role == role) {
      const std::string name(gguf ? names.gguf : names.hugging_face);
      if (role <= Role::kHead) {
        return name;
      }
      return (gguf ? "blk." : "model.layers.") + std::to_string(layer) + "." + name;
    }
  }
  SPINDLE_CHECK(false);
}

bool IsIgnorable(formats::FileKind kind, std::string_view name) {
  return kind == formats::FileKind::kGguf ? name == "rope_freqs.weight"
                                          : name.ends_with(".rotary_emb.inv_freq");
}

std::string ShapeText(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (const uint64_t dimension : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(dimension);
  }
  return text + "]";
}

}  // namespace spindle::model
