// One load, fetch or store of the disk tier: the request, its staging memory and its checks.
// Thread-safety: belongs to the engine thread, but for the time in an IoQueue.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "kv/disk/aligned_buffer.h"
#include "kv/disk/disk_format.h"
#include "kv/disk/disk_options.h"
#include "kv/disk/disk_store.h"
#include "kv/disk/io_queue.h"

namespace spindle::kv::disk {

// A segment file of an open store.
struct Segment {
  uint32_t number = 0;
  std::unique_ptr<DiskFile> file;  // null while not open
  uint64_t end = 0;                // its length once all transfers are done
  uint32_t num_users = 0;          // transfers and commits that use the file
  uint32_t num_writers = 0;        // of these: writes
  bool dirty = false;              // written since its last sync
  bool name_durable = true;        // its folder was synced since it was made
  bool suspect = false;            // the device failed on it: nothing is appended any more
  bool exact = true;               // `end` is what the file system says
  bool dropping = false;           // gone from the index; unlinked when durable and unused
  bool unlinking = false;
  bool quarantined = false;               // cannot be unlinked
  std::optional<TimePoint> spared_since;  // the collector could not move what is kept in it
  uint64_t drop_generation = 0;           // the commit that makes the drop durable
};

class TransferJob;

// Work whose end the store handles.
class StoreJob : public IoJob {
 public:
  // Which handler; the store casts accordingly.
  enum class Type : uint8_t { kTransfer, kCommit, kCheckpoint, kCopy, kUnlink, kSpace, kProbe };

  explicit StoreJob(Type job_type) : type(job_type) {}

  const Type type;
};

class TransferJob final : public StoreJob {
 public:
  // `header_bytes`: of the largest record header of the store.
  explicit TransferJob(uint64_t header_bytes)
      : StoreJob(Type::kTransfer), staging(kAlignment + header_bytes) {}

  // Stores: fills in checksums and header. Loads: verifies, and fills in `fields`.
  absl::Status Before() override;
  absl::Status After() override;

  // Prepares the parts. REQUIRES: op, fields, segment, place and payload are set.
  void PrepareStore(const StoreUuid& uuid, bool with_segment_header);
  void PrepareLoad();
  void PrepareFetch();

  Completion::Op op = Completion::Op::kLoad;
  Ticket ticket = 0;
  uint64_t tag = 0;
  Ack ack = Ack::kWritten;
  TimePoint deadline = TimePoint::max();
  bool given_up = false;  // deadline passed, or cancelled: the result does not count
  absl::Status early_status;
  LoadFailure failure = LoadFailure::kIo;  // when the status is not OK
  uint64_t generation = 0;                 // commit that makes a store durable

  RecordFields fields;  // to store; expected by a load (id, parent, tokens, sizes)
  Segment* segment = nullptr;
  uint32_t offset_pages = 0;
  uint32_t length_pages = 0;
  uint32_t header_crc = 0;     // expected by a load; result of a store
  std::span<uint8_t> payload;  // destination or source
  AlignedBuffer memory;        // of fetched and put records
  AlignedBuffer staging;       // a page for a segment header, then a record header
  std::vector<uint32_t> extent_crcs;

 private:
  absl::Status Fail(LoadFailure cause, const std::string& what);
  [[nodiscard]] absl::Status CheckHeader(std::span<const uint8_t> header);
};

}  // namespace spindle::kv::disk
