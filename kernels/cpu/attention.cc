// Attention in vectors: scores with the keys of a tile in lanes, accumulators with the head
// dimension in lanes. One routine serves prefill and decode; a row's arithmetic does not depend on
// the rows beside it.
//
// Per row and tile: scores of 64 keys, element pairs of d ascending; p = 2^(s · scale · log2 e -
// m'); l takes the 64 p as lanes j + (j + 16) + (j + 32) + (j + 48), then the tree of ReduceAdd;
// acc takes lane pairs ascending.
#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_pack.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/attention_state.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/functions.h"
#if defined(__AVX2__)
#include "kernels/cpu/attention_few_rows.h"
#endif

namespace spindle::kernels::SPINDLE_KERNEL_ISA {
namespace {

// c[rows][kVectors · 16] (+)= a[rows][depth] · b[depth][kVectors · 16], depth ascending.
template <typename Op, size_t kRows, size_t kVectors>
SPINDLE_INLINE void ProductBlock(const uint32_t* a,
                                 size_t a_stride,
                                 const uint32_t* b,
                                 size_t b_stride,
                                 uint32_t depth,
                                 float* c,
                                 size_t c_stride,
                                 bool from_zero) {
  F32x16 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = from_zero ? Zero() : Load(c + r * c_stride + v * kLanes);
    }
  }
  for (uint32_t k = 0; k < depth; ++k) {
    typename Op::Operand operands[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      operands[v] = Op::LoadOperand(b + k * b_stride + v * kLanes);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const typename Op::Operand x = Op::SplatOperand(a + r * a_stride + k);
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = Op::Step(sums[r][v], x, operands[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      Store(c + r * c_stride + v * kLanes, sums[r][v]);
    }
  }
}

// Operands of a product of several row blocks.
struct Product {
  const uint32_t* a;
  size_t a_stride;
  const uint32_t* b;
  size_t b_stride;
  uint32_t depth;
  float* c;
  size_t c_stride;
  uint32_t num_rows;
  uint32_t num_columns;  // multiple of 16
  bool from_zero;
};

template <typename Op, size_t kVectors, size_t kRows>
SPINDLE_INLINE void ProductRows(const Product& p, uint32_t row, uint32_t column) {
  ProductBlock<Op, kRows, kVectors>(p.a + row * p.a_stride,
                                    p.a_stride,
                                    p.b + column,
                                    p.b_stride,
                                    p.depth,
                                    p.c + row * p.c_stride + column,
                                    p.c_stride,
                                    p.from_zero);
}

// The last rows, fewer than kBlockRows.
template <typename Op, size_t kVectors, size_t kRows>
SPINDLE_INLINE void ProductTail(const Product& p, uint32_t row, uint32_t column) {
  if constexpr (kRows > 0) {
    if (p.num_rows - row == kRows) {
      ProductRows<Op, kVectors, kRows>(p, row, column);
    } else {
      ProductTail<Op, kVectors, kRows - 1>(p, row, column);
    }
  }
}

template <typename Op, size_t kVectors>
void ProductColumns(const Product& p, uint32_t column) {
  uint32_t row = 0;
  for (; row + kBlockRows <= p.num_rows; row += kBlockRows) {
    ProductRows<Op, kVectors, kBlockRows>(p, row, column);
  }
  ProductTail<Op, kVectors, kBlockRows - 1>(p, row, column);
}

template <typename Op>
void Multiply(const Product& p) {
  uint32_t column = 0;
  for (; column + kBlockVectors * kLanes <= p.num_columns; column += kBlockVectors * kLanes) {
    ProductColumns<Op, kBlockVectors>(p, column);
  }
  for (; column < p.num_columns; column += kLanes) {
    ProductColumns<Op, 1>(p, column);
  }
}

// Of 2^x; with bf16 K and V their rounding is what counts.
constexpr int kBf16Degree = 5;
constexpr int kF32Degree = 6;

// Runs one unit.
template <typename Op, int kDegree>
class UnitRunner {
 public:
  UnitRunner(const AttentionArgs& args, const AttentionPlan& plan, const AttentionUnit& unit)
      : args_(args),
        plan_(plan),
        unit_(unit),
        item_(args.items[unit.item]),
        num_rows_(unit.row_end - unit.row_begin),
        head_rows_(num_rows_ * args.group),
        depth_(args.head_dim / kElementsPerWord),
        prefetcher_(args.head_dim) {}

  int Run(const Exec& exec) {
    if (!TakeScratch(exec)) {
      return kScratchTooSmall;
    }
    PackQueries();
    Reset(merged_);
    if (item_.resumes) {
      Resume();
    }
    uint32_t span = 0;
    Prefetch(unit_.run_begin);
    prefetcher_.Advance(UINT32_MAX);
    for (uint32_t begin = unit_.run_begin; begin < unit_.run_end; ++span) {
      const uint32_t end = SpanEnd(item_, begin, unit_.run_end);
      Reset(state_);
      for (uint32_t tile = begin; tile < end;) {
        const uint32_t tile_end = TileEnd(item_.runs, tile, end);
        Prefetch(tile_end);
        FoldTile(tile, tile_end);
        tile = tile_end;
      }
      FinishSpan(span);
      begin = end;
    }
    if (item_.suspends) {
      Suspend();
    } else if (unit_.partial < 0) {
      for (uint32_t i = 0; i < head_rows_; ++i) {
        FinishHead(args_, item_, unit_.row_begin + i / args_.group, i % args_.group, merged_, i);
      }
    }
    return kOk;
  }

 private:
  static constexpr uint32_t kElementsPerWord = Op::kPairs ? 2 : 1;
  static constexpr uint32_t kTileDepth = kTileTokens / kElementsPerWord;

  bool TakeScratch(const Exec& exec) {
    const uint32_t padded = RoundUp(head_rows_);
    const size_t acc_floats = size_t{head_rows_} * args_.head_dim;
    Arena arena(exec);
    queries_ = arena.Take<uint32_t>(size_t{head_rows_} * depth_);
    keys_ = arena.Take<uint32_t>(size_t{depth_} * kTileTokens);
    values_ = arena.Take<uint32_t>(size_t{kTileDepth} * args_.head_dim);
    scores_ = arena.Take<float>(size_t{head_rows_} * kTileTokens);
    probabilities_ = arena.Take<uint32_t>(size_t{head_rows_} * kTileDepth);
    masks_ = arena.Take<uint64_t>(num_rows_);
    tile_max_ = arena.Take<float>(padded);
    tile_sum_ = arena.Take<float>(padded);
    factor_ = arena.Take<float>(padded);
    state_ = {arena.Take<float>(padded), arena.Take<float>(padded), arena.Take<float>(acc_floats)};
    merged_ = {arena.Take<float>(padded), arena.Take<float>(padded), arena.Take<float>(acc_floats)};
    return !arena.failed();
  }

  void PackQueries() {
    for (uint32_t i = 0; i < head_rows_; ++i) {
      const size_t row = unit_.row_begin + i / args_.group;
      const float* const q =
          item_.q + row * args_.q_stride + size_t{i % args_.group} * args_.head_dim;
      PackOperandRow<Op>(args_.kv_type, q, args_.head_dim, queries_ + size_t{i} * depth_);
    }
  }

  void Reset(const States& states) const {
    for (uint32_t i = 0; i < RoundUp(head_rows_); i += kLanes) {
      Store(states.m + i, Splat(kMinusInf));
      Store(states.l + i, Zero());
    }
    for (size_t i = 0; i < size_t{head_rows_} * args_.head_dim; i += kLanes) {
      Store(states.acc + i, Zero());
    }
  }

  [[nodiscard]] float* StateOfRow(uint32_t head_row) const {
    return StateOf(args_, item_, unit_.row_begin + head_row / args_.group, head_row % args_.group);
  }

  void Resume() const {
    const uint32_t d = args_.head_dim;
    for (uint32_t i = 0; i < head_rows_; ++i) {
      const float* const from = StateOfRow(i);
      __builtin_memcpy(merged_.acc + size_t{i} * d, from, size_t{d} * sizeof(float));
      merged_.m[i] = from[d];
      merged_.l[i] = from[d + 1];
    }
  }

  void Suspend() const {
    for (uint32_t i = 0; i < head_rows_; ++i) {
      CopyRow(merged_, i, StateOfRow(i));
    }
  }

  void CopyRow(const States& states, uint32_t head_row, float* out) const {
    const uint32_t d = args_.head_dim;
    __builtin_memcpy(out, states.acc + size_t{head_row} * d, size_t{d} * sizeof(float));
    out[d] = states.m[head_row];
    out[d + 1] = states.l[head_row];
  }

  // Starts asking for the tile that begins at a run, if there is one.
  void Prefetch(uint32_t run_begin) {
    if (run_begin >= unit_.run_end) {
      prefetcher_.Stop();
      return;
    }
    const size_t element_bytes = args_.kv_type == DType::kBF16 ? 2 : 4;
    prefetcher_.Start(item_,
                      run_begin,
                      TileEnd(item_.runs, run_begin, unit_.run_end),
                      args_.head_dim * element_bytes);
  }

  void FoldTile(uint32_t run_begin, uint32_t run_end) {
    const TileVisibility lanes =
        FindVisibleLanes(item_, unit_.row_begin, num_rows_, run_begin, run_end, masks_);
    if (lanes.any == 0) {
      prefetcher_.Advance(UINT32_MAX);
      return;
    }
    const size_t element_bytes = args_.kv_type == DType::kBF16 ? 2 : 4;
    TileRows rows;
    FillTileRows(item_, run_begin, run_end, element_bytes, lanes.any, &rows);
#if defined(__AVX2__)
    if constexpr (kDegree == kBf16Degree) {
      if (head_rows_ <= kFewRows && lanes.any == lanes.every) {
        FoldFewRows(rows, lanes.any);
        return;
      }
    }
#endif
    PackKeys(args_.kv_type, rows.k, args_.head_dim, keys_, &prefetcher_);
    if (lanes.any == lanes.every || !HasNonFinite(args_.kv_type, rows.v, args_.head_dim)) {
      PackValues<Op>(args_.kv_type, rows.v, args_.head_dim, values_, &prefetcher_);
      Fold(0, num_rows_);
      return;
    }
    // 0 · NaN: values that some rows may not see would reach them, so every row gets its own.
    for (uint32_t r = 0; r < num_rows_; ++r) {
      FillTileRows(item_, run_begin, run_end, element_bytes, masks_[r], &rows);
      PackValues<Op>(args_.kv_type, rows.v, args_.head_dim, values_, &prefetcher_);
      Fold(r, r + 1);
    }
  }

#if defined(__AVX2__)
  // Folds the tile, of which all rows see `lanes`, without packing it.
  void FoldFewRows(const TileRows& rows, uint64_t lanes) {
    ForRows(
        head_rows_, [&]<size_t kRows>() __attribute__((always_inline)) {
          ScoreRows<kRows>(rows.k, lanes, args_.head_dim, queries_, scores_, &prefetcher_);
        });
    Softmax(0, head_rows_);
    ForRows(
        head_rows_, [&]<size_t kRows>() __attribute__((always_inline)) {
          AccumulateRows<kRows>(
              rows.v, lanes, args_.head_dim, probabilities_, state_.acc, &prefetcher_);
        });
    prefetcher_.Advance(UINT32_MAX);  // what lanes left out had no time for
  }
#endif

  // Folds the packed tile into token rows [row_begin, row_end).
  void Fold(uint32_t row_begin, uint32_t row_end) {
    const uint32_t first = row_begin * args_.group;
    const uint32_t count = (row_end - row_begin) * args_.group;
    Multiply<Op>({queries_ + size_t{first} * depth_,
                  depth_,
                  keys_,
                  kTileTokens,
                  depth_,
                  scores_ + size_t{first} * kTileTokens,
                  kTileTokens,
                  count,
                  kTileTokens,
                  true});
    Softmax(first, first + count);
    Multiply<Op>({probabilities_ + size_t{first} * kTileDepth,
                  kTileDepth,
                  values_,
                  args_.head_dim,
                  kTileDepth,
                  state_.acc + size_t{first} * args_.head_dim,
                  args_.head_dim,
                  count,
                  args_.head_dim,
                  false});
  }

  // Updates m, l and the scale of acc, and leaves the probabilities, for head rows [begin, end).
  void Softmax(uint32_t begin, uint32_t end) {
    const float log_scale = args_.softcap == 0 ? args_.scale * kLog2E : kLog2E;
    for (uint32_t i = begin; i < end; ++i) {
      tile_max_[i] = MaskedMax(i) * log_scale;
    }
    for (uint32_t i = begin / kLanes * kLanes; i < end; i += kLanes) {
      // Rows of these vectors outside [begin, end) get factor 1 and keep their maximum.
      const F32x16 old = Load(state_.m + i);
      float tile_max[kLanes];
      for (uint32_t j = 0; j < kLanes; ++j) {
        tile_max[j] = i + j >= begin && i + j < end ? tile_max_[i + j] : kMinusInf;
      }
      const F32x16 m = Max(old, Load(tile_max));
      const F32x16 reference = Max(Splat(kLowest), m);
      Store(factor_ + i, Exp2<kDegree>(Sub(old, reference)));
      Store(state_.m + i, m);
      Store(tile_max_ + i, reference);
    }
    for (uint32_t i = begin; i < end; ++i) {
      tile_sum_[i] = Exponentials(i, log_scale, tile_max_[i]);
      RescaleRow(i);
    }
    for (uint32_t i = begin; i < end; ++i) {
      state_.l[i] = state_.l[i] * factor_[i] + tile_sum_[i];
    }
  }

  // Caps and masks a row of scores in place; returns its maximum.
  float MaskedMax(uint32_t head_row) {
    float* const scores = scores_ + size_t{head_row} * kTileTokens;
    if (args_.softcap != 0) {
      const float inner = 2 * kLog2E * args_.scale / args_.softcap;
      for (uint32_t i = 0; i < kTileTokens; i += kLanes) {
        Store(scores + i, SoftCap(Load(scores + i), inner, args_.softcap));
      }
    }
    const uint64_t mask = masks_[head_row / args_.group];
    if (mask != kAllLanes) {
      for (uint32_t i = 0; i < kTileTokens; i += kLanes) {
        Store(scores + i, KeepLanes(mask >> i, Load(scores + i), Splat(kMinusInf)));
      }
    }
    const F32x16 low = Max(Load(scores), Load(scores + kLanes));
    const F32x16 high = Max(Load(scores + 2 * kLanes), Load(scores + 3 * kLanes));
    return ReduceMax(Max(low, high));
  }

  // Writes the probabilities of a row; returns their sum.
  float Exponentials(uint32_t head_row, float log_scale, float reference) {
    float* const scores = scores_ + size_t{head_row} * kTileTokens;
    const F32x16 scale = Splat(log_scale);
    const F32x16 shift = Splat(-reference);
    const uint64_t mask = masks_[head_row / args_.group];
    F32x16 p[4];
#pragma GCC unroll 4
    for (size_t v = 0; v < 4; ++v) {
      p[v] = AnyOfSixteen(mask, v * kLanes)
                 ? Exp2<kDegree>(MulAdd(Load(scores + v * kLanes), scale, shift))
                 : Zero();  // what it would be
      Store(scores + v * kLanes, p[v]);
    }
    PackOperandRow<Op>(
        args_.kv_type, scores, kTileTokens, probabilities_ + size_t{head_row} * kTileDepth);
    return ReduceAdd(Add(Add(Add(p[0], p[1]), p[2]), p[3]));
  }

  void RescaleRow(uint32_t head_row) {
    if (factor_[head_row] == 1.0F) {
      return;
    }
    float* const acc = state_.acc + size_t{head_row} * args_.head_dim;
    const F32x16 factor = Splat(factor_[head_row]);
    for (uint32_t i = 0; i < args_.head_dim; i += kLanes) {
      Store(acc + i, Mul(Load(acc + i), factor));
    }
  }

  void FinishSpan(uint32_t span) {
    const uint32_t d = args_.head_dim;
    for (uint32_t i = 0; i < head_rows_; ++i) {
      if (unit_.partial < 0) {
        MergeRow(d, state_, i, merged_, i);
        continue;
      }
      const size_t index =
          (size_t{static_cast<uint32_t>(unit_.partial)} + size_t{span} * num_rows_) * args_.group +
          i;
      CopyRow(state_, i, plan_.partials + index * (d + 2));
    }
  }

  const AttentionArgs& args_;
  const AttentionPlan& plan_;
  const AttentionUnit& unit_;
  const AttentionItem& item_;
  const uint32_t num_rows_;
  const uint32_t head_rows_;
  const uint32_t depth_;     // operand elements of a query row
  uint32_t* queries_;        // [head rows][depth]
  uint32_t* keys_;           // [depth][64]
  uint32_t* values_;         // [kTileDepth][head_dim]
  float* scores_;            // [head rows][64]
  uint32_t* probabilities_;  // [head rows][kTileDepth]
  uint64_t* masks_;          // [token rows] lanes that the row sees
  float* tile_max_;          // [head rows], then what is subtracted from scores
  float* tile_sum_;          // [head rows]
  float* factor_;            // [head rows] scale of the old state
  States state_;             // of the open span
  States merged_;            // of the spans before it
  RowPrefetcher prefetcher_;
};

// The heads of a unit one after the other.
template <typename Op, int kDegree>
int RunHeads(const AttentionArgs& args,
             const AttentionPlan& plan,
             const AttentionUnit& unit,
             const Exec& exec) {
  AttentionUnit one = unit;
  one.num_heads = 1;
  for (; one.item < unit.item + unit.num_heads; ++one.item) {
    if (const int code = UnitRunner<Op, kDegree>(args, plan, one).Run(exec); code != kOk) {
      return code;
    }
  }
  return kOk;
}

int RunBf16Unit(const AttentionArgs& args,
                const AttentionPlan& plan,
                const AttentionUnit& unit,
                const Exec& exec) {
#if defined(SPINDLE_KERNEL_TILES)
  return RunTileUnit(args, plan, unit, exec);
#else
  return RunHeads<Bf16Op, kBf16Degree>(args, plan, unit, exec);
#endif
}

}  // namespace

int Attention(const AttentionArgs& args, const AttentionPlan& plan, WorkRange units, Exec* exec) {
  for (uint32_t u = units.begin; u < units.end; ++u) {
    const AttentionUnit& unit = plan.units[u];
    const int code = args.kv_type == DType::kBF16
                         ? RunBf16Unit(args, plan, unit, *exec)
                         : RunHeads<FloatOp, kF32Degree>(args, plan, unit, *exec);
    if (code != kOk) {
      return code;
    }
  }
  return kOk;
}

int MergeAttention(const AttentionArgs& args,
                   const AttentionPlan& plan,
                   WorkRange items,
                   Exec* /*exec*/) {
  const uint32_t d = args.head_dim;
  for (uint32_t first = items.begin; first < items.end && plan.num_partials != 0;
       first += kMergeBatch) {
    const uint32_t count = items.end - first < kMergeBatch ? items.end - first : kMergeBatch;
    PartialStates found[kMergeBatch];
    FindPartials(args, plan, first, count, found);
    for (uint32_t i = 0; i < count; ++i) {
      const AttentionItem& item = args.items[first + i];
      for (uint32_t h = 0; found[i].num_spans != 0 && h < item.num_rows * args.group; ++h) {
        float m = kMinusInf;
        float l = 0;
        float acc[kMaxHeadDim] = {};
        for (uint32_t span = 0; span < found[i].num_spans; ++span) {
          const size_t index =
              (size_t{found[i].first} + size_t{span} * item.num_rows) * args.group + h;
          float* const state = plan.partials + index * (d + 2);
          MergeRow(d, {state + d, state + d + 1, state}, 0, {&m, &l, acc}, 0);
        }
        FinishHead(args, item, h / args.group, h % args.group, {&m, &l, acc}, 0);
      }
    }
  }
  return kOk;
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
