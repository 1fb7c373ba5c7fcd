#include "eval/eval_model.h"

#include <algorithm>
#include <utility>

#include "base/prefix_key.h"
#include "base/status_macros.h"

namespace spindle::eval {

absl::StatusOr<std::unique_ptr<EvalModel>> EvalModel::Load(
    std::shared_ptr<const formats::ModelFile> file,
    const EvalModelOptions& options,
    const kernels::KernelTable& kernels,
    const model::LoadProgress& progress) {
  auto eval = std::unique_ptr<EvalModel>(new EvalModel);
  SPINDLE_ASSIGN_OR_RETURN(
      eval->pool_,
      platform::ComputePool::Create({.num_threads = options.threads, .pin = options.pin_threads}));
  SPINDLE_ASSIGN_OR_RETURN(
      eval->model_,
      model::Model::Load(std::move(file), options.model, *eval->pool_, kernels, progress));
  SPINDLE_RETURN_IF_ERROR(eval->model_->ReserveActivations(
      std::max(kChunkRows, options.max_sequences), options.max_sequences));
  const model::ModelConfig& config = eval->model_->config();
  SPINDLE_ASSIGN_OR_RETURN(
      eval->store_,
      kv::KvStore::Create({.host_bytes = options.kv_bytes, .prefix_cache = false},
                          {.num_layers = config.num_layers,
                           .num_kv_heads = config.num_kv_heads,
                           .head_dim = config.head_dim,
                           .type = options.kv_type}));
  eval->runtime_ = std::make_unique<sparse::AttentionRuntime>(*eval->store_, *eval->pool_, kernels);
  return eval;
}

EvalModel::~EvalModel() = default;

// Blocks of sparse prefill come whole.
static_assert(EvalModel::kChunkRows % sparse::kPrefillBlockTokens == 0);

absl::StatusOr<SequenceId> EvalModel::Prefill(std::span<const TokenId> tokens,
                                              const sparse::PrefillPolicy* prefill,
                                              sparse::PrefillUse* use) {
  SPINDLE_CHECK(!tokens.empty());
  const SequenceId sequence = store_->Open(BudgetGroupId(++num_opened_), {}, 0);
  books_.push_back({sequence, static_cast<uint32_t>(tokens.size())});
  for (size_t begin = 0; begin < tokens.size(); begin += kChunkRows) {
    const size_t count = std::min<size_t>(kChunkRows, tokens.size() - begin);
    const Continuation chunk{.sequence = sequence,
                             .tokens = tokens.subspan(begin, count),
                             .prefill = prefill,
                             .prefill_use = use};
    if (const auto logits = Append({&chunk, 1}); !logits.ok()) {
      Close(sequence);
      return logits.status();
    }
  }
  // Forks share what is sealed.
  for (uint32_t stripe = 0; (stripe + 1) * kStripeTokens <= tokens.size(); ++stripe) {
    store_->Seal(sequence, stripe, Digest{});
  }
  return sequence;
}

absl::StatusOr<SequenceId> EvalModel::Fork(SequenceId sequence) {
  SPINDLE_ASSIGN_OR_RETURN(const SequenceId fork, store_->Fork(sequence));
  books_.push_back({fork, DecodeBegin(sequence)});
  return fork;
}

void EvalModel::Close(SequenceId sequence) {
  store_->Close(sequence);
  books_.erase(std::find_if(books_.begin(), books_.end(), [sequence](const Book& book) {
    return book.sequence == sequence;
  }));
}

absl::StatusOr<std::span<const float>> EvalModel::Append(
    std::span<const Continuation> continuations) {
  std::vector<TokenId> tokens;
  std::vector<sparse::SequenceRows> rows;
  std::vector<uint32_t> logit_rows;
  for (const Continuation& continuation : continuations) {
    const uint32_t first = NumTokens(continuation.sequence);
    const auto count = static_cast<uint32_t>(continuation.tokens.size());
    SPINDLE_RETURN_IF_ERROR(store_->Extend(continuation.sequence, first + count));
    rows.push_back({.sequence = continuation.sequence,
                    .row_begin = static_cast<uint32_t>(tokens.size()),
                    .num_rows = count,
                    .first_position = first,
                    .policy = continuation.policy,
                    .decode_begin = DecodeBegin(continuation.sequence),
                    .prefill = continuation.prefill,
                    .prefill_use = continuation.prefill_use});
    tokens.insert(tokens.end(), continuation.tokens.begin(), continuation.tokens.end());
    logit_rows.push_back(static_cast<uint32_t>(tokens.size()) - 1);
  }
  SPINDLE_ASSIGN_OR_RETURN(
      const std::span<const float> logits,
      model_->Forward({.tokens = tokens, .sequences = rows, .logit_rows = logit_rows}, *runtime_));
  for (const sparse::SequenceRows& row : rows) {
    store_->Commit(row.sequence, row.first_position + row.num_rows);
  }
  return logits;
}

uint32_t EvalModel::NumTokens(SequenceId sequence) const {
  return store_->View(sequence).num_tokens;
}

uint32_t EvalModel::DecodeBegin(SequenceId sequence) const {
  return std::find_if(books_.begin(),
                      books_.end(),
                      [sequence](const Book& book) { return book.sequence == sequence; })
      ->decode_begin;
}

ContextGroup::~ContextGroup() {
  for (const SequenceId sequence : sequences_) {
    model_.Close(sequence);
  }
}

absl::StatusOr<SequenceId> ContextGroup::Add(std::span<const TokenId> context,
                                             const sparse::PrefillPolicy* prefill,
                                             sparse::PrefillUse* use) {
  SPINDLE_ASSIGN_OR_RETURN(const SequenceId sequence, model_.Prefill(context, prefill, use));
  sequences_.push_back(sequence);
  return sequence;
}

absl::StatusOr<ForkGroup> ForkGroup::Create(EvalModel& model, SequenceId parent, size_t count) {
  return Create(model, std::vector<SequenceId>(count, parent));
}

absl::StatusOr<ForkGroup> ForkGroup::Create(EvalModel& model, std::span<const SequenceId> parents) {
  ForkGroup group(model);
  for (const SequenceId parent : parents) {
    SPINDLE_ASSIGN_OR_RETURN(const SequenceId fork, model.Fork(parent));
    group.forks_.push_back(fork);
  }
  return group;
}

ForkGroup::ForkGroup(ForkGroup&& other) noexcept
    : model_(other.model_), forks_(std::exchange(other.forks_, {})) {}

ForkGroup::~ForkGroup() {
  for (const SequenceId fork : forks_) {
    model_->Close(fork);
  }
}

}  // namespace spindle::eval
