// The folder of one store: its names, how it is found below a root that several models share, and
// how its index is rebuilt from checkpoint and journal. Thread-safety: pure functions over the file
// layer; they block.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kv/disk/disk_files.h"
#include "kv/disk/disk_format.h"
#include "kv/disk/disk_index.h"

namespace spindle::kv::disk {

inline constexpr char kSuperblockName[] = "STORE";
inline constexpr char kLockName[] = "LOCK";
inline constexpr char kProbeName[] = "probe.tmp";

[[nodiscard]] std::string SegmentName(uint32_t number);  // seg-xxxxxxxx.kv

// Numbers of segments are 1 … this.
inline constexpr uint32_t kMaxSegment = UINT32_MAX - 1;

struct SegmentFile {
  uint32_t number = 0;
  uint64_t bytes = 0;
  uint64_t allocated_bytes = 0;
};

// The files of a store by kind, each sorted by number. Names that no store gives are left out.
struct StoreListing {
  std::vector<SegmentFile> segments;
  std::vector<uint64_t> journals;
  std::vector<uint64_t> checkpoints;
  std::vector<std::string> temporary;  // names of files that were never finished
  bool superblock = false;
  uint64_t bytes = 0;            // of all files
  uint64_t allocated_bytes = 0;  // on the device
};

[[nodiscard]] absl::StatusOr<StoreListing> ListStore(DiskFiles& files,
                                                     const std::string& directory);

// ERRORS: those of the file layer and of DecodeSuperblock, naming the file.
[[nodiscard]] absl::StatusOr<Superblock> ReadSuperblock(DiskFiles& files,
                                                        const std::string& directory);

// A store that this process has to itself as long as the lock lives.
struct StoreFolder {
  std::string directory;
  Superblock superblock;
  std::unique_ptr<DiskLock> lock;
};

// The folder of `identity` below `root`, locked: an existing store, else a new folder with a new
// superblock. Folders that hold something else under the expected name (another version, another
// identity, damage) are left untouched and passed over. ERRORS: those of the file layer;
// kFailedPrecondition when another process holds the store, or eight names in a row are taken.

[[nodiscard]] absl::StatusOr<StoreFolder> ResolveStore(DiskFiles& files,
                                                       const std::string& root,
                                                       const StoreIdentity& identity,
                                                       uint64_t segment_bytes);

// All stores below `root`, or `root` itself when it is one. Folders without a superblock that this
// build can read are listed with the reason.
struct FoundStore {
  std::string directory;
  absl::StatusOr<Superblock> superblock;
};

[[nodiscard]] absl::StatusOr<std::vector<FoundStore>> FindStores(DiskFiles& files,
                                                                 const std::string& root);

// A segment that the index had entries for, which the files could not hold.
struct LostEntries {
  uint32_t segment = 0;
  uint64_t entries = 0;
  bool missing = false;  // the file; else it is too short
};

// What recovery found and did.
struct RecoveryReport {
  uint64_t checkpoint = 0;       // number of the one used, 0 = none
  uint64_t bad_checkpoints = 0;  // newer ones that were not whole
  uint64_t num_journals = 0;     // replayed
  uint64_t journal_bytes = 0;
  uint64_t last_journal = 0;  // the last one replayed, 0 = none
  uint64_t last_frames = 0;   // its whole frames
  bool cut = false;           // bytes behind the last whole frame: a commit a crash cut off
  bool incomplete = false;  // acknowledged changes are missing: `fsck --repair` rebuilds the index
  uint64_t dropped_entries = 0;  // pointed beyond the end of their segment, or to a missing one
  std::vector<LostEntries> lost = {};  // the same by segment
  uint64_t max_seq = 0;
  uint32_t max_segment = 0;
  uint64_t max_log = 0;  // largest number of any journal or checkpoint, whole or not
};

// Rebuilds the index from the newest whole checkpoint and the journals behind it. Reads only, so it
// also works beside a running server, whose files may vanish meanwhile: then kNotFound, try again.
// Damage is no error, it is reported.
[[nodiscard]] absl::StatusOr<RecoveryReport> RecoverIndex(DiskFiles& files,
                                                          const std::string& directory,
                                                          const StoreListing& listing,
                                                          const StoreUuid& uuid,
                                                          DiskIndex* index);

}  // namespace spindle::kv::disk
