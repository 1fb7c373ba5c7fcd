#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "disk_test_util.h"
#include "kv/disk/crc32c.h"
#include "kv/disk/disk_index.h"
#include "kv/disk/log_format.h"
#include "kv/disk/session_record.h"

namespace spindle::kv::disk {
namespace {

std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// The check value of the CRC catalogue, and the vectors of RFC 3720.
TEST(Crc32c, PublishedVectors) {
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xe3069283U);
  EXPECT_EQ(Crc32c(std::vector<uint8_t>(32, 0)), 0x8a9136aaU);
  EXPECT_EQ(Crc32c(std::vector<uint8_t>(32, 0xff)), 0x62a8ab43U);
  EXPECT_EQ(Crc32c({}), 0U);
}

TEST(Crc32c, InstructionAndTablesAgreeAtEveryLengthAndCut) {
  std::mt19937_64 random(3);
  std::vector<uint8_t> bytes(50'000);
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(random());
  }
  for (const size_t size :
       {1UL, 7UL, 8UL, 63UL, 12'287UL, 12'288UL, 12'289UL, 40'001UL, 50'000UL}) {
    const std::span<const uint8_t> part = std::span(bytes).first(size);
    EXPECT_EQ(Crc32c(part), Crc32cPortable(part)) << size;
    const size_t cut = size / 3;
    EXPECT_EQ(Crc32c(part.subspan(cut), Crc32c(part.first(cut))), Crc32c(part)) << size;
  }
}

TEST(Superblock, ComesBackAndKnowsEveryFlippedBit) {
  const Superblock block{.identity = SmallIdentity(), .segment_bytes = 4 << 20, .uuid = {1, 2, 3}};
  std::vector<uint8_t> page(kAlignment);
  EncodeSuperblock(block, std::span<uint8_t, kAlignment>(page));
  const auto decoded = DecodeSuperblock(page);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(SameIdentity(decoded->identity, block.identity));
  EXPECT_EQ(decoded->segment_bytes, block.segment_bytes);
  EXPECT_EQ(decoded->uuid, block.uuid);
  for (size_t at = 0; at < kAlignment; ++at) {
    page[at] ^= 4;
    EXPECT_FALSE(DecodeSuperblock(page).ok()) << at;
    page[at] ^= 4;
  }
}

TEST(RecordHeader, ManyLayersTakeASecondPage) {
  EXPECT_EQ(HeaderBytes(1), 4096U);
  EXPECT_EQ(HeaderBytes(220), 4096U);
  EXPECT_EQ(HeaderBytes(240), 8192U);
  RecordFields fields;
  fields.id.key.fill(9);
  fields.num_tokens = kStripeTokens;
  fields.num_extents = 240;
  fields.payload_bytes = 240 * kAlignment;
  fields.seq = 77;
  std::vector<uint32_t> crcs(240);
  for (uint32_t i = 0; i < 240; ++i) {
    crcs[i] = i * i;
  }
  std::vector<uint8_t> header(HeaderBytes(240));
  const uint32_t crc = EncodeRecordHeader(fields, crcs, header);
  const auto decoded = DecodeRecordHeader(header);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->seq, 77U);
  EXPECT_EQ(decoded->id, fields.id);
  EXPECT_EQ(HeaderCrc(header), crc);
  EXPECT_EQ(ExtentCrc(header, 239), 239U * 239U);
  EXPECT_FALSE(DecodeRecordHeader(std::span(header).first(kAlignment)).ok());
}

TEST(RecordHeader, FieldsOutOfRangeAreRefused) {
  RecordFields fields;
  fields.num_tokens = kStripeTokens;
  fields.payload_bytes = kAlignment;
  ASSERT_TRUE(CheckRecordFields(fields).ok());
  const auto refused = [&](auto change) {
    RecordFields changed = fields;
    change(changed);
    return !CheckRecordFields(changed).ok();
  };
  EXPECT_TRUE(refused([](RecordFields& f) { f.id.kind = RecordKind{5}; }));
  EXPECT_TRUE(refused([](RecordFields& f) { f.flags = 2; }));
  EXPECT_TRUE(refused([](RecordFields& f) { f.num_tokens = 63; }));
  EXPECT_TRUE(refused([](RecordFields& f) { f.payload_bytes = 0; }));
  EXPECT_TRUE(refused([](RecordFields& f) { f.payload_bytes = 100; }));
  EXPECT_TRUE(refused([](RecordFields& f) { f.num_extents = 0; }));
  EXPECT_TRUE(refused([](RecordFields& f) { f.num_extents = kMaxExtents + 1; }));
  EXPECT_TRUE(refused([](RecordFields& f) { f.id.kind = RecordKind::kBlob; }));
  EXPECT_TRUE(refused([](RecordFields& f) {
    f.id.kind = RecordKind::kOpenTail;
    f.num_tokens = 64;
  }));
}

TEST(LogFrame, ComesBackAndKnowsEveryFlippedBit) {
  const LogHeader log{.uuid = {5}, .number = 3};
  std::vector<LogEntry> entries(60);
  for (uint32_t i = 0; i < entries.size(); ++i) {
    entries[i].id.key.fill(static_cast<uint8_t>(i));
    entries[i].op = i % 3 == 1 ? LogEntry::Op::kErase : LogEntry::Op::kPut;
    entries[i].offset_pages = i + 1;
    entries[i].length_pages = 3;
    entries[i].seq = i;
  }
  std::vector<uint8_t> bytes;
  EncodeFrame(log, {.index = 4, .num_entries = 60}, entries, &bytes);
  EXPECT_EQ(bytes.size(), 2 * kAlignment);
  std::vector<LogEntry> decoded;
  ASSERT_TRUE(DecodeFrame(log, bytes, &decoded).ok());
  ASSERT_EQ(decoded.size(), 60U);
  EXPECT_EQ(decoded[59].id, entries[59].id);
  EXPECT_EQ(decoded[59].offset_pages, 60U);
  EXPECT_FALSE(DecodeFrame({.uuid = {5}, .number = 4}, bytes, &decoded).ok());
  EXPECT_FALSE(DecodeFrame({.uuid = {6}, .number = 3}, bytes, &decoded).ok());
  const size_t used = 48 + 60 * kLogEntryBytes;
  for (size_t at = 0; at < used; ++at) {
    bytes[at] ^= 1;
    EXPECT_FALSE(DecodeFrame(log, bytes, &decoded).ok()) << at;
    bytes[at] ^= 1;
  }
  EXPECT_EQ(decoded.size(), 60U) << "a bad frame adds nothing";
}

TEST(SessionManifest, EveryCutIsRefused) {
  SessionManifest session{.id = "a", .tenant = "b", .tail_sub_id = 3, .ttl_s = 60};
  session.tokens.assign(200, 7);
  session.stripe_keys.resize(3);
  std::vector<uint8_t> bytes = EncodeSession(session);
  ASSERT_TRUE(DecodeSession(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeSession(std::span(bytes).first(size)).ok()) << size;
  }
  bytes.push_back(0);
  EXPECT_FALSE(DecodeSession(bytes).ok());
}

TEST(DiskIndex, EqualsAMapOverRandomChanges) {
  std::mt19937_64 random(5);
  DiskIndex index;
  std::map<uint64_t, LogEntry> model;
  for (int step = 0; step < 60'000; ++step) {
    const uint64_t number = random() % 3000;
    LogEntry change;
    change.id.key = TestStripe::Key(number % 1500);
    change.id.sub_id = number / 1500;
    change.segment = static_cast<uint32_t>(random() % 20);
    change.offset_pages = 1;
    change.length_pages = static_cast<uint32_t>(2 + random() % 9);
    change.seq = static_cast<uint64_t>(step);
    const uint64_t kind = random() % 100;
    if (kind == 0) {
      change.op = LogEntry::Op::kDropSegment;
      std::erase_if(model, [&](const auto& item) { return item.second.segment == change.segment; });
    } else if (kind < 30) {
      change.op = LogEntry::Op::kErase;
      model.erase(number);
    } else {
      model[number] = change;
    }
    index.Apply(change);
    ASSERT_EQ(index.size(), model.size());
  }
  uint64_t live_bytes = 0;
  std::map<uint32_t, uint64_t> by_segment;
  for (const auto& [number, entry] : model) {
    const EntryIdx found = index.Find(entry.id);
    ASSERT_NE(found, kNoEntry);
    EXPECT_EQ(index.Get(found).seq, entry.seq);
    live_bytes += entry.length_pages * kAlignment;
    by_segment[entry.segment] += entry.length_pages * kAlignment;
  }
  EXPECT_EQ(index.live_bytes(), live_bytes);
  for (const auto& [segment, bytes] : by_segment) {
    EXPECT_EQ(index.Live(segment).bytes, bytes);
  }
  EXPECT_EQ(index.Segments().size(), by_segment.size());
}

// What is retained counts as kept, whether it was there before or not, moves or comes back.
TEST(DiskIndex, RetainedStripesAreKept) {
  std::mt19937_64 random(6);
  DiskIndex index;
  std::map<uint64_t, LogEntry> model;
  std::map<uint64_t, int> retained;
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t number = random() % 100;
    const Digest key = TestStripe::Key(number);
    const LogEntry put{.id = {key, RecordKind::kStripe, 0},
                       .seq = static_cast<uint64_t>(step),
                       .segment = static_cast<uint32_t>(random() % 3),
                       .offset_pages = 1,
                       .length_pages = static_cast<uint32_t>(1 + random() % 5)};
    switch (random() % 5) {
      case 0:
        index.Retain(key);
        ++retained[number];
        break;
      case 1:
        if (retained[number] > 0) {
          EXPECT_EQ(index.Release(key), --retained[number] == 0);
        }
        break;
      case 2:
        index.Apply({.op = LogEntry::Op::kErase, .id = put.id});
        model.erase(number);
        break;
      default:
        index.Apply(put);
        model[number] = put;
    }
    uint64_t kept = 0;
    for (const auto& [each, entry] : model) {
      kept +=
          retained[each] > 0 && entry.segment == put.segment ? entry.length_pages * kAlignment : 0;
    }
    ASSERT_EQ(index.Live(put.segment).kept_bytes, kept);
  }
  EXPECT_EQ(index.num_retained(),
            static_cast<uint64_t>(std::count_if(
                retained.begin(), retained.end(), [](const auto& r) { return r.second > 0; })));
}

TEST(DiskIndex, AMillionEntriesTakeAtMost160BytesEach) {
  DiskIndex index;
  uint64_t peak = 0;
  constexpr uint32_t kEntries = 1'000'000;
  LogEntry put{.segment = 1, .offset_pages = 1, .length_pages = 361};
  for (uint32_t i = 0; i < kEntries; ++i) {
    std::memcpy(put.id.key.data(), &i, sizeof(i));
    put.id.key[7] = static_cast<uint8_t>(i * 37);
    put.segment = i / 180;
    index.Apply(put);
    if (i > 10'000) {
      peak = std::max(peak, index.memory_bytes() / (i + 1));
    }
  }
  RecordProperty("bytes_per_entry", std::to_string(index.memory_bytes() / kEntries));
  RecordProperty("peak_bytes_per_entry", std::to_string(peak));
  EXPECT_EQ(index.size(), kEntries);
  EXPECT_LE(peak, 160U);
}

}  // namespace
}  // namespace spindle::kv::disk
