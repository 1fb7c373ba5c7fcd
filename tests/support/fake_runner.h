// A forward pass that is a pure function of the token history, kept in the KV store itself: each
// row writes its token into the stripes and every step reads the whole history back from them. So a
// wrong stripe, a lost row or a mixed-up sequence changes the output.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/prefix_key.h"
#include "base/status_macros.h"
#include "engine/step_runner.h"
#include "kv/kv_store.h"

namespace spindle::testing {

inline constexpr TokenId kFakeEndToken = 0;
inline constexpr uint32_t kFakeVocab = 97;

inline uint64_t MixBits(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// The "model": logits after a history, through a hash of all its tokens.
class FakeModel {
 public:
  static uint64_t Append(uint64_t hash, TokenId token) {
    return MixBits(hash ^ static_cast<uint64_t>(token));
  }

  static uint64_t Hash(std::span<const TokenId> history) {
    uint64_t hash = 0;
    for (const TokenId token : history) {
      hash = Append(hash, token);
    }
    return hash;
  }

  // About one history in 32 favours the end token.
  static void Logits(uint64_t hash, std::span<float> out) {
    for (size_t token = 0; token < out.size(); ++token) {
      const uint64_t bits = MixBits(hash + token * 7919);
      out[token] = static_cast<float>(bits % 6001) / 1000.0F - 3.0F;
    }
    out[kFakeEndToken] = hash % 32 == 0 ? 4.0F : -6.0F;
  }
};

// 2 layers × 2 heads × 16 elements: 16 KiB per stripe.
inline kv::KvGeometry FakeGeometry() {
  kv::KvGeometry geometry;
  geometry.num_layers = 2;
  geometry.num_kv_heads = 2;
  geometry.head_dim = 16;
  return geometry;
}

inline std::unique_ptr<kv::KvStore> MakeFakeStore(uint64_t num_stripes, bool prefix_cache = true) {
  kv::KvOptions options;
  options.host_bytes = num_stripes * FakeGeometry().stripe_bytes();
  options.prefix_cache = prefix_cache;
  auto store = kv::KvStore::Create(options, FakeGeometry());
  SPINDLE_CHECK(store.ok());
  return std::move(store).value();
}

class FakeRunner final : public engine::StepRunner {
 public:
  struct Options {
    uint32_t max_model_len = 4096;
    VirtualClock* clock = nullptr;  // advanced by every step when set
    Duration time_per_step = std::chrono::milliseconds(2);
    Duration time_per_row = std::chrono::microseconds(100);
  };

  FakeRunner(kv::KvStore& store, const Options& options) : store_(store), options_(options) {
    config_.architecture = "fake";
    config_.name = "fake";
    config_.vocab_size = kFakeVocab;
    config_.max_model_len = options.max_model_len;
    config_.num_layers = FakeGeometry().num_layers;
    config_.num_kv_heads = FakeGeometry().num_kv_heads;
    config_.head_dim = FakeGeometry().head_dim;
  }

  [[nodiscard]] const model::ModelConfig& config() const override { return config_; }

  [[nodiscard]] const Digest& fingerprint() const override { return fingerprint_; }

  [[nodiscard]] absl::Status Reserve(uint32_t max_rows, uint32_t max_logit_rows) override {
    max_rows_ = max_rows;
    logits_.resize(size_t{max_logit_rows} * kFakeVocab);
    return absl::OkStatus();
  }

  [[nodiscard]] absl::StatusOr<std::span<const float>> Forward(
      const model::StepInput& input) override {
    ++num_steps;
    num_rows += input.tokens.size();
    if (options_.clock != nullptr) {
      options_.clock->Advance(options_.time_per_step +
                              options_.time_per_row * static_cast<int64_t>(input.tokens.size()));
    }
    if (before_forward) {
      before_forward(input);
    }
    if (fail_next.has_value()) {
      return *std::exchange(fail_next, std::nullopt);
    }
    SPINDLE_CHECK(input.tokens.size() <= max_rows_);
    SPINDLE_CHECK(input.logit_rows.size() * kFakeVocab <= logits_.size());
    size_t next_logit = 0;
    for (const sparse::SequenceRows& rows : input.sequences) {
      RunSequence(input, rows, &next_logit);
    }
    SPINDLE_CHECK(next_logit == input.logit_rows.size());
    return std::span<const float>(logits_).first(next_logit * kFakeVocab);
  }

  uint64_t num_steps = 0;
  uint64_t num_rows = 0;
  std::optional<absl::Status> fail_next;
  std::function<void(const model::StepInput&)> before_forward;

 private:
  void RunSequence(const model::StepInput& input,
                   const sparse::SequenceRows& rows,
                   size_t* next_logit) {
    const kv::SequenceView view = store_.View(rows.sequence);
    SPINDLE_CHECK(view.num_tokens == rows.first_position);
    SPINDLE_CHECK(rows.first_position + rows.num_rows <= view.stripes.size() * kStripeTokens);
    uint64_t hash = 0;
    for (uint32_t position = 0; position < rows.first_position; ++position) {
      hash = FakeModel::Append(hash, Load(view, position));
    }
    for (uint32_t i = 0; i < rows.num_rows; ++i) {
      const uint32_t row = rows.row_begin + i;
      Store(view, rows.first_position + i, input.tokens[row]);
      hash = FakeModel::Append(hash, input.tokens[row]);
      if (*next_logit < input.logit_rows.size() && input.logit_rows[*next_logit] == row) {
        FakeModel::Logits(hash, std::span(logits_).subspan(*next_logit * kFakeVocab, kFakeVocab));
        ++*next_logit;
      }
    }
  }

  // First K row of the first layer and last V row of the last layer must agree.
  [[nodiscard]] std::pair<uint8_t*, uint8_t*> Places(const kv::SequenceView& view,
                                                     uint32_t position) const {
    const kv::KvGeometry& geometry = store_.geometry();
    const auto lane = static_cast<uint32_t>(position % kStripeTokens);
    uint8_t* stripe = view.stripes[position / kStripeTokens];
    const size_t last = geometry.row_offset(geometry.num_layers - 1, lane) + geometry.v_offset() +
                        (geometry.num_kv_heads - 1) * geometry.head_bytes();
    return {stripe + geometry.row_offset(0, lane), stripe + last};
  }

  [[nodiscard]] TokenId Load(const kv::SequenceView& view, uint32_t position) const {
    const auto [first, last] = Places(view, position);
    TokenId a = 0;
    TokenId b = 0;
    std::memcpy(&a, first, sizeof(a));
    std::memcpy(&b, last, sizeof(b));
    SPINDLE_CHECK(a == b);
    return a;
  }

  void Store(const kv::SequenceView& view, uint32_t position, TokenId token) const {
    const auto [first, last] = Places(view, position);
    std::memcpy(first, &token, sizeof(token));
    std::memcpy(last, &token, sizeof(token));
  }

  kv::KvStore& store_;
  const Options options_;
  model::ModelConfig config_;
  Digest fingerprint_{};
  uint32_t max_rows_ = 0;
  std::vector<float> logits_;
};

}  // namespace spindle::testing
