#include "engine/disk_prefix.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/prefix_key.h"
#include "base/status_macros.h"

namespace spindle::engine {
namespace {

// The rows of an open tail stand for computed ones, so they must be wanted as such: not where
// sparse blocks come whole.
bool MayUseTail(const Request& request) {
  return request.reads_cache && request.spec.uses_disk && !request.methods.HasSparseBlocks() &&
         !request.spec.sampling.prompt_logprobs.has_value();
}

// Tokens behind `num_stripes` stripes whose KV a tail may bring: all but the last. What a request
// generates under an algorithm has KV that no dense tail with the same tokens has.
std::span<const TokenId> RestOf(const Request& request,
                                std::span<const TokenId> tokens,
                                uint32_t num_stripes) {
  const size_t end = std::min<size_t>(tokens.size() - 1, request.methods.PublishedEnd());
  return tokens.first(end).subspan(std::min<size_t>(end, size_t{num_stripes} * kStripeTokens));
}

// The name of what was kept without one: the same content gets the same.
std::string NameOf(const Digest& last_key, std::span<const TokenId> tail) {
  Sha256 hash;
  hash.Field("spindle-retained").Bytes(last_key);
  for (const TokenId token : tail) {
    hash.Number(static_cast<uint64_t>(token));
  }
  constexpr size_t kDigits = 16;
  return "auto-" + ToHex(hash.Finish()).substr(0, kDigits);
}

}  // namespace

bool DiskPrefix::AwaitsLoad(Choice& choice,
                            std::span<const Digest> keys,
                            std::span<const TokenId> tokens,
                            uint32_t num_host) {
  if (tier_ == nullptr || choice.disk_tried || !choice.request->spec.uses_disk) {
    return false;
  }
  if (choice.load.has_value()) {
    // Done or cut short, the disk is not asked again: what is missing now is computed.
    choice.disk_tried = tier_->IsDone(*choice.load);
    return !choice.disk_tried;
  }
  if (num_host < keys.size() && tier_->IsLoading(keys[num_host])) {
    return true;  // another request brings it in
  }
  const uint32_t num_disk = tier_->MatchDisk(keys, num_host);
  const double rate = throughput_.prefill_tokens_per_second();
  if (num_disk > 0 && !tier_->WorthLoading(num_disk, rate)) {
    return false;
  }
  const Request& request = *choice.request;
  kv::StripeLoader::Request load{.group = request.group,
                                 .chain = {keys, tokens, request.key_root},
                                 .num_host = num_host,
                                 .num_disk = num_disk,
                                 .prefill_tokens_per_second = rate};
  const auto tail = FindTail(choice, keys, tokens, num_host + num_disk);
  // One that is in memory already is copied when the choice starts.
  if (tail.has_value() && tail->data == nullptr &&
      tier_->WorthLoadingTail(tail->num_usable, rate)) {
    load.tail = tail->tail;
  } else if (num_disk == 0) {
    return false;
  }
  const absl::StatusOr<kv::LoadId> begun = tier_->BeginLoad(load);
  if (!begun.ok()) {
    return false;  // no room for it, hence none for computing it either
  }
  choice.load = *begun;
  return true;
}

std::optional<kv::SessionKeeper::Tail> DiskPrefix::FindTail(const Choice& choice,
                                                            std::span<const Digest> keys,
                                                            std::span<const TokenId> tokens,
                                                            uint32_t end) {
  if (!MayUseTail(*choice.request)) {
    return std::nullopt;
  }
  const std::span<const TokenId> rest = RestOf(*choice.request, tokens, end);
  if (choice.spill.has_value() && choice.spilled_stripes == end) {
    if (const kv::OpenTail* const tail = tier_->SpilledTail(*choice.spill); tail != nullptr) {
      return kv::SessionKeeper::Tail{.tail = *tail,
                                     .num_usable = kv::SharedTokens(tail->tokens, rest)};
    }
  }
  const Digest& parent = end == 0 ? choice.request->key_root : keys[end - 1];
  return tier_->sessions().FindTail(parent, rest);
}

uint32_t DiskPrefix::CopyTail(const Choice& choice, SequenceId sequence, uint32_t num_shared) {
  if (tier_ == nullptr || !MayUseTail(*choice.request)) {
    return 0;
  }
  const uint8_t* data = nullptr;
  uint32_t num_rows = 0;
  if (choice.load.has_value() && tier_->NumSealed(*choice.load) == num_shared) {
    data = tier_->TailData(*choice.load);
    num_rows = kv::SharedTokens(tier_->TailTokens(*choice.load),
                                RestOf(*choice.request, choice.history, num_shared));
  }
  if (data == nullptr) {
    const auto tail = FindTail(choice, choice.keys, choice.history, num_shared);
    if (!tail.has_value() || tail->data == nullptr) {
      return 0;
    }
    data = tail->data;
    num_rows = tail->num_usable;
  }
  if (num_rows > 0) {
    const kv::KvStore& host = tier_->host();
    std::memcpy(host.View(sequence).stripes[num_shared], data, host.geometry().stripe_bytes());
    tier_->CountTailTokens(num_rows);
  }
  return num_rows;
}

uint32_t DiskPrefix::StripesHeld(const Choice& choice) const {
  return choice.load.has_value() ? tier_->StripesHeld(*choice.load) : 0;
}

void DiskPrefix::EndLoad(Choice& choice) {
  if (choice.load.has_value()) {
    tier_->EndLoad(*choice.load);
    choice.load.reset();
  }
  if (choice.spill.has_value()) {
    tier_->EndSpill(*choice.spill);
    choice.spill.reset();
  }
  choice.disk_tried = false;
}

void DiskPrefix::OfferPrompt(const Choice& choice) {
  const Request& request = *choice.request;
  const uint32_t end = std::min(request.prompt_size(), request.methods.PublishedEnd());
  Offer(choice,
        std::min(choice.num_sealed, end / static_cast<uint32_t>(kStripeTokens)),
        /*count_use=*/true);
}

void DiskPrefix::OfferAll(const Choice& choice) {
  // What was decoded over chosen pages is of use to nobody else.
  const uint32_t end = choice.request->methods.PublishedEnd();
  Offer(choice,
        std::min(choice.num_sealed, end / static_cast<uint32_t>(kStripeTokens)),
        /*count_use=*/false);
}

void DiskPrefix::Offer(const Choice& choice, uint32_t num_stripes, bool count_use) {
  const Request& request = *choice.request;
  if (tier_ == nullptr || !request.spec.uses_disk || !request.reads_cache || num_stripes == 0) {
    return;
  }
  const kv::PrefixChain chain{
      std::span(choice.keys).first(num_stripes), choice.history, request.key_root};
  if (count_use) {
    tier_->CountUse(chain);
  }
  tier_->Offer(chain);
}

uint32_t DiskPrefix::NumPublished(const Choice& choice) const {
  return std::min(choice.num_sealed, tier_->host().NumPublished(choice.sequence));
}

void DiskPrefix::Keep(Choice& choice, uint32_t num_kept) {
  const Request& request = *choice.request;
  if (tier_ == nullptr || !request.spec.retention.has_value() || !request.reads_cache) {
    return;
  }
  // Rows that were computed over chosen pages are not what a dense request expects.
  num_kept = std::min(num_kept, request.methods.PublishedEnd());
  const uint32_t num_stripes =
      std::min(NumPublished(choice), num_kept / static_cast<uint32_t>(kStripeTokens));
  kv::SessionKeeper::SaveRequest save{.name = request.spec.retention->session,
                                      .ttl_s = request.spec.retention->seconds,
                                      .sequence = choice.sequence};
  save.chain = kv::OwnedChain({choice.keys, choice.history, request.key_root}, num_stripes);
  if (num_stripes == choice.num_sealed) {
    // Sealing left less than a stripe of what is kept.
    const auto tail = std::span(choice.history)
                          .first(std::min(choice.committed, num_kept))
                          .subspan(num_stripes * kStripeTokens);
    SPINDLE_CHECK(tail.size() < kStripeTokens);
    save.tail.assign(tail.begin(), tail.end());
  }
  if (num_stripes == 0 && save.tail.empty()) {
    return;
  }
  if (save.name.id.empty()) {
    save.name.id = NameOf(save.chain.Parent(num_stripes), save.tail);
  }
  if (tier_->sessions().Save(std::move(save))) {
    choice.sequence = SequenceId();
  }
}

void DiskPrefix::Spill(Choice& choice) {
  const Request& request = *choice.request;
  // What was computed over chosen pages must be computed so again.
  if (tier_ == nullptr || !request.spec.uses_disk || !request.reads_cache ||
      request.spec.decode->policy != nullptr || request.methods.HasSparseBlocks()) {
    return;
  }
  const uint32_t num_stripes = NumPublished(choice);
  // It is written before it is read.
  if (!tier_->WorthLoading(2 * num_stripes, throughput_.prefill_tokens_per_second())) {
    return;
  }
  kv::StripeWriter::SaveRequest save{.sequence = choice.sequence};
  save.chain = kv::OwnedChain({choice.keys, choice.history, request.key_root}, num_stripes);
  const uint32_t num_tail = choice.committed - num_stripes * static_cast<uint32_t>(kStripeTokens);
  if (num_stripes == choice.num_sealed && num_tail > 0 && num_tail < kStripeTokens) {
    const auto tail = std::span(choice.history).subspan(num_stripes * kStripeTokens, num_tail);
    save.tail = kv::OpenTail{.tokens = {tail.begin(), tail.end()}};
  }
  if (const auto spill = tier_->Spill(std::move(save)); spill.has_value()) {
    choice.sequence = SequenceId();
    choice.spill = *spill;
    choice.spilled_stripes = num_stripes;
  }
}

bool DiskPrefix::ReleaseSessions() {
  return tier_ != nullptr && tier_->sessions().ReleaseHost();
}

void DiskPrefix::ReleaseStripes(std::span<Choice* const> waiting) {
  if (tier_ == nullptr) {
    return;
  }
  tier_->ReleaseHostStripes();
  for (Choice* choice : waiting) {
    if (choice->load.has_value()) {
      EndLoad(*choice);
      choice->disk_tried = true;
    }
  }
}

bool DiskPrefix::HoldsStripes() const {
  return tier_ != nullptr && tier_->HoldsHostStripes();
}

void DiskPrefix::Advance() {
  if (tier_ != nullptr) {
    tier_->Advance();
  }
}

std::optional<TimePoint> DiskPrefix::NextAdvance() const {
  return tier_ != nullptr ? tier_->NextAdvance() : std::nullopt;
}

}  // namespace spindle::engine
