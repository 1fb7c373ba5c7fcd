// The attention runtime against plain fp64 arithmetic, and its limits.
#include "sparse/attention_runtime.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention_rig.h"
#include "support/allocation_counter.h"

namespace spindle::sparse {
namespace {

// Unit roundoff of what queries, stored rows and probabilities are rounded to; for fp32 with room
// for a polynomial exponential.
double RoundOff(DType type) {
  return type == DType::kBF16 ? std::ldexp(1.0, -9) : std::ldexp(1.0, -21);
}

// Head `head` of a raw q (plane 0) or k (plane 1) row, normed and rotated in fp64.
std::vector<double> Rotated(const AttentionRig& rig,
                            uint64_t stream,
                            uint32_t layer,
                            uint32_t position,
                            uint32_t plane,
                            uint32_t head) {
  const uint32_t d = rig.options().head_dim;
  std::vector<double> x(d);
  double squares = 0;
  for (uint32_t i = 0; i < d; ++i) {
    x[i] = AttentionRig::Input(stream, layer, position, plane, size_t{head} * d + i);
    squares += x[i] * x[i];
  }
  if (rig.options().head_norms) {
    const std::vector<float>& weight = plane == 0 ? rig.q_norm() : rig.k_norm();
    for (uint32_t i = 0; i < d; ++i) {
      x[i] *= static_cast<double>(weight[i]) /
              std::sqrt(squares / d + static_cast<double>(rig.Spec(layer).norm_eps));
    }
  }
  const uint32_t half = d / 2;
  std::vector<double> y(d);
  for (uint32_t i = 0; i < half; ++i) {
    const bool split = rig.options().pairing == kernels::RopePairing::kHalfSplit;
    const uint32_t a = split ? i : 2 * i;
    const uint32_t b = split ? i + half : 2 * i + 1;
    const double c = rig.rope().cos[position * half + i];
    const double s = rig.rope().sin[position * half + i];
    y[a] = x[a] * c - x[b] * s;
    y[b] = x[a] * s + x[b] * c;
  }
  return y;
}

// A stored K or V row.
std::vector<double> StoredRow(
    AttentionRig& rig, SequenceId seq, uint32_t layer, uint32_t position, uint32_t head, bool v) {
  const kv::KvGeometry& geometry = rig.store().geometry();
  const uint8_t* row = rig.store().View(seq).stripes[position / kStripeTokens] +
                       geometry.row_offset(layer, position % static_cast<uint32_t>(kStripeTokens)) +
                       head * geometry.head_bytes() + (v ? geometry.v_offset() : 0);
  std::vector<double> values(geometry.head_dim);
  for (uint32_t i = 0; i < geometry.head_dim; ++i) {
    if (geometry.type == DType::kBF16) {
      uint16_t bits;
      std::memcpy(&bits, row + 2 * size_t{i}, sizeof(bits));
      values[i] = std::bit_cast<float>(uint32_t{bits} << 16);
    } else {
      float value;
      std::memcpy(&value, row + 4 * size_t{i}, sizeof(value));
      values[i] = value;
    }
  }
  return values;
}

void ExpectStoredRows(AttentionRig& rig, SequenceId seq, uint64_t stream, uint32_t position) {
  const uint32_t d = rig.options().head_dim;
  const double eps = 2 * RoundOff(rig.options().type);
  // The rotation a·cos ∓ b·sin in fp32 before that: rounding of cos and sin, of two products and of
  // the sum, each relative to the operands (the result may cancel).
  const double rotation_eps = 5 * std::ldexp(1.0, -24);
  for (uint32_t layer = 0; layer < rig.options().num_layers; ++layer) {
    for (uint32_t head = 0; head < rig.options().num_kv_heads; ++head) {
      const auto k = StoredRow(rig, seq, layer, position, head, false);
      const auto v = StoredRow(rig, seq, layer, position, head, true);
      const auto rotated = Rotated(rig, stream, layer, position, 1, head);
      double largest = 0;
      for (uint32_t i = 0; i < d; ++i) {
        const double raw_k = AttentionRig::Input(stream, layer, position, 1, size_t{head} * d + i);
        largest = std::max(largest, std::abs(raw_k));
      }
      for (uint32_t i = 0; i < d; ++i) {
        const double raw_v = AttentionRig::Input(stream, layer, position, 2, size_t{head} * d + i);
        ASSERT_NEAR(k[i], rotated[i], eps * std::abs(rotated[i]) + rotation_eps * largest)
            << "k layer " << layer << " head " << head << " position " << position << " " << i;
        ASSERT_NEAR(v[i], raw_v, eps * std::abs(raw_v))
            << "v layer " << layer << " head " << head << " position " << position << " " << i;
      }
    }
  }
}

struct NaiveHead {
  std::vector<double> out;
  double tolerance;  // of the root mean square error
};

// Attention of one query head over the stored rows, softmax over all visible positions at once.
NaiveHead Naive(AttentionRig& rig,
                SequenceId seq,
                uint64_t stream,
                uint32_t layer,
                uint32_t position,
                uint32_t q_head) {
  const tensor::AttentionSpec spec = rig.Spec(layer);
  const uint32_t kv_head = q_head / spec.group();
  const uint32_t first =
      spec.window == 0 || position + 1 < spec.window ? 0 : position + 1 - spec.window;
  const std::vector<double> q = Rotated(rig, stream, layer, position, 0, q_head);
  std::vector<double> scores;
  double spread =
      0;  // largest root of the summed squares of the products: how roundings of q add up
  for (uint32_t p = first; p <= position; ++p) {
    const auto k = StoredRow(rig, seq, layer, p, kv_head, false);
    double dot = 0;
    double squares = 0;
    for (uint32_t i = 0; i < spec.head_dim; ++i) {
      dot += q[i] * k[i];
      squares += q[i] * k[i] * q[i] * k[i];
    }
    scores.push_back(dot * static_cast<double>(spec.scale));
    spread = std::max(spread, std::sqrt(squares) * static_cast<double>(spec.scale));
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  double v_squares = 0;
  NaiveHead naive{std::vector<double>(spec.head_dim, 0.0), 0.0};
  for (uint32_t p = first; p <= position; ++p) {
    const double weight = std::exp(scores[p - first] - max);
    const auto v = StoredRow(rig, seq, layer, p, kv_head, true);
    sum += weight;
    for (uint32_t i = 0; i < spec.head_dim; ++i) {
      naive.out[i] += weight * v[i];
      v_squares += v[i] * v[i];
    }
  }
  for (double& value : naive.out) {
    value /= sum;
  }
  const double v_rms = std::sqrt(v_squares / (static_cast<double>(scores.size()) * spec.head_dim));
  naive.tolerance = 3 * RoundOff(rig.options().type) * (1 + spread) * v_rms;
  return naive;
}

void ExpectNaive(
    AttentionRig& rig, SequenceId seq, uint64_t stream, uint32_t position, const float* token) {
  const uint32_t d = rig.options().head_dim;
  for (uint32_t layer = 0; layer < rig.options().num_layers; ++layer) {
    for (uint32_t head = 0; head < rig.options().num_q_heads; ++head) {
      const NaiveHead naive = Naive(rig, seq, stream, layer, position, head);
      const float* out = token + layer * rig.q_width() + size_t{head} * d;
      double squares = 0;
      for (uint32_t i = 0; i < d; ++i) {
        const double error = static_cast<double>(out[i]) - naive.out[i];
        squares += error * error;
      }
      ASSERT_LE(std::sqrt(squares / d), naive.tolerance)
          << "layer " << layer << " head " << head << " position " << position;
    }
  }
}

class AttentionRuntimeTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (kernels::FindKernelsByName(GetParam()) == nullptr) {
      GTEST_SKIP() << "this CPU cannot run the " << GetParam() << " kernels";
    }
  }
};

TEST_P(AttentionRuntimeTest, StoresRotatedKeysAndValuesInTheirSlots) {
  for (const auto pairing : {kernels::RopePairing::kHalfSplit, kernels::RopePairing::kAdjacent}) {
    for (const DType type : {DType::kBF16, DType::kF32}) {
      for (const bool norms : {false, true}) {
        AttentionRig rig({.table = GetParam(),
                          .num_layers = 3,
                          .num_q_heads = 6,
                          .num_kv_heads = 3,
                          .type = type,
                          .pairing = pairing,
                          .head_norms = norms});
        const SequenceId seq = rig.Open();
        rig.Run(seq, 7, 0, 90, 50);
        rig.Run(seq, 7, 90, 93, 1);
        for (const uint32_t position : {0U, 1U, 15U, 49U, 50U, 63U, 64U, 89U, 91U, 92U}) {
          ExpectStoredRows(rig, seq, 7, position);
        }
      }
    }
  }
}

struct HeadShape {
  uint32_t num_q_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
};

TEST_P(AttentionRuntimeTest, MatchesNaiveAttentionForManyShapes) {
  const std::vector<HeadShape> shapes = {
      {9, 3, 64}, {14, 2, 64}, {5, 5, 80}, {6, 3, 96}, {4, 1, 112}, {8, 8, 128}, {3, 1, 160}};
  for (const HeadShape& shape : shapes) {
    for (const DType type : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(::testing::Message() << shape.num_q_heads << "/" << shape.num_kv_heads << " × "
                                        << shape.head_dim << " " << Describe(type).name);
      AttentionRig rig({.table = GetParam(),
                        .num_layers = 2,
                        .num_q_heads = shape.num_q_heads,
                        .num_kv_heads = shape.num_kv_heads,
                        .head_dim = shape.head_dim,
                        .type = type,
                        .num_threads = 2});
      const SequenceId seq = rig.Open();
      const std::vector<float> out = rig.Run(seq, 3, 0, 140, 100);
      for (const uint32_t position : {0U, 1U, 63U, 64U, 99U, 100U, 139U}) {
        ExpectNaive(rig, seq, 3, position, &out[position * rig.token_width()]);
      }
    }
  }
}

TEST_P(AttentionRuntimeTest, MatchesNaiveAttentionOverSeveralSegments) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    AttentionRig rig({.table = GetParam(), .type = type, .num_threads = 2});
    const SequenceId seq = rig.Open();
    const std::vector<float> out = rig.Run(seq, 3, 0, 1100, 512);
    for (const uint32_t position : {511U, 512U, 1023U, 1024U, 1025U, 1099U}) {
      ExpectNaive(rig, seq, 3, position, &out[position * rig.token_width()]);
    }
    const std::vector<float> decoded = rig.Run(seq, 3, 1100, 1103, 1);
    ExpectNaive(rig, seq, 3, 1102, &decoded[2 * rig.token_width()]);
  }
}

TEST_P(AttentionRuntimeTest, WindowsHideOldPositionsInTheLayersThatHaveThem) {
  // Full and windowed layers alternate within a step.
  for (const uint32_t window : {1U, 17U, 64U, 100U, 1050U}) {
    SCOPED_TRACE(window);
    AttentionRig rig({.table = GetParam(),
                      .num_layers = 3,
                      .num_q_heads = 2,
                      .type = DType::kF32,
                      .windows = {0, window},
                      .num_threads = 2});
    const SequenceId seq = rig.Open();
    const uint32_t num_tokens = window > 1000 ? 1090 : 200;
    const std::vector<float> out = rig.Run(seq, 3, 0, num_tokens, 128);
    for (const uint32_t position : {0U, 16U, 17U, 63U, 64U, 99U, 100U, 150U, num_tokens - 1}) {
      ExpectNaive(rig, seq, 3, position, &out[position * rig.token_width()]);
    }
    const std::vector<float> decoded = rig.Run(seq, 3, num_tokens, num_tokens + 2, 1);
    ExpectNaive(rig, seq, 3, num_tokens + 1, &decoded[rig.token_width()]);
  }
}

TEST_P(AttentionRuntimeTest, WarmStepsAllocateNothing) {
  AttentionRig rig({.table = GetParam(), .num_threads = 2});
  std::vector<SequenceRows> step;
  std::vector<SequenceId> sequences;
  for (uint32_t i = 0; i < 4; ++i) {
    sequences.push_back(rig.Open());
    rig.Run(sequences.back(), i, 0, 600, 600);
    ASSERT_TRUE(rig.store().Extend(sequences.back(), 800).ok());
  }
  const tensor::AttentionSpec spec = rig.Spec(0);
  const std::vector<float> qkv(4 * (rig.q_width() + 2 * rig.kv_width()), 0.5F);
  std::vector<float> out(4 * rig.q_width());
  step.resize(4);
  const auto decode = [&](uint32_t position) {
    for (uint32_t i = 0; i < 4; ++i) {
      step[i] = {sequences[i], i, 1, position};
    }
    ASSERT_TRUE(rig.runtime().BeginStep(step).ok());
    const absl::Status status = rig.runtime().Attend({
        .layer = LayerIdx(0),
        .spec = &spec,
        .q = qkv.data(),
        .k = qkv.data(),
        .v = qkv.data(),
        .q_stride = rig.q_width(),
        .k_stride = rig.kv_width(),
        .v_stride = rig.kv_width(),
        .out = out.data(),
        .out_stride = rig.q_width(),
    });
    ASSERT_TRUE(status.ok());
    for (const SequenceId seq : sequences) {
      rig.store().Commit(seq, position + 1);
    }
  };
  decode(600);
  const uint64_t before = test::AllocationCount();
  for (uint32_t position = 601; position < 800; ++position) {
    decode(position);
  }
  EXPECT_EQ(test::AllocationCount(), before);
}

TEST_P(AttentionRuntimeTest, EmptyStepDoesNothing) {
  AttentionRig rig({.table = GetParam()});
  EXPECT_TRUE(rig.Step({}).empty());
}

TEST_P(AttentionRuntimeTest, PositionsBeyondTheRopeTableAreRefused) {
  AttentionRig rig({.table = GetParam()});
  const SequenceId seq = rig.Open();
  ASSERT_TRUE(rig.store().Extend(seq, AttentionRig::kMaxPositions + 1).ok());
  const SequenceRows rows{seq, 0, 1, AttentionRig::kMaxPositions};
  ASSERT_TRUE(rig.runtime().BeginStep({&rows, 1}).ok());
  const tensor::AttentionSpec spec = rig.Spec(0);
  AttendArgs args{};
  args.spec = &spec;
  const absl::Status status = rig.runtime().Attend(args);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_NE(std::string(status.message()).find(std::to_string(AttentionRig::kMaxPositions)),
            std::string::npos);
}

TEST_P(AttentionRuntimeTest, SpecThatDoesNotFitTheStoreIsRefused) {
  AttentionRig rig({.table = GetParam(), .num_layers = 2});
  const SequenceId seq = rig.Open();
  ASSERT_TRUE(rig.store().Extend(seq, 1).ok());
  const SequenceRows rows{seq, 0, 1, 0};
  ASSERT_TRUE(rig.runtime().BeginStep({&rows, 1}).ok());
  tensor::AttentionSpec spec = rig.Spec(0);
  AttendArgs args{};
  args.spec = &spec;
  args.layer = LayerIdx(2);
  EXPECT_EQ(rig.runtime().Attend(args).code(), absl::StatusCode::kInternal);
  args.layer = LayerIdx(0);
  spec.num_kv_heads = 3;
  EXPECT_EQ(rig.runtime().Attend(args).code(), absl::StatusCode::kInternal);
  spec = rig.Spec(0);
  spec.head_dim = 128;
  EXPECT_EQ(rig.runtime().Attend(args).code(), absl::StatusCode::kInternal);
}

INSTANTIATE_TEST_SUITE_P(Tables, AttentionRuntimeTest, ::testing::ValuesIn(kTableNames));

}  // namespace
}  // namespace spindle::sparse
