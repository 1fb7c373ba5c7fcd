// The index of one segment, layer and KV head: 64 places of clusters, of which the first ones are
// taken, and the tokens by cluster.
//   key means [64] vectors · value means the same · begins [65] · tokens [1024]
// Thread-safety: value type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/prefix_key.h"
#include "kernels/api/cluster.h"
#include "sparse/index_type.h"

namespace spindle::sparse {

struct ClusterIndex {
  static constexpr uint32_t kClusters = kernels::kMaxSegmentClusters;

  uint32_t head_dim;
  IndexType type = IndexType::kBf16;

  // Of key means, and of value means.
  [[nodiscard]] kernels::VectorBlock means() const {
    return kernels::ClusterVectors(type, head_dim);
  }

  [[nodiscard]] size_t values_offset() const { return kernels::BlockBytes(means()); }

  [[nodiscard]] size_t begins_offset() const { return 2 * values_offset(); }

  // Where members of cluster i begin among the tokens; place 64 is their number.
  [[nodiscard]] size_t tokens_offset() const { return begins_offset() + kBeginsBytes; }

  [[nodiscard]] size_t bytes() const { return tokens_offset() + kSegmentTokens * 2; }

  [[nodiscard]] uint16_t Begin(const uint8_t* index, uint32_t cluster) const {
    uint16_t begin = 0;
    std::memcpy(&begin, index + begins_offset() + cluster * sizeof(begin), sizeof(begin));
    return begin;
  }

 private:
  static constexpr size_t kBeginsBytes = 144;  // 65 of 2 bytes, up to a multiple of 16
};

}  // namespace spindle::sparse
