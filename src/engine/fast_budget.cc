#include "engine/fast_budget.h"

#include <algorithm>

#include "base/prefix_key.h"
#include "base/status_macros.h"
#include "sparse/scratch_bytes.h"

namespace spindle::engine {
namespace {

constexpr uint32_t kRebalanceSteps = 8;
// Weight of the present in moving averages, per rebalance (two make sixteen steps).
constexpr double kPresent = 0.5;
// Directories grow by so much at a time.
constexpr uint32_t kCoverPages = 256;

uint32_t RoundUpToRun(uint64_t frames) {
  return static_cast<uint32_t>((frames + kv::kRunFrames - 1) / kv::kRunFrames * kv::kRunFrames);
}

// An expectation, until steps have been measured.
double ExpectedPages(const sparse::SparsePolicy& policy, uint32_t page_tokens, double context) {
  const sparse::SparseSettings& settings = policy.settings();
  const double budget =
      settings.budget_fraction > 0 ? settings.budget_fraction * context : settings.budget_tokens;
  const double always = static_cast<double>(settings.sink_tokens) + settings.recent_tokens +
                        policy.algorithm().extra_tokens(settings);
  if (policy.algorithm().index_unit() == sparse::IndexUnit::kSegment) {
    // Pieces of clusters are two thirds full.
    return std::min(1.5 * budget + always, 1.5 * context) / page_tokens + 2;
  }
  return std::min(budget + always, context) / page_tokens + 2;
}

}  // namespace

FastBudget::FastBudget(const sparse::FastMemory& fast,
                       const kv::KvGeometry& geometry,
                       const FastMetrics& metrics)
    : tier_(fast.tier),
      link_(fast.link),
      recorder_(fast.recorder),
      geometry_(geometry),
      metrics_(metrics),
      num_groups_(geometry.num_layers * geometry.num_kv_heads),
      capacity_frames_(tier_ == nullptr ? 0 : tier_->num_free_frames()) {}

sparse::FastPageIds FastBudget::PageIds(const Choice& choice) const {
  const sparse::SparsePolicy* const policy = choice.request->spec.decode->policy.get();
  return {geometry_, policy == nullptr ? nullptr : &policy->algorithm()};
}

uint64_t FastBudget::NumTokens(const Choice& choice) {
  return std::max<uint64_t>(choice.history.size(), choice.request->prompt_size());
}

uint32_t FastBudget::NumPages(const Choice& choice) const {
  return PageIds(choice).CountFor(NumTokens(choice));
}

uint64_t FastBudget::IndexedTokens(const Choice& choice) {
  return NumTokens(choice) + kStripeTokens;
}

uint64_t FastBudget::IndexFrames(const Choice& choice) const {
  const sparse::SparsePolicy* const policy = choice.request->spec.decode->policy.get();
  if (policy == nullptr) {
    return 0;
  }
  const bool is_shared = !choice.fast.holds_prompt_index &&
                         std::ranges::any_of(choice.request->choices, [](const Choice& other) {
                           return other.fast.holds_prompt_index;
                         });
  uint64_t bytes = sparse::IndexBytes(geometry_, *policy, IndexedTokens(choice));
  if (is_shared) {
    bytes -= sparse::IndexBytes(geometry_, *policy, choice.request->prompt_size());
  }
  return (bytes + geometry_.page_bytes() - 1) / geometry_.page_bytes();
}

void FastBudget::ChargeIndex(Choice& choice, uint64_t frames) {
  index_frames_ += frames - choice.fast.index_frames;
  choice.fast.index_frames = frames;
}

void FastBudget::Release(Choice& choice) {
  ChargeIndex(choice, 0);
  const bool held = choice.fast.holds_prompt_index;
  choice.fast = {};
  const auto heir = std::ranges::find_if(choice.request->choices,
                                         [](const Choice& other) { return other.fast.is_open; });
  if (held && heir != choice.request->choices.end()) {
    heir->fast.holds_prompt_index = true;
    ChargeIndex(*heir, IndexFrames(*heir));
  }
}

uint64_t FastBudget::PageFrames() const {
  return capacity_frames_ - std::min(capacity_frames_, index_frames_);
}

double FastBudget::MandatoryPages(const Choice& choice) const {
  const SparseDecode& decode = *choice.request->spec.decode;
  const double measured = choice.fast.mandatory_pages;
  if (measured > 0 || decode.policy == nullptr) {
    return measured;
  }
  return decode.mandatory_pages > 0
             ? decode.mandatory_pages
             : ExpectedPages(
                   *decode.policy, geometry_.page_tokens(), static_cast<double>(NumTokens(choice)));
}

kv::BudgetBounds FastBudget::BoundsOf(const Choice& choice) const {
  const EngineRequest& spec = choice.request->spec;
  uint32_t max_frames = tier_->options().max_group_frames;
  if (spec.fast_bytes != 0) {
    const uint32_t num_choices = choice.request->num_choices();
    const uint64_t index_bytes = spec.decode->policy == nullptr
                                     ? 0
                                     : sparse::RequestIndexBytes(geometry_,
                                                                 *spec.decode->policy,
                                                                 choice.request->prompt_size(),
                                                                 IndexedTokens(choice),
                                                                 num_choices);
    max_frames = std::min(
        max_frames,
        kv::FramesForBytes(
            spec.fast_bytes, index_bytes, geometry_.page_bytes(), num_groups_ * num_choices));
  }
  if (spec.decode->policy == nullptr) {
    const uint32_t all = std::min(RoundUpToRun(NumPages(choice)), max_frames);
    return {.floor = 0, .target = all, .ceiling = all};
  }
  return kv::BoundsOf({.mandatory_pages = MandatoryPages(choice),
                       .buffer_ratio = *spec.buffer_ratio,
                       .total_pages = NumPages(choice),
                       .max_frames = max_frames});
}

kv::BudgetRequest FastBudget::RequestOf(const Choice& choice) const {
  kv::BudgetRequest request;
  request.bounds = BoundsOf(choice);
  request.num_groups = num_groups_;
  request.current = choice.fast.frames_per_group;
  if (choice.request->spec.decode->policy == nullptr) {
    // Each frame holds one page that would be copied in every step.
    request.gain = 1;
  } else {
    request.gain = choice.fast.gain;
    request.mandatory_pages = choice.fast.mandatory_pages;
  }
  return request;
}

bool FastBudget::Fits(const Choice& choice, std::span<Choice* const> running) const {
  // Alone it runs whatever its floor, since pages beyond its frames are streamed.
  if (tier_ == nullptr || running.empty()) {
    return true;
  }
  const auto needed = [this](const Choice& each) {
    return uint64_t{BoundsOf(each).floor} * num_groups_ + IndexFrames(each);
  };
  uint64_t frames = needed(choice);
  for (const Choice* other : running) {
    frames += needed(*other);
  }
  return frames <= capacity_frames_;
}

absl::Status FastBudget::Open(Choice& choice) {
  if (tier_ == nullptr) {
    return absl::OkStatus();
  }
  choice.fast = {};
  choice.fast.covered_pages = NumPages(choice) + kCoverPages;
  choice.fast.mandatory_pages = MandatoryPages(choice);
  SPINDLE_ASSIGN_OR_RETURN(
      choice.fast.set,
      tier_->Open(
          choice.request->group, choice.fast.covered_pages, PageIds(choice).ids_per_segment()));
  choice.fast.holds_prompt_index = std::ranges::none_of(
      choice.request->choices, [](const Choice& other) { return other.fast.holds_prompt_index; });
  choice.fast.is_open = true;
  ChargeIndex(choice, IndexFrames(choice));
  const uint64_t unused =
      tier_->num_free_frames() - std::min(tier_->num_free_frames(), index_frames_);
  const uint64_t free = unused / num_groups_ / kv::kRunFrames * kv::kRunFrames;
  const auto size = static_cast<uint32_t>(std::min<uint64_t>(BoundsOf(choice).target, free));
  if (absl::Status status = tier_->Resize(choice.fast.set, size); !status.ok()) {
    tier_->Close(choice.fast.set);
    Release(choice);
    return status;
  }
  HasResized(choice, size);
  steps_to_rebalance_ = 0;
  return absl::OkStatus();
}

void FastBudget::HasResized(Choice& choice, uint32_t frames) {
  choice.fast.frames_per_group = frames;
  if (recorder_ != nullptr) {
    recorder_->Resize(choice.fast.set, frames);
  }
}

void FastBudget::Adopt(const Choice& child, const Choice& parent) {
  if (tier_ == nullptr) {
    return;
  }
  tier_->Adopt(child.fast.set, parent.fast.set);
  if (recorder_ != nullptr) {
    recorder_->Fork(child.fast.set, parent.fast.set);
  }
}

void FastBudget::Close(Choice& choice) {
  if (tier_ != nullptr) {
    metrics_.paused_sequences.Add(choice.fast.is_paused ? -1 : 0);
    tier_->Close(choice.fast.set);
    if (recorder_ != nullptr) {
      recorder_->End(choice.fast.set);
    }
    Release(choice);
    steps_to_rebalance_ = 0;
  }
}

void FastBudget::Compose(std::vector<Choice*>* decodes) {
  if (tier_ == nullptr || decodes->empty()) {
    return;
  }
  // Somebody always runs.
  if (std::ranges::all_of(*decodes, [](const Choice* each) { return each->fast.is_paused; })) {
    Resume(*decodes->front());
  }
  std::erase_if(*decodes, [](const Choice* each) { return each->fast.is_paused; });
  candidates_.clear();
  for (const Choice* choice : *decodes) {
    const kv::BudgetBounds bounds = BoundsOf(*choice);
    candidates_.push_back({.floor_frames = uint64_t{bounds.floor} * num_groups_,
                           .working_set_frames = choice->fast.working_set_pages,
                           .skipped_steps = choice->fast.skipped_steps});
  }
  takes_part_.resize(decodes->size());
  kv::ComposeStep(candidates_, PageFrames(), &order_, takes_part_);
  size_t i = 0;
  std::erase_if(*decodes, [&](Choice* choice) {
    const bool skips = takes_part_[i++] == 0;
    choice->fast.skipped_steps = skips ? choice->fast.skipped_steps + 1 : 0;
    metrics_.skipped_sequences.Add(skips ? 1 : 0);
    return skips;
  });
}

void FastBudget::Pause(Choice& choice) {
  tier_->Drop(choice.fast.set);
  if (recorder_ != nullptr) {
    recorder_->Pause(choice.fast.set);
  }
  choice.fast.is_paused = true;
  choice.fast.steps_in_state = 0;
  choice.fast.frames_per_group = 0;
  choice.fast.covered_pages = 0;
  steps_to_rebalance_ = 0;
  metrics_.pauses.Add();
  metrics_.paused_sequences.Add(1);
}

void FastBudget::Resume(Choice& choice) {
  choice.fast.is_paused = false;
  choice.fast.steps_in_state = 0;
  steps_to_rebalance_ = 0;  // frames come from whoever has more than it needs
  metrics_.paused_sequences.Add(-1);
}

void FastBudget::Measure(Choice& choice) const {
  FastUse& use = choice.fast;
  if (choice.request->spec.decode->policy == nullptr || choice.fast.is_paused) {
    return;
  }
  const kv::CacheSetStats stats = tier_->Stats(use.set);
  const uint32_t steps = choice.num_generated - use.measured_tokens;
  // Prefill streams all there is: only steps of decoding say what the algorithm needs.
  if (steps > 0 && use.measured_tokens > 0) {
    const double per_step = 1.0 / (static_cast<double>(steps) * num_groups_);
    const double pages = static_cast<double>(stats.hits + stats.misses - use.pages) * per_step;
    const double refaults = static_cast<double>(stats.refaults - use.refaults) * per_step;
    const double evicted = static_cast<double>(stats.evicted_replaced - use.evicted) / num_groups_;
    use.mandatory_pages += kPresent * (pages - use.mandatory_pages);
    use.gain = kv::MarginalGain(refaults, evicted, 1.0);
    use.working_set_pages = stats.working_set_pages;
  }
  use.measured_tokens = choice.num_generated;
  use.pages = stats.hits + stats.misses;
  use.refaults = stats.refaults;
  use.evicted = stats.evicted_replaced;
}

void FastBudget::Rebalance(std::span<Choice* const> running) {
  requests_.clear();
  sharing_.clear();
  for (Choice* choice : running) {
    if (choice->fast.is_paused) {
      continue;
    }
    Measure(*choice);
    sharing_.push_back(choice);
    requests_.push_back(RequestOf(*choice));
  }
  wanted_.resize(sharing_.size());
  sizes_.resize(sharing_.size());
  if (!kv::Distribute(requests_, PageFrames(), 0, wanted_).ok()) {
    ScaleDown();
    SPINDLE_CHECK(kv::Distribute(requests_, PageFrames(), 0, wanted_).ok());
  }
  kv::NextSizes(requests_, wanted_, PageFrames(), sizes_);
  // Shrinking first makes the frames free that others grow by.
  for (const bool grow : {false, true}) {
    for (size_t i = 0; i < sharing_.size(); ++i) {
      FastUse& use = sharing_[i]->fast;
      if (sizes_[i] == use.frames_per_group || (sizes_[i] > use.frames_per_group) != grow) {
        continue;
      }
      if (tier_->Resize(use.set, sizes_[i]).ok()) {
        HasResized(*sharing_[i], sizes_[i]);
      }
    }
  }
}

void FastBudget::ScaleDown() {
  uint64_t floors = 0;
  for (const kv::BudgetRequest& request : requests_) {
    floors += uint64_t{request.bounds.floor} * request.num_groups;
  }
  const double share = static_cast<double>(PageFrames()) / static_cast<double>(floors);
  for (kv::BudgetRequest& request : requests_) {
    const auto frames =
        static_cast<uint32_t>(share * request.bounds.floor) / kv::kRunFrames * kv::kRunFrames;
    request.bounds = {.floor = frames, .target = frames, .ceiling = frames};
  }
}

void FastBudget::BeginStep(std::span<Choice* const> running) {
  if (tier_ == nullptr) {
    return;
  }
  for (Choice* choice : running) {
    ChargeIndex(*choice, IndexFrames(*choice));
    const uint32_t pages = NumPages(*choice);
    // Without room for metadata the pages beyond are streamed.
    if (!choice->fast.is_paused && pages > choice->fast.covered_pages &&
        tier_->Cover(choice->fast.set, pages + kCoverPages).ok()) {
      choice->fast.covered_pages = pages + kCoverPages;
    }
  }
  if (steps_to_rebalance_ > 0) {
    --steps_to_rebalance_;
    return;
  }
  steps_to_rebalance_ = kRebalanceSteps - 1;
  Rebalance(running);
}

void FastBudget::EndStep(std::span<Choice* const> running,
                         const sparse::MirrorCounters& counters,
                         TimePoint now) {
  if (link_ == nullptr) {
    return;  // without a link nothing says that copying is what keeps steps waiting
  }
  const Duration busy = link_->busy();
  const double elapsed = ToSeconds(now - step_end_);
  const kv::ThrashSample sample{
      .refaults = counters.page_refaults - seen_.page_refaults,
      .fetches = counters.page_misses - seen_.page_misses,
      .link_utilisation = elapsed > 0 ? ToSeconds(busy - link_busy_) / elapsed : 0,
      .capacity_frames = PageFrames()};
  seen_ = counters;
  link_busy_ = busy;
  step_end_ = now;
  decoding_.clear();
  thrash_requests_.clear();
  for (Choice* choice : running) {
    FastUse& use = choice->fast;
    ++use.steps_in_state;
    if (!choice->in_prefill) {
      decoding_.push_back(choice);
      thrash_requests_.push_back({.priority_class = choice->request->priority_class,
                                  .working_set_frames = use.working_set_pages,
                                  .is_paused = use.is_paused,
                                  .steps_in_state = use.steps_in_state});
    }
  }
  const kv::ThrashController::Decision decision = thrash_.Step(sample, thrash_requests_);
  if (decision.action == kv::ThrashController::Action::kPause) {
    Pause(*decoding_[decision.request]);
  } else if (decision.action == kv::ThrashController::Action::kResume) {
    Resume(*decoding_[decision.request]);
  }
}

}  // namespace spindle::engine
