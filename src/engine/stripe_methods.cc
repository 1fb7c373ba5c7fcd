#include "engine/stripe_methods.h"

#include <algorithm>

namespace spindle::engine {
namespace {

using sparse::kPrefillBlockTokens;

constexpr uint32_t kBlockStripes = kPrefillBlockTokens / static_cast<uint32_t>(kStripeTokens);

// Choices depend on where decoding began.
MethodDigest DecodeMethodOf(const SparseDecode& decode, uint32_t prompt_tokens) {
  return decode.policy == nullptr ? kDenseMethod
                                  : Sha256().Bytes(decode.method).Number(prompt_tokens).Finish();
}

}  // namespace

StripeMethods StripeMethods::Of(const SparseDecode& decode,
                                uint32_t prompt_tokens,
                                const MethodDigest& private_method) {
  StripeMethods methods;
  methods.prompt_tokens = prompt_tokens;
  methods.decode_method = DecodeMethodOf(decode, prompt_tokens);
  if (decode.prefill != nullptr) {
    methods.sparse_begin = decode.prefill->SparseBegin();
    methods.sparse_end = std::max(methods.sparse_begin, decode.prefill->SparseEnd(prompt_tokens));
    methods.prefill_method = decode.prefill->fingerprint();
    methods.private_method = private_method;
  }
  return methods;
}

MethodDigest StripeMethods::MethodOf(size_t stripe, std::span<const TokenId> tokens) const {
  const size_t begin = stripe * kStripeTokens;
  if (!HasSparseBlocks()) {
    return begin + kStripeTokens <= prompt_tokens ? kDenseMethod : decode_method;
  }
  if (begin < sparse_begin) {
    return kDenseMethod;
  }
  if (begin >= sparse_end) {
    return private_method;
  }
  Sha256 hash;
  hash.Bytes(prefill_method);
  const size_t block = begin / kPrefillBlockTokens * kPrefillBlockTokens;
  for (const TokenId token : tokens.subspan(block, kPrefillBlockTokens)) {
    hash.Number(static_cast<uint64_t>(token));
  }
  return hash.Finish();
}

void StripeMethods::ExtendKeys(const Digest& root,
                               std::span<const TokenId> tokens,
                               size_t num_stripes,
                               std::vector<Digest>* keys) const {
  while (keys->size() < num_stripes) {
    const size_t stripe = keys->size();
    const Digest& previous = keys->empty() ? root : keys->back();
    keys->push_back(NextStripeKey(
        previous, MethodOf(stripe, tokens), tokens.subspan(stripe * kStripeTokens, kStripeTokens)));
  }
}

uint32_t StripeMethods::UsableMatch(uint32_t num_stripes) const {
  const bool ends_in_blocks = num_stripes * kStripeTokens < BlocksEnd();
  return ends_in_blocks ? num_stripes / kBlockStripes * kBlockStripes : num_stripes;
}

}  // namespace spindle::engine
