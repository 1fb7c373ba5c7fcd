#include "bench/roofs.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <thread>
#include <vector>

#include <immintrin.h>

#include "bench/huge_buffer.h"
#include "kernels/registry.h"

namespace spindle::bench {

namespace {

using Clock = std::chrono::steady_clock;
using kernels::FindKernels;
using kernels::Isa;

// Windows last about half a millisecond, less than a time slice of the operating system.
constexpr uint64_t kWindows = 200;
// Reads of memory go on for so long: some machines serve a burst at twice the rate that they keep.
constexpr std::chrono::seconds kSustained(1);
constexpr size_t kDramBytes = size_t{1} << 30;
constexpr size_t kCacheBytes = size_t{1} << 20;
constexpr size_t kPrefetchReads = 16;  // random reads in flight per thread

#define SPINDLE_AVX512_TARGET __attribute__((target("avx512f,avx512bw,avx512vnni,avx512bf16")))
#define SPINDLE_AMX_TARGET __attribute__((target("amx-tile,amx-int8,amx-bf16")))

// Keeps `value` alive without storing it.
template <typename T>
__attribute__((always_inline)) inline void Keep(T& value) {
  __asm__ volatile("" : "+x"(value));
}

// Each returns the operations or bytes of one call.
__attribute__((target("avx2,fma"))) double Fp32Avx2() {
  constexpr int kSums = 10;
  constexpr int kLoops = 50000;
  __m256 sums[kSums] = {};
  __m256 a = _mm256_set1_ps(0.5F);
  for (auto& sum : sums) {
    Keep(sum);  // else equal sums would be computed once
  }
  for (int loop = 0; loop < kLoops; ++loop) {
    Keep(a);
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(a, a, sum);
    }
  }
  for (__m256& sum : sums) {
    Keep(sum);
  }
  return 16.0 * kSums * kLoops;
}

SPINDLE_AVX512_TARGET double Fp32Avx512() {
  constexpr int kSums = 16;
  constexpr int kLoops = 50000;
  __m512 sums[kSums] = {};
  __m512 a = _mm512_set1_ps(0.5F);
  for (auto& sum : sums) {
    Keep(sum);  // else equal sums would be computed once
  }
  for (int loop = 0; loop < kLoops; ++loop) {
    Keep(a);
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(a, a, sum);
    }
  }
  for (__m512& sum : sums) {
    Keep(sum);
  }
  return 32.0 * kSums * kLoops;
}

SPINDLE_AVX512_TARGET double Bf16Avx512() {
  constexpr int kSums = 16;
  constexpr int kLoops = 50000;
  __m512 sums[kSums] = {};
  __m512i a = _mm512_set1_epi32(0x3F003F00);
  for (auto& sum : sums) {
    Keep(sum);  // else equal sums would be computed once
  }
  for (int loop = 0; loop < kLoops; ++loop) {
    Keep(a);
    const auto pairs = reinterpret_cast<__m512bh>(a);
    for (__m512& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, pairs, pairs);
    }
  }
  for (__m512& sum : sums) {
    Keep(sum);
  }
  return 64.0 * kSums * kLoops;
}

SPINDLE_AVX512_TARGET double Int8Avx512() {
  constexpr int kSums = 16;
  constexpr int kLoops = 50000;
  __m512i sums[kSums] = {};
  __m512i a = _mm512_set1_epi8(1);
  for (auto& sum : sums) {
    Keep(sum);  // else equal sums would be computed once
  }
  for (int loop = 0; loop < kLoops; ++loop) {
    Keep(a);
    for (__m512i& sum : sums) {
      sum = _mm512_dpbusd_epi32(sum, a, a);
    }
  }
  for (__m512i& sum : sums) {
    Keep(sum);
  }
  return 128.0 * kSums * kLoops;
}

struct alignas(64) FullTiles {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The barrier is for g++ 12, which drops stores that only LDTILECFG reads.
SPINDLE_AMX_TARGET void ConfigureFullTiles() {
  const FullTiles config;
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

constexpr int kTileLoops = 10000;

SPINDLE_AMX_TARGET double Int8Amx() {
  ConfigureFullTiles();
  for (int loop = 0; loop < kTileLoops; ++loop) {
    _tile_dpbssd(0, 4, 5);
    _tile_dpbssd(1, 4, 5);
    _tile_dpbssd(2, 4, 5);
    _tile_dpbssd(3, 4, 5);
  }
  _tile_release();
  return 4.0 * kTileLoops * 2 * 16 * 16 * 64;
}

SPINDLE_AMX_TARGET double Bf16Amx() {
  ConfigureFullTiles();
  for (int loop = 0; loop < kTileLoops; ++loop) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
  return 4.0 * kTileLoops * 2 * 16 * 16 * 32;
}

uint64_t SumSse2(const uint8_t* from, size_t bytes) {
  __m128i sums[4] = {};
  for (size_t i = 0; i < bytes; i += 64) {
    for (size_t j = 0; j < 4; ++j) {
      sums[j] = _mm_add_epi64(sums[j],
                              _mm_load_si128(reinterpret_cast<const __m128i*>(from + i + 16 * j)));
    }
  }
  const __m128i sum =
      _mm_add_epi64(_mm_add_epi64(sums[0], sums[1]), _mm_add_epi64(sums[2], sums[3]));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(sum));
}

SPINDLE_AVX512_TARGET uint64_t SumAvx512(const uint8_t* from, size_t bytes) {
  __m512i even = _mm512_setzero_si512();
  __m512i odd = _mm512_setzero_si512();
  for (size_t i = 0; i < bytes; i += 128) {
    even = _mm512_add_epi64(even, _mm512_load_si512(from + i));
    odd = _mm512_add_epi64(odd, _mm512_load_si512(from + i + 64));
  }
  alignas(64) uint64_t lanes[8];
  _mm512_store_si512(lanes, _mm512_add_epi64(even, odd));
  uint64_t sum = 0;
  for (const uint64_t lane : lanes) {
    sum += lane;
  }
  return sum;
}

uint64_t Sum(const uint8_t* from, size_t bytes) {
  static const bool kWide = FindKernels(Isa::kAvx512) != nullptr;
  return kWide ? SumAvx512(from, bytes) : SumSse2(from, bytes);
}

std::atomic<uint64_t> sink{0};

// Reads `reads` pieces at pseudo-random places of a buffer, a fixed number of pieces ahead of their
// use, into the first or the second cache (3 or 2): processors differ in which takes more requests.
template <int kLocality>
double Gather(const uint8_t* from, size_t piece_bytes, size_t reads, uint64_t seed) {
  const size_t places = kDramBytes / piece_bytes;
  const auto place = [&](uint64_t i) {
    const uint64_t mixed = (i + seed) * 0x9E3779B97F4A7C15U;
    return from + (mixed >> 20) % places * piece_bytes;
  };
  const auto prefetch = [&](const uint8_t* piece) {
    for (size_t line = 0; line < piece_bytes; line += 64) {
      __builtin_prefetch(piece + line, 0, kLocality);
    }
  };
  const size_t ahead = std::max<size_t>(2, kPrefetchReads * 128 / piece_bytes);
  uint64_t sum = 0;
  for (size_t i = 0; i < ahead; ++i) {
    prefetch(place(i));
  }
  for (size_t i = 0; i < reads; ++i) {
    prefetch(place(i + ahead));
    sum += Sum(place(i), piece_bytes);
  }
  sink += sum;
  return static_cast<double>(reads * piece_bytes);
}

// Sums over all threads, in 10^9 per second, of `work(thread, window)`, which all do at a time.
struct Rates {
  double best;       // of every thread's best window
  double sustained;  // of everything over all the time
};

template <typename Work>
Rates MeasureRates(uint32_t num_threads, Clock::duration at_least, Work work) {
  std::vector<Rates> rates(num_threads);
  std::atomic<uint32_t> waiting{num_threads};
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back([&, thread] {
      --waiting;
      while (waiting.load() > 0) {
        std::this_thread::yield();
      }
      double best = 0;
      double total = 0;
      const auto start = Clock::now();
      auto end = start;
      for (uint64_t window = 0; window < kWindows || end - start < at_least; ++window) {
        const auto begin = end;
        const double amount = work(thread, window);
        end = Clock::now();
        total += amount;
        best = std::max(best, amount / std::chrono::duration<double>(end - begin).count());
      }
      rates[thread] = {best * 1e-9,
                       total / std::chrono::duration<double>(end - start).count() * 1e-9};
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return std::accumulate(
      rates.begin(), rates.end(), Rates{0, 0}, [](const Rates& sum, const Rates& each) {
        return Rates{sum.best + each.best, sum.sustained + each.sustained};
      });
}

double BestArithmetic(uint32_t num_threads, double (*kernel)()) {
  return MeasureRates(num_threads, {}, [kernel](uint32_t, uint64_t) { return kernel(); }).best;
}

void MeasureMemory(uint32_t num_threads, Roofs& roofs) {
  const HugeBuffer buffer(kDramBytes * num_threads);
  const Rates streaming =
      MeasureRates(num_threads, kSustained, [&](uint32_t thread, uint64_t window) {
        constexpr size_t kPart = kDramBytes / kWindows / 128 * 128;
        sink += Sum(buffer.data() + kDramBytes * thread + kPart * (window % kWindows), kPart);
        return static_cast<double>(kPart);
      });
  roofs.dram_gbps = streaming.best;
  roofs.sustained_dram_gbps = streaming.sustained;
  roofs.cache_gbps = MeasureRates(num_threads, {}, [&](uint32_t thread, uint64_t) {
                       for (int i = 0; i < 20; ++i) {
                         sink += Sum(buffer.data() + kDramBytes * thread, kCacheBytes);
                       }
                       return 20.0 * kCacheBytes;
                     }).best;
  for (size_t size = 0; size < kGatherBytes.size(); ++size) {
    for (const auto gather : {Gather<3>, Gather<2>}) {
      const Rates rates =
          MeasureRates(num_threads, kSustained, [&](uint32_t thread, uint64_t window) {
            return gather(buffer.data() + kDramBytes * thread,
                          kGatherBytes[size],
                          (size_t{4} << 20) / kGatherBytes[size],
                          window * 1000003);
          });
      roofs.gather_gbps[size] = std::max(roofs.gather_gbps[size], rates.best);
      roofs.sustained_gather_gbps[size] =
          std::max(roofs.sustained_gather_gbps[size], rates.sustained);
    }
  }
}

}  // namespace

Roofs MeasureRoofs(uint32_t num_threads) {
  Roofs roofs{};
  roofs.num_threads = num_threads;
  if (FindKernels(Isa::kAvx512) != nullptr) {
    roofs.fp32_gops = BestArithmetic(num_threads, Fp32Avx512);
    roofs.bf16_gops = BestArithmetic(num_threads, Bf16Avx512);
    roofs.int8_gops = BestArithmetic(num_threads, Int8Avx512);
  } else if (FindKernels(Isa::kAvx2) != nullptr) {
    roofs.fp32_gops = BestArithmetic(num_threads, Fp32Avx2);
  }
  if (FindKernels(Isa::kAmx) != nullptr) {
    roofs.int8_amx_gops = BestArithmetic(num_threads, Int8Amx);
    roofs.bf16_amx_gops = BestArithmetic(num_threads, Bf16Amx);
  }
  MeasureMemory(num_threads, roofs);
  return roofs;
}

void PrintRoofs(const Roofs& roofs) {
  std::printf("Roofs with %u threads\n", roofs.num_threads);
  std::printf("  fp32 multiply-add   %8.0f GFLOP/s\n", roofs.fp32_gops);
  std::printf(
      "  bf16 dot product    %8.0f GFLOP/s, tiles %8.0f\n", roofs.bf16_gops, roofs.bf16_amx_gops);
  std::printf(
      "  int8 dot product    %8.0f GOP/s,   tiles %8.0f\n", roofs.int8_gops, roofs.int8_amx_gops);
  std::printf("  streaming reads     %8.1f GB/s from memory, %.1f sustained; %.1f from cache\n",
              roofs.dram_gbps,
              roofs.sustained_dram_gbps,
              roofs.cache_gbps);
  for (size_t i = 0; i < kGatherBytes.size(); ++i) {
    std::printf("  gather roof %5zu B  %8.1f GB/s, %.1f sustained\n",
                kGatherBytes[i],
                roofs.gather_gbps[i],
                roofs.sustained_gather_gbps[i]);
  }
  std::fflush(stdout);
}

}  // namespace spindle::bench
