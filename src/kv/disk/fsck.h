// Looks at a whole store: walks every segment by record header, checks every payload, and compares
// with the index; on request writes a new index. Thread-safety: call from one thread; it blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kv/disk/disk_files.h"
#include "kv/disk/store_directory.h"

namespace spindle::kv::disk {

struct FsckReport {
  Superblock superblock;
  RecoveryReport recovery;
  uint64_t segments = 0;
  uint64_t bytes = 0;         // read
  uint64_t records = 0;       // whole ones
  uint64_t unreferenced = 0;  // of these: not in the index (replaced, erased, or never committed)
  uint64_t gap_pages = 0;  // 4 KiB pages between records that are no record: failed or cut writes
  uint64_t entries = 0;    // of the index
  uint64_t damaged = 0;    // entries whose record is there, but damaged
  uint64_t missing = 0;    // entries without a record at their place
  bool repaired = false;
  std::vector<std::string> problems;  // the first hundred, one line each

  // Every entry of the index leads to a whole record, and no acknowledged change is missing.
  // Garbage between records and a cut journal are what a crash leaves, and no problem.
  [[nodiscard]] bool clean() const {
    return damaged == 0 && missing == 0 && !recovery.incomplete && recovery.dropped_entries == 0;
  }
};

// `progress` gets fractions in [0, 1]. With `repair` the store is locked and gets a new index: the
// old one without its bad entries, or, if changes are missing from it, one rebuilt from the records
// by their sequence numbers (erased records may then come back).
// ERRORS: those of the file layer; kFailedPrecondition (repair of a store in use).
[[nodiscard]] absl::StatusOr<FsckReport> Fsck(DiskFiles& files,
                                              const std::string& directory,
                                              bool repair,
                                              const std::function<void(double)>& progress);

}  // namespace spindle::kv::disk
