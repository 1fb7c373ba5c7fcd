// One open sequence of the host tier. Internal to the store. Thread-safety: engine-thread only.
#pragma once

#include <cstdint>
#include <vector>

namespace spindle::kv {

struct Sequence {
  uint64_t id = 0;  // 0 = the place is vacant
  std::vector<uint32_t> slots;
  std::vector<uint8_t*> stripes;  // address of each slot
  uint32_t num_tokens = 0;
  uint32_t num_sealed = 0;
  bool publishes = true;  // false once a stripe had to stay private: its descendants rest on it
};

}  // namespace spindle::kv
