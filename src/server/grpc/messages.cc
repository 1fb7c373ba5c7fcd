#include "server/grpc/messages.h"

#include <algorithm>
#include <optional>
#include <string>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "base/status_macros.h"

namespace spindle::server {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

serving::ApiError Malformed() {
  return serving::InvalidRequest("invalid_message", "", "the message cannot be decoded");
}

// Bytes of the fields that are no long texts; nothing when the message is malformed.
std::optional<uint64_t> FieldBytes(const grpc::ByteBuffer& bytes,
                                   std::initializer_list<int> text_fields) {
  grpc::ByteBuffer copy(bytes);  // of the references: reading takes them away
  grpc::ProtoBufferReader reader(&copy);
  if (!reader.status().ok()) {
    return std::nullopt;
  }
  CodedInputStream input(&reader);
  uint64_t text_bytes = 0;
  for (;;) {
    const uint32_t tag = input.ReadTag();
    if (tag == 0) {
      return input.ConsumedEntireMessage() ? std::optional(bytes.Length() - text_bytes)
                                           : std::nullopt;
    }
    const int begin = input.CurrentPosition();
    if (!WireFormatLite::SkipField(&input, tag)) {
      return std::nullopt;
    }
    const int number = WireFormatLite::GetTagFieldNumber(tag);
    if (std::find(text_fields.begin(), text_fields.end(), number) != text_fields.end()) {
      text_bytes += static_cast<uint64_t>(input.CurrentPosition() - begin);
    }
  }
}

}  // namespace

serving::MaybeError Decode(const grpc::ByteBuffer& bytes,
                           std::initializer_list<int> text_fields,
                           uint32_t max_model_len,
                           google::protobuf::Message* message) {
  const std::optional<uint64_t> field_bytes = FieldBytes(bytes, text_fields);
  if (!field_bytes.has_value()) {
    return Malformed();
  }
  if (const uint64_t limit = MaxFieldBytes(max_model_len); *field_bytes > limit) {
    serving::ApiError error =
        serving::MakeError(413,
                           "request_too_large",
                           "the message has " + std::to_string(*field_bytes) +
                               " bytes beside its text; with this context at most " +
                               std::to_string(limit) + " are taken");
    error.extras = {{"n_ctx", max_model_len}};
    return error;
  }
  grpc::ByteBuffer copy(bytes);
  return grpc::GenericDeserialize<grpc::ProtoBufferReader, google::protobuf::Message>(&copy,
                                                                                      message)
                 .ok()
             ? serving::MaybeError()
             : Malformed();
}

grpc::ByteBuffer Encode(const google::protobuf::Message& message) {
  grpc::ByteBuffer bytes;
  bool owns = false;
  const grpc::Status status =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(
          message, &bytes, &owns);
  SPINDLE_CHECK(status.ok());
  return bytes;
}

}  // namespace spindle::server
