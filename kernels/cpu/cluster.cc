// Clusters of keys. Products of a token with all centroids run with centroids in lanes, so that
// each is one sum over d ascending.
#include "kernels/api/cluster.h"

#include "kernels/api/attention.h"
#include "kernels/api/exec.h"
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/index_vectors.h"
#include "kernels/functions.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {
namespace {

constexpr uint32_t kClusterVectors = kMaxSegmentClusters / kLanes;
constexpr uint32_t kTokenBlock = 4;

class Clustering {
 public:
  explicit Clustering(const ClusterArgs& args)
      : args_(args),
        d_(args.head_dim),
        rows_(args.scratch),
        columns_(rows_ + size_t{args.num_tokens} * d_),
        sums_(columns_ + size_t{kMaxSegmentClusters} * d_),
        mean_(sums_ + size_t{kMaxSegmentClusters} * d_) {}

  void Run() {
    CentreRows();
    PickCentroids();
    for (uint32_t i = 0; i < args_.iterations; ++i) {
      if (i > 0) {
        MoveCentroids();
      }
      AssignAll();
    }
    WriteClusters();
  }

 private:
  void CentreRows() {
    const F32x16 share = Splat(1.0F / static_cast<float>(args_.num_tokens));
    for (uint32_t d = 0; d < d_; d += kLanes) {
      F32x16 sum = Zero();
      for (uint32_t t = 0; t < args_.num_tokens; ++t) {
        sum = Add(sum, LoadElements(args_.type, args_.k[t], d));
      }
      Store(mean_ + d, Mul(sum, share));
    }
    for (uint32_t t = 0; t < args_.num_tokens; ++t) {
      for (uint32_t d = 0; d < d_; d += kLanes) {
        Store(rows_ + size_t{t} * d_ + d,
              Sub(LoadElements(args_.type, args_.k[t], d), Load(mean_ + d)));
      }
    }
  }

  void PickCentroids() {
    for (size_t i = 0; i < size_t{kMaxSegmentClusters} * d_; i += kLanes) {
      Store(columns_ + i, Zero());
    }
    for (uint32_t i = 0; i < args_.num_clusters; ++i) {
      const uint32_t token = (2 * i + 1) * args_.num_tokens / (2 * args_.num_clusters);
      SetCentroid(i, rows_ + size_t{token} * d_);
    }
  }

  // The unit vector of `direction`, which has no direction when it is zero.
  void SetCentroid(uint32_t cluster, const float* direction) {
    F32x16 squares = Zero();
    for (uint32_t d = 0; d < d_; d += kLanes) {
      const F32x16 x = Load(direction + d);
      squares = MulAdd(x, x, squares);
    }
    const float length = __builtin_sqrtf(ReduceAdd(squares));
    const float inverse = length == 0 ? 0.0F : 1.0F / length;
    for (uint32_t d = 0; d < d_; ++d) {
      columns_[size_t{d} * kMaxSegmentClusters + cluster] = direction[d] * inverse;
    }
  }

  template <uint32_t kCount>
  void Assign(uint32_t token) {
    F32x16 sums[kCount][kClusterVectors];
    SPINDLE_UNROLL
    for (uint32_t t = 0; t < kCount; ++t) {
      SPINDLE_UNROLL
      for (uint32_t v = 0; v < kClusterVectors; ++v) {
        sums[t][v] = Zero();
      }
    }
    const float* const rows = rows_ + size_t{token} * d_;
    for (uint32_t d = 0; d < d_; ++d) {
      F32x16 column[kClusterVectors];
      SPINDLE_UNROLL
      for (uint32_t v = 0; v < kClusterVectors; ++v) {
        column[v] = Load(columns_ + size_t{d} * kMaxSegmentClusters + v * kLanes);
      }
      SPINDLE_UNROLL
      for (uint32_t t = 0; t < kCount; ++t) {
        const F32x16 x = Splat(rows[size_t{t} * d_ + d]);
        SPINDLE_UNROLL
        for (uint32_t v = 0; v < kClusterVectors; ++v) {
          sums[t][v] = MulAdd(x, column[v], sums[t][v]);
        }
      }
    }
    for (uint32_t t = 0; t < kCount; ++t) {
      float products[kMaxSegmentClusters];
      for (uint32_t v = 0; v < kClusterVectors; ++v) {
        Store(products + v * kLanes, sums[t][v]);
      }
      uint16_t best = 0;
      float most = kMinusInf;
      for (uint32_t i = 0; i < args_.num_clusters; ++i) {
        if (products[i] > most) {
          most = products[i];
          best = static_cast<uint16_t>(i);
        }
      }
      cluster_of_[token + t] = best;
    }
  }

  void AssignAll() {
    uint32_t token = 0;
    for (; token + kTokenBlock <= args_.num_tokens; token += kTokenBlock) {
      Assign<kTokenBlock>(token);
    }
    for (; token < args_.num_tokens; ++token) {
      Assign<1>(token);
    }
    for (uint32_t& count : counts_) {
      count = 0;
    }
    for (uint32_t t = 0; t < args_.num_tokens; ++t) {
      ++counts_[cluster_of_[t]];
    }
  }

  // Sums of rows over the members of each cluster, tokens ascending.
  template <typename RowOf>
  void SumMembers(DType type, RowOf row_of) {
    for (size_t i = 0; i < size_t{args_.num_clusters} * d_; i += kLanes) {
      Store(sums_ + i, Zero());
    }
    for (uint32_t t = 0; t < args_.num_tokens; ++t) {
      const uint8_t* const row = row_of(t);
      float* const sum = sums_ + size_t{cluster_of_[t]} * d_;
      for (uint32_t d = 0; d < d_; d += kLanes) {
        Store(sum + d, Add(Load(sum + d), LoadElements(type, row, d)));
      }
    }
  }

  void MoveCentroids() {
    SumMembers(DType::kF32, [this](uint32_t t) {
      return reinterpret_cast<const uint8_t*>(rows_ + size_t{t} * d_);
    });
    for (uint32_t i = 0; i < args_.num_clusters; ++i) {
      if (counts_[i] != 0) {
        SetCentroid(i, sums_ + size_t{i} * d_);
      }
    }
  }

  void WriteMeans(const uint8_t* const* rows, uint8_t* out) {
    SumMembers(args_.type, [rows](uint32_t t) { return rows[t]; });
    uint32_t place = 0;
    for (uint32_t i = 0; i < args_.num_clusters; ++i) {
      if (counts_[i] == 0) {
        continue;
      }
      float* const mean = sums_ + size_t{i} * d_;
      const F32x16 share = Splat(1.0F / static_cast<float>(counts_[i]));
      for (uint32_t d = 0; d < d_; d += kLanes) {
        Store(mean + d, Mul(Load(mean + d), share));
      }
      WriteVector({ClusterVectors(args_.index_type, d_), out, place++}, mean);
    }
  }

  void WriteClusters() {
    WriteMeans(args_.k, args_.key_means);
    WriteMeans(args_.v, args_.value_means);
    uint16_t next[kMaxSegmentClusters];
    uint32_t end = 0;
    uint32_t found = 0;
    args_.begins[0] = 0;
    for (uint32_t i = 0; i < args_.num_clusters; ++i) {
      next[i] = static_cast<uint16_t>(end);
      end += counts_[i];
      if (counts_[i] != 0) {
        args_.begins[++found] = static_cast<uint16_t>(end);
      }
    }
    for (uint32_t i = found + 1; i <= args_.num_clusters; ++i) {
      args_.begins[i] = static_cast<uint16_t>(end);
    }
    for (uint32_t t = 0; t < args_.num_tokens; ++t) {
      args_.tokens[next[cluster_of_[t]]++] = static_cast<uint16_t>(t);
    }
    *args_.num_non_empty = found;
  }

  const ClusterArgs& args_;
  const uint32_t d_;
  float* const rows_;     // [tokens][d] less their mean
  float* const columns_;  // [d][64] centroids in lanes
  float* const sums_;     // [64][d]
  float* const mean_;     // [d]
  uint16_t cluster_of_[kMaxSegmentTokens];
  uint32_t counts_[kMaxSegmentClusters];
};

// The state of one query head.
class Estimate {
 public:
  Estimate(const EstimateArgs& args, uint32_t query)
      : args_(args),
        scores_(args.scores + size_t{query} * args.num_segments * kMaxSegmentClusters),
        acc_(args.states + size_t{query} * (args.head_dim + 2)) {}

  void Run() {
    for (uint32_t d = 0; d < args_.head_dim; d += kLanes) {
      Store(acc_ + d, Zero());
    }
    for (uint32_t segment = 0; segment < args_.num_segments; ++segment) {
      if (args_.chosen[segment] != 0) {
        Fold(segment);
      }
    }
    acc_[args_.head_dim] = m_;
    acc_[args_.head_dim + 1] = l_;
  }

 private:
  void Fold(uint32_t segment) {
    const uint64_t chosen = args_.chosen[segment];
    const uint8_t* const blob = args_.blobs[segment];
    uint16_t begins[kMaxSegmentClusters + 1];
    __builtin_memcpy(begins, blob + args_.begins_offset, sizeof(begins));
    // Exponents of 2, then weights; clusters that are not chosen weigh nothing.
    float weights[kMaxSegmentClusters];
    const float m = Exponents(scores_ + size_t{segment} * kMaxSegmentClusters, chosen, weights);
    const float reference = m < kLowest ? kLowest : m;
    float factor[kLanes] = {m_ - reference};
    Store(factor, Exp2<6>(Load(factor)));
    float sum = 0;
    for (uint32_t i = 0; i < kMaxSegmentClusters; i += kLanes) {
      float counts[kLanes];
      for (uint32_t j = 0; j < kLanes; ++j) {
        counts[j] = static_cast<float>(begins[i + j + 1] - begins[i + j]);
      }
      const F32x16 weight = Mul(Exp2<6>(Sub(Load(weights + i), Splat(reference))), Load(counts));
      Store(weights + i, weight);
      sum += ReduceAdd(weight);
    }
    l_ = l_ * factor[0] + sum;
    m_ = m;
    const uint8_t* const values = blob + args_.value_offset;
    if (args_.index_type == IndexType::kInt8) {
      AddValues<IndexType::kInt8>(values, chosen, weights, factor[0]);
    } else {
      AddValues<IndexType::kBf16>(values, chosen, weights, factor[0]);
    }
  }

  float Exponents(const float* scores, uint64_t chosen, float* out) const {
    const float inner = args_.softcap == 0 ? 0.0F : 2 * kLog2E * args_.scale / args_.softcap;
    const F32x16 factor = Splat(args_.softcap == 0 ? args_.scale * kLog2E : kLog2E);
    F32x16 most = Splat(m_);
    for (uint32_t i = 0; i < kMaxSegmentClusters; i += kLanes) {
      F32x16 s = Load(scores + i);
      s = Mul(args_.softcap == 0 ? s : SoftCap(s, inner, args_.softcap), factor);
      Store(out + i, s);
      for (uint32_t j = i; j < i + kLanes; ++j) {
        out[j] = ((chosen >> j) & 1U) != 0 ? out[j] : kMinusInf;
      }
      most = Max(Load(out + i), most);
    }
    return ReduceMax(most);
  }

  template <IndexType kType>
  void AddValues(const uint8_t* values, uint64_t chosen, const float* weights, float factor) {
    const uint32_t d_end = args_.head_dim;
    const VectorBlock block = ClusterVectors(kType, d_end);
    const F32x16 keep = Splat(factor);
    for (uint32_t d = 0; d < d_end; d += kLanes) {
      Store(acc_ + d, Mul(Load(acc_ + d), keep));
    }
    for (uint64_t left = chosen; left != 0; left &= left - 1) {
      const auto i = static_cast<uint32_t>(__builtin_ctzll(left));
      const F32x16 weight = Splat(weights[i] * ScaleOfVector<kType>(block, values, i));
      const uint8_t* const row = values + i * VectorBytes(block);
      for (uint32_t d = 0; d < d_end; d += kLanes) {
        Store(acc_ + d, MulAdd(LoadVector<kType>(row, d), weight, Load(acc_ + d)));
      }
    }
  }

  const EstimateArgs& args_;
  const float* const scores_;
  float* const acc_;
  float m_ = kMinusInf;
  float l_ = 0;
};

}  // namespace

int ClusterKeys(const ClusterArgs& args) {
  if (args.num_tokens == 0 || args.num_tokens > kMaxSegmentTokens || args.num_clusters == 0 ||
      args.num_clusters > kMaxSegmentClusters || args.num_clusters > args.num_tokens ||
      args.head_dim == 0 || args.head_dim % kLanes != 0 || args.head_dim > kMaxHeadDim ||
      args.iterations == 0 || (args.type != DType::kF32 && args.type != DType::kBF16)) {
    return kInvalidArgument;
  }
  Clustering(args).Run();
  return kOk;
}

void EstimateClusters(const EstimateArgs& args) {
  for (uint32_t query = 0; query < args.num_queries; ++query) {
    Estimate(args, query).Run();
  }
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
