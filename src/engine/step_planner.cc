#include "engine/step_planner.h"

#include <algorithm>
#include <limits>

#include "base/status_macros.h"

namespace spindle::engine {
namespace {

constexpr uint32_t kAnyChunk = std::numeric_limits<uint32_t>::max();
// Shared leading stripes that make it worth waiting for a twin.
constexpr size_t kTwinStripes = 2;

// Prompt log-probabilities are still to be reported, so rows need logits.
bool WantsPromptLogits(const Request& request) {
  return request.spec.sampling.prompt_logprobs.has_value() &&
         request.num_prompt_logprobs < request.prompt_size();
}

// Where its next row is at `position`.
uint32_t GrainOf(const Request& request, uint32_t position) {
  return position < request.methods.BlocksEnd() ? sparse::kPrefillBlockTokens : kChunkTokens;
}

// Of the rows [first, first + count), those of generated tokens that choose what they attend to.
uint32_t ReplayRows(const Request& request, uint32_t first, uint32_t count) {
  const uint32_t begin = std::max(first, request.prompt_size());
  const uint32_t end = first + count;
  return request.spec.decode->policy != nullptr && end > begin ? end - begin : 0;
}

uint32_t NumUnfinished(const Request& request) {
  return request.num_choices() - request.num_finished;
}

uint32_t RemainingTokens(const Choice& choice) {
  return choice.request->spec.sampling.max_tokens - choice.num_generated;
}

VictimView ViewAsVictim(const Choice& choice) {
  return {choice.request->priority_class,
          choice.request->arrival,
          choice.index,
          choice.num_preemptions,
          RemainingTokens(choice)};
}

}  // namespace

StepPlanner::StepPlanner(const EngineOptions& options,
                         const EngineMetrics& metrics,
                         kv::KvStore& store,
                         FastBudget& fast,
                         RequestLifecycle& lifecycle)
    : options_(options), metrics_(metrics), store_(store), fast_(fast), lifecycle_(lifecycle) {
  decodes_.reserve(options.max_num_seqs);
  prefills_.reserve(options.max_num_seqs);
  starved_.reserve(options.max_num_seqs);
  placed_.reserve(options.max_num_seqs);
  victims_.reserve(options.max_num_seqs);
}

void StepPlanner::Plan(TimePoint now, StepBatch* batch) {
  batch->Clear();
  decodes_.clear();
  prefills_.clear();
  starved_.clear();
  placed_.clear();
  refused_ = nullptr;
  num_deferred_ = 0;
  prompt_logit_rows_ = 0;
  replay_rows_ = 0;

  FindRunnable(now);
  fast_.Compose(&decodes_);
  MakeRoom();
  RowBudget rows(options_.max_num_batched_tokens,
                 static_cast<uint32_t>(decodes_.size()),
                 options_.chunked_prefill);
  PlacePrefills(&rows);
  Admit(now, &rows);
  Compose(rows, batch);
}

bool StepPlanner::HasReader(Request& request, TimePoint now) {
  // With prompt log-probabilities: a chunk of at least one row, and the first token's own event.
  const uint32_t needed = NumUnfinished(request) + (WantsPromptLogits(request) ? 2 : 0);
  if (request.stream->Room() >= needed) {
    request.stalled_since.reset();
    return true;
  }
  if (!request.stalled_since.has_value()) {
    request.stalled_since = now;
    metrics_.stream_stalls.Add();
  }
  request.stream->WaitForRoom();
  return false;
}

uint32_t StepPlanner::MaxChunk(const Request& request, uint32_t first) const {
  uint32_t by_choices = kAnyChunk;
  if (request.spec.decode->policy != nullptr) {
    const uint32_t prompt = request.prompt_size();
    by_choices = (first < prompt ? prompt - first : 0) + kMaxReplayRows - replay_rows_;
  }
  if (!WantsPromptLogits(request)) {
    return by_choices;
  }
  const uint32_t by_stream = request.stream->Room() - NumUnfinished(request) - 1;
  return std::min({by_choices, by_stream, kMaxPromptLogitRows - prompt_logit_rows_});
}

void StepPlanner::Place(Choice& choice, uint32_t pending, uint32_t max_chunk, RowBudget* rows) {
  const uint32_t grain = GrainOf(*choice.request, choice.committed);
  placed_.push_back({&choice, rows->Place(pending, max_chunk, grain)});
  const uint32_t most = std::min(pending, max_chunk);
  replay_rows_ += ReplayRows(*choice.request, choice.committed, most);
  if (WantsPromptLogits(*choice.request)) {
    prompt_logit_rows_ += most;
  }
}

void StepPlanner::FindRunnable(TimePoint now) {
  for (Choice* choice : lifecycle_.running()) {
    if (!HasReader(*choice->request, now)) {
      continue;
    }
    if (choice->in_prefill) {
      prefills_.push_back(choice);
    } else {
      decodes_.push_back(choice);
    }
  }
}

void StepPlanner::MakeRoom() {
  // Most urgent first, so that the least urgent one gives way. A preemption removes its victim from
  // the lists, hence the index.
  for (size_t i = 0; i < decodes_.size();) {
    Choice* choice = decodes_[i];
    const bool has_room = choice->history.size() <= choice->num_stripes * kStripeTokens;
    if (has_room || GrowOrPreempt(*choice)) {
      // Victims in front of this one have moved it.
      i = static_cast<size_t>(std::ranges::find(decodes_, choice) - decodes_.begin()) + 1;
    } else {
      std::erase(decodes_, choice);
      i = 0;  // those that have room already cost nothing
    }
  }
}

bool StepPlanner::GrowOrPreempt(Choice& choice) {
  while (!lifecycle_.Grow(choice).ok()) {
    if (ReclaimFromDisk()) {
      continue;
    }
    if (lifecycle_.DiskHoldsStripes()) {
      starved_.push_back(&choice);  // the device lets go of some soon: better than computing again
      return false;
    }
    victims_.clear();
    for (const Choice* running : lifecycle_.running()) {
      victims_.push_back(ViewAsVictim(*running));
    }
    const std::optional<size_t> index =
        ChooseVictim(victims_, VictimRule::kNormal, options_.policy);
    if (!index.has_value() || lifecycle_.running().size() == 1) {
      starved_.push_back(&choice);
      return false;
    }
    Choice* victim = lifecycle_.running()[*index];
    lifecycle_.Preempt(*victim);
    if (victim == &choice) {
      return false;
    }
    std::erase(decodes_, victim);
    std::erase(prefills_, victim);
    std::erase(starved_, victim);
  }
  return true;
}

void StepPlanner::PlacePrefills(RowBudget* rows) {
  for (Choice* choice : prefills_) {
    const uint32_t max_chunk = MaxChunk(*choice->request, choice->committed);
    if (rows->CanPlace(
            choice->pending(), max_chunk, GrainOf(*choice->request, choice->committed))) {
      Place(*choice, choice->pending(), max_chunk, rows);
    }
  }
}

void StepPlanner::SortCandidates(TimePoint now) {
  const auto sort = [this] {
    std::ranges::sort(candidates_, [this](const Candidate& a, const Candidate& b) {
      return RunsBefore(a.rank, b.rank, options_.policy);
    });
  };
  candidates_.clear();
  bool shares = false;
  for (Choice* choice : lifecycle_.waiting()) {
    const Request& request = *choice->request;
    TimePoint since = request.submitted;
    if (request.account != nullptr) {
      since = std::max(since, request.account->last_start[request.priority_class]);
    }
    const WaitingRank rank = {
        .aged_class = AgedClass(request.priority_class, now - since, options_.priority_aging),
        .resumed = choice->resumed,
        .served = 0,
        .arrival = request.arrival,
        .choice = choice->index};
    candidates_.push_back({choice, rank});
    if (request.account != nullptr) {
      request.account->queued = 0;
      shares = true;
    }
  }
  sort();
  if (!shares) {
    return;
  }
  // Several requests of a sender may start in this step: each ranks behind what the ones before it
  // will take.
  for (Candidate& candidate : candidates_) {
    const Request& request = *candidate.choice->request;
    if (request.account != nullptr && !candidate.rank.resumed) {
      candidate.rank.served = request.account->served + request.account->queued;
      request.account->queued += request.prompt_size() * FairShare::kPromptToken;
    }
  }
  sort();
}

void StepPlanner::Admit(TimePoint now, RowBudget* rows) {
  if (lifecycle_.waiting().empty()) {
    return;
  }
  SortCandidates(now);
  Choice* head = nullptr;  // the first one that memory keeps out
  uint32_t num_looked_past = 0;
  for (const Candidate& candidate : candidates_) {
    Choice& choice = *candidate.choice;
    if (head != nullptr &&
        (++num_looked_past > kLookAhead || head->request->num_bypassed >= kMaxBypasses)) {
      break;
    }
    if (head != nullptr && !FinishesEarlier(choice, *head)) {
      continue;
    }
    bool fits = true;
    if (TryAdmit(choice, now, rows, &fits)) {
      if (head != nullptr) {
        ++head->request->num_bypassed;
      }
    } else if (!fits && head == nullptr) {
      head = &choice;
    }
  }
}

bool StepPlanner::TryAdmit(Choice& choice, TimePoint now, RowBudget* rows, bool* fits) {
  if (lifecycle_.running().size() >= options_.max_num_seqs || !starved_.empty()) {
    return false;
  }
  Request& request = *choice.request;
  if (!HasReader(request, now)) {
    ++num_deferred_;
    return false;
  }
  const uint32_t num_shared = lifecycle_.MatchPrefix(choice);
  if (HasTwinInPrefill(choice, num_shared)) {
    ++num_deferred_;
    return false;
  }
  const auto num_tokens =
      choice.history.empty() ? request.prompt_size() : static_cast<uint32_t>(choice.history.size());
  const uint32_t first = num_shared * static_cast<uint32_t>(kStripeTokens);
  const uint32_t pending = num_tokens - first;
  const uint32_t max_chunk = MaxChunk(request, first);
  // Cached stripes that nobody uses count as available, so those that are taken over are not free
  // for anything else: the whole history is charged.
  const uint32_t needed = kv::KvStore::StripesFor(num_tokens);
  const uint32_t output = ReservedOutput(RemainingTokens(choice), lifecycle_.mean_output_tokens());
  uint32_t reserved = kv::KvStore::StripesFor(num_tokens + output) - needed;
  if (choice.index == 0 && !choice.resumed) {
    const uint32_t later = std::min(request.num_choices(), options_.max_num_seqs) - 1;
    const uint32_t shared = num_tokens / static_cast<uint32_t>(kStripeTokens);
    reserved += later * (kv::KvStore::StripesFor(num_tokens + output) - shared);
  }
  MemoryView memory = Memory();
  memory.available += lifecycle_.StripesHeld(choice);
  if (!FitsMemory(memory, needed, reserved) && lifecycle_.ReleaseSessions()) {
    memory.available = store_.AvailableStripes() + lifecycle_.StripesHeld(choice);
  }
  if (!FitsMemory(memory, needed, reserved) || !fast_.Fits(choice, lifecycle_.running())) {
    *fits = false;
    if (!memory.anything_running) {
      refused_ = &choice;  // it has outgrown the whole store
    }
    return false;
  }
  if (lifecycle_.AwaitsDisk(choice, num_shared)) {
    ++num_deferred_;
    return false;
  }
  if (!rows->CanPlace(pending, max_chunk, GrainOf(request, first))) {
    return false;
  }
  const absl::Status status = lifecycle_.Start(choice, num_shared, needed + reserved, now);
  if (!status.ok()) {
    if (absl::IsResourceExhausted(status)) {
      *fits = false;
      refused_ = &choice;
    }
    return false;
  }
  request.num_bypassed = 0;
  // An open tail makes it less than expected, and its end may be where generated tokens begin: then
  // the rows of this step may be used up, and it goes on in the next one.
  const uint32_t chunk = MaxChunk(request, choice.committed);
  if (rows->CanPlace(choice.pending(), chunk, GrainOf(request, choice.committed))) {
    Place(choice, choice.pending(), chunk, rows);
  }
  return true;
}

MemoryView StepPlanner::Memory() const {
  MemoryView memory{};
  const kv::KvStats stats = store_.Stats();
  memory.capacity = stats.capacity_stripes;
  memory.available = store_.AvailableStripes();
  memory.anything_running = !lifecycle_.running().empty();
  for (const Choice* choice : lifecycle_.running()) {
    memory.outstanding += choice->reserved_stripes > choice->num_stripes
                              ? choice->reserved_stripes - choice->num_stripes
                              : 0;
  }
  return memory;
}

bool StepPlanner::HasTwinInPrefill(const Choice& choice, uint32_t num_cached) const {
  const Request& request = *choice.request;
  if (!request.reads_cache || request.prompt_keys.size() < num_cached + kTwinStripes ||
      request.spec.sampling.prompt_logprobs.has_value()) {
    return false;
  }
  // Keys form a chain: equal at this index means equal up to it.
  const size_t index = num_cached + kTwinStripes - 1;
  const Digest& key = request.prompt_keys[index];
  return std::ranges::any_of(lifecycle_.running(), [&](const Choice* running) {
    const Request& other = *running->request;
    return running->in_prefill && !other.stalled_since.has_value() && &other != &request &&
           other.reads_cache && index < other.prompt_keys.size() && running->num_sealed <= index &&
           other.prompt_keys[index] == key;
  });
}

bool StepPlanner::FinishesEarlier(const Choice& choice, const Choice& head) const {
  const double mean_output = lifecycle_.mean_output_tokens();
  const auto work = [mean_output](const Choice& each) {
    const size_t known =
        each.history.empty() ? each.request->spec.prompt.size() : each.history.size();
    return known + ReservedOutput(RemainingTokens(each), mean_output);
  };
  return work(choice) < work(head);
}

void StepPlanner::Compose(const RowBudget& rows, StepBatch* batch) {
  for (Choice* choice : decodes_) {
    batch->Add(*choice, 1, choice->request->prompt_size());
  }
  for (const Placed& placed : placed_) {
    const uint32_t num_rows = placed.num_rows.has_value() ? *placed.num_rows : rows.LongRows();
    if (num_rows > 0) {
      AddPrefill(*placed.choice, num_rows, batch);
    }
  }
}

void StepPlanner::AddPrefill(Choice& choice, uint32_t num_rows, StepBatch* batch) {
  const Request& request = *choice.request;
  uint32_t first_prompt_logit = request.prompt_size();
  if (WantsPromptLogits(request)) {
    // Token p is scored by row p - 1; token 0 by none.
    first_prompt_logit = std::max(request.num_prompt_logprobs, 1U) - 1;
  }
  batch->Add(choice, num_rows, first_prompt_logit);
}

// True when there is more room, or nothing left that the disk tier could let go of.
bool StepPlanner::ReclaimFromDisk() {
  if (!lifecycle_.DiskHoldsStripes()) {
    return false;
  }
  const uint64_t before = store_.AvailableStripes();
  lifecycle_.ReleaseDiskStripes();
  return store_.AvailableStripes() > before || !lifecycle_.DiskHoldsStripes();
}

bool StepPlanner::BreakDeadlock(TimePoint now) {
  if ((!starved_.empty() || refused_ != nullptr) && lifecycle_.DiskHoldsStripes()) {
    return ReclaimFromDisk();  // if not, the device is at work, and wakes the engine
  }
  if (!starved_.empty()) {
    Choice& wanting = *starved_.front();  // the most urgent
    victims_.clear();
    std::vector<Choice*> others;
    for (Choice* running : lifecycle_.running()) {
      if (running != &wanting) {
        others.push_back(running);
        victims_.push_back(ViewAsVictim(*running));
      }
    }
    const std::optional<size_t> index =
        ChooseVictim(victims_, VictimRule::kLastResort, options_.policy);
    if (index.has_value()) {
      lifecycle_.Preempt(*others[*index]);
    } else {
      lifecycle_.End(*wanting.request, EndCause::kOutOfMemory, now);
    }
    return true;
  }
  if (refused_ != nullptr && lifecycle_.running().empty()) {
    lifecycle_.End(*refused_->request, EndCause::kOutOfMemory, now);
    return true;
  }
  return false;
}

}  // namespace spindle::engine
