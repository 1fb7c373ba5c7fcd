#include "sparse/index_type.h"

namespace spindle::sparse {

Digest IndexFingerprint(IndexType type) {
  return type == IndexType::kInt8 ? Sha256().Field("int8 index").Finish() : Digest{};
}

}  // namespace spindle::sparse
