// Attention over bf16 KV in AMX tiles, head rows in columns: Sᵀ = K · Qᵀ with K rows as they lie in
// memory, and Oᵀ += Vᵀ · Pᵀ. A vector of scores holds all columns of one key (16 columns), of two
// (8) or of four (4), so decode of few heads wastes little; softmax needs no reduction across lanes
// but between those keys.
//
// Arithmetic of a column, whatever the width: TDPBF16PS over 32 elements at a time (even and odd
// elements are summed apart, then added to the sum so far), d ascending, keys ascending; l takes
// the probabilities as ((keys ≡ 0) + (keys ≡ 1)) + ((keys ≡ 2) + (keys ≡ 3)) modulo 4, each class
// ascending.
#include "kernels/cpu/attention_amx.h"

#include <immintrin.h>

#include "kernels/cpu/attention_pack.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/attention_rows_amx.h"
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/attention_state.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/attention_transpose_amx.h"
#include "kernels/cpu/tiles.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {
namespace {

// Of the 128 rows of a coming tile, how many are asked for where. Spread evenly over the work on a
// tile (V is transposed with the other 64), so that memory is never idle.
constexpr uint32_t kPrefetchInScores = 16;
constexpr uint32_t kPrefetchInSoftmax = 24;
constexpr uint32_t kPrefetchInAccumulate = 24;

// One KV head of a unit.
struct Head {
  const AttentionItem* item;
  uint32_t* queries;  // [block][d / 2][kWidth] bf16 pairs
  States state;       // of the open span: m, l [block][16 lanes], acc [block][d][kWidth]
  States merged;      // of the spans before it
};

// Runs one unit with kWidth columns per block of head rows.
template <uint32_t kWidth>
class TileRunner {
 public:
  TileRunner(const AttentionArgs& args, const AttentionPlan& plan, const AttentionUnit& unit)
      : args_(args),
        plan_(plan),
        unit_(unit),
        d_(args.head_dim),
        num_rows_(unit.row_end - unit.row_begin),
        head_rows_(num_rows_ * args.group),
        num_blocks_((head_rows_ + kWidth - 1) / kWidth),
        log_scale_(args.softcap == 0 ? args.scale * kLog2E : kLog2E),
        prefetch_per_score_tile_((kPrefetchInScores + d_ / 8 - 1) / (d_ / 8)),
        prefetch_per_value_tile_((kPrefetchInAccumulate + d_ / 8 - 1) / (d_ / 8)),
        prefetcher_(args.head_dim) {}

  int Run(const Exec& exec) {
    if (!TakeScratch(exec)) {
      return kScratchTooSmall;
    }
    for (uint32_t h = 0; h < unit_.num_heads; ++h) {
      head_ = &heads_[h];
      PackQueries();
      Reset(head_->merged);
      if (head_->item->resumes) {
        Resume();
      }
    }
    Configure();
    TileWalk ahead(args_.items, unit_);
    for (uint32_t i = 0; i < kTilesAhead; ++i) {
      Prefetch(&ahead);
      prefetcher_.Advance(UINT32_MAX);
    }
    TileWalk walk(args_.items, unit_);
    uint32_t span = 0;
    for (uint32_t begin = unit_.run_begin; begin < unit_.run_end; ++span) {
      const uint32_t end = SpanEnd(args_.items[unit_.item], begin, unit_.run_end);
      for (uint32_t h = 0; h < unit_.num_heads; ++h) {
        Reset(heads_[h].state);
      }
      for (; walk.run_begin() < end; walk.Next()) {
        head_ = &heads_[walk.head()];
        Prefetch(&ahead);
        FoldTile(walk.run_begin(), walk.run_end());
      }
      for (uint32_t h = 0; h < unit_.num_heads; ++h) {
        head_ = &heads_[h];
        FinishSpan(span);
      }
      begin = end;
    }
    ReleaseTiles();
    for (uint32_t h = 0; h < unit_.num_heads && unit_.partial < 0; ++h) {
      head_ = &heads_[h];
      Write();
    }
    return kOk;
  }

 private:
  // One tile ahead, the requests would run out whenever the next tile waits for its last rows.
  static constexpr uint32_t kTilesAhead = 1;
  static constexpr uint32_t kKeysPerVector = kLanes / kWidth;
  static constexpr uint32_t kScoreVectors = kTileTokens / kKeysPerVector;
  static constexpr uint32_t kRowBytes = kWidth * 4;  // of a score, query or probability tile

  bool TakeScratch(const Exec& exec) {
    const size_t acc_floats = size_t{num_blocks_} * d_ * kWidth;
    const size_t lanes = size_t{num_blocks_} * kLanes;
    Arena arena(exec);
    values_ = arena.Take<uint16_t>(size_t{d_} * kTileTokens);
    keys_ = arena.Take<uint16_t>(size_t{d_} * kTileTokens);
    scores_ = arena.Take<float>(size_t{2} * kTileTokens * kWidth);
    probabilities_ = arena.Take<uint32_t>(size_t{kTileTokens / 2} * kWidth);
    saved_ = arena.Take<float>(size_t{d_} * kWidth);
    masks_ = arena.Take<uint64_t>(num_rows_);
    const auto take_states = [&]() -> States {
      return {arena.Take<float>(lanes), arena.Take<float>(lanes), arena.Take<float>(acc_floats)};
    };
    for (uint32_t h = 0; h < unit_.num_heads; ++h) {
      heads_[h] = {.item = &args_.items[unit_.item + h],
                   .queries = arena.Take<uint32_t>(acc_floats / 2),
                   .state = take_states(),
                   .merged = take_states()};
    }
    return !arena.failed();
  }

  // Starts asking for the next tile of a walk.
  void Prefetch(TileWalk* ahead) {
    if (ahead->done()) {
      prefetcher_.Stop();
      return;
    }
    prefetcher_.Start(ahead->item(), ahead->run_begin(), ahead->run_end(), size_t{d_} * 2);
    ahead->Next();
  }

  void Configure() const {
    TileConfig config;
    for (int tile = 0; tile < 4; ++tile) {
      config.Set(tile, kTileRowsMax, kRowBytes);  // sums
    }
    config.Set(4, kTileRowsMax, 64);         // K rows or Vᵀ rows
    config.Set(5, kTileRowsMax, kRowBytes);  // query or probability pairs
    config.Set(6, kTileRowsMax, 32);         // the last 16 elements of K rows where d is an odd
    config.Set(7, 8, kRowBytes);             // multiple of 16, and of queries
    LoadTileConfig(config);
  }

  // Queries as [block][pair of elements][column].
  void PackQueries() {
    const uint32_t pairs = d_ / 2;
    for (uint32_t i = 0; i < num_blocks_ * kWidth; ++i) {
      uint32_t row[kMaxHeadDim / 2] = {};
      if (i < head_rows_) {
        const size_t token = unit_.row_begin + i / args_.group;
        const float* const q =
            head_->item->q + token * args_.q_stride + size_t{i % args_.group} * d_;
        PackOperandRow<PairOp>(DType::kBF16, q, d_, row);
      }
      uint32_t* const to = head_->queries + size_t{i / kWidth} * pairs * kWidth + i % kWidth;
      for (uint32_t j = 0; j < pairs; ++j) {
        to[size_t{j} * kWidth] = row[j];
      }
    }
  }

  void Reset(const States& states) const {
    for (uint32_t i = 0; i < num_blocks_ * kLanes; i += kLanes) {
      Store(states.m + i, Splat(kMinusInf));
      Store(states.l + i, Zero());
    }
    for (size_t i = 0; i < size_t{num_blocks_} * d_ * kWidth; i += kLanes) {
      Store(states.acc + i, Zero());
    }
  }

  void FoldTile(uint32_t run_begin, uint32_t run_end) {
    const AttentionItem& item = *head_->item;
    const TileVisibility lanes =
        FindVisibleLanes(item, unit_.row_begin, num_rows_, run_begin, run_end, masks_);
    if (lanes.any == 0) {
      return;
    }
    masked_ = lanes.every != kAllLanes;
    TileRows rows;
    FillTileRows(item, run_begin, run_end, 2, lanes.any, &rows);
    FindKeyBlocks(rows.k, size_t{d_} * 2, keys_, key_blocks_);
    if (lanes.any == lanes.every || !HasNonFinite(DType::kBF16, rows.v, d_)) {
      // The products of the first scores run on while V is transposed.
      TileFence();
      Scores(0);
      TransposeValues(rows.v, d_, values_, &prefetcher_);
      FoldBlocks();
      return;
    }
    // 0 · NaN: values that some rows may not see would reach them, so every row gets its own.
    for (uint32_t r = 0; r < num_rows_; ++r) {
      FillTileRows(item, run_begin, run_end, 2, masks_[r], &rows);
      TransposeValues(rows.v, d_, values_, &prefetcher_);
      FoldRowAlone(r);
    }
  }

  // Scores of a block are computed while the block before is in its softmax; those of block 0 are
  // there already.
  void FoldBlocks() {
    for (uint32_t block = 0; block < num_blocks_; ++block) {
      if (block + 1 < num_blocks_) {
        Scores(block + 1);
      }
      TileFence();
      Softmax(block, 0, num_rows_);
      TileFence();
      Accumulate(block);
    }
    TileFence();
  }

  // Folds the tile into the columns of one token row; the others keep their state even where it
  // meets a NaN.
  void FoldRowAlone(uint32_t row) {
    const uint32_t first = row * args_.group;
    const uint32_t end = first + args_.group;
    for (uint32_t block = first / kWidth; block * kWidth < end; ++block) {
      const size_t size = size_t{d_} * kWidth;
      float* const acc = head_->state.acc + block * size;
      __builtin_memcpy(saved_, acc, size * sizeof(float));
      masked_ = true;
      TileFence();
      Scores(block);
      TileFence();
      Softmax(block, row, row + 1);
      TileFence();
      Accumulate(block);
      TileFence();
      for (size_t i = 0; i < size; ++i) {
        const size_t head_row = block * kWidth + i % kWidth;
        acc[i] = head_row >= first && head_row < end ? acc[i] : saved_[i];
      }
    }
  }

  // Sᵀ of a block: [64 keys][kWidth].
  void Scores(uint32_t block) {
    const uint32_t* const queries = head_->queries + size_t{block} * (d_ / 2) * kWidth;
    float* const scores = scores_ + size_t{block % 2} * kTileTokens * kWidth;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const uint32_t chunks = d_ / 32;
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      const size_t offset = size_t{64} * chunk;
      _tile_loadd(5, queries + size_t{chunk} * 16 * kWidth, kRowBytes);
      _tile_loadd(4, key_blocks_[0].base + offset, key_blocks_[0].stride);
      _tile_dpbf16ps(0, 4, 5);
      prefetcher_.Advance(prefetch_per_score_tile_);
      _tile_loadd(4, key_blocks_[1].base + offset, key_blocks_[1].stride);
      _tile_dpbf16ps(1, 4, 5);
      prefetcher_.Advance(prefetch_per_score_tile_);
      _tile_loadd(4, key_blocks_[2].base + offset, key_blocks_[2].stride);
      _tile_dpbf16ps(2, 4, 5);
      prefetcher_.Advance(prefetch_per_score_tile_);
      _tile_loadd(4, key_blocks_[3].base + offset, key_blocks_[3].stride);
      _tile_dpbf16ps(3, 4, 5);
      prefetcher_.Advance(prefetch_per_score_tile_);
    }
    if (d_ % 32 != 0) {
      const size_t offset = size_t{64} * chunks;
      _tile_loadd(7, queries + size_t{chunks} * 16 * kWidth, kRowBytes);
      _tile_loadd(6, key_blocks_[0].base + offset, key_blocks_[0].stride);
      _tile_dpbf16ps(0, 6, 7);
      _tile_loadd(6, key_blocks_[1].base + offset, key_blocks_[1].stride);
      _tile_dpbf16ps(1, 6, 7);
      _tile_loadd(6, key_blocks_[2].base + offset, key_blocks_[2].stride);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(6, key_blocks_[3].base + offset, key_blocks_[3].stride);
      _tile_dpbf16ps(3, 6, 7);
    }
    _tile_stored(0, scores, kRowBytes);
    _tile_stored(1, scores + 16 * kWidth, kRowBytes);
    _tile_stored(2, scores + 32 * kWidth, kRowBytes);
    _tile_stored(3, scores + 48 * kWidth, kRowBytes);
  }

  // Caps and masks scores in place. Columns of token rows outside [row_begin, row_end) see nothing.
  void CapAndMask(uint32_t block, uint32_t row_begin, uint32_t row_end) {
    float* const scores = scores_ + size_t{block % 2} * kTileTokens * kWidth;
    if (args_.softcap != 0) {
      const float inner = 2 * kLog2E * args_.scale / args_.softcap;
      for (uint32_t t = 0; t < kScoreVectors; ++t) {
        Store(scores + t * kLanes, SoftCap(Load(scores + t * kLanes), inner, args_.softcap));
      }
    }
    if (!masked_) {
      return;
    }
    uint32_t low[kLanes];
    uint32_t high[kLanes];
    uint32_t first_bit[kLanes];
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t row = (block * kWidth + lane % kWidth) / args_.group;
      const uint64_t mask = row >= row_begin && row < row_end ? masks_[row] : 0;
      low[lane] = static_cast<uint32_t>(mask);
      high[lane] = static_cast<uint32_t>(mask >> 32);
      first_bit[lane] = 1U << (lane / kWidth);
    }
    const __m512i masks[2] = {_mm512_loadu_si512(low), _mm512_loadu_si512(high)};
    const __m512i first = _mm512_loadu_si512(first_bit);
    for (uint32_t t = 0; t < kScoreVectors; ++t) {
      const uint32_t key = t * kKeysPerVector;
      const __m512i bits = _mm512_sll_epi32(first, _mm_cvtsi32_si128(static_cast<int>(key % 32)));
      const __mmask16 seen = _mm512_test_epi32_mask(masks[key / 32], bits);
      float* const at = scores + t * kLanes;
      Store(at, _mm512_mask_mov_ps(Splat(kMinusInf), seen, Load(at)));
    }
  }

  // Combines the keys of a vector, so that each column has the result in all of its lanes.
  template <typename Combine>
  SPINDLE_INLINE F32x16 AcrossKeys(F32x16 value, Combine combine) {
    if constexpr (kWidth == 4) {
      value = combine(value, _mm512_shuffle_f32x4(value, value, 0b10110001));
    }
    if constexpr (kWidth <= 8) {
      value = combine(value, _mm512_shuffle_f32x4(value, value, 0b01001110));
    }
    return value;
  }

  // Sum of the classes of keys modulo 4.
  SPINDLE_INLINE F32x16 SumClasses(const F32x16* sums) {
    if constexpr (kWidth == 16) {
      return Add(Add(sums[0], sums[1]), Add(sums[2], sums[3]));
    } else if constexpr (kWidth == 8) {
      return Add(AcrossKeys(sums[0], Add), AcrossKeys(sums[1], Add));
    } else {
      return AcrossKeys(sums[0], Add);
    }
  }

  // Updates m, l and acc's scale of a block and leaves its probabilities, as [pair of
  // keys][column].
  void Softmax(uint32_t block, uint32_t row_begin, uint32_t row_end) {
    if (masked_ || args_.softcap != 0) {
      CapAndMask(block, row_begin, row_end);
    }
    const float* const scores = scores_ + size_t{block % 2} * kTileTokens * kWidth;
    F32x16 maxima[4] = {Load(scores), Load(scores + 16), Load(scores + 32), Load(scores + 48)};
#pragma GCC unroll 4
    for (uint32_t t = 4; t < kScoreVectors; t += 4) {
      for (uint32_t v = 0; v < 4; ++v) {
        maxima[v] = Max(maxima[v], Load(scores + (t + v) * kLanes));
      }
    }
    const F32x16 tile_max =
        AcrossKeys(Max(Max(maxima[0], maxima[1]), Max(maxima[2], maxima[3])), Max);
    const F32x16 scale = Splat(log_scale_);
    float* const m = head_->state.m + block * kLanes;
    float* const l = head_->state.l + block * kLanes;
    const F32x16 old = Load(m);
    const F32x16 now = Max(old, Mul(tile_max, scale));
    const F32x16 reference = Max(Splat(kLowest), now);
    const F32x16 factor = Exp2<5>(Sub(old, reference));
    const F32x16 sum = Exponentials(scores, scale, Sub(Zero(), reference));
    Store(m, now);
    Store(l, Add(Mul(Load(l), factor), sum));
    if (_mm512_cmp_ps_mask(factor, Splat(1.0F), _CMP_NEQ_UQ) != 0) {
      float* const acc = head_->state.acc + size_t{block} * d_ * kWidth;
      for (uint32_t i = 0; i < d_ * kWidth; i += kLanes) {
        Store(acc + i, Mul(Load(acc + i), factor));
      }
    }
  }

  F32x16 Exponentials(const float* scores, F32x16 scale, F32x16 shift) {
    alignas(64) uint16_t order[2 * kLanes];
    for (uint32_t word = 0; word < 2 * kLanes; ++word) {
      const uint32_t in_pair = word % (2 * kWidth);
      order[word] = static_cast<uint16_t>(word - in_pair + (in_pair % 2) * kWidth + in_pair / 2);
    }
    const __m512i interleave = _mm512_load_si512(order);
    F32x16 sums[4] = {Zero(), Zero(), Zero(), Zero()};
    constexpr uint32_t kClasses = 4 / kKeysPerVector;
#pragma GCC unroll 2
    for (uint32_t t = 0; t < kScoreVectors; t += 4) {
      prefetcher_.Advance(kPrefetchInSoftmax * 4 / kScoreVectors);
#pragma GCC unroll 2
      for (uint32_t u = t; u < t + 4; u += 2) {
        const F32x16 a = Exp2<5>(MulAdd(Load(scores + u * kLanes), scale, shift));
        const F32x16 b = Exp2<5>(MulAdd(Load(scores + (u + 1) * kLanes), scale, shift));
        sums[u % kClasses] = Add(sums[u % kClasses], a);
        sums[(u + 1) % kClasses] = Add(sums[(u + 1) % kClasses], b);
        const __m512i pair = std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
        _mm512_storeu_si512(probabilities_ + u / 2 * kLanes,
                            _mm512_permutexvar_epi16(interleave, pair));
      }
    }
    return SumClasses(sums);
  }

  // Oᵀ += Vᵀ · Pᵀ of a block, four tiles of 16 elements of d at a time.
  void Accumulate(uint32_t block) {
    float* acc = head_->state.acc + size_t{block} * d_ * kWidth;
    const uint16_t* values = values_;
    uint32_t left = d_ / 16;
    for (; left >= 4; left -= 4) {
      AccumulateTiles<4>(values, acc);
      acc += size_t{4} * 16 * kWidth;
      values += size_t{4} * 16 * kTileTokens;
    }
    if (left == 3) {
      AccumulateTiles<3>(values, acc);
    } else if (left == 2) {
      AccumulateTiles<2>(values, acc);
    } else if (left == 1) {
      AccumulateTiles<1>(values, acc);
    }
  }

  template <uint32_t kTiles>
  SPINDLE_INLINE_MEMBER void AccumulateTilesStep(const uint16_t* values, const uint32_t* pairs) {
    constexpr size_t kStride = kTileTokens * 2;
    _tile_loadd(5, pairs, kRowBytes);
    _tile_loadd(4, values, kStride);
    _tile_dpbf16ps(0, 4, 5);
    prefetcher_.Advance(prefetch_per_value_tile_);
    if constexpr (kTiles > 1) {
      _tile_loadd(4, values + 16 * kTileTokens, kStride);
      _tile_dpbf16ps(1, 4, 5);
      prefetcher_.Advance(prefetch_per_value_tile_);
    }
    if constexpr (kTiles > 2) {
      _tile_loadd(4, values + 32 * kTileTokens, kStride);
      _tile_dpbf16ps(2, 4, 5);
      prefetcher_.Advance(prefetch_per_value_tile_);
    }
    if constexpr (kTiles > 3) {
      _tile_loadd(4, values + 48 * kTileTokens, kStride);
      _tile_dpbf16ps(3, 4, 5);
      prefetcher_.Advance(prefetch_per_value_tile_);
    }
  }

  template <uint32_t kTiles>
  void AccumulateTiles(const uint16_t* values, float* acc) {
    _tile_loadd(0, acc, kRowBytes);
    if constexpr (kTiles > 1) {
      _tile_loadd(1, acc + 16 * kWidth, kRowBytes);
    }
    if constexpr (kTiles > 2) {
      _tile_loadd(2, acc + 32 * kWidth, kRowBytes);
    }
    if constexpr (kTiles > 3) {
      _tile_loadd(3, acc + 48 * kWidth, kRowBytes);
    }
    AccumulateTilesStep<kTiles>(values, probabilities_);
    AccumulateTilesStep<kTiles>(values + 32, probabilities_ + size_t{16} * kWidth);
    _tile_stored(0, acc, kRowBytes);
    if constexpr (kTiles > 1) {
      _tile_stored(1, acc + 16 * kWidth, kRowBytes);
    }
    if constexpr (kTiles > 2) {
      _tile_stored(2, acc + 32 * kWidth, kRowBytes);
    }
    if constexpr (kTiles > 3) {
      _tile_stored(3, acc + 48 * kWidth, kRowBytes);
    }
  }

  // The same arithmetic as MergeRow, columns in lanes.
  void MergeBlock(uint32_t block) {
    const size_t at = size_t{block} * kLanes;
    const F32x16 row_m = Load(head_->merged.m + at);
    const F32x16 span_m = Load(head_->state.m + at);
    const F32x16 m = Max(row_m, span_m);
    const F32x16 reference = Max(Splat(kLowest), m);
    const F32x16 keep = Exp2<6>(Sub(row_m, reference));
    const F32x16 add = Exp2<6>(Sub(span_m, reference));
    Store(head_->merged.m + at, m);
    Store(head_->merged.l + at,
          MulAdd(Load(head_->state.l + at), add, Mul(Load(head_->merged.l + at), keep)));
    const size_t size = size_t{d_} * kWidth;
    const float* const from = head_->state.acc + block * size;
    float* const to = head_->merged.acc + block * size;
    for (size_t i = 0; i < size; i += kLanes) {
      Store(to + i, MulAdd(Load(from + i), add, Mul(Load(to + i), keep)));
    }
  }

  // Column of a head row's sums, as a row.
  void CopyColumn(const States& states, uint32_t head_row, float* out) const {
    const float* const from =
        states.acc + size_t{head_row / kWidth} * d_ * kWidth + head_row % kWidth;
    for (uint32_t i = 0; i < d_; ++i) {
      out[i] = from[size_t{i} * kWidth];
    }
  }

  static size_t LaneOf(uint32_t head_row) {
    return size_t{head_row / kWidth} * kLanes + head_row % kWidth;
  }

  void FinishSpan(uint32_t span) {
    if (unit_.partial < 0) {
      for (uint32_t block = 0; block < num_blocks_; ++block) {
        MergeBlock(block);
      }
      return;
    }
    const size_t first =
        (size_t{static_cast<uint32_t>(unit_.partial)} + size_t{span} * num_rows_) * args_.group;
    for (uint32_t i = 0; i < head_rows_; ++i) {
      CopyState(head_->state, i, plan_.partials + (first + i) * (d_ + 2));
    }
  }

  [[nodiscard]] float* StateOfRow(uint32_t head_row) const {
    return StateOf(
        args_, *head_->item, unit_.row_begin + head_row / args_.group, head_row % args_.group);
  }

  void Resume() const {
    const States& merged = head_->merged;
    for (uint32_t i = 0; i < head_rows_; ++i) {
      const float* const from = StateOfRow(i);
      float* const column = merged.acc + size_t{i / kWidth} * d_ * kWidth + i % kWidth;
      for (uint32_t j = 0; j < d_; ++j) {
        column[size_t{j} * kWidth] = from[j];
      }
      for (uint32_t key = 0; key < kKeysPerVector; ++key) {
        merged.m[LaneOf(i) + size_t{key} * kWidth] = from[d_];
        merged.l[LaneOf(i) + size_t{key} * kWidth] = from[d_ + 1];
      }
    }
  }

  void CopyState(const States& states, uint32_t head_row, float* out) const {
    CopyColumn(states, head_row, out);
    out[d_] = states.m[LaneOf(head_row)];
    out[d_ + 1] = states.l[LaneOf(head_row)];
  }

  // The results, or the states that the next pass begins with.
  void Write() const {
    const bool suspends = head_->item->suspends;
    for (uint32_t i = 0; i < head_rows_; ++i) {
      float state[kMaxHeadDim + 2];
      CopyState(head_->merged, i, suspends ? StateOfRow(i) : state);
      if (!suspends) {
        const uint32_t row = unit_.row_begin + i / args_.group;
        FinishHead(
            args_, *head_->item, row, i % args_.group, {state + d_, state + d_ + 1, state}, 0);
      }
    }
  }

  const AttentionArgs& args_;
  const AttentionPlan& plan_;
  const AttentionUnit& unit_;
  const uint32_t d_;
  const uint32_t num_rows_;  // token rows
  const uint32_t head_rows_;
  const uint32_t num_blocks_;  // of kWidth head rows
  const float log_scale_;
  bool masked_ = false;  // some row sees not all of the tile
  const uint32_t prefetch_per_score_tile_;
  const uint32_t prefetch_per_value_tile_;
  RowPrefetcher prefetcher_;
  Head heads_[kMaxUnitHeads];
  Head* head_ = nullptr;  // the one being worked on
  KeyBlock key_blocks_[kKeyBlocks];
  uint16_t* keys_;           // [64][d], where K rows are copied
  uint16_t* values_;         // [d][64]
  float* scores_;            // [2][64][kWidth]
  uint32_t* probabilities_;  // [32][kWidth] bf16 pairs
  float* saved_;             // [d][kWidth]
  uint64_t* masks_;          // [token rows] lanes that the row sees
};

}  // namespace

int RunTileUnit(const AttentionArgs& args,
                const AttentionPlan& plan,
                const AttentionUnit& unit,
                const Exec& exec) {
  const uint32_t head_rows = (unit.row_end - unit.row_begin) * args.group;
  if (head_rows <= 4) {
    return TileRunner<4>(args, plan, unit).Run(exec);
  }
  return head_rows <= 8 ? TileRunner<8>(args, plan, unit).Run(exec)
                        : TileRunner<16>(args, plan, unit).Run(exec);
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
