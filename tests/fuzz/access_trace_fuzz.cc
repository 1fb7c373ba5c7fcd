// Any bytes as a page-access trace: refused, or read with fields inside their ranges. Checksums are
// made to fit, so that the fuzzer gets behind them. Also as request trace.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status_macros.h"
#include "kv/disk/byte_codec.h"
#include "kv/disk/crc32c.h"
#include "kv/fast/frame_pool.h"
#include "kv/sim/recorded_run.h"
#include "kv/sim/request_trace.h"
#include "kv/trace/access_trace.h"
#include "kv/trace/access_trace_format.h"

namespace {

namespace kv = spindle::kv;
namespace disk = spindle::kv::disk;
namespace sim = spindle::kv::sim;

void FixChecksums(std::span<uint8_t> bytes) {
  if (bytes.size() < kv::kAccessHeaderBytes) {
    return;
  }
  constexpr size_t kCrcAt = kv::kAccessHeaderBytes - sizeof(uint32_t);
  disk::PutAt(bytes, kCrcAt, disk::Crc32c(bytes.first(kCrcAt)));
  std::span<uint8_t> rest = bytes.subspan(kv::kAccessHeaderBytes);
  while (rest.size() >= kv::kAccessBlockMinBytes) {
    const size_t body_bytes =
        kv::kAccessBlockHeaderBytes + uint64_t{disk::GetAt<uint32_t>(rest, 4)};
    if (body_bytes + sizeof(uint32_t) > rest.size()) {
      return;
    }
    disk::PutAt(rest, body_bytes, disk::Crc32c(rest.first(body_bytes)));
    rest = rest.subspan(body_bytes + sizeof(uint32_t));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> copy(data, data + size);
  const std::string_view text(reinterpret_cast<const char*>(copy.data()), copy.size());
  if (const auto requests = sim::ParseRequestTrace(text); requests.ok()) {
    for (const sim::TraceRequest& request : requests->requests) {
      for (const uint32_t unit : requests->UnitsOf(request)) {
        SPINDLE_CHECK(unit < requests->num_units);
      }
    }
  }
  FixChecksums(copy);
  auto reader = kv::AccessTraceReader::Open(copy);
  if (!reader.ok()) {
    return 0;
  }
  kv::AccessRecord record;
  while (true) {
    const auto found = reader->Next(&record);
    if (!found.ok() || !*found) {
      break;
    }
    SPINDLE_CHECK(std::is_sorted(record.ids.begin(), record.ids.end()));
    SPINDLE_CHECK(record.ids.empty() || record.ids.back() < kv::FrameWord::kMaxPages);
    SPINDLE_CHECK(record.hit_bits.empty() || record.hit_bits.size() == (record.ids.size() + 7) / 8);
  }
  if (reader->header().geometry.num_layers * reader->header().geometry.num_kv_heads <= 1024) {
    if (const auto run = sim::LoadRecordedRun(copy, 0); run.ok()) {
      SPINDLE_CHECK(run->num_requests <= run->groups.size());
    }
  }
  return 0;
}
