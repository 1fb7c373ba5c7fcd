// Select stage: one vector per partition is read once for all query heads of a group.
#include "kernels/api/select.h"

#include "kernels/api/attention.h"
#include "kernels/api/exec.h"
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/index_vectors.h"
#include "kernels/cpu/select_simd.h"
#include "kernels/functions.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {
namespace {

// Sums of products that stay in registers: so many vectors by so many queries.
#if defined(__AVX512BF16__)
constexpr uint32_t kVectorBlock = 4;
#else
constexpr uint32_t kVectorBlock = 1;
#endif
constexpr uint32_t kQueryBlock = 4;
// How far ahead blobs are asked for: they are short, and memory holds other things between them.
constexpr size_t kPrefetchBytes = 8192;

// Consecutive partitions, wherever their vectors are.
struct VectorRun {
  const uint8_t* vectors[kVectorBlock];
  float scales[kVectorBlock];
  uint32_t first;  // among the scores
};

// Σ over each vector for `kCount` queries from `query` on. Lanes of 16 elements are added by
// ReduceAdd's tree.
template <IndexType kType, uint32_t kVectors, uint32_t kCount>
SPINDLE_INLINE void DotVectors(const ScorePartitionsArgs& args,
                               const VectorRun& run,
                               uint32_t query) {
  const uint32_t dim = args.vectors.dim;
  const float* const q = args.q + query * size_t{dim};
  F32x16 sums[kCount][kVectors];
  SPINDLE_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    SPINDLE_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) {
      sums[i][v] = Zero();
    }
  }
  for (uint32_t d = 0; d < dim; d += kLanes) {
    F32x16 x[kVectors];
    SPINDLE_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) {
      x[v] = LoadVector<kType>(run.vectors[v], d);
    }
    SPINDLE_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      const F32x16 of_query = Load(q + i * size_t{dim} + d);
      SPINDLE_UNROLL
      for (uint32_t v = 0; v < kVectors; ++v) {
        sums[i][v] = MulAdd(x[v], of_query, sums[i][v]);
      }
    }
  }
  SPINDLE_UNROLL
  for (uint32_t i = 0; i < kCount; ++i) {
    float dots[kVectors];
    ReduceAddEach(sums[i], dots);
    float* const out = args.scores + (query + i) * size_t{args.num_partitions} + run.first;
    SPINDLE_UNROLL
    for (uint32_t v = 0; v < kVectors; ++v) {
      out[v] = dots[v] * run.scales[v];
    }
  }
}

template <IndexType kType, uint32_t kVectors>
SPINDLE_INLINE void DotQueries(const ScorePartitionsArgs& args, const VectorRun& run) {
  uint32_t query = 0;
  for (; query + kQueryBlock <= args.num_queries; query += kQueryBlock) {
    DotVectors<kType, kVectors, kQueryBlock>(args, run, query);
  }
  switch (args.num_queries - query) {
    case 1:
      return DotVectors<kType, kVectors, 1>(args, run, query);
    case 2:
      return DotVectors<kType, kVectors, 2>(args, run, query);
    case 3:
      return DotVectors<kType, kVectors, 3>(args, run, query);
    default:
      return;
  }
}

SPINDLE_INLINE void PrefetchBlob(const ScorePartitionsArgs& args,
                                 uint32_t blob,
                                 uint32_t blob_end) {
  if (blob < blob_end) {
    const uint8_t* const from = args.blobs[blob] + args.offset;
    for (size_t at = 0; at < BlockBytes(args.vectors); at += 64) {
      __builtin_prefetch(from + at, 0, 2);
    }
  }
}

template <IndexType kType>
void ScoreAll(const ScorePartitionsArgs& args) {
  const uint32_t per_blob = args.vectors.count;
  const uint32_t end = args.first_partition + args.num_partitions;
  const uint32_t blob_end = (end + per_blob - 1) / per_blob;
  const auto ahead = static_cast<uint32_t>(1 + kPrefetchBytes / BlockBytes(args.vectors));
  uint32_t blob = args.first_partition / per_blob;
  for (uint32_t i = 0; i < ahead; ++i) {
    PrefetchBlob(args, blob + i, blob_end);
  }
  VectorRun run{};
  uint32_t num_vectors = 0;
  for (uint32_t partition = args.first_partition; partition < end; ++blob) {
    PrefetchBlob(args, blob + ahead, blob_end);
    const uint8_t* const vectors = args.blobs[blob] + args.offset;
    const uint32_t stop = (blob + 1) * per_blob < end ? (blob + 1) * per_blob : end;
    for (; partition < stop; ++partition) {
      const uint32_t idx = partition - blob * per_blob;
      run.vectors[num_vectors] = vectors + idx * VectorBytes(args.vectors);
      run.scales[num_vectors] = ScaleOfVector<kType>(args.vectors, vectors, idx);
      if (++num_vectors == kVectorBlock) {
        DotQueries<kType, kVectorBlock>(args, run);
        run.first += kVectorBlock;
        num_vectors = 0;
      }
    }
  }
  for (uint32_t v = 0; v < num_vectors; ++v) {
    const VectorRun last{{run.vectors[v]}, {run.scales[v]}, run.first + v};
    DotQueries<kType, 1>(args, last);
  }
}

float MaxOf(const float* values, uint32_t n) {
  float max = kMinusInf;
  for (uint32_t i = 0; i < n; ++i) {
    max = values[i] > max ? values[i] : max;
  }
  return max;
}

// ln Σ exp(scale · value); -inf or NaN where nothing counts.
float LogSumExp(const float* values, uint32_t n, float scale) {
  const float max = MaxOf(values, n);
  if (!(max > kMinusInf)) {
    return kMinusInf;
  }
  const F32x16 shift = Splat(max);
  const F32x16 factor = Splat(scale * kLog2E);
  F32x16 sum = Zero();
  for (uint32_t i = 0; i < n; i += kLanes) {
    float rest[kLanes];
    const float* from = values + i;
    if (i + kLanes > n) {
      for (uint32_t j = 0; j < kLanes; ++j) {
        rest[j] = i + j < n ? values[i + j] : kMinusInf;
      }
      from = rest;
    }
    sum = Add(sum, Exp2<5>(Mul(Sub(Load(from), shift), factor)));
  }
  return scale * max + __builtin_logf(ReduceAdd(sum));
}

// exp(scale · value - shift).
SPINDLE_INLINE F32x16 Probability(const float* values, float scale, float shift) {
  return Exp2<5>(Mul(Sub(Mul(Load(values), Splat(scale)), Splat(shift)), Splat(kLog2E)));
}

void AddProbabilities(const float* values, uint32_t n, float scale, float shift, float* out) {
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(out + i, Add(Load(out + i), Probability(values + i, scale, shift)));
  }
  if (i < n) {
    float rest[kLanes];
    for (uint32_t j = 0; j < kLanes; ++j) {
      rest[j] = i + j < n ? values[i + j] : kMinusInf;
    }
    Store(rest, Probability(rest, scale, shift));
    for (uint32_t j = 0; i + j < n; ++j) {
      out[i + j] += rest[j];
    }
  }
}

// Calls use(first, word) for every 64 scores: bit j is compare(16 scores, bound) of score first +
// j.
template <typename Compare, typename Use>
SPINDLE_INLINE void ForWords(
    const float* scores, uint32_t n, float bound, const Compare& compare, const Use& use) {
  const F32x16 bounds = Splat(bound);
  const auto word_of = [&](const float* from) __attribute__((always_inline)) {
    return compare(Load(from), bounds) | compare(Load(from + kLanes), bounds) << 16U |
           compare(Load(from + 2 * kLanes), bounds) << 32U |
           compare(Load(from + 3 * kLanes), bounds) << 48U;
  };
  uint32_t first = 0;
  for (; first + 64 <= n; first += 64) {
    use(first, word_of(scores + first));
  }
  if (first < n) {
    float rest[64];
    for (uint32_t i = 0; i < 64; ++i) {
      rest[i] = first + i < n ? scores[first + i] : __builtin_nanf("");
    }
    use(first, word_of(rest));
  }
}

constexpr auto kAtLeast = [](F32x16 value, F32x16 bound) __attribute__((always_inline)) {
  return LanesAtLeast(value, bound);
};
constexpr auto kAbove = [](F32x16 value, F32x16 bound) __attribute__((always_inline)) {
  return LanesAbove(value, bound);
};

template <typename Compare>
SPINDLE_INLINE uint32_t
CountScores(const float* scores, uint32_t n, float bound, const Compare& compare) {
  uint32_t count = 0;
  ForWords(scores, n, bound, compare, [&count](uint32_t /*first*/, uint64_t word) {
    count += CountBits(word);
  });
  return count;
}

// What the scores that reach a threshold amount to.
struct Reaching {
  uint64_t weight;
  uint32_t count;
};

Reaching AtLeast(const SelectWithinArgs& args, float threshold) {
  constexpr uint32_t kChunk = 1U << 15;  // sums fit into 32 bits
  const F32x16 bound = Splat(threshold);
  Reaching found{0, 0};
  for (uint32_t begin = 0; begin < args.n; begin += kChunk) {
    const uint32_t end = args.n - begin < kChunk ? args.n : begin + kChunk;
    I32x16 weight = SplatInt(0);
    uint32_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const F32x16 value = Load(args.scores + i);
      weight = AddWhereAtLeast(weight, value, bound, args.weights + i);
      found.count += CountBits(LanesAtLeast(value, bound));
    }
    found.weight += static_cast<uint32_t>(SumInt(weight));
    for (; i < end; ++i) {
      const bool reaches = args.scores[i] >= threshold;
      found.weight += reaches ? args.weights[i] : 0U;
      found.count += reaches ? 1U : 0U;
    }
  }
  return found;
}

// The best of the scores that do not reach a threshold (NaN: of all); -inf where there are none.
float BestBelow(const SelectWithinArgs& args, float threshold) {
  const F32x16 bound = Splat(threshold);
  const F32x16 none = Splat(kMinusInf);
  F32x16 best = none;
  uint32_t i = 0;
  for (; i + kLanes <= args.n; i += kLanes) {
    const F32x16 value = Load(args.scores + i);
    const uint64_t below = LanesAtLeast(value, none) & ~LanesAtLeast(value, bound);
    best = Max(best, KeepLanes(below, value, none));
  }
  float found = ReduceMax(best);
  for (; i < args.n; ++i) {
    const float score = args.scores[i];
    found = !(score >= threshold) && score > found ? score : found;
  }
  return found;
}

// Floats in their order as integers, and back; -NaN … +NaN are the ends.
SPINDLE_INLINE float FromOrdered(int32_t ordered) {
  const int32_t bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF);
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

constexpr int32_t kOrderedMinusInf = -0x7F800001;
constexpr int32_t kOrderedInf = 0x7F800000;

// A threshold whose scores fit, of which there are as many as possible; +inf where not even those
// of +inf do, and then nothing is taken at once.
bool FittingThreshold(const SelectWithinArgs& args, float* threshold) {
  int64_t low = kOrderedMinusInf;
  int64_t high = int64_t{kOrderedInf} + 1;
  uint32_t fitting = 0;      // scores that reach `high`
  uint32_t beyond = args.n;  // … and what is below `low`, at most
  // One score between them is one that does not fit: any threshold will do.
  while (low < high && beyond > fitting + 1) {
    const int64_t middle = (low + high) >> 1;
    const Reaching reaching = AtLeast(args, FromOrdered(static_cast<int32_t>(middle)));
    if (reaching.weight <= args.budget) {
      high = middle;
      fitting = reaching.count;
    } else {
      low = middle + 1;
      beyond = reaching.count;
    }
  }
  *threshold = FromOrdered(static_cast<int32_t>(high < kOrderedInf ? high : kOrderedInf));
  return high <= kOrderedInf;
}

// A threshold that at least k scores reach, and fewer surpass; -inf when fewer are numbers. A
// binary search over all floats: at most 32 passes over scores that stay in the first-level cache,
// whatever their values, and no more than it takes to find one that exactly k reach.
float ThresholdOf(const float* scores, uint32_t n, uint32_t k) {
  int64_t low = kOrderedMinusInf;
  int64_t high = kOrderedInf;
  while (low < high) {
    const int64_t middle = (low + high + 1) >> 1;
    const float threshold = FromOrdered(static_cast<int32_t>(middle));
    const uint32_t count = CountScores(scores, n, threshold, kAtLeast);
    if (count == k) {
      return threshold;
    }
    if (count > k) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return FromOrdered(static_cast<int32_t>(low));
}

}  // namespace

int ScorePartitions(const ScorePartitionsArgs& args) {
  if (!IsReadable(args.vectors) || args.num_queries == 0 || args.num_queries > kMaxGroup) {
    return kInvalidArgument;
  }
  if (args.vectors.type == IndexType::kInt8) {
    ScoreAll<IndexType::kInt8>(args);
  } else {
    ScoreAll<IndexType::kBf16>(args);
  }
  return kOk;
}

void ReduceScores(const ReduceScoresArgs& args) {
  const uint32_t n = args.num_partitions;
  const bool is_sum = args.reduction == GroupReduction::kSum;
  for (uint32_t j = 0; j < n; ++j) {
    args.out[j] = is_sum ? 0.0F : kMinusInf;
  }
  for (uint32_t i = 0; i < args.num_queries; ++i) {
    const float* const row = args.scores + i * size_t{n};
    const float lse = LogSumExp(row, n, args.scale);
    if (!(lse > kMinusInf)) {
      continue;
    }
    if (is_sum) {
      AddProbabilities(row, n, args.scale, lse, args.out);
      continue;
    }
    for (uint32_t j = 0; j < n; ++j) {
      const float log_p = args.scale * row[j] - lse;
      args.out[j] = log_p > args.out[j] ? log_p : args.out[j];
    }
  }
}

uint32_t SelectBest(const SelectBestArgs& args) {
  const float threshold = ThresholdOf(args.scores, args.n, args.k);
  const uint32_t above = CountScores(args.scores, args.n, threshold, kAbove);
  uint32_t equal_left = above < args.k ? args.k - above : 0;
  uint32_t count = 0;
  ForWords(args.scores, args.n, threshold, kAtLeast, [&](uint32_t first, uint64_t at_least) {
    args.chosen[first / 64] = at_least;
  });
  ForWords(args.scores, args.n, threshold, kAbove, [&](uint32_t first, uint64_t better) {
    uint64_t equal = args.chosen[first / 64] & ~better;
    while (CountBits(equal) > equal_left) {
      equal &= ~(uint64_t{1} << (63 - static_cast<uint32_t>(__builtin_clzll(equal))));
    }
    equal_left -= CountBits(equal);
    args.chosen[first / 64] = better | equal;
    count += CountBits(better | equal);
  });
  return count;
}

uint32_t SelectWithin(const SelectWithinArgs& args) {
  float threshold = 0;
  const bool any = FittingThreshold(args, &threshold);
  uint32_t count = 0;
  uint64_t weight = 0;
  if (any) {
    weight = AtLeast(args, threshold).weight;
  }
  ForWords(args.scores, args.n, threshold, kAtLeast, [&](uint32_t first, uint64_t word) {
    args.chosen[first / 64] = any ? word : 0;
    count += any ? CountBits(word) : 0;
  });
  // The best of the others do not all fit: the first ones of them.
  const float next = BestBelow(args, any ? threshold : __builtin_nanf(""));
  if (any && !(next < threshold)) {
    return count;  // those of -inf have been taken
  }
  bool fits = true;
  ForWords(args.scores, args.n, next, kAtLeast, [&](uint32_t first, uint64_t word) {
    for (uint64_t left = word & ~args.chosen[first / 64]; left != 0 && fits; left &= left - 1) {
      const auto j = static_cast<uint32_t>(__builtin_ctzll(left));
      fits = weight + args.weights[first + j] <= args.budget;
      if (fits) {
        args.chosen[first / 64] |= uint64_t{1} << j;
        weight += args.weights[first + j];
        ++count;
      }
    }
  });
  return count;
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
