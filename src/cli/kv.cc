#include "cli/kv.h"

#include <array>
#include <cstdio>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "kv/disk/disk_store.h"
#include "kv/disk/fsck.h"
#include "kv/disk/retain_sessions.h"
#include "kv/session_keeper.h"

namespace spindle::cli {
namespace {

using kv::disk::DiskFiles;
using kv::disk::DiskIndex;
using kv::disk::EntryIdx;
using kv::disk::FoundStore;
using kv::disk::FsckReport;
using kv::disk::IndexEntry;
using kv::disk::RecordKind;
using kv::disk::StoreIdentity;
using kv::disk::StoreListing;
using nlohmann::ordered_json;

constexpr double kMiB = 1024.0 * 1024.0;

// What the index of a store says, read beside whoever uses it.
struct Contents {
  StoreListing listing;
  kv::disk::RecoveryReport report;
  std::array<uint64_t, 4> records{};  // by kv::disk::KindIdx
  uint64_t live_bytes = 0;
};

absl::StatusOr<Contents> ReadContents(DiskFiles& files, const FoundStore& store) {
  constexpr int kAttempts = 3;  // a server may replace the files that are being read
  absl::Status status;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Contents contents;
    SPINDLE_ASSIGN_OR_RETURN(contents.listing, ListStore(files, store.directory));
    DiskIndex index;
    absl::StatusOr<kv::disk::RecoveryReport> report =
        RecoverIndex(files, store.directory, contents.listing, store.superblock->uuid, &index);
    if (!report.ok()) {
      status = report.status();
      continue;
    }
    contents.report = *report;
    contents.live_bytes = index.live_bytes();
    index.Scan(0, kv::disk::kNoEntry, [&](EntryIdx entry) {
      ++contents.records[kv::disk::KindIdx(index.Get(entry).kind)];
    });
    return contents;
  }
  return status;
}

ordered_json Describe(const FoundStore& store, const Contents& contents) {
  const StoreIdentity& identity = store.superblock->identity;
  ordered_json out;
  out["store"] = store.directory;
  out["fingerprint"] = ToHex(identity.fingerprint);
  out["numerics_class"] = identity.numerics_class;
  out["layers"] = identity.geometry.num_layers;
  out["kv_heads"] = identity.geometry.num_kv_heads;
  out["head_dim"] = identity.geometry.head_dim;
  out["kv_type"] = std::string(spindle::Describe(identity.geometry.type).name);
  out["stripe_bytes"] = identity.geometry.stripe_bytes();
  out["segment_bytes"] = store.superblock->segment_bytes;
  for (const RecordKind kind : kv::disk::kAllKinds) {
    out["records"][std::string(KindName(kind))] = contents.records[kv::disk::KindIdx(kind)];
  }
  out["live_bytes"] = contents.live_bytes;
  out["bytes"] = contents.listing.bytes;
  out["allocated_bytes"] = contents.listing.allocated_bytes;
  out["segments"] = contents.listing.segments.size();
  out["journals"] = contents.report.num_journals;
  out["journal_bytes"] = contents.report.journal_bytes;
  out["index_damaged"] = contents.report.incomplete;
  return out;
}

ordered_json Describe(const std::string& directory, const FsckReport& report) {
  ordered_json out;
  out["store"] = directory;
  out["clean"] = report.clean();
  out["segments"] = report.segments;
  out["bytes"] = report.bytes;
  out["records"] = report.records;
  out["unreferenced"] = report.unreferenced;
  out["gap_pages"] = report.gap_pages;
  out["entries"] = report.entries;
  out["damaged"] = report.damaged;
  out["missing"] = report.missing;
  out["dropped_entries"] = report.recovery.dropped_entries;
  out["index_damaged"] = report.recovery.incomplete;
  out["repaired"] = report.repaired;
  out["problems"] = report.problems;
  return out;
}

void Print(const KvToolOptions& options, const ordered_json& description) {
  if (options.json) {
    fmt::print("{}\n", DumpJson(description));
    return;
  }
  for (const auto& [key, value] : description.items()) {
    if (value.is_array()) {
      for (const auto& line : value) {
        fmt::print("{:<20}{}\n", key, line.get<std::string>());
      }
      continue;
    }
    fmt::print("{:<20}{}\n", key, value.is_string() ? value.get<std::string>() : DumpJson(value));
  }
  fmt::print("\n");
}

void PrintLine(const FoundStore& store, const Contents& contents) {
  fmt::print("{:<48} {:>9} stripes {:>6} sessions {:>10.1f} MiB live {:>10.1f} MiB on disk\n",
             store.directory,
             contents.records[kv::disk::KindIdx(RecordKind::kStripe)],
             contents.records[kv::disk::KindIdx(RecordKind::kSession)],
             static_cast<double>(contents.live_bytes) / kMiB,
             static_cast<double>(contents.listing.allocated_bytes) / kMiB);
}

absl::Status Check(const KvToolOptions& options,
                   DiskFiles& files,
                   const FoundStore& store,
                   const std::function<void(double)>& progress) {
  SPINDLE_ASSIGN_OR_RETURN(const FsckReport report,
                           Fsck(files, store.directory, options.repair, progress));
  Print(options, Describe(store.directory, report));
  if (!report.clean() && !report.repaired) {
    return absl::DataLossError(store.directory + ": damaged; repair with --repair");
  }
  return absl::OkStatus();
}

absl::Status CollectStore(const KvToolOptions& options, DiskFiles& files, const FoundStore& store) {
  kv::disk::DiskOptions disk;
  disk.path = store.directory.substr(0, store.directory.rfind('/'));
  disk.segment_bytes = store.superblock->segment_bytes;
  disk.capacity_bytes = std::numeric_limits<int64_t>::max();
  disk.min_free_bytes = 0;
  disk.min_free_fraction = 0.0;
  disk.io_mode = kv::disk::IoMode::kInline;
  SPINDLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<kv::disk::DiskStore> opened,
      kv::disk::DiskStore::Open(disk, store.superblock->identity, files, SteadyClock(), nullptr));
  if (opened->directory() != store.directory) {
    return absl::FailedPreconditionError(store.directory + ": hidden by " + opened->directory());
  }
  const uint64_t before = opened->Stats().used_bytes;
  SPINDLE_ASSIGN_OR_RETURN(const kv::disk::SessionRetention kept,
                           RetainSessions(*opened, kv::SystemSeconds()));
  const uint64_t target =
      options.target_bytes == 0 ? std::numeric_limits<uint64_t>::max() : options.target_bytes;
  SPINDLE_RETURN_IF_ERROR(opened->Collect(target));
  const uint64_t retained_bytes = opened->RetainedBytes();
  SPINDLE_RETURN_IF_ERROR(opened->Close());
  const kv::disk::DiskStats stats = opened->Stats();
  ordered_json out;
  out["store"] = store.directory;
  out["bytes_before"] = before;
  out["bytes"] = stats.used_bytes;
  out["dropped_segments"] = stats.collected_segments;
  out["dropped_records"] = stats.collected_records;
  out["copied_records"] = stats.copied_records;
  out["sessions"] = kept.sessions;
  out["ended_sessions"] = kept.ended;
  out["damaged_sessions"] = kept.damaged;
  out["session_stripe_bytes"] = retained_bytes;
  Print(options, out);
  if (stats.used_bytes > target) {
    return absl::ResourceExhaustedError(
        fmt::format("{}: {} bytes are left, {} were wanted: stripes of saved sessions take {}, and "
                    "a segment that is nearly all kept stays",
                    store.directory,
                    stats.used_bytes,
                    target,
                    retained_bytes));
  }
  return absl::OkStatus();
}

absl::Status Handle(const KvToolOptions& options,
                    DiskFiles& files,
                    const FoundStore& store,
                    const std::function<void(double)>& progress) {
  switch (options.action) {
    case KvToolOptions::Action::kCheck:
      return Check(options, files, store, progress);
    case KvToolOptions::Action::kCollect:
      return CollectStore(options, files, store);
    case KvToolOptions::Action::kList:
    case KvToolOptions::Action::kStat:
      break;
  }
  SPINDLE_ASSIGN_OR_RETURN(const Contents contents, ReadContents(files, store));
  if (options.action == KvToolOptions::Action::kList && !options.json) {
    PrintLine(store, contents);
  } else {
    Print(options, Describe(store, contents));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status KvTool(const KvToolOptions& options, const std::function<void(double)>& progress) {
  DiskFiles& files = kv::disk::SystemFiles();
  std::string root = options.directory;
  while (root.size() > 1 && root.ends_with('/')) {
    root.pop_back();
  }
  SPINDLE_ASSIGN_OR_RETURN(const std::vector<FoundStore> stores, FindStores(files, root));
  absl::Status first_error;
  bool found = false;
  for (const FoundStore& store : stores) {
    if (!store.superblock.ok()) {
      fmt::print(stderr, "skipped: {}\n", std::string(store.superblock.status().message()));
      continue;
    }
    found = true;
    if (absl::Status status = Handle(options, files, store, progress);
        !status.ok() && first_error.ok()) {
      first_error = std::move(status);
    }
  }
  return found ? first_error : absl::NotFoundError(root + ": no store of the disk tier here");
}

}  // namespace spindle::cli
