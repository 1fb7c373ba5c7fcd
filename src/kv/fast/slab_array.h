// A growable array of plain values in a MetadataSlab, in pieces of at most one chunk: all full but
// the last, which has the size it needs. One piece is found directly, several through a root, so
// that an element costs one cache line plus, beyond 4 KiB, the root's. Eight bytes per array.
// Thread-safety: thread-compatible. The owner must Clear it; the slab is passed to every call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kv/fast/metadata_slab.h"

namespace spindle::kv {

template <typename T>
class SlabArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static constexpr uint32_t kPerPiece = kChunkBytes / sizeof(T);

  [[nodiscard]] uint32_t size() const { return size_; }

  // REQUIRES: i < size().
  [[nodiscard]] T& At(const MetadataSlab& slab, uint32_t i) const {
    return slab.At<T>(PieceOf(slab, i / kPerPiece))[i % kPerPiece];
  }

  // Elements from i to the end of its piece, in order of memory. REQUIRES: i < size().
  [[nodiscard]] T* Piece(const MetadataSlab& slab, uint32_t i) const { return &At(slab, i); }

  // New elements are zero. False when the slab is full; nothing changed then. O(size moved).
  // REQUIRES: at most 1,024 pieces, so that the root fits into one chunk.
  [[nodiscard]] bool Resize(MetadataSlab& slab, uint32_t size) {
    SlabArray next;
    next.size_ = size;
    if (!next.AllocatePieces(slab, *this)) {
      return false;
    }
    const uint32_t kept = std::min(size_, size);
    for (uint32_t piece = 0; piece < NumPieces(); ++piece) {
      const uint32_t item = PieceOf(slab, piece);
      if (piece < next.NumPieces() && next.PieceOf(slab, piece) == item) {
        continue;
      }
      if (const uint32_t begin = piece * kPerPiece; begin < kept) {
        std::memcpy(next.Piece(slab, begin),
                    slab.At<T>(item),
                    std::min(kept - begin, kPerPiece) * sizeof(T));
      }
      slab.Free(item);
    }
    if (NumPieces() > 1) {
      slab.Free(first_);
    }
    for (uint32_t i = kept; i < size; ++i) {
      next.At(slab, i) = T{};
    }
    *this = next;
    return true;
  }

  void Clear(MetadataSlab& slab) { static_cast<void>(Resize(slab, 0)); }

  // Bytes of its items.
  [[nodiscard]] uint64_t item_bytes() const {
    uint64_t units = NumPieces() > 1 ? MetadataSlab::ItemUnits(RootUnits()) : 0;
    for (uint32_t piece = 0; piece < NumPieces(); ++piece) {
      units += ItemUnits(piece);
    }
    return units * kSlabUnitBytes;
  }

 private:
  [[nodiscard]] uint32_t NumPieces() const { return (size_ + kPerPiece - 1) / kPerPiece; }

  [[nodiscard]] uint32_t RootUnits() const { return (NumPieces() + 1) / 2; }

  // Size of the item of a piece. REQUIRES: piece < NumPieces().
  [[nodiscard]] uint32_t ItemUnits(uint32_t piece) const {
    const uint32_t elements = std::min(size_ - piece * kPerPiece, kPerPiece);
    return MetadataSlab::ItemUnits(
        static_cast<uint32_t>((elements * sizeof(T) + kSlabUnitBytes - 1) / kSlabUnitBytes));
  }

  [[nodiscard]] uint32_t PieceOf(const MetadataSlab& slab, uint32_t piece) const {
    return size_ <= kPerPiece ? first_ : slab.At<uint32_t>(first_)[piece];
  }

  // Takes over the pieces of `old` that already have the right size and allocates the others.
  [[nodiscard]] bool AllocatePieces(MetadataSlab& slab, const SlabArray& old) {
    if (NumPieces() > 1) {
      first_ = slab.Allocate(RootUnits());
      if (first_ == kNoItem) {
        return false;
      }
    }
    uint32_t* const items = NumPieces() > 1 ? slab.At<uint32_t>(first_) : &first_;
    for (uint32_t piece = 0; piece < NumPieces(); ++piece) {
      const uint32_t reused = ReusedItem(slab, old, piece);
      items[piece] = reused != kNoItem ? reused : slab.Allocate(ItemUnits(piece));
      if (items[piece] == kNoItem) {
        for (uint32_t i = 0; i < piece; ++i) {
          if (ReusedItem(slab, old, i) == kNoItem) {
            slab.Free(items[i]);
          }
        }
        if (NumPieces() > 1) {
          slab.Free(first_);
        }
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] uint32_t ReusedItem(const MetadataSlab& slab,
                                    const SlabArray& old,
                                    uint32_t piece) const {
    return piece < old.NumPieces() && old.ItemUnits(piece) == ItemUnits(piece)
               ? old.PieceOf(slab, piece)
               : kNoItem;
  }

  uint32_t first_ = kNoItem;  // the only piece, or the root: an array of pieces
  uint32_t size_ = 0;
};

}  // namespace spindle::kv
