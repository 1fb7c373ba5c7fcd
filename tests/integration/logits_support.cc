#include "integration/logits_support.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>

#include <gtest/gtest.h>

#include "base/status_macros.h"
#include "kernels/registry.h"
#include "support/allocation_counter.h"

namespace spindle::test {
namespace {

constexpr uint64_t kKvBytes = uint64_t{1} << 30;  // committed lazily
constexpr double kDecidedMargin = 0.05;

float HalfToFloat(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>((half & 0x8000) != 0 ? -magnitude : magnitude);
}

// Takes values off the front of a byte string.
class Reader {
 public:
  explicit Reader(std::span<const char> bytes) : bytes_(bytes) {}

  template <typename T>
  bool Take(size_t count, std::vector<T>* to) {
    if (bytes_.size() / sizeof(T) < count) {
      return false;
    }
    to->resize(count);
    std::memcpy(to->data(), bytes_.data(), count * sizeof(T));
    bytes_ = bytes_.subspan(count * sizeof(T));
    return true;
  }

  bool TakeHalves(size_t count, std::vector<float>* to) {
    std::vector<uint16_t> halves;
    if (!Take(count, &halves)) {
      return false;
    }
    std::transform(halves.begin(), halves.end(), std::back_inserter(*to), HalfToFloat);
    return true;
  }

  [[nodiscard]] bool empty() const { return bytes_.empty(); }

 private:
  std::span<const char> bytes_;
};

void PrintAgreement(const std::string& what, const Agreement& agreement) {
  std::cout << what << ": relative error " << agreement.relative_error << ", rms difference "
            << agreement.rms_difference << ", same arg-max " << agreement.decided_same << "/"
            << agreement.decided << " of " << agreement.positions
            << " positions, largest lost margin " << agreement.largest_lost_margin
            << ", largest lse difference " << agreement.largest_lse_difference << '\n';
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRig>> ModelRig::Create(const RigOptions& options) {
  auto rig = std::unique_ptr<ModelRig>(new ModelRig);
  const kernels::KernelTable* table = kernels::FindKernelsByName(options.kernels);
  if (table == nullptr) {
    return absl::NotFoundError("no kernels named " + options.kernels);
  }
  SPINDLE_ASSIGN_OR_RETURN(
      rig->pool_,
      platform::ComputePool::Create({.num_threads = options.num_threads, .pin = false}));
  SPINDLE_ASSIGN_OR_RETURN(rig->file_, formats::ModelFile::Open(options.path));
  SPINDLE_ASSIGN_OR_RETURN(
      rig->model_,
      model::Model::Load(rig->file_, options.model, *rig->pool_, *table, /*progress=*/nullptr));
  SPINDLE_RETURN_IF_ERROR(
      rig->model_->ReserveActivations(options.max_rows, options.max_logit_rows));
  const model::ModelConfig& config = rig->model_->config();
  kv::KvGeometry geometry;
  geometry.num_layers = config.num_layers;
  geometry.num_kv_heads = config.num_kv_heads;
  geometry.head_dim = config.head_dim;
  geometry.type = options.kv_type;
  SPINDLE_ASSIGN_OR_RETURN(
      rig->store_, kv::KvStore::Create({.host_bytes = kKvBytes, .prefix_cache = false}, geometry));
  rig->runtime_ = std::make_unique<sparse::AttentionRuntime>(*rig->store_, *rig->pool_, *table);
  return rig;
}

absl::Status ModelRig::Run(std::span<const std::vector<TokenId>> prompts,
                           uint32_t chunk,
                           const LogitSink& sink) {
  std::vector<SequenceId> ids;
  std::vector<uint32_t> done(prompts.size(), 0);
  for (size_t i = 0; i < prompts.size(); ++i) {
    ids.push_back(store_->Open(BudgetGroupId(i), {}, 0));
  }
  for (;;) {
    std::vector<TokenId> tokens;
    std::vector<sparse::SequenceRows> rows;
    std::vector<size_t> owners;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto left = static_cast<uint32_t>(prompts[i].size()) - done[i];
      const uint32_t count = std::min(left, chunk);
      if (count == 0) {
        continue;
      }
      SPINDLE_RETURN_IF_ERROR(store_->Extend(ids[i], done[i] + count));
      rows.push_back({ids[i], static_cast<uint32_t>(tokens.size()), count, done[i]});
      owners.push_back(i);
      tokens.insert(
          tokens.end(), prompts[i].begin() + done[i], prompts[i].begin() + done[i] + count);
    }
    if (tokens.empty()) {
      break;
    }
    std::vector<uint32_t> all(tokens.size());
    for (uint32_t i = 0; i < all.size(); ++i) {
      all[i] = i;
    }
    SPINDLE_ASSIGN_OR_RETURN(const std::span<const float> logits,
                             model_->Forward({tokens, rows, all}, *runtime_));
    const size_t vocab = model_->config().vocab_size;
    for (size_t s = 0; s < rows.size(); ++s) {
      for (uint32_t r = 0; r < rows[s].num_rows; ++r) {
        sink(owners[s],
             rows[s].first_position + r,
             logits.subspan((rows[s].row_begin + r) * vocab, vocab));
      }
      done[owners[s]] += rows[s].num_rows;
      store_->Commit(rows[s].sequence, done[owners[s]]);
    }
  }
  for (const SequenceId id : ids) {
    store_->Close(id);
  }
  return store_->CheckIntegrity();
}

std::vector<float> ModelRig::LogitsOf(const std::vector<TokenId>& prompt, uint32_t chunk) {
  std::vector<float> all;
  const absl::Status status =
      Run({&prompt, 1}, chunk, [&all](size_t, uint32_t, std::span<const float> row) {
        all.insert(all.end(), row.begin(), row.end());
      });
  return status.ok() ? all : std::vector<float>();
}

std::vector<float> ModelRig::LogitsOfRows(const std::vector<TokenId>& prompt,
                                          std::span<const uint32_t> rows) {
  const SequenceId sequence = store_->Open(BudgetGroupId(0), {}, 0);
  const auto length = static_cast<uint32_t>(prompt.size());
  const std::vector<sparse::SequenceRows> all = {{sequence, 0, length, 0}};
  std::vector<float> result;
  if (store_->Extend(sequence, length).ok()) {
    const auto logits = model_->Forward({prompt, all, rows}, *runtime_);
    if (logits.ok()) {
      result.assign(logits->begin(), logits->end());
    }
  }
  store_->Close(sequence);
  return result;
}

uint64_t ModelRig::AllocationsOfAStep(const std::vector<TokenId>& prompt) {
  const SequenceId sequence = store_->Open(BudgetGroupId(0), {}, 0);
  const auto length = static_cast<uint32_t>(prompt.size());
  const std::vector<sparse::SequenceRows> all = {{sequence, 0, length, 0}};
  const std::vector<uint32_t> last = {length - 1};
  SPINDLE_CHECK(store_->Extend(sequence, length).ok());
  const uint64_t before = AllocationCount();
  const bool ok = model_->Forward({prompt, all, last}, *runtime_).ok();
  const uint64_t after = AllocationCount();
  SPINDLE_CHECK(ok);
  store_->Close(sequence);
  return after - before;
}

absl::StatusOr<std::vector<GoldenPrompt>> ReadGolden(const std::string& name) {
  const std::string path = SPINDLE_TEST_GOLDEN_DIR "/logits/" + name;
  std::ifstream stream(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(stream),
                                std::istreambuf_iterator<char>()};
  Reader reader(bytes);
  const auto damaged = [&path] { return absl::DataLossError(path + " is missing or damaged"); };
  std::vector<char> text;
  std::vector<uint32_t> size;
  if (!reader.Take(8, &text) || std::string(text.data(), text.size()) != "SPGOLD01" ||
      !reader.Take(1, &size) || !reader.Take(size[0], &text) || !reader.Take(1, &size)) {
    return damaged();
  }
  std::vector<GoldenPrompt> prompts(size[0]);
  for (GoldenPrompt& prompt : prompts) {
    if (!reader.Take(1, &size) || !reader.Take(size[0], &prompt.tokens) ||
        !reader.Take(size[0] * GoldenPrompt::kTop, &prompt.ids) ||
        !reader.TakeHalves(size[0] * GoldenPrompt::kTop, &prompt.logits) ||
        !reader.TakeHalves(size[0], &prompt.log_sum_exp)) {
      return damaged();
    }
  }
  return reader.empty() ? absl::StatusOr<std::vector<GoldenPrompt>>(std::move(prompts)) : damaged();
}

absl::StatusOr<Agreement> Compare(ModelRig& rig,
                                  std::span<const GoldenPrompt> golden,
                                  uint32_t chunk) {
  Agreement result;
  double sum_difference = 0;
  double sum_reference = 0;
  for (const GoldenPrompt& prompt : golden) {
    const auto check = [&](size_t, uint32_t position, std::span<const float> row) {
      const int32_t* ids = &prompt.ids[position * GoldenPrompt::kTop];
      const float* expected = &prompt.logits[position * GoldenPrompt::kTop];
      for (size_t i = 0; i < GoldenPrompt::kTop; ++i) {
        const double difference = row[static_cast<size_t>(ids[i])] - expected[i];
        sum_difference += difference * difference;
        sum_reference += static_cast<double>(expected[i]) * expected[i];
      }
      const auto peak = std::max_element(row.begin(), row.end());
      double sum_exp = 0;
      for (const float value : row) {
        sum_exp += std::exp(static_cast<double>(value) - *peak);
      }
      const double lse_difference =
          std::abs(*peak + std::log(sum_exp) - prompt.log_sum_exp[position]);
      result.largest_lse_difference = std::max(result.largest_lse_difference, lse_difference);
      const double margin = expected[0] - expected[1];
      const bool same = peak - row.begin() == ids[0];
      ++result.positions;
      result.decided += margin > kDecidedMargin ? 1 : 0;
      result.decided_same += margin > kDecidedMargin && same ? 1 : 0;
      if (!same) {
        result.largest_lost_margin = std::max(result.largest_lost_margin, margin);
      }
    };
    SPINDLE_RETURN_IF_ERROR(rig.Run({&prompt.tokens, 1}, chunk, check));
  }
  const auto entries = static_cast<double>(result.positions * GoldenPrompt::kTop);
  result.relative_error = std::sqrt(sum_difference / sum_reference);
  result.rms_difference = std::sqrt(sum_difference / entries);
  return result;
}

void ExpectExact(const RigOptions& base, const std::string& golden_name) {
  RigOptions options = base;
  options.model.mode = kernels::ComputeMode::kExact;
  options.kv_type = DType::kF32;
  const auto golden = ReadGolden(golden_name);
  ASSERT_TRUE(golden.ok()) << golden.status();
  auto rig = ModelRig::Create(options);
  ASSERT_TRUE(rig.ok()) << rig.status();
  const auto agreement = Compare(**rig, *golden, options.max_rows);
  ASSERT_TRUE(agreement.ok()) << agreement.status();
  PrintAgreement(golden_name + " exact", *agreement);
  EXPECT_EQ(agreement->decided_same, agreement->decided);
  EXPECT_LE(agreement->relative_error, 2e-3);
}

void ExpectClose(const RigOptions& options, const std::string& golden_name, double decided_share) {
  const auto golden = ReadGolden(golden_name);
  ASSERT_TRUE(golden.ok()) << golden.status();
  auto rig = ModelRig::Create(options);
  ASSERT_TRUE(rig.ok()) << rig.status();
  const auto agreement = Compare(**rig, *golden, options.max_rows);
  ASSERT_TRUE(agreement.ok()) << agreement.status();
  PrintAgreement(golden_name + " default", *agreement);
  EXPECT_GE(static_cast<double>(agreement->decided_same),
            decided_share * static_cast<double>(agreement->decided));
  EXPECT_LE(agreement->largest_lost_margin, 4 * agreement->rms_difference);
  EXPECT_LE(agreement->relative_error, 2e-2);
}

}  // namespace spindle::test
