// Normalisation, SwiGLU and operand preparation, 32 elements at a time.
#include <bit>

#include "kernels/codes.h"
#include "kernels/cpu/simd.h"
#include "kernels/functions.h"
#if defined(__AVX512BF16__)
#include "kernels/cpu/transpose_avx512.h"
#endif

namespace spindle::kernels::SPINDLE_KERNEL_ISA {

namespace {

constexpr uint32_t kLanes = 16;
constexpr uint32_t kInfinityBits = 0x7F800000;

struct Block {
  F32x16 low;
  F32x16 high;
};

// e^x for finite x; beyond the normal range of the result the nearest bound. NaN gives an
// unspecified finite value.
SPINDLE_INLINE F32x16 Exp(F32x16 x) {
  x = Min(Max(x, Splat(-87.0F)), Splat(88.0F));
  const F32x16 shifter = Splat(12582912.0F);  // 1.5 · 2^23: rounds to an integer when added
  const F32x16 shifted = MulAdd(x, Splat(1.44269504F), shifter);
  const F32x16 n = Sub(shifted, shifter);
  // ln 2 in two parts; the first has 9 bits, so that n times it is exact.
  F32x16 r = MulAdd(n, Splat(-0.693359375F), x);
  r = MulAdd(n, Splat(2.12194440e-4F), r);
  // Taylor series to the sixth power: the remainder on |r| ≤ ln 2 / 2 is 1.2e-7 relative.
  F32x16 poly = Splat(1.0F / 720);
  poly = MulAdd(poly, r, Splat(1.0F / 120));
  poly = MulAdd(poly, r, Splat(1.0F / 24));
  poly = MulAdd(poly, r, Splat(1.0F / 6));
  poly = MulAdd(poly, r, Splat(0.5F));
  poly = MulAdd(poly, r, Splat(1.0F));
  poly = MulAdd(poly, r, Splat(1.0F));
  return ScaleByPowerOfTwo(poly, shifted);
}

SPINDLE_INLINE F32x16 SwiGlu(F32x16 gate, F32x16 up) {
  const F32x16 one = Splat(1.0F);
  return Mul(Mul(gate, Div(one, Add(one, Exp(Sub(Zero(), gate))))), up);
}

// Sixteen codes as two planes.
SPINDLE_INLINE void StorePlanes(I32x16 codes, uint8_t* high, uint8_t* low) {
  const F32x16 exact = ToFloat(codes);
  const I32x16 units = ToNearestInt(Mul(exact, Splat(1.0F / kInt8HighUnit)));
  StoreS8(high, units);
  StoreS8(low, ToNearestInt(Sub(exact, Mul(ToFloat(units), Splat(kInt8HighUnit)))));
}

SPINDLE_INLINE void PrepareInt8(
    const Block& values, uint8_t* high, uint8_t* low, float* scale, float* sum) {
  const uint32_t max_bits = MaxMagnitudeBits(values.low, values.high);
  if (max_bits >= kInfinityBits) {
    __builtin_memset(high, 0, kActivationBlock);
    __builtin_memset(low, 0, kActivationBlock);
    *scale = __builtin_nanf("");
    *sum = __builtin_nanf("");
    return;
  }
  const auto max = std::bit_cast<float>(max_bits);
  const bool negligible = max < kMinBlockMagnitude;
  const F32x16 inverse = Splat(negligible ? 0.0F : kInt8MaxCode / max);
  const I32x16 first = ToNearestInt(Mul(values.low, inverse));
  const I32x16 second = ToNearestInt(Mul(values.high, inverse));
  StorePlanes(first, high, low);
  StorePlanes(second, high + kLanes, low + kLanes);
  *scale = negligible ? 0.0F : max / kInt8MaxCode;
  *sum = *scale * static_cast<float>(SumInt(AddInt(first, second)));
}

SPINDLE_INLINE void PrepareBlock(
    RowFormat format, const Block& values, uint32_t k, uint32_t begin, uint8_t* out) {
  if (format == RowFormat::kInt8) {
    auto* scales = reinterpret_cast<float*>(out + size_t{2} * k);
    const uint32_t block = begin / kActivationBlock;
    PrepareInt8(values,
                out + begin,
                out + k + begin,
                scales + block,
                scales + k / kActivationBlock + block);
  } else if (format == RowFormat::kBf16) {
    StoreBf16(out + size_t{2} * begin, values.low);
    StoreBf16(out + size_t{2} * (begin + kLanes), values.high);
  } else {
    Store(reinterpret_cast<float*>(out) + begin, values.low);
    Store(reinterpret_cast<float*>(out) + begin + kLanes, values.high);
  }
}

SPINDLE_INLINE Block LoadBlock(const float* from) {
  return {Load(from), Load(from + kLanes)};
}

// The last elements of a row, followed by zeros.
SPINDLE_INLINE Block LoadTail(const float* from, uint32_t count) {
  float values[kActivationBlock] = {};
  __builtin_memcpy(values, from, sizeof(float) * count);
  return LoadBlock(values);
}

// The tail of a row that is no whole number of blocks, with zeros to the end of the row's 64 bytes.
SPINDLE_INLINE void PrepareTail(
    RowFormat format, const Block& values, uint32_t k, uint32_t begin, uint8_t* out) {
  alignas(64) uint8_t bytes[4 * kActivationBlock];
  PrepareBlock(format, values, kActivationBlock, 0, bytes);
  const size_t element_bytes = format == RowFormat::kF32 ? 4 : 2;
  const size_t offset = element_bytes * begin;
  __builtin_memcpy(out + offset, bytes, PreparedRowBytes(format, k) - offset);
}

// Calls value(begin, load) for each block, where load(pointer) reads that block of a row.
template <typename Value>
SPINDLE_INLINE void PrepareValues(RowFormat format, uint32_t k, uint8_t* out, Value value) {
  uint32_t begin = 0;
  for (; begin + kActivationBlock <= k; begin += kActivationBlock) {
    const auto load = [begin](const float* row) { return LoadBlock(row + begin); };
    PrepareBlock(format, value(load), k, begin, out);
  }
  if (begin < k) {
    const uint32_t count = k - begin;
    const auto load = [begin, count](const float* row) { return LoadTail(row + begin, count); };
    PrepareTail(format, value(load), k, begin, out);
  } else if (format == RowFormat::kInt8) {
    const size_t used = size_t{2} * k + size_t{8} * (k / kActivationBlock);
    __builtin_memset(out + used, 0, PreparedRowBytes(format, k) - used);
  }
}

bool ValidRow(RowFormat format, uint32_t k) {
  return k > 0 && (format != RowFormat::kInt8 || k % kActivationBlock == 0);
}

// Where rows go.
struct RowOutput {
  RowFormat format;
  uint32_t k;
  uint32_t num_rows;
  uint8_t* out;
  size_t stride_bytes;
};

#if defined(__AVX512BF16__)

// Interleaves the element pairs of n rows of `row_bytes`.
void InterleaveRows(const uint8_t* rows, size_t row_bytes, uint32_t n, uint8_t* out) {
  alignas(64) static const uint8_t kZeros[64] = {};
  const auto some = static_cast<__mmask16>((1U << n) - 1);
  for (size_t offset = 0; offset < row_bytes; offset += 64) {
    const uint8_t* lines[kColumnGroupRows];
    for (uint32_t i = 0; i < kColumnGroupRows; ++i) {
      lines[i] = i < n ? rows + row_bytes * i + offset : kZeros;
    }
    for (uint32_t chunk = 0; chunk < 4; ++chunk) {
      __m512i pairs[4];
      TransposeChunk(lines, chunk, pairs);
      for (const __m512i& pair : pairs) {
        _mm512_mask_storeu_epi32(out, some, pair);
        out += size_t{4} * n;
      }
    }
  }
}

// A group of rows at a time goes through scratch.
template <typename WriteRow>
int WriteColumns(const RowOutput& to, WorkRange rows, const Exec* exec, WriteRow write_row) {
  const size_t row_bytes = PreparedRowBytes(RowFormat::kBf16, to.k);
  if (rows.begin % kColumnGroupRows != 0 ||
      (rows.end % kColumnGroupRows != 0 && rows.end != to.num_rows)) {
    return kInvalidArgument;
  }
  if (exec->scratch_bytes < row_bytes * kColumnGroupRows) {
    return kScratchTooSmall;
  }
  auto* scratch = static_cast<uint8_t*>(exec->scratch);
  for (uint32_t first = rows.begin; first < rows.end; first += kColumnGroupRows) {
    const uint32_t n = rows.end - first < kColumnGroupRows ? rows.end - first : kColumnGroupRows;
    uint8_t* out = to.out + to.stride_bytes * first;
    if (n == 1) {  // nothing to interleave
      write_row(first, RowFormat::kBf16, out);
      continue;
    }
    for (uint32_t i = 0; i < n; ++i) {
      write_row(first + i, RowFormat::kBf16, scratch + row_bytes * i);
    }
    InterleaveRows(scratch, row_bytes, n, out);
  }
  return kOk;
}

#else

template <typename WriteRow>
int WriteColumns(const RowOutput&, WorkRange, const Exec*, WriteRow) {
  return kUnsupported;
}

#endif

// Calls write_row(row, format, out) for each row.
template <typename WriteRow>
SPINDLE_INLINE int WriteRows(const RowOutput& to,
                             WorkRange rows,
                             const Exec* exec,
                             WriteRow write_row) {
  if (!ValidRow(to.format, to.k)) {
    return kInvalidArgument;
  }
  if (to.format == RowFormat::kBf16Columns) {
    return WriteColumns(to, rows, exec, write_row);
  }
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    write_row(row, to.format, to.out + to.stride_bytes * row);
  }
  return kOk;
}

// Σ x², in 32 sums over the row that are added as a tree.
float SumOfSquares(const float* x, uint32_t k) {
  Block sums{Zero(), Zero()};
  uint32_t begin = 0;
  for (; begin < k; begin += kActivationBlock) {
    const Block values =
        k - begin >= kActivationBlock ? LoadBlock(x + begin) : LoadTail(x + begin, k - begin);
    sums.low = MulAdd(values.low, values.low, sums.low);
    sums.high = MulAdd(values.high, values.high, sums.high);
  }
  float lanes[kLanes];
  Store(lanes, Add(sums.low, sums.high));
  for (uint32_t width = kLanes / 2; width > 0; width /= 2) {
    for (uint32_t i = 0; i < width; ++i) {
      lanes[i] += lanes[i + width];
    }
  }
  return lanes[0];
}

}  // namespace

int NormRows(const NormRowsArgs& args, WorkRange rows, Exec* exec) {
  const RowOutput to{
      args.format, args.k, args.num_rows, static_cast<uint8_t*>(args.out), args.out_stride_bytes};
  return WriteRows(to, rows, exec, [&](uint32_t row, RowFormat format, uint8_t* out) {
    const float* x = args.x + args.x_stride * row;
    const float mean = SumOfSquares(x, args.k) / static_cast<float>(args.k);
    const F32x16 factor = Splat(1.0F / __builtin_sqrtf(mean + args.eps));
    PrepareValues(format, args.k, out, [&](auto load) {
      Block values = load(x);
      values = {Mul(values.low, factor), Mul(values.high, factor)};
      if (args.weight != nullptr) {
        const Block weight = load(args.weight);
        values = {Mul(values.low, weight.low), Mul(values.high, weight.high)};
      }
      return values;
    });
  });
}

int PrepareRows(const PrepareRowsArgs& args, WorkRange rows, Exec* exec) {
  const RowOutput to{
      args.format, args.k, args.num_rows, static_cast<uint8_t*>(args.out), args.out_stride_bytes};
  return WriteRows(to, rows, exec, [&](uint32_t row, RowFormat format, uint8_t* out) {
    const float* x = args.x + args.x_stride * row;
    PrepareValues(format, args.k, out, [&](auto load) { return load(x); });
  });
}

int SwiGluRows(const SwiGluRowsArgs& args, WorkRange rows, Exec* exec) {
  const RowOutput to{
      args.format, args.k, args.num_rows, static_cast<uint8_t*>(args.out), args.out_stride_bytes};
  return WriteRows(to, rows, exec, [&](uint32_t row, RowFormat format, uint8_t* out) {
    const float* gate = args.gate + args.stride * row;
    const float* up = args.up + args.stride * row;
    PrepareValues(format, args.k, out, [&](auto load) {
      const Block g = load(gate);
      const Block u = load(up);
      return Block{SwiGlu(g.low, u.low), SwiGlu(g.high, u.high)};
    });
  });
}

}  // namespace spindle::kernels::SPINDLE_KERNEL_ISA
