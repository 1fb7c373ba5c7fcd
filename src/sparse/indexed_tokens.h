// How much of their contexts algorithms have indexed: what a shared or kept index saves shows in
// how little is added. Thread-safety: plain value; `algorithm` lives as long as its algorithm.
#pragma once

#include <cstdint>
#include <string_view>

namespace spindle::sparse {

// Tokens whose keys went into indexes of one algorithm, in steps that were completed. A token
// counts again when its index is built again.
struct IndexedTokens {
  std::string_view algorithm;
  uint64_t tokens = 0;
};

}  // namespace spindle::sparse
