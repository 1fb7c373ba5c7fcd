#include "kv/trace/access_trace.h"

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/read_file.h"
#include "kv/trace/access_trace_format.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"

namespace spindle::kv {
namespace {

using Ending = AccessTraceReader::Ending;

// A record that owns what it lists.
struct OwnedRecord {
  AccessRecord record;
  std::vector<uint32_t> ids;
  std::vector<uint8_t> hit_bits;

  [[nodiscard]] AccessRecord View() const {
    AccessRecord view = record;
    view.ids = ids;
    view.hit_bits = hit_bits;
    return view;
  }
};

AccessTraceHeader TraceHeader() {
  AccessTraceHeader header;
  header.geometry = {.num_layers = 30, .num_kv_heads = 3, .head_dim = 64};
  header.lru = {.range = 32, .quantum_steps = 2};
  header.algorithm = "quest";
  header.seed = 77;
  return header;
}

std::vector<OwnedRecord> RandomRecords(uint64_t seed, uint32_t count) {
  std::mt19937_64 rng(seed);
  std::vector<OwnedRecord> records(count);
  uint32_t step = 1000;
  for (OwnedRecord& owned : records) {
    step += static_cast<uint32_t>(rng() % 2);
    owned.record.step = step;
    owned.record.request = static_cast<uint16_t>(rng());
    owned.record.layer = static_cast<uint16_t>(rng() % 30);
    owned.record.head = static_cast<uint8_t>(rng() % 3);
    owned.record.kind = static_cast<AccessKind>(1 + rng() % 7);
    uint32_t id = static_cast<uint32_t>(rng() % 3);
    const uint32_t stride = 1U << (rng() % 16);
    switch (owned.record.kind) {
      case AccessKind::kSelect:
      case AccessKind::kAppend:
        for (uint64_t left = rng() % 70; left > 0; --left) {
          owned.ids.push_back(id);
          id += 1 + static_cast<uint32_t>(rng() % stride);
        }
        break;
      case AccessKind::kPrefill:
        owned.ids = {id, id + stride};
        break;
      case AccessKind::kResize:
        owned.ids = {8 * id};
        break;
      case AccessKind::kFork:
        owned.ids = {owned.record.request ^ 1U};
        [[fallthrough]];
      case AccessKind::kPause:
      case AccessKind::kEnd:
        owned.record.layer = kAllLayers;
        owned.record.head = kAllHeads;
    }
    if (owned.record.kind == AccessKind::kSelect) {
      owned.record.caching = static_cast<Caching>(rng() % 3);
    }
    if (owned.record.kind == AccessKind::kSelect && rng() % 2 == 0) {
      owned.hit_bits.resize((owned.ids.size() + 7) / 8);
      for (size_t i = 0; i < owned.ids.size(); ++i) {
        owned.hit_bits[i / 8] |= static_cast<uint8_t>((rng() & 1) << (i % 8));
      }
    }
  }
  return records;
}

std::string WriteTrace(const std::string& path,
                       const std::vector<OwnedRecord>& records,
                       uint64_t max_bytes = kMaxAccessTraceBytes) {
  auto writer = AccessTraceWriter::Create(path, TraceHeader(), max_bytes);
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (const OwnedRecord& record : records) {
    EXPECT_TRUE((*writer)->Append(record.View()).ok());
  }
  EXPECT_TRUE((*writer)->Finish().ok());
  return ReadFile(path, kMaxAccessTraceBytes).value();
}

std::vector<uint8_t> Bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

// Reads to the end or to the first error; compares what comes with the records.
absl::Status ReadAndCompare(std::span<const uint8_t> bytes,
                            const std::vector<OwnedRecord>& records,
                            size_t* num_read,
                            Ending* ending) {
  *num_read = 0;
  auto reader = AccessTraceReader::Open(bytes);
  if (!reader.ok()) {
    return reader.status();
  }
  AccessRecord record;
  while (true) {
    const auto found = reader->Next(&record);
    *ending = reader->ending();
    if (!found.ok() || !*found) {
      return found.status();
    }
    const AccessRecord expected = records.at(*num_read).View();
    EXPECT_EQ(record.step, expected.step);
    EXPECT_EQ(record.request, expected.request);
    EXPECT_EQ(record.layer, expected.layer);
    EXPECT_EQ(record.head, expected.head);
    EXPECT_EQ(record.kind, expected.kind);
    EXPECT_EQ(record.caching, expected.caching);
    EXPECT_TRUE(
        std::equal(record.ids.begin(), record.ids.end(), expected.ids.begin(), expected.ids.end()));
    EXPECT_TRUE(std::equal(record.hit_bits.begin(),
                           record.hit_bits.end(),
                           expected.hit_bits.begin(),
                           expected.hit_bits.end()));
    ++*num_read;
  }
}

TEST(AccessTrace, ReadsBackWhatWasWritten) {
  const test::TempFolder folder;
  // Several blocks.
  const auto records = RandomRecords(test::RandomSeed(51), 8000);
  const auto bytes = Bytes(WriteTrace(folder.path() + "/trace", records));
  EXPECT_GT(bytes.size(), 3 * 65536U);
  const auto reader = AccessTraceReader::Open(bytes);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->header().geometry.num_layers, 30U);
  EXPECT_EQ(reader->header().geometry.num_kv_heads, 3U);
  EXPECT_EQ(reader->header().geometry.head_dim, 64U);
  EXPECT_EQ(reader->header().lru.range, 32U);
  EXPECT_EQ(reader->header().lru.quantum_steps, 2U);
  EXPECT_EQ(reader->header().algorithm, "quest");
  EXPECT_EQ(reader->header().seed, 77U);
  size_t num_read = 0;
  Ending ending = Ending::kNotReached;
  EXPECT_TRUE(ReadAndCompare(bytes, records, &num_read, &ending).ok());
  EXPECT_EQ(num_read, records.size());
  EXPECT_EQ(ending, Ending::kWhole);
}

TEST(AccessTrace, HasTheDocumentedBytes) {
  const test::TempFolder folder;
  OwnedRecord select;
  select.record.step = 0x01020304;
  select.record.request = 0x0506;
  select.record.layer = 7;
  select.record.head = 2;
  select.ids = {5, 6, 300};
  select.hit_bits = {0x05};
  const auto bytes = Bytes(WriteTrace(folder.path() + "/trace", {select}));
  const std::string text(bytes.begin(), bytes.begin() + 8);
  EXPECT_EQ(text, "SPKVPGTR");
  const std::vector<uint8_t> block(bytes.begin() + 128, bytes.end() - 4);
  EXPECT_EQ(block,
            (std::vector<uint8_t>{'P', 'G', 'B',  'K', 17, 0, 0, 0, 1, 0,    0, 0, 1, 0, 0, 0,  //
                                  4,   3,   2,    1,   6,  5, 7, 0, 2, 0x81, 3, 0,              //
                                  5,   0,   0xA5, 2,                                            //
                                  0x05}));
}

TEST(AccessTrace, ReadsWhatIsWholeInFrontOfACut) {
  const test::TempFolder folder;
  const auto records = RandomRecords(test::RandomSeed(52), 3000);
  const auto bytes = Bytes(WriteTrace(folder.path() + "/trace", records));
  size_t last_read = 0;
  for (size_t size = 0; size < bytes.size();
       size += size < 400 || size + 90 > bytes.size() ? 1U : 97U) {
    const std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<int64_t>(size));
    size_t num_read = 0;
    Ending ending = Ending::kNotReached;
    const absl::Status status = ReadAndCompare(cut, records, &num_read, &ending);
    if (size < kAccessHeaderBytes) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(ending, Ending::kTorn);
    EXPECT_GE(num_read, last_read);
    last_read = num_read;
  }
  EXPECT_GT(last_read, 500U);
  EXPECT_LT(last_read, records.size());
}

TEST(AccessTrace, FindsEveryFlippedBit) {
  const test::TempFolder folder;
  const auto records = RandomRecords(test::RandomSeed(53), 40);
  auto bytes = Bytes(WriteTrace(folder.path() + "/trace", records));
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] ^= static_cast<uint8_t>(1 << bit);
      size_t num_read = 0;
      Ending ending = Ending::kNotReached;
      const absl::Status status = ReadAndCompare(bytes, records, &num_read, &ending);
      // A larger length looks like a cut.
      EXPECT_TRUE(!status.ok() || ending == Ending::kTorn) << "byte " << i << ", bit " << bit;
      EXPECT_EQ(num_read, 0U);
      bytes[i] ^= static_cast<uint8_t>(1 << bit);
    }
  }
}

TEST(AccessTrace, StopsAtItsLimitAndSaysSo) {
  const test::TempFolder folder;
  const auto records = RandomRecords(test::RandomSeed(54), 4000);
  const std::string path = folder.path() + "/trace";
  auto writer = AccessTraceWriter::Create(path, TraceHeader(), 100'000);
  ASSERT_TRUE(writer.ok());
  for (const OwnedRecord& record : records) {
    ASSERT_TRUE((*writer)->Append(record.View()).ok());
  }
  EXPECT_GT((*writer)->num_dropped_records(), 0U);
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto bytes = Bytes(ReadFile(path, kMaxAccessTraceBytes).value());
  EXPECT_LE(bytes.size(), 100'000U);
  EXPECT_GT(bytes.size(), 99'000U);
  size_t num_read = 0;
  Ending ending = Ending::kNotReached;
  EXPECT_TRUE(ReadAndCompare(bytes, records, &num_read, &ending).ok());
  EXPECT_EQ(ending, Ending::kLimit);
  EXPECT_EQ(num_read + (*writer)->num_dropped_records(), records.size());
}

TEST(AccessTrace, RefusesWhatItCannotWrite) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/trace";
  const auto code = [&path](const AccessTraceHeader& header, uint64_t max_bytes) {
    return AccessTraceWriter::Create(path, header, max_bytes).status().code();
  };
  EXPECT_EQ(code(TraceHeader(), 65535), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TraceHeader(), kMaxAccessTraceBytes + 1), absl::StatusCode::kInvalidArgument);
  AccessTraceHeader header = TraceHeader();
  header.algorithm = std::string(33, 'x');
  EXPECT_EQ(code(header, 65536), absl::StatusCode::kInvalidArgument);
  header.algorithm = "tab\t";
  EXPECT_EQ(code(header, 65536), absl::StatusCode::kInvalidArgument);
  header = TraceHeader();
  header.geometry.num_kv_heads = 255;
  EXPECT_EQ(code(header, 65536), absl::StatusCode::kInvalidArgument);
  header = TraceHeader();
  header.lru.range = 7;
  EXPECT_EQ(code(header, 65536), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TraceHeader(), 65536), absl::StatusCode::kOk);
  EXPECT_EQ(code(TraceHeader(), 65536), absl::StatusCode::kAlreadyExists);

  struct stat info {};

  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_EQ(
      AccessTraceWriter::Create(folder.path() + "/no/trace", TraceHeader(), 65536).status().code(),
      absl::StatusCode::kUnavailable);
}

// Records that have a right checksum and are nonsense.
TEST(AccessTrace, RefusesRecordsThatAreNone) {
  const KvGeometry geometry = TraceHeader().geometry;
  OwnedRecord good;
  good.ids = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  good.hit_bits = {0xFF, 0x01};
  std::vector<uint8_t> bytes;
  EncodeAccessRecord(good.View(), &bytes);
  const auto decodes = [&geometry](const std::vector<uint8_t>& record) {
    std::span<const uint8_t> rest = record;
    std::vector<uint32_t> ids;
    AccessRecord decoded;
    return DecodeAccessRecord(geometry, &rest, &ids, &decoded);
  };
  ASSERT_TRUE(decodes(bytes));
  const auto with = [&bytes](size_t offset, uint8_t value) {
    std::vector<uint8_t> changed = bytes;
    changed[offset] = value;
    return changed;
  };
  EXPECT_FALSE(decodes(with(6, 30)));     // layer
  EXPECT_FALSE(decodes(with(8, 3)));      // head
  EXPECT_FALSE(decodes(with(9, 0)));      // kind
  EXPECT_FALSE(decodes(with(9, 7)));      // nine forks
  EXPECT_FALSE(decodes(with(9, 8)));      // kind
  EXPECT_FALSE(decodes(with(9, 0x82)));   // hits of an append
  EXPECT_FALSE(decodes(with(9, 4)));      // nine sizes
  EXPECT_FALSE(decodes(with(10, 60)));    // more ids than bytes
  EXPECT_FALSE(decodes(with(22, 0x03)));  // hit bit behind the last id
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decodes({bytes.begin(), bytes.begin() + static_cast<int64_t>(size)}));
  }
  OwnedRecord resize;
  resize.record.kind = AccessKind::kResize;
  resize.ids = {16};
  bytes.clear();
  EncodeAccessRecord(resize.View(), &bytes);
  ASSERT_TRUE(decodes(bytes));
  EXPECT_FALSE(decodes(with(12, 17)));  // no whole run
  bytes.push_back(0);
  bytes[12] = 0x80;
  EXPECT_FALSE(decodes(bytes));  // zero in two bytes
}

TEST(AccessTrace, KnowsWhichRecordsSpeakOfAWholeRequest) {
  const KvGeometry geometry = TraceHeader().geometry;
  const auto decodes = [&geometry](AccessKind kind, std::vector<uint32_t> ids, bool whole) {
    OwnedRecord owned;
    owned.record.kind = kind;
    owned.record.layer = whole ? kAllLayers : 0;
    owned.record.head = whole ? kAllHeads : 0;
    owned.ids = std::move(ids);
    std::vector<uint8_t> bytes;
    EncodeAccessRecord(owned.View(), &bytes);
    std::span<const uint8_t> rest = bytes;
    std::vector<uint32_t> decoded_ids;
    AccessRecord decoded;
    return DecodeAccessRecord(geometry, &rest, &decoded_ids, &decoded);
  };
  for (const bool whole : {false, true}) {
    EXPECT_EQ(decodes(AccessKind::kSelect, {1}, whole), !whole);
    EXPECT_TRUE(decodes(AccessKind::kAppend, {1}, whole));
    EXPECT_TRUE(decodes(AccessKind::kPrefill, {1, 4}, whole));
    EXPECT_TRUE(decodes(AccessKind::kResize, {8}, whole));
    EXPECT_EQ(decodes(AccessKind::kPause, {}, whole), whole);
    EXPECT_EQ(decodes(AccessKind::kEnd, {}, whole), whole);
    EXPECT_EQ(decodes(AccessKind::kFork, {3}, whole), whole);
  }
  EXPECT_FALSE(decodes(AccessKind::kFork, {0}, true));      // of itself
  EXPECT_FALSE(decodes(AccessKind::kFork, {65536}, true));  // no request has that number
}

// Takes what fits, or nothing after an error.
class TightSink final : public TraceSink {
 public:
  TightSink(std::string* bytes, size_t max_bytes, absl::StatusCode code)
      : bytes_(bytes), max_bytes_(max_bytes), code_(code) {}

  [[nodiscard]] absl::Status Write(std::span<const uint8_t> bytes) override {
    if (bytes_->size() + bytes.size() > max_bytes_) {
      return absl::Status(code_, "no");
    }
    bytes_->append(bytes.begin(), bytes.end());
    return absl::OkStatus();
  }

 private:
  std::string* const bytes_;
  const size_t max_bytes_;
  const absl::StatusCode code_;
};

TEST(AccessTrace, ASinkWithoutRoomEndsItLikeTheLimit) {
  const auto records = RandomRecords(test::RandomSeed(55), 8000);
  std::string written;
  auto writer = AccessTraceWriter::Create(
      std::make_unique<TightSink>(&written, 90'000, absl::StatusCode::kResourceExhausted),
      TraceHeader(),
      kMaxAccessTraceBytes);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const OwnedRecord& record : records) {
    EXPECT_TRUE((*writer)->Append(record.View()).ok());
  }
  EXPECT_FALSE((*writer)->is_recording());
  EXPECT_TRUE((*writer)->Finish().ok());
  size_t num_read = 0;
  Ending ending = Ending::kNotReached;
  EXPECT_TRUE(ReadAndCompare(Bytes(written), records, &num_read, &ending).ok());
  EXPECT_EQ(ending, Ending::kLimit);
  EXPECT_GT(num_read, 1000U);
  EXPECT_EQ(num_read, (*writer)->num_kept_records());
  EXPECT_EQ(num_read + (*writer)->num_dropped_records(), records.size());
}

TEST(AccessTrace, TheMarkNeedsLessRoomThanTheLastRecords) {
  const auto records = RandomRecords(test::RandomSeed(58), 1000);
  std::string written;
  auto writer = AccessTraceWriter::Create(
      std::make_unique<TightSink>(&written, 1000, absl::StatusCode::kResourceExhausted),
      TraceHeader(),
      kMaxAccessTraceBytes);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const OwnedRecord& record : records) {
    EXPECT_TRUE((*writer)->Append(record.View()).ok());
  }
  EXPECT_TRUE((*writer)->is_recording());  // all of it waits for the first block
  EXPECT_TRUE((*writer)->Finish().ok());
  size_t num_read = 0;
  Ending ending = Ending::kNotReached;
  EXPECT_TRUE(ReadAndCompare(Bytes(written), records, &num_read, &ending).ok());
  EXPECT_EQ(ending, Ending::kLimit);
  EXPECT_EQ(num_read, 0U);
  EXPECT_EQ((*writer)->num_dropped_records(), records.size());
}

TEST(AccessTrace, AnErrorOfTheSinkIsReportedOnceAndLeavesATornTrace) {
  const auto records = RandomRecords(test::RandomSeed(56), 8000);
  std::string written;
  auto writer = AccessTraceWriter::Create(
      std::make_unique<TightSink>(&written, 90'000, absl::StatusCode::kUnavailable),
      TraceHeader(),
      kMaxAccessTraceBytes);
  ASSERT_TRUE(writer.ok()) << writer.status();
  int num_errors = 0;
  for (const OwnedRecord& record : records) {
    num_errors += (*writer)->Append(record.View()).ok() ? 0 : 1;
  }
  EXPECT_EQ(num_errors, 1);
  EXPECT_TRUE((*writer)->Finish().ok());
  size_t num_read = 0;
  Ending ending = Ending::kNotReached;
  EXPECT_TRUE(ReadAndCompare(Bytes(written), records, &num_read, &ending).ok());
  EXPECT_EQ(ending, Ending::kTorn);
  EXPECT_EQ(num_read, (*writer)->num_kept_records());
}

TEST(AccessTrace, WhatWasLostOnTheWayEndsIt) {
  const auto records = RandomRecords(test::RandomSeed(57), 20);
  std::string written;
  auto writer = AccessTraceWriter::Create(
      std::make_unique<TightSink>(&written, 1 << 20, absl::StatusCode::kInternal),
      TraceHeader(),
      kMaxAccessTraceBytes);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (size_t i = 0; i < records.size(); ++i) {
    (*writer)->Drop(i == 12 ? 3 : 0);
    EXPECT_TRUE((*writer)->Append(records[i].View()).ok());
  }
  EXPECT_EQ((*writer)->num_dropped_records(), 8U + 3U);
  EXPECT_TRUE((*writer)->Finish().ok());
  size_t num_read = 0;
  Ending ending = Ending::kNotReached;
  EXPECT_TRUE(ReadAndCompare(Bytes(written), records, &num_read, &ending).ok());
  EXPECT_EQ(ending, Ending::kLimit);
  EXPECT_EQ(num_read, 12U);
}

}  // namespace
}  // namespace spindle::kv
