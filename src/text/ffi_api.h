// The C interface of the Rust library in ffi/ and its C++ wrapping. Private to the module.
// Every function is thread-safe on a live object; none keeps a pointer it was given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

// Objects owned by the Rust side.
struct SpindleTextTokenizer;
struct SpindleTextTemplate;

extern "C" {

// Receives the result of a call, or its message when the call fails. Bytes are copied before the
// sink returns.
struct SpindleTextOutput {
  void (*sink)(void* context, const uint8_t* data, size_t size);
  void* context;
};

SpindleTextTokenizer* spindle_text_tokenizer_new(const uint8_t* data,
                                                 size_t size,
                                                 SpindleTextOutput output,
                                                 int32_t* code);
void spindle_text_tokenizer_free(SpindleTextTokenizer* tokenizer);
int32_t spindle_text_tokenizer_describe(const SpindleTextTokenizer* tokenizer,
                                        SpindleTextOutput output);
int32_t spindle_text_tokenizer_tokens(const SpindleTextTokenizer* tokenizer,
                                      SpindleTextOutput output);
int32_t spindle_text_tokenizer_encode(const SpindleTextTokenizer* tokenizer,
                                      const uint8_t* data,
                                      size_t size,
                                      bool special,
                                      uint32_t guard,
                                      SpindleTextOutput output);
SpindleTextTemplate* spindle_text_template_new(const uint8_t* data,
                                               size_t size,
                                               SpindleTextOutput output,
                                               int32_t* code);
void spindle_text_template_free(SpindleTextTemplate* chat_template);
int32_t spindle_text_template_render(const SpindleTextTemplate* chat_template,
                                     const uint8_t* variables,
                                     size_t size,
                                     int64_t now,
                                     SpindleTextOutput output);
int32_t spindle_text_schema_first_mask(const SpindleTextTokenizer* tokenizer,
                                       uint32_t end,
                                       const uint8_t* data,
                                       size_t size,
                                       SpindleTextOutput output);

}  // extern "C"

namespace spindle::text {

struct FfiDeleter {
  void operator()(SpindleTextTokenizer* tokenizer) const { spindle_text_tokenizer_free(tokenizer); }

  void operator()(SpindleTextTemplate* chat_template) const {
    spindle_text_template_free(chat_template);
  }
};

using TokenizerHandle = std::unique_ptr<SpindleTextTokenizer, FfiDeleter>;
using TemplateHandle = std::unique_ptr<SpindleTextTemplate, FfiDeleter>;

inline const uint8_t* FfiBytes(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

// An output that appends to `text`.
[[nodiscard]] SpindleTextOutput FfiOutput(std::string& text);

// The status of a call that returned `code` and wrote `message`.
// ERRORS: kInvalidArgument, kResourceExhausted, kUnimplemented, kInternal (a panic inside the
// library).
[[nodiscard]] absl::Status FfiStatus(int32_t code, std::string_view message);

}  // namespace spindle::text
