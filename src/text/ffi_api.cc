#include "text/ffi_api.h"

namespace spindle::text {
namespace {

// Codes of the Rust library (enum Code in ffi/src/lib.rs).
enum class FfiCode : int32_t {
  kOk = 0,
  kInvalidArgument = 1,
  kResourceExhausted = 2,
  kUnimplemented = 3,
};

}  // namespace

SpindleTextOutput FfiOutput(std::string& text) {
  const auto append = [](void* context, const uint8_t* data, size_t size) {
    static_cast<std::string*>(context)->append(reinterpret_cast<const char*>(data), size);
  };
  return {.sink = append, .context = &text};
}

absl::Status FfiStatus(int32_t code, std::string_view message) {
  const absl::string_view text(message.data(), message.size());
  switch (static_cast<FfiCode>(code)) {
    case FfiCode::kOk:
      return absl::OkStatus();
    case FfiCode::kInvalidArgument:
      return absl::InvalidArgumentError(text);
    case FfiCode::kResourceExhausted:
      return absl::ResourceExhaustedError(text);
    case FfiCode::kUnimplemented:
      return absl::UnimplementedError(text);
  }
  return absl::InternalError(text);
}

}  // namespace spindle::text
