#include "kv/trace/access_recorder.h"

#include <array>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "kv/trace/access_trace_format.h"

namespace spindle::kv {
namespace {

// Records go on together in pieces of about so many bytes.
constexpr size_t kPieceBytes = size_t{1} << 16;
// Of an id as a record has it: 22 bits in groups of 7.
constexpr size_t kMaxIdBytes = 4;
static_assert(kPieceBytes + kAccessRecordBytes + kMaxRecordIds * kMaxIdBytes + kMaxRecordIds / 8 +
                  1 <=
              AccessTraceWriter::kMaxEncodedBytes);

uint16_t NumberOf(CacheSetId set) {
  SPINDLE_CHECK(set.value() <= kMaxRequestNumber);
  return static_cast<uint16_t>(set.value());
}

}  // namespace

// Sized at construction, so that nothing is allocated during a layer.
struct AccessRecorder::Worker {
  // Encoded records [end of the piece before, end).
  struct Piece {
    size_t end;
    uint32_t num_records;
  };

  explicit Worker(size_t max_bytes) {
    bytes.reserve(max_bytes);
    pieces.reserve(max_bytes / kPieceBytes + 1);
    hit_bits.reserve(kMaxRecordIds / 8 + 1);
  }

  // False when there is no room.
  bool TryAdd(const AccessRecord& record) {
    const size_t most =
        kAccessRecordBytes + record.ids.size() * kMaxIdBytes + record.hit_bits.size();
    if (bytes.capacity() - bytes.size() < most) {
      return false;
    }
    const size_t piece_begin = pieces.size() < 2 ? 0 : pieces[pieces.size() - 2].end;
    if (pieces.empty() || bytes.size() - piece_begin >= kPieceBytes) {
      pieces.push_back({bytes.size(), 0});
    }
    EncodeAccessRecord(record, &bytes);
    pieces.back().end = bytes.size();
    ++pieces.back().num_records;
    return true;
  }

  std::vector<uint8_t> bytes;
  std::vector<Piece> pieces;
  std::vector<uint8_t> hit_bits;  // of one record
  uint64_t num_dropped = 0;
};

AccessRecorder::AccessRecorder(std::unique_ptr<AccessTraceWriter> writer,
                               uint32_t num_workers,
                               uint64_t buffer_bytes)
    : writer_(std::move(writer)) {
  for (uint32_t i = 0; i < num_workers; ++i) {
    workers_.push_back(std::make_unique<Worker>(buffer_bytes / num_workers));
  }
}

AccessRecorder::~AccessRecorder() = default;

void AccessRecorder::Collect() {
  for (const std::unique_ptr<Worker>& worker : workers_) {
    size_t begin = 0;
    for (const Worker::Piece& piece : worker->pieces) {
      // An error has been logged by the sink, and shows in is_recording().
      writer_
          ->AppendEncoded(std::span(worker->bytes).subspan(begin, piece.end - begin),
                          piece.num_records)
          .IgnoreError();
      begin = piece.end;
    }
    writer_->Drop(worker->num_dropped);
    worker->bytes.clear();
    worker->pieces.clear();
    worker->num_dropped = 0;
  }
  is_recording_ = writer_->is_recording();
}

void AccessRecorder::Record(CacheSetId set, AccessKind kind, std::span<const uint32_t> ids) {
  Collect();
  writer_
      ->Append({.step = step_,
                .request = NumberOf(set),
                .layer = kAllLayers,
                .head = kAllHeads,
                .kind = kind,
                .ids = ids,
                .hit_bits = {}})
      .IgnoreError();  // as in Collect
}

void AccessRecorder::BeginStep() {
  Collect();
  ++step_;
}

void AccessRecorder::Append(CacheSetId set, uint32_t page_begin, uint32_t page_end) {
  page_ids_.resize(page_end - page_begin);
  std::iota(page_ids_.begin(), page_ids_.end(), page_begin);
  Record(set, AccessKind::kAppend, page_ids_);
}

void AccessRecorder::Prefill(CacheSetId set, uint32_t page_begin, uint32_t page_end) {
  Record(set, AccessKind::kPrefill, std::array{page_begin, page_end});
}

void AccessRecorder::Resize(CacheSetId set, uint32_t frames_per_group) {
  Record(set, AccessKind::kResize, {&frames_per_group, 1});
}

void AccessRecorder::Fork(CacheSetId child, CacheSetId parent) {
  Record(child, AccessKind::kFork, std::array{uint32_t{NumberOf(parent)}});
}

void AccessRecorder::Pause(CacheSetId set) {
  Record(set, AccessKind::kPause, {});
}

void AccessRecorder::End(CacheSetId set) {
  Record(set, AccessKind::kEnd, {});
}

void AccessRecorder::Select(uint32_t worker_index,
                            const GroupRef& group,
                            Caching caching,
                            std::span<const uint32_t> pages,
                            const GroupPlan& plan) {
  Worker& worker = *workers_[worker_index];
  // A group has no gaps, also within a step.
  if (!is_recording_ || worker.num_dropped > 0) {
    ++worker.num_dropped;
    return;
  }
  std::vector<uint8_t>& hit_bits = worker.hit_bits;
  hit_bits.assign((pages.size() + 7) / 8, 0xFF);
  if (pages.size() % 8 != 0) {
    hit_bits.back() = static_cast<uint8_t>(0xFF >> (8 - pages.size() % 8));
  }
  for (const PageLoad& load : plan.loads) {
    hit_bits[load.index / 8] &= static_cast<uint8_t>(~(1U << load.index % 8));
  }
  const bool added = worker.TryAdd({.step = step_,
                                    .request = NumberOf(group.set),
                                    .layer = group.layer.value(),
                                    .head = static_cast<uint8_t>(group.head.value()),
                                    .kind = AccessKind::kSelect,
                                    .caching = caching,
                                    .ids = pages,
                                    .hit_bits = hit_bits});
  worker.num_dropped += added ? 0U : 1U;
}

void AccessRecorder::Finish() {
  Collect();
  writer_->Finish().IgnoreError();  // as in Collect
}

}  // namespace spindle::kv
