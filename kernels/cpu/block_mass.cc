// The estimate of XAttention: rows of tiles in lanes, columns one after the other, so that strips
// of keys are read in place, one word for all lanes, and softmaxes need no sum over lanes.
#include "kernels/api/block_mass.h"

#include "kernels/api/attention.h"
#include "kernels/api/exec.h"
#include "kernels/cpu/attention_pack.h"
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/attention_state.h"
#include "kernels/functions.h"

namespace spindle::kernels::SPINDLE_KERNEL_ISA {
namespace {

// Lanes of a panel: whole heads of 8 or 16 rows. The packed queries of more would not stay in the
// second-level cache.
constexpr uint32_t kMostColumns = 64;
constexpr uint32_t kMostStrips = kMassBlockTokens / 8;

#if defined(__AVX512BF16__)
constexpr uint32_t kMostVectors = 4;

// 16 sums in registers, or 8 where there is only one vector.
constexpr uint32_t StripsAtOnce(uint32_t vectors) {
  return vectors <= 2 ? 8 : 4;
}
#else
constexpr uint32_t kMostVectors = 1;

constexpr uint32_t StripsAtOnce(uint32_t /*vectors*/) {
#if defined(__AVX2__)
  return 4;
#else
  return 2;
#endif
}
#endif

// Word w of a key in all lanes.
template <typename Op, bool kIsF32>
SPINDLE_INLINE typename Op::Operand SplatKey(const uint8_t* key, uint32_t w) {
  uint32_t word;
  if constexpr (Op::kPairs || kIsF32) {
    __builtin_memcpy(&word, key + 4 * size_t{w}, sizeof(word));
  } else {
    uint16_t half;
    __builtin_memcpy(&half, key + 2 * size_t{w}, sizeof(half));
    word = uint32_t{half} << 16;
  }
  return Op::SplatOperand(&word);
}

uint32_t PieceTokens(const BlockMassArgs& args) {
  return args.stride < args.layout.page_tokens ? args.stride : args.layout.page_tokens;
}

// The heads whose rows are in the lanes: all of a group, as far as they fit.
template <typename Op, bool kIsF32>
class MassPanel {
 public:
  MassPanel(const BlockMassArgs& args, uint32_t head, uint32_t num_heads)
      : args_(args),
        head_(head),
        num_heads_(num_heads),
        strips_(kMassBlockTokens / args.stride),
        columns_(num_heads * strips_),
        padded_(RoundUp(columns_)),
        words_(args.layout.head_dim / (Op::kPairs ? 2 : 1)),
        piece_(PieceTokens(args)),
        num_blocks_(args.block + 1) {}

  int Run(const Exec& exec) {
    Arena arena(exec);
    queries_ = arena.Take<uint32_t>(size_t{args_.stride} * words_ * padded_);
    scores_ = arena.Take<float>(size_t{kMostStrips} * padded_);
    maxima_ = arena.Take<float>(size_t{num_blocks_} * padded_);
    sums_ = arena.Take<float>(size_t{num_blocks_} * padded_);
    if (arena.failed()) {
      return kScratchTooSmall;
    }
    PackQueries();
    for (uint32_t block = 0; block < num_blocks_; ++block) {
      ScoreBlock(block);
      FoldBlock(block);
    }
    Spread();
    return kOk;
  }

 private:
  // [key of a strip][word][column], rows of a tile backwards.
  void PackQueries() {
    for (size_t i = 0; i < size_t{args_.stride} * words_ * padded_; ++i) {
      queries_[i] = 0;
    }
    uint32_t row[kMaxHeadDim];
    for (uint32_t column = 0; column < columns_; ++column) {
      const float* const head = args_.q + size_t{head_ + column / strips_} * args_.layout.head_dim;
      for (uint32_t i = 0; i < args_.stride; ++i) {
        const uint32_t at = column % strips_ * args_.stride + args_.stride - 1 - i;
        PackOperandRow<Op>(
            args_.layout.type, head + at * args_.q_stride, args_.layout.head_dim, row);
        for (uint32_t w = 0; w < words_; ++w) {
          queries_[(size_t{i} * words_ + w) * padded_ + column] = row[w];
        }
      }
    }
  }

  // z of strips [first, first + kStrips) of a block and of columns of kVectors vectors.
  template <uint32_t kVectors, uint32_t kStrips>
  SPINDLE_INLINE_MEMBER void ScoreStrips(uint32_t block, uint32_t first, uint32_t column) {
    F32x16 sums[kStrips][kVectors];
    SPINDLE_UNROLL
    for (uint32_t s = 0; s < kStrips; ++s) {
      SPINDLE_UNROLL
      for (uint32_t v = 0; v < kVectors; ++v) {
        sums[s][v] = Zero();
      }
    }
    StripeKeys layout = args_.layout;
    for (uint32_t i = 0; i < args_.stride; i += piece_) {
      const uint8_t* keys[kStrips];
      SPINDLE_UNROLL
      for (uint32_t s = 0; s < kStrips; ++s) {
        const uint32_t lane = (first + s) * args_.stride + i;
        layout.k = args_.stripes[2 * size_t{block} + lane / kTileTokens] + args_.offset;
        keys[s] = KeyOf(layout, lane % kTileTokens);
      }
      const uint32_t* const queries = queries_ + size_t{i} * words_ * padded_ + column;
      for (uint32_t w = 0; w < piece_ * words_; ++w) {
        typename Op::Operand operands[kVectors];
        SPINDLE_UNROLL
        for (uint32_t v = 0; v < kVectors; ++v) {
          operands[v] = Op::LoadOperand(queries + size_t{w} * padded_ + v * kLanes);
        }
        SPINDLE_UNROLL
        for (uint32_t s = 0; s < kStrips; ++s) {
          const typename Op::Operand key = SplatKey<Op, kIsF32>(keys[s], w);
          SPINDLE_UNROLL
          for (uint32_t v = 0; v < kVectors; ++v) {
            sums[s][v] = Op::Step(sums[s][v], key, operands[v]);
          }
        }
      }
    }
    SPINDLE_UNROLL
    for (uint32_t s = 0; s < kStrips; ++s) {
      SPINDLE_UNROLL
      for (uint32_t v = 0; v < kVectors; ++v) {
        Store(scores_ + size_t{first + s} * padded_ + column + v * kLanes, sums[s][v]);
      }
    }
  }

  template <uint32_t kVectors>
  void ScoreColumns(uint32_t block, uint32_t column) {
    constexpr uint32_t kStrips = StripsAtOnce(kVectors);
    for (uint32_t first = 0; first < strips_; first += kStrips) {
      ScoreStrips<kVectors, kStrips>(block, first, column);
    }
  }

  void ScoreBlock(uint32_t block) {
    uint32_t column = 0;
    for (; column + kMostVectors * kLanes <= padded_; column += kMostVectors * kLanes) {
      ScoreColumns<kMostVectors>(block, column);
    }
    if constexpr (kMostVectors > 1) {
      switch ((padded_ - column) / kLanes) {
        case 3:
          return ScoreColumns<3>(block, column);
        case 2:
          return ScoreColumns<2>(block, column);
        case 1:
          return ScoreColumns<1>(block, column);
        default:
          return;
      }
    }
  }

  // x · log2 e of the scores.
  [[nodiscard]] F32x16 Scaled(F32x16 z) const {
    const float share = args_.scale / static_cast<float>(args_.stride);
    if (args_.softcap == 0) {
      return Mul(z, Splat(share * kLog2E));
    }
    return Mul(SoftCap(z, 2 * kLog2E * share / args_.softcap, args_.softcap), Splat(kLog2E));
  }

  // Column C of the diagonal block is seen by rows R ≥ C.
  void MaskDiagonal() {
    for (uint32_t strip = 0; strip < strips_; ++strip) {
      for (uint32_t column = 0; column < columns_; ++column) {
        if (strip > column % strips_) {
          scores_[size_t{strip} * padded_ + column] = kMinusInf;
        }
      }
    }
  }

  // The largest score of each row in the block, and the sum of exponentials relative to it.
  void FoldBlock(uint32_t block) {
    for (uint32_t i = 0; i < strips_ * padded_; i += kLanes) {
      Store(scores_ + i, Scaled(Load(scores_ + i)));
    }
    if (block == args_.block) {
      MaskDiagonal();
    }
    for (uint32_t column = 0; column < padded_; column += kLanes) {
      const float* const scores = scores_ + column;
      F32x16 max = Splat(kMinusInf);
      for (uint32_t strip = 0; strip < strips_; ++strip) {
        max = Max(Load(scores + size_t{strip} * padded_), max);  // a NaN is left to the sum
      }
      const F32x16 reference = Max(Splat(kLowest), max);
      F32x16 sum = Zero();
      for (uint32_t strip = 0; strip < strips_; ++strip) {
        sum = Add(sum, Exp2<5>(Sub(Load(scores + size_t{strip} * padded_), reference)));
      }
      Store(maxima_ + size_t{block} * padded_ + column, max);
      Store(sums_ + size_t{block} * padded_ + column, sum);
    }
  }

  // Makes sums_ the shares of blocks, then adds those of a head's rows.
  void Spread() {
    for (uint32_t column = 0; column < padded_; column += kLanes) {
      F32x16 max = Splat(kLowest);
      for (uint32_t block = 0; block < num_blocks_; ++block) {
        max = Max(Load(maxima_ + size_t{block} * padded_ + column), max);
      }
      F32x16 total = Zero();
      for (uint32_t block = 0; block < num_blocks_; ++block) {
        const size_t at = size_t{block} * padded_ + column;
        const F32x16 sum = Mul(Load(sums_ + at), Exp2<5>(Sub(Load(maxima_ + at), max)));
        Store(sums_ + at, sum);
        total = Add(total, sum);
      }
      const F32x16 factor = Div(Splat(1.0F), total);
      for (uint32_t block = 0; block < num_blocks_; ++block) {
        float* const share = sums_ + size_t{block} * padded_ + column;
        Store(share, Mul(Load(share), factor));
      }
    }
    for (uint32_t head = 0; head < num_heads_; ++head) {
      float* const mass = args_.mass + size_t{head_ + head} * num_blocks_;
      for (uint32_t block = 0; block < num_blocks_; ++block) {
        const float* const shares = sums_ + size_t{block} * padded_ + size_t{head} * strips_;
        float sum = 0;
        for (uint32_t row = 0; row < strips_; ++row) {
          sum += shares[row];
        }
        mass[block] = sum;
      }
    }
  }

  const BlockMassArgs& args_;
  const uint32_t head_;  // the first
  const uint32_t num_heads_;
  const uint32_t strips_;   // rows or columns of tiles of a block
  const uint32_t columns_;  // lanes in use
  const uint32_t padded_;   // multiple of kLanes
  const uint32_t words_;    // of a key
  const uint32_t piece_;    // keys of a strip that follow each other in memory
  const uint32_t num_blocks_;
  uint32_t* queries_ = nullptr;  // [stride][words_][padded_]
  float* scores_ = nullptr;      // [strips_][padded_] of one block
  float* maxima_ = nullptr;      // [num_blocks_][padded_]
  float* sums_ = nullptr;        // [num_blocks_][padded_]
};

template <typename Op, bool kIsF32>
int RunPanels(const BlockMassArgs& args, const Exec& exec) {
  const uint32_t most = kMostColumns * args.stride / kMassBlockTokens;
  for (uint32_t head = 0; head < args.group; head += most) {
    const uint32_t count = args.group - head < most ? args.group - head : most;
    if (const int code = MassPanel<Op, kIsF32>(args, head, count).Run(exec); code != kOk) {
      return code;
    }
  }
  return kOk;
}

}  // namespace

int BlockMass(const BlockMassArgs& args, Exec* exec) {
  const StripeKeys& keys = args.layout;
  if ((args.stride != 8 && args.stride != 16) || args.group == 0 || args.group > kMaxGroup ||
      keys.head_dim == 0 || keys.head_dim % kLanes != 0 || keys.head_dim > kMaxHeadDim ||
      keys.page_tokens == 0 || args.stride % PieceTokens(args) != 0 ||
      keys.page_tokens % PieceTokens(args) != 0) {
    return kInvalidArgument;
  }
  switch (keys.type) {
    case DType::kF32:
      return RunPanels<FloatOp, true>(args, *exec);
    case DType::kBF16:
      return RunPanels<Bf16Op, false>(args, *exec);
    default:
      return kInvalidArgument;
  }
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
