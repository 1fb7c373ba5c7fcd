#include "kv/kv_geometry.h"

#include <string>

#include "base/status_macros.h"

namespace spindle::kv {
namespace {

constexpr uint32_t kMaxCount = 4096;
constexpr uint32_t kHeadDimStep = 16;
constexpr uint32_t kMaxHeadDim = 1024;

absl::Status CheckCount(const char* name, uint32_t value) {
  if (value == 0 || value > kMaxCount) {
    return absl::InvalidArgumentError(std::string("KV geometry: ") + name + " must be in 1.." +
                                      std::to_string(kMaxCount) + ", got " + std::to_string(value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidatePageTokens(uint32_t page_tokens) {
  if (page_tokens == 0 || kStripeTokens % page_tokens != 0) {
    return absl::InvalidArgumentError("KV geometry: page tokens must divide " +
                                      std::to_string(kStripeTokens) + ", got " +
                                      std::to_string(page_tokens));
  }
  return absl::OkStatus();
}

absl::Status ValidateGeometry(const KvGeometry& geometry) {
  SPINDLE_RETURN_IF_ERROR(CheckCount("num_layers", geometry.num_layers));
  SPINDLE_RETURN_IF_ERROR(CheckCount("num_kv_heads", geometry.num_kv_heads));
  if (geometry.head_dim == 0 || geometry.head_dim > kMaxHeadDim ||
      geometry.head_dim % kHeadDimStep != 0) {
    return absl::InvalidArgumentError(
        "KV geometry: head_dim must be a multiple of " + std::to_string(kHeadDimStep) + " in 16.." +
        std::to_string(kMaxHeadDim) + ", got " + std::to_string(geometry.head_dim));
  }
  if (geometry.type != DType::kBF16 && geometry.type != DType::kF32) {
    return absl::InvalidArgumentError("KV geometry: type must be BF16 or F32, got " +
                                      std::string(Describe(geometry.type).name));
  }
  return ValidatePageTokens(geometry.page_tokens());
}

}  // namespace spindle::kv
