#include "kernels/registry.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/tables.h"

namespace spindle::kernels {

namespace {

// Extended state components in XCR0 (Intel SDM volume 1, chapter 13).
constexpr uint64_t kXcr0Avx = 0x6;        // SSE, AVX
constexpr uint64_t kXcr0Avx512 = 0xE6;    // and opmask, ZMM_Hi256, Hi16_ZMM
constexpr uint64_t kXcr0Tiles = 0x600E6;  // and XTILECFG, XTILEDATA

// linux/arch/x86/include/uapi/asm/prctl.h and the number of the XTILEDATA component.
constexpr long kArchReqXcompPerm = 0x1023;
constexpr long kXtileData = 18;

struct CpuidRegisters {
  uint32_t eax;
  uint32_t ebx;
  uint32_t ecx;
  uint32_t edx;
};

CpuidRegisters Cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidRegisters regs{};
  if (__get_cpuid_count(leaf, subleaf, &regs.eax, &regs.ebx, &regs.ecx, &regs.edx) == 0) {
    return {};
  }
  return regs;
}

bool HasBits(uint32_t value, std::initializer_list<int> bits) {
  for (const int bit : bits) {
    if (((value >> bit) & 1U) == 0) {
      return false;
    }
  }
  return true;
}

// The state components that the operating system saves, or 0 when it saves none beyond SSE.
uint64_t EnabledState() {
  if (!HasBits(Cpuid(1, 0).ecx, {27})) {  // OSXSAVE
    return 0;
  }
  uint32_t low;
  uint32_t high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Tiles need the process's permission once; threads inherit it.
bool RequestTiles() {
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXtileData) == 0;
}

Isa DetectIsa() {
  const CpuidRegisters basic = Cpuid(1, 0);
  const CpuidRegisters extended = Cpuid(7, 0);
  const CpuidRegisters extended1 = Cpuid(7, 1);
  const uint64_t state = EnabledState();
  const bool avx2 = (state & kXcr0Avx) == kXcr0Avx &&
                    HasBits(basic.ecx, {12, 28, 29}) &&  // FMA, AVX, F16C
                    HasBits(extended.ebx, {3, 5, 8});    // BMI1, AVX2, BMI2
  if (!avx2) {
    return Isa::kBaseline;
  }
  const bool avx512 = (state & kXcr0Avx512) == kXcr0Avx512 &&
                      HasBits(extended.ebx, {16, 17, 30, 31}) &&  // F, DQ, BW, VL
                      HasBits(extended.ecx, {11}) &&              // VNNI
                      HasBits(extended1.eax, {5});                // BF16
  if (!avx512) {
    return Isa::kAvx2;
  }
  const bool tiles = (state & kXcr0Tiles) == kXcr0Tiles &&
                     HasBits(extended.edx, {22, 24}) &&  // AMX-BF16, AMX-TILE
                     RequestTiles();
  return tiles ? Isa::kAmx : Isa::kAvx512;
}

Isa BestIsa() {
  static const Isa best = DetectIsa();
  return best;
}

}  // namespace

const KernelTable* FindKernels(Isa isa) {
  if (isa != Isa::kReference && isa > BestIsa()) {
    return nullptr;
  }
  return BuiltTable(isa);
}

const KernelTable* BestKernels() {
  for (const Isa isa : {Isa::kAmx, Isa::kAvx512, Isa::kAvx2}) {
    if (const KernelTable* table = FindKernels(isa); table != nullptr) {
      return table;
    }
  }
  return FindKernels(Isa::kBaseline);
}

const KernelTable* FindKernelsByName(std::string_view name) {
  if (name == "auto") {
    return BestKernels();
  }
  for (const Isa isa : {Isa::kReference, Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    const KernelTable* table = FindKernels(isa);
    if (table != nullptr && table->name == name) {
      return table;
    }
  }
  return nullptr;
}

}  // namespace spindle::kernels
