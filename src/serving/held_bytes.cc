#include "serving/held_bytes.h"

#include <algorithm>
#include <string>
#include <vector>

namespace spindle::serving {
namespace {

// Of an allocation: the allocator's words and rounding.
constexpr uint64_t kAllocationBytes = 16;
// Texts up to this size live inside their string.
constexpr size_t kInlineText = 15;

uint64_t OnHeap(const std::string& text) {
  return text.capacity() > kInlineText ? text.capacity() + kAllocationBytes : 0;
}

template <typename T>
uint64_t OnHeap(const std::vector<T>& list) {
  return list.capacity() > 0 ? list.capacity() * sizeof(T) + kAllocationBytes : 0;
}

uint64_t OnHeap(const TokenLogprob& token) {
  uint64_t bytes = OnHeap(token.bytes) + OnHeap(token.top);
  for (const AlternativeLogprob& alternative : token.top) {
    bytes += OnHeap(alternative.bytes);
  }
  return bytes;
}

uint64_t TextBytes(const std::vector<std::string>& texts) {
  uint64_t bytes = OnHeap(texts);
  for (const std::string& text : texts) {
    bytes += OnHeap(text);
  }
  return bytes;
}

}  // namespace

uint64_t ParameterBytes(const PreparedRequest& request) {
  const SamplingParams& sampling = request.sampling;
  const uint64_t lists = OnHeap(sampling.logit_bias) + OnHeap(sampling.allowed_token_ids) +
                         OnHeap(sampling.stop_token_ids);
  // The transport's and the generation's copies, and one in the engine for each prompt.
  return (2 + request.prompts.size()) * lists +
         2 * (TextBytes(request.stop) + TextBytes(request.prompt_texts));
}

uint64_t HeldBytes(const DeltaEvent& event) {
  uint64_t bytes = sizeof(GenerationEvent) + OnHeap(event.text) + OnHeap(event.token_ids) +
                   OnHeap(event.logprobs);
  for (const TokenLogprob& token : event.logprobs) {
    bytes += OnHeap(token);
  }
  return bytes;
}

}  // namespace spindle::serving
