// Methods of sparse prefill against their plain definitions, and their properties.
#include "sparse/prefill_method.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/codes.h"
#include "kernels/registry.h"
#include "platform/memory.h"
#include "sparse/prefill_policy.h"
#include "sparse/prefill_registry.h"
#include "sparse/xattention/xattention_method.h"
#include "support/random_seed.h"

namespace spindle::sparse {
namespace {

constexpr uint32_t kBlockDim = 16;

std::vector<double> PresetsOf(const PrefillMethod& method) {
  std::vector<double> values;
  for (const Knob& knob : method.knobs()) {
    values.push_back(knob.preset);
  }
  return values;
}

std::vector<double> KnobsWith(const PrefillMethod& method,
                              const std::vector<std::pair<std::string, double>>& changes) {
  std::vector<double> values = PresetsOf(method);
  for (const auto& [name, value] : changes) {
    const auto knob = std::ranges::find(method.knobs(), name, &Knob::name);
    values[static_cast<size_t>(knob - method.knobs().begin())] = value;
  }
  return values;
}

// Queries of the last block and keys of all, of one KV head, stored as they are in a store.
class BlockRig {
 public:
  BlockRig(uint32_t num_blocks, uint32_t group, std::mt19937& rng, float spread)
      : num_blocks_(num_blocks),
        group_(group),
        scratch_(platform::AlignedBuffer::Allocate(kernels::kScratchBytes).value()) {
    std::normal_distribution<float> normal;
    stripes_.assign(2 * size_t{num_blocks}, std::vector<uint8_t>(geometry_.stripe_bytes()));
    for (uint32_t position = 0; position < 128 * num_blocks; ++position) {
      for (uint32_t d = 0; d < kBlockDim; ++d) {
        const float value = kernels::Bf16ToFloat(kernels::FloatToBf16(normal(rng)));
        keys_.push_back(value);
        const uint16_t half = kernels::FloatToBf16(value);
        std::memcpy(
            &stripes_[position / 64][geometry_.row_offset(0, position % 64) + 2 * size_t{d}],
            &half,
            2);
      }
    }
    for (uint32_t i = 0; i < 128 * group * kBlockDim; ++i) {
      q_.push_back(kernels::Bf16ToFloat(kernels::FloatToBf16(spread * normal(rng))));
    }
  }

  [[nodiscard]] std::set<uint32_t> Choose(const PrefillMethod& method,
                                          const std::vector<double>& values) const {
    std::vector<uint8_t*> stripes;
    for (const std::vector<uint8_t>& stripe : stripes_) {
      stripes.push_back(const_cast<uint8_t*>(stripe.data()));
    }
    SelectWorkspace workspace(*kernels::BestKernels());
    kernels::Exec exec{scratch_.data(), kernels::kScratchBytes, 0, nullptr};
    workspace.exec = &exec;
    std::vector<uint64_t> chosen(num_blocks_ / 64 + 1);
    EXPECT_EQ(method.Select({.block = num_blocks_ - 1,
                             .knobs = values,
                             .q = q_.data(),
                             .q_stride = size_t{group_} * kBlockDim,
                             .group = group_,
                             .head_dim = kBlockDim,
                             .scale = 0.25F,
                             .softcap = 0,
                             .keys = {&geometry_, stripes, 0}},
                            workspace,
                            chosen),
              kernels::kOk);
    std::set<uint32_t> blocks;
    for (uint32_t block = 0; block < 64 * chosen.size(); ++block) {
      if ((chosen[block / 64] >> (block % 64) & 1) != 0) {
        blocks.insert(block);
      }
    }
    return blocks;
  }

  // Estimated mass of each block for a head, by its definition.
  [[nodiscard]] std::vector<double> NaiveMass(uint32_t head, uint32_t stride) const {
    std::vector<double> mass(num_blocks_);
    const uint32_t last = num_blocks_ - 1;
    for (uint32_t r = 128 * last / stride; r < 128 * num_blocks_ / stride; ++r) {
      std::vector<double> x;
      for (uint32_t c = 0; c <= r; ++c) {
        double z = 0;
        for (uint32_t i = 0; i < stride; ++i) {
          const uint32_t row = stride * r + stride - 1 - i - 128 * last;
          for (uint32_t d = 0; d < kBlockDim; ++d) {
            z += double{q_[(size_t{row} * group_ + head) * kBlockDim + d]} *
                 double{keys_[size_t{stride * c + i} * kBlockDim + d]};
          }
        }
        x.push_back(z * 0.25 / stride);
      }
      const double max = *std::ranges::max_element(x);
      double total = 0;
      for (double& each : x) {
        each = std::exp(each - max);
        total += each;
      }
      for (uint32_t c = 0; c <= r; ++c) {
        mass[c * stride / 128] += x[c] / total;
      }
    }
    return mass;
  }

 private:
  const uint32_t num_blocks_;
  const uint32_t group_;
  const kv::KvGeometry geometry_{1, 1, kBlockDim, DType::kBF16};
  platform::AlignedBuffer scratch_;
  std::vector<std::vector<uint8_t>> stripes_;
  std::vector<float> keys_;  // [tokens][kBlockDim]
  std::vector<float> q_;     // [128][group][kBlockDim]
};

struct NaiveBlocks {
  std::set<uint32_t> blocks;
  bool is_near_tie = false;  // fp32 may well decide otherwise
};

// XAttention's choice, by its definition.
NaiveBlocks ChooseNaively(const std::vector<double>& mass, double threshold) {
  constexpr double kNear = 1e-5;
  NaiveBlocks choice;
  const auto last = static_cast<uint32_t>(mass.size()) - 1;
  choice.blocks = {0, last};
  double total = 0;
  for (const double each : mass) {
    total += each;
  }
  const auto sum = [&] {
    double of_chosen = 0;
    for (const uint32_t block : choice.blocks) {
      of_chosen += mass[block];
    }
    return of_chosen;
  };
  while (choice.blocks.size() < mass.size()) {
    choice.is_near_tie = choice.is_near_tie || std::abs(sum() - threshold * total) < kNear * total;
    if (sum() >= threshold * total) {
      break;
    }
    uint32_t best = 0;
    double best_mass = -1;
    for (uint32_t block = 0; block < mass.size(); ++block) {
      if (choice.blocks.contains(block)) {
        continue;
      }
      choice.is_near_tie = choice.is_near_tie || std::abs(mass[block] - best_mass) < kNear * total;
      if (mass[block] > best_mass) {
        best = block;
        best_mass = mass[block];
      }
    }
    choice.blocks.insert(best);
  }
  return choice;
}

TEST(XAttentionMethod, ChoosesAsItsDefinitionSays) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(17)));
  const std::shared_ptr<const PrefillMethod> method = FindPrefillMethod("xattention");
  uint32_t compared = 0;
  uint32_t near_ties = 0;
  uint32_t left_out_blocks = 0;
  for (uint32_t run = 0; run < 1200; ++run) {
    const auto num_blocks = static_cast<uint32_t>(1 + rng() % 9);
    const auto group = static_cast<uint32_t>(1 + rng() % 3);
    const double stride = rng() % 4 == 0 ? 8 : 16;
    const double threshold = 0.3 + 0.001 * static_cast<double>(rng() % 650);
    const bool shares = rng() % 3 == 0;
    const BlockRig rig(num_blocks, group, rng, 1.0F + static_cast<float>(rng() % 5));
    std::vector<double> mean(num_blocks);
    NaiveBlocks expected;
    for (uint32_t head = 0; head < group; ++head) {
      const std::vector<double> mass = rig.NaiveMass(head, static_cast<uint32_t>(stride));
      for (uint32_t block = 0; block < num_blocks; ++block) {
        mean[block] += mass[block] / group;
      }
      const NaiveBlocks of_head = ChooseNaively(mass, threshold);
      expected.is_near_tie = expected.is_near_tie || (!shares && of_head.is_near_tie);
      expected.blocks.insert(of_head.blocks.begin(), of_head.blocks.end());
    }
    if (shares) {
      expected = ChooseNaively(mean, threshold);
    }
    if (expected.is_near_tie) {
      ++near_ties;
      continue;
    }
    const std::vector<double> values = KnobsWith(
        *method, {{"stride", stride}, {"threshold", threshold}, {"share_group", shares ? 1 : 0}});
    ASSERT_EQ(rig.Choose(*method, values), expected.blocks) << "run " << run;
    ++compared;
    left_out_blocks += num_blocks - static_cast<uint32_t>(expected.blocks.size());
  }
  RecordProperty("near_ties", std::to_string(near_ties));
  EXPECT_GE(compared, 1000U) << near_ties << " near ties";
  EXPECT_GT(left_out_blocks, 1000U);
}

TEST(XAttentionMethod, AllOfTheMassIsEverything) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(18)));
  const std::shared_ptr<const PrefillMethod> method = FindPrefillMethod("xattention");
  const BlockRig rig(70, 2, rng, 4);
  EXPECT_EQ(rig.Choose(*method, KnobsWith(*method, {{"threshold", 1}})).size(), 70U);
  const PrefillPolicy policy(method, KnobsWith(*method, {{"threshold", 1}}));
  EXPECT_GE(policy.SparseBegin(), policy.SparseEnd(1U << 20));
}

TEST(XAttentionMethod, MoreMassNeverTakesABlockAway) {
  std::mt19937 rng(static_cast<uint32_t>(test::RandomSeed(19)));
  const std::shared_ptr<const PrefillMethod> method = FindPrefillMethod("xattention");
  const BlockRig rig(40, 3, rng, 3);
  std::set<uint32_t> before;
  for (const double threshold : {0.0, 0.2, 0.5, 0.8, 0.9, 0.97}) {
    const std::set<uint32_t> now =
        rig.Choose(*method, KnobsWith(*method, {{"threshold", threshold}}));
    EXPECT_TRUE(std::ranges::includes(now, before)) << threshold;
    EXPECT_TRUE(now.contains(0) && now.contains(39));
    EXPECT_LE(*now.rbegin(), 39U);
    EXPECT_TRUE(threshold == 0 ? now.size() == 2 : now.size() > std::min<size_t>(before.size(), 39))
        << threshold;
    before = now;
  }
}

TEST(XAttentionMethod, EqualMassesGoByIdAndNoNumberTakesEverything) {
  std::vector<uint32_t> order;
  std::vector<float> mass(8, 1.0F);
  uint64_t chosen = 0;
  ChooseByMass(mass, 0.5, &order, {&chosen, 1});
  EXPECT_EQ(chosen, 0b10000111U);  // four of eight
  chosen = 0;
  ChooseByMass(mass, 0.51, &order, {&chosen, 1});
  EXPECT_EQ(chosen, 0b10001111U);  // the block that crosses is in
  mass[5] = std::nanf("");
  chosen = 0;
  ChooseByMass(mass, 0.1, &order, {&chosen, 1});
  EXPECT_EQ(chosen, 0b11111111U);
}

TEST(XAttentionMethod, StridesAreTwo) {
  const std::shared_ptr<const PrefillMethod> method = FindPrefillMethod("xattention");
  for (const double stride : {8.0, 16.0}) {
    EXPECT_TRUE(method->CheckKnobs(KnobsWith(*method, {{"stride", stride}})).ok());
  }
  const absl::Status status = method->CheckKnobs(KnobsWith(*method, {{"stride", 12}}));
  EXPECT_EQ(status.message(), "stride must be 8 or 16, got 12");
}

TEST(TriShapeMethod, RowsSeeTheFirstAndTheLastTokens) {
  const std::shared_ptr<const PrefillMethod> method = FindPrefillMethod("tri_shape");
  for (const auto& [start, recent] : {std::pair(128, 1920),
                                      std::pair(0, 1),
                                      std::pair(1, 2),
                                      std::pair(129, 128),
                                      std::pair(300, 129),
                                      std::pair(0, 130)}) {
    const std::vector<double> values = KnobsWith(*method, {{"start", start}, {"recent", recent}});
    uint32_t first_sparse = UINT32_MAX;
    for (uint32_t block = 0; block < 40; ++block) {
      // Each row sees its tokens: blocks with one of them.
      std::set<uint32_t> expected;
      for (uint32_t row = 128 * block; row < 128 * block + 128; ++row) {
        for (uint32_t key = 0; key <= row; ++key) {
          if (key < static_cast<uint32_t>(start) || key + static_cast<uint32_t>(recent) > row) {
            expected.insert(key / 128);
          }
        }
      }
      if (expected.size() <= block) {
        first_sparse = std::min(first_sparse, block);
      }
      SelectWorkspace workspace(*kernels::BestKernels());
      uint64_t chosen = 0;
      ASSERT_EQ(method->Select({.block = block,
                                .knobs = values,
                                .q = nullptr,
                                .q_stride = 0,
                                .group = 1,
                                .head_dim = kBlockDim,
                                .scale = 1,
                                .softcap = 0,
                                .keys = {}},
                               workspace,
                               {&chosen, 1}),
                kernels::kOk);
      uint64_t wanted = 0;
      for (const uint32_t each : expected) {
        wanted |= uint64_t{1} << each;
      }
      EXPECT_EQ(chosen, wanted) << start << " " << recent << " block " << block;
    }
    EXPECT_EQ(method->FirstSparseBlock(values), first_sparse) << start << " " << recent;
  }
}

TEST(PrefillPolicy, TheEndOfAPromptAndItsBlockAreDense) {
  const std::shared_ptr<const PrefillMethod> method = FindPrefillMethod("tri_shape");
  const PrefillPolicy policy(method, KnobsWith(*method, {{"start", 128}, {"recent", 128}}));
  EXPECT_EQ(policy.SparseBegin(), 3U * 128);

  struct Row {
    uint32_t prompt;
    uint32_t end;
  };

  for (const Row& row : {Row{0, 0},
                         Row{127, 0},
                         Row{255, 0},
                         Row{256, 128},
                         Row{383, 128},
                         Row{384, 256},
                         Row{1000, 768},
                         Row{1024, 896},
                         Row{1025, 896}}) {
    EXPECT_EQ(policy.SparseEnd(row.prompt), row.end) << row.prompt;
  }
  const PrefillPolicy longer(method, KnobsWith(*method, {{"last_dense", 129}}));
  EXPECT_EQ(longer.SparseEnd(1024), 768U);
}

TEST(PrefillPolicy, WhateverDecidesChoicesIsPartOfTheFingerprint) {
  const std::shared_ptr<const PrefillMethod> tri = FindPrefillMethod("tri_shape");
  const std::shared_ptr<const PrefillMethod> x = FindPrefillMethod("xattention");
  std::set<Digest> fingerprints;
  size_t count = 0;
  for (const std::shared_ptr<const PrefillMethod>& method : {tri, x}) {
    fingerprints.insert(PrefillPolicy(method, PresetsOf(*method)).fingerprint());
    fingerprints.insert(PrefillPolicy(method, PresetsOf(*method), {false, true}).fingerprint());
    count += 2;
    for (const Knob& knob : method->knobs()) {
      if (knob.min < knob.max) {
        const double other = knob.preset == knob.min ? knob.max : knob.min;
        fingerprints.insert(
            PrefillPolicy(method, KnobsWith(*method, {{std::string(knob.name), other}}))
                .fingerprint());
        ++count;
      }
    }
  }
  EXPECT_EQ(fingerprints.size(), count);
  EXPECT_EQ(PrefillPolicy(x, PresetsOf(*x)).fingerprint(),
            PrefillPolicy(x, PresetsOf(*x)).fingerprint());
}

}  // namespace
}  // namespace spindle::sparse
