// Messages between bytes and objects. We decode them ourselves: a few bytes of a message may become
// many times as many in memory, and what a message may become is bounded before it is made.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <initializer_list>

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "server/grpc/grpc_options.h"
#include "serving/api_error.h"

namespace spindle::server {

// Fills `message`. `text_fields`: numbers of its fields that are one long text each, which takes in
// memory what it takes in the message. All other fields together may have so many bytes as
// MaxFieldBytes(max_model_len) says. ERRORS: 400 invalid_message, 413 request_too_large.
[[nodiscard]] serving::MaybeError Decode(const grpc::ByteBuffer& bytes,
                                         std::initializer_list<int> text_fields,
                                         uint32_t max_model_len,
                                         google::protobuf::Message* message);

// The message on the wire.
[[nodiscard]] grpc::ByteBuffer Encode(const google::protobuf::Message& message);

}  // namespace spindle::server
