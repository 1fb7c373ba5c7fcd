// What the probe says about choices, against sums over sets of positions.
#include "eval/selection_probe.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "sparse/quest/quest_algorithm.h"
#include "sparse/shadowkv/shadowkv_algorithm.h"
#include "support/random_seed.h"
#include "unit/sparse/selection_rig.h"

namespace spindle::eval {
namespace {

constexpr uint32_t kProbeDim = 32;
constexpr float kProbeScale = 0.25F;

class Probe : public testing::Test {
 protected:
  Probe()
      : probe_(geometry_, std::make_shared<sparse::QuestAlgorithm>(), 1),
        rig_(probe_, *kernels::BestKernels(), kProbeDim, DType::kBF16),
        plain_rig_(plain_, *kernels::BestKernels(), kProbeDim, DType::kBF16),
        random_(seed_) {}

  std::vector<float> Draw(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) {
      value = normal(random_);
    }
    return values;
  }

  void Append(uint32_t count) {
    const std::vector<float> keys = Draw(size_t{count} * kProbeDim);
    rig_.Append(keys);
    plain_rig_.Append(keys);
  }

  // Of one query head.
  [[nodiscard]] double MassOn(const std::set<uint32_t>& positions,
                              const std::vector<float>& q) const {
    double sum = 0;
    double on = 0;
    for (uint32_t p = 0; p < rig_.num_tokens(); ++p) {
      double dot = 0;
      for (uint32_t e = 0; e < kProbeDim; ++e) {
        dot += double{q[e]} * rig_.Key(p, e);
      }
      sum += std::exp(kProbeScale * dot);
      on += positions.contains(p) ? std::exp(kProbeScale * dot) : 0;
    }
    return on / sum;
  }

  const uint64_t seed_ = test::RandomSeed(2604);
  const kv::KvGeometry geometry_{1, 1, kProbeDim, DType::kBF16};
  const sparse::SparseSettings settings_{.sink_tokens = 4, .recent_tokens = 32};
  const sparse::QuestAlgorithm plain_;
  SelectionProbe probe_;
  sparse::SelectionRig rig_;
  sparse::SelectionRig plain_rig_;
  std::mt19937_64 random_;
};

TEST_F(Probe, ChangesNoChoice) {
  SelectionRecord record(1, 1);
  Append(500);
  for (const uint32_t budget : {0U, 100U, 500U}) {
    const std::vector<float> q = Draw(2 * kProbeDim);
    const std::set<uint32_t> expected = plain_rig_.Choose(settings_, budget, q, kProbeScale);
    EXPECT_EQ(rig_.Choose(settings_, budget, q, kProbeScale), expected);
    probe_.Attach(settings_, &record);
    EXPECT_EQ(rig_.Choose(settings_, budget, q, kProbeScale), expected);
    probe_.Attach(settings_, nullptr);
  }
  EXPECT_EQ(record.Of(0, 0).rows, 3U) << "only while attached";
}

TEST_F(Probe, MeasuresTheMassOfWhatIsAttended) {
  SCOPED_TRACE(testing::Message() << "seed " << seed_);
  SelectionRecord record(1, 1);
  probe_.Attach(settings_, &record);
  Append(500);
  const std::vector<float> q = Draw(kProbeDim);
  const std::set<uint32_t> attended = rig_.Choose(settings_, 100, q, kProbeScale);
  std::set<uint32_t> selected;
  std::set<uint32_t> selectable;
  for (uint32_t p = 4; p + 32 < 500; ++p) {
    selectable.insert(p);
    if (attended.contains(p)) {
      selected.insert(p);
    }
  }
  const HeadRecord& head = record.Of(0, 0);
  EXPECT_EQ(head.measured_rows, 1U);
  EXPECT_EQ(head.attended_tokens, static_cast<double>(attended.size()));
  EXPECT_NEAR(head.attended_share, static_cast<double>(attended.size()) / 500, 1e-12);
  EXPECT_NEAR(head.mass, MassOn(attended, q), 1e-4);
  EXPECT_NEAR(head.selected_mass, MassOn(selected, q) / MassOn(selectable, q), 1e-4);
  EXPECT_EQ(head.overlap_rows, 0U) << "no row before";
}

TEST_F(Probe, ComparesAnEstimateWithTheLeastMassOfAHead) {
  SCOPED_TRACE(testing::Message() << "seed " << seed_);
  SelectionProbe probe(geometry_, std::make_shared<sparse::ShadowKvAlgorithm>(), 1);
  sparse::SelectionRig rig(probe, *kernels::BestKernels(), kProbeDim, DType::kBF16);
  const sparse::SparseSettings settings{
      .sink_tokens = 4, .recent_tokens = 32, .estimates_mass = true, .knobs = {0}};  // no outliers
  SelectionRecord record(1, 1);
  probe.Attach(settings, &record);
  const std::vector<float> keys = Draw(size_t{500} * kProbeDim);
  rig.Append(keys);
  rig_.Append(keys);
  const std::vector<float> q = Draw(2 * kProbeDim);
  const sparse::Selection selection = rig.Select(settings, 100, q, kProbeScale);
  const std::set<uint32_t> attended = sparse::PositionsOf(selection.tiles);
  const double least = std::min(MassOn(attended, {q.begin(), q.begin() + kProbeDim}),
                                MassOn(attended, {q.begin() + kProbeDim, q.end()}));
  EXPECT_EQ(record.Of(0, 0).estimated_rows, 1U);
  EXPECT_NEAR(record.Of(0, 0).overestimate, selection.mass - least, 1e-4);
}

TEST_F(Probe, EverythingHasAllMass) {
  SelectionRecord record(1, 1);
  probe_.Attach(settings_, &record);
  Append(300);
  const std::set<uint32_t> attended = rig_.Choose(settings_, 300, Draw(3 * kProbeDim), kProbeScale);
  EXPECT_EQ(attended.size(), 300U);
  EXPECT_NEAR(record.Of(0, 0).mass, 1, 1e-5);
  EXPECT_NEAR(record.Of(0, 0).selected_mass, 1, 1e-5);
}

TEST_F(Probe, OverlapIsTheShareThatWasSelectedBefore) {
  SelectionRecord record(1, 1);
  probe_.Attach(settings_, &record);
  Append(500);
  const auto selected = [&](const std::set<uint32_t>& attended) {
    std::set<uint32_t> inner;
    for (const uint32_t p : attended) {
      if (p >= 4 && p + 32 < rig_.num_tokens()) {
        inner.insert(p);
      }
    }
    return inner;
  };
  const std::set<uint32_t> first =
      selected(rig_.Choose(settings_, 128, Draw(kProbeDim), kProbeScale));
  Append(1);
  const std::set<uint32_t> second =
      selected(rig_.Choose(settings_, 128, Draw(kProbeDim), kProbeScale));
  double shared = 0;
  for (const uint32_t p : second) {
    shared += first.contains(p) ? 1 : 0;
  }
  EXPECT_EQ(record.Of(0, 0).overlap_rows, 1U);
  EXPECT_NEAR(record.Of(0, 0).overlap, shared / static_cast<double>(second.size()), 1e-12);

  record.BeginSequence();
  EXPECT_FALSE(rig_.Choose(settings_, 128, Draw(kProbeDim), kProbeScale).empty());
  EXPECT_EQ(record.Of(0, 0).overlap_rows, 1U) << "another sequence has no row before";
}

// Attends to two tokens and to a cluster of the first segment.
class OneCluster final : public sparse::SparseAlgorithm {
 public:
  std::string_view name() const override { return "one-cluster"; }

  sparse::IndexUnit index_unit() const override { return sparse::IndexUnit::kSegment; }

  uint32_t index_bytes(const kv::KvGeometry& /*geometry*/) const override { return 16; }

  void Select(const sparse::SelectJob& /*job*/,
              sparse::SelectWorkspace& /*workspace*/,
              sparse::Selection* out) const override {
    static constexpr uint16_t kTokens[] = {3, 64, 700};
    out->tiles.push_back({.tile = 3, .live = 3});
    out->clusters.push_back({.segment = 0, .id = 5, .begin = 0, .count = 3, .tokens = kTokens});
  }
};

TEST(ProbeOfSegments, CountsTokensOfClustersAndMeasuresNoMass) {
  const kv::KvGeometry geometry{1, 1, kProbeDim, DType::kBF16};
  const sparse::SparseSettings settings{.sink_tokens = 0, .recent_tokens = 1};
  SelectionProbe probe(geometry, std::make_shared<OneCluster>(), 1);
  EXPECT_EQ(probe.index_bytes(geometry), 16U) << "no keys";
  EXPECT_EQ(probe.index_unit(), sparse::IndexUnit::kSegment);
  SelectionRecord record(1, 1);
  probe.Attach(settings, &record);
  sparse::SelectWorkspace workspace(*kernels::BestKernels());
  for (uint32_t step = 0; step < 2; ++step) {
    sparse::Selection selection;
    probe.Select({.position = 1300, .settings = &settings}, workspace, &selection);
  }
  const HeadRecord& head = record.Of(0, 0);
  EXPECT_EQ(head.rows, 2U);
  EXPECT_EQ(head.attended_tokens, 2 * 5);
  EXPECT_EQ(head.measured_rows, 0U);
  EXPECT_EQ(head.overlap, 1) << "the second row selected the same";
}

}  // namespace
}  // namespace spindle::eval
