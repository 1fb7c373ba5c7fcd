#include "kv/fast/page_copy.h"

#include <cstring>

namespace spindle::kv {
namespace {

constexpr size_t kLineBytes = 64;
// Lines asked for at a time, between pieces of the page in progress: as many as the ten-odd buffers
// of a core can have under way.
constexpr size_t kPieceBytes = 8 * kLineBytes;

void Prefetch(const uint8_t* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kLineBytes) {
    __builtin_prefetch(from + i, 0, 2);
  }
}

}  // namespace

void CopyPages(std::span<const PageCopy> copies, size_t bytes) {
  for (size_t i = 0; i < copies.size(); ++i) {
    const uint8_t* const next = i + 1 < copies.size() ? copies[i + 1].from : nullptr;
    for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
      const size_t piece = bytes - begin < kPieceBytes ? bytes - begin : kPieceBytes;
      if (next != nullptr) {
        Prefetch(next + begin, piece);
      }
      std::memcpy(copies[i].to + begin, copies[i].from + begin, piece);
    }
  }
}

}  // namespace spindle::kv
