// What this machine can do at most, measured when the bench starts: arithmetic with operands in
// registers and reads of memory, on a number of threads. Every kernel row is a fraction of one of
// these figures. Thread-safety: one measurement at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace spindle::bench {

// Bytes per random read: a token row, and KV pages.
inline constexpr std::array<size_t, 4> kGatherBytes = {128, 1024, 2048, 4096};

// Operations count a multiply-add as two. 0 where this CPU lacks the instruction.
struct Roofs {
  uint32_t num_threads;
  double fp32_gops;      // 512- or 256-bit fused multiply-add
  double bf16_gops;      // VDPBF16PS
  double int8_gops;      // VPDPBUSD
  double bf16_amx_gops;  // TDPBF16PS
  double int8_amx_gops;  // TDPBSSD
  double dram_gbps;      // streaming reads of 1 GiB per thread in huge pages
  double sustained_dram_gbps;
  double cache_gbps;                                    // streaming reads of 1 MiB per thread
  std::array<double, kGatherBytes.size()> gather_gbps;  // random reads in 1 GiB, software prefetch
  std::array<double, kGatherBytes.size()> sustained_gather_gbps;
};

// Takes some ten seconds. Best of many short windows: neighbours only ever make a window slower.
// Sustained rates are those of a second of such windows, as work that lasts will see them.
Roofs MeasureRoofs(uint32_t num_threads);

void PrintRoofs(const Roofs& roofs);

}  // namespace spindle::bench
