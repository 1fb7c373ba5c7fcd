#include "kv/disk/transfer_job.h"

#include <algorithm>
#include <string>

#include "base/status_macros.h"
#include "kv/disk/crc32c.h"

namespace spindle::kv::disk {

void TransferJob::PrepareStore(const StoreUuid& uuid, bool with_segment_header) {
  const uint64_t header_bytes = HeaderBytes(fields.num_extents);
  uint8_t* first = staging.data() + kAlignment;
  uint64_t first_bytes = header_bytes;
  offset = offset_pages * kAlignment;
  if (with_segment_header) {
    // Goes out with the first record: no write of its own to wait for.
    EncodeSegmentHeader(
        uuid, segment->number, std::span<uint8_t, kAlignment>(staging.data(), kAlignment));
    first = staging.data();
    first_bytes += kAlignment;
    offset -= kAlignment;
  }
  kind = Kind::kWrite;
  file = segment->file.get();
  parts[0] = {first, first_bytes};
  parts[1] = {payload.data(), RoundUp(payload.size())};
  num_parts = 2;
  bytes = parts[0].iov_len + parts[1].iov_len;
}

void TransferJob::PrepareLoad() {
  const uint64_t header_bytes = HeaderBytes(fields.num_extents);
  kind = Kind::kRead;
  file = segment->file.get();
  offset = offset_pages * kAlignment;
  parts[0] = {staging.data() + kAlignment, header_bytes};
  parts[1] = {payload.data(), payload.size()};
  num_parts = 2;
  bytes = header_bytes + payload.size();
}

void TransferJob::PrepareFetch() {
  kind = Kind::kRead;
  file = segment->file.get();
  offset = offset_pages * kAlignment;
  bytes = length_pages * kAlignment;
  memory = AlignedBuffer(bytes);
  parts[0] = {memory.data(), bytes};
  num_parts = 1;
}

absl::Status TransferJob::Before() {
  if (op != Completion::Op::kStore) {
    return absl::OkStatus();
  }
  if (memory.size() > 0) {
    fields.checksum = ChecksumOf(payload);
  }
  const uint64_t extent_bytes = fields.extent_bytes();
  extent_crcs.clear();
  for (uint32_t extent = 0; extent < fields.num_extents; ++extent) {
    extent_crcs.push_back(Crc32c(payload.subspan(extent * extent_bytes, extent_bytes)));
  }
  header_crc = EncodeRecordHeader(fields, extent_crcs, staging.span().subspan(kAlignment));
  return absl::OkStatus();
}

absl::Status TransferJob::Fail(LoadFailure cause, const std::string& what) {
  failure = cause;
  return absl::DataLossError(At(file->path(), offset) + ": " + what);
}

absl::Status TransferJob::CheckHeader(std::span<const uint8_t> header) {
  const absl::StatusOr<RecordFields> found = DecodeRecordHeader(header);
  if (!found.ok()) {
    return Fail(LoadFailure::kHeader, std::string(found.status().message()));
  }
  const bool whole = op == Completion::Op::kLoad;
  if (found->id != fields.id || found->numerics_class != fields.numerics_class ||
      HeaderCrc(header) != header_crc || RecordBytes(*found) != length_pages * kAlignment ||
      (whole && (found->parent != fields.parent || found->num_tokens != fields.num_tokens ||
                 found->tokens != fields.tokens || found->payload_bytes != payload.size() ||
                 found->num_extents != fields.num_extents))) {
    return Fail(LoadFailure::kMismatch, "holds another record than the one asked for");
  }
  fields = *found;
  return absl::OkStatus();
}

absl::Status TransferJob::After() {
  if (op == Completion::Op::kStore) {
    return absl::OkStatus();
  }
  const bool fetch = op == Completion::Op::kFetch;
  const std::span<const uint8_t> header =
      fetch ? std::span<const uint8_t>(memory.span()) : staging.span().subspan(kAlignment);
  SPINDLE_RETURN_IF_ERROR(CheckHeader(header));
  if (fetch) {
    payload = memory.span().subspan(HeaderBytes(fields.num_extents), fields.payload_bytes);
  }
  if (absl::Status verified = VerifyPayload(header, fields, payload); !verified.ok()) {
    return Fail(LoadFailure::kPayload, std::string(verified.message()));
  }
  return absl::OkStatus();
}

}  // namespace spindle::kv::disk
