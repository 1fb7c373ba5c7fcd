// What one step computes: rows of tokens, which sequences they belong to, whose logits are wanted.
// Thread-safety: engine-thread only. Buffers are sized once and reused. Borrows the choices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "engine/request.h"
#include "model/model.h"

namespace spindle::engine {

struct BatchEntry {
  Choice* choice;
  uint32_t num_rows;
  // Rows of logits [first_logit, first_logit + num_logits): those of prompt positions in order,
  // then, when `completes`, the row that the next token is sampled from.
  uint32_t first_logit;
  uint32_t num_logits;
  bool completes;  // all known tokens of the choice have KV after this step
};

class StepBatch {
 public:
  void Reserve(uint32_t max_rows, uint32_t max_logit_rows, uint32_t max_sequences) {
    tokens_.reserve(max_rows);
    logit_rows_.reserve(max_logit_rows);
    sequences_.reserve(max_sequences);
    entries_.reserve(max_sequences);
  }

  void Clear() {
    tokens_.clear();
    logit_rows_.clear();
    sequences_.clear();
    entries_.clear();
    num_prefill_rows_ = 0;
  }

  // Adds the next `num_rows` rows of a choice. `first_prompt_logit`: prompt rows from this position
  // on want logits; the prompt's length for none.
  void Add(Choice& choice, uint32_t num_rows, uint32_t first_prompt_logit);

  [[nodiscard]] bool empty() const { return entries_.empty(); }

  [[nodiscard]] std::span<const BatchEntry> entries() const { return entries_; }

  [[nodiscard]] uint32_t num_rows() const { return static_cast<uint32_t>(tokens_.size()); }

  [[nodiscard]] uint32_t num_prefill_rows() const { return num_prefill_rows_; }

  [[nodiscard]] model::StepInput Input() const { return {tokens_, sequences_, logit_rows_}; }

 private:
  std::vector<TokenId> tokens_;
  std::vector<uint32_t> logit_rows_;
  std::vector<sparse::SequenceRows> sequences_;
  std::vector<BatchEntry> entries_;
  uint32_t num_prefill_rows_ = 0;
};

}  // namespace spindle::engine
