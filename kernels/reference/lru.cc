// Victims of bucketed LRU by a histogram, the oracle of the tests.
#include "kernels/api/lru.h"

#include <algorithm>
#include <array>

#include "kernels/functions.h"

namespace spindle::kernels::reference {

VictimResult SelectVictims(const VictimArgs& args, uint32_t* out) {
  std::array<uint32_t, 256> histogram{};
  for (uint32_t slot = 0; slot < args.num_slots; ++slot) {
    ++histogram[args.stamps[slot]];
  }
  const uint32_t wanted = std::min(args.num_wanted, args.num_slots - histogram[kLruPinned]);
  if (wanted == 0) {
    return {0, args.hand};
  }
  uint32_t border = 0;
  uint32_t older = 0;
  while (older + histogram[border] < wanted) {
    older += histogram[border];
    ++border;
  }
  uint32_t rest = wanted - older;
  uint32_t hand = args.hand;
  uint32_t count = 0;
  for (uint32_t i = 0; i < args.num_slots; ++i) {
    const uint32_t slot = (args.hand + i) % args.num_slots;
    if (args.stamps[slot] < border) {
      out[count++] = slot;
    } else if (args.stamps[slot] == border && rest > 0) {
      out[count++] = slot;
      --rest;
      hand = border == kLruFree ? args.hand : slot + 1;
    }
  }
  std::sort(out, out + count);
  return {count, hand};
}

}  // namespace spindle::kernels::reference
