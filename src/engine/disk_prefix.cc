#include "engine/disk_prefix.h"

#include <algorithm>

#include "base/prefix_key.h"

namespace spindle::engine {

bool DiskPrefix::AwaitsLoad(Choice& choice,
                            std::span<const Digest> keys,
                            std::span<const TokenId> tokens,
                            uint32_t num_host) {
  if (tier_ == nullptr || choice.disk_tried) {
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
  if (num_disk == 0 || !tier_->WorthLoading(num_disk, rate)) {
    return false;
  }
  const Request& request = *choice.request;
  const absl::StatusOr<kv::LoadId> load =
      tier_->BeginLoad(request.group, {keys, tokens, request.key_root}, num_host, num_disk, rate);
  if (!load.ok()) {
    return false;  // no room for it, hence none for computing it either
  }
  choice.load = *load;
  return true;
}

uint32_t DiskPrefix::StripesHeld(const Choice& choice) const {
  return choice.load.has_value() ? tier_->StripesHeld(*choice.load) : 0;
}

void DiskPrefix::EndLoad(Choice& choice) {
  if (choice.load.has_value()) {
    tier_->EndLoad(*choice.load);
    choice.load.reset();
  }
  choice.disk_tried = false;
}

void DiskPrefix::OfferPrompt(const Choice& choice) {
  const auto in_prompt = static_cast<uint32_t>(choice.request->prompt_size() / kStripeTokens);
  Offer(choice, std::min(choice.num_sealed, in_prompt), /*count_use=*/true);
}

void DiskPrefix::OfferAll(const Choice& choice) {
  Offer(choice, choice.num_sealed, /*count_use=*/false);
}

void DiskPrefix::Offer(const Choice& choice, uint32_t num_stripes, bool count_use) {
  const Request& request = *choice.request;
  if (tier_ == nullptr || !request.reads_cache || num_stripes == 0) {
    return;
  }
  const kv::PrefixChain chain{
      std::span(choice.keys).first(num_stripes), choice.history, request.key_root};
  if (count_use) {
    tier_->CountUse(chain);
  }
  tier_->Offer(chain);
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
