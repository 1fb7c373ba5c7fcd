#include "kv/sim/serving_sim.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "base/hash.h"
#include "base/status_macros.h"
#include "kernels/registry.h"
#include "kv/fast/budget.h"
#include "kv/fast/fast_tier.h"
#include "kv/fast/step_composer.h"
#include "kv/fast/thrash_controller.h"
#include "kv/kv_store.h"
#include "kv/sim/pcg64.h"

namespace spindle::kv::sim {
namespace {

constexpr uint32_t kRebalanceSteps = 8;
constexpr uint32_t kIntegritySteps = 4096;
constexpr double kRefaultSmoothing = 1.0 / 16;
constexpr double kMinGainUs = 0.01;
constexpr uint64_t kMaxHostStripes = uint64_t{1} << 22;
// Streams of the random numbers of a simulation; selections have their own generators.
constexpr uint64_t kArrivalStream = uint64_t{1} << 62;

// Stands for the real shapes where only counts matter: stripes of 4 KiB, pages of 2 KiB.
constexpr KvGeometry kSmallGeometry = {.num_layers = 1, .num_kv_heads = 1, .head_dim = 16};

// A request until it is admitted.
struct Job {
  uint64_t number = 0;
  Duration arrival{};
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  uint32_t shared_prompt = 0;

  [[nodiscard]] uint32_t total_tokens() const { return prompt_tokens + output_tokens; }
};

struct Runner {
  Job job;
  SequenceId seq;
  CacheSetId set;
  std::vector<Digest> keys;  // of the stripes that are sealed, in advance
  std::vector<SelectionGenerator> selections;
  BudgetBounds bounds;
  uint32_t mandatory_pages = 0;
  uint32_t frames = 0;      // per group
  uint32_t wanted = 0;      // the same, by the last distribution
  uint32_t computed = 0;    // tokens whose KV is there
  uint32_t produced = 0;    // output tokens
  uint32_t num_sealed = 0;  // stripes
  Duration first_token{};
  bool is_paused = false;
  uint32_t steps_in_state = 0;
  uint32_t skipped_steps = 0;
  uint64_t working_set = 0;  // frames of all groups, after the last step
  double refaults_per_step = 0;
  CacheSetStats last_stats;

  [[nodiscard]] bool is_decoding() const { return produced > 0; }
};

class ServingSim {
 public:
  explicit ServingSim(const ServingSimOptions& options)
      : options_(options),
        random_(options.seed, kArrivalStream),
        num_groups_(options.geometry.num_layers * options.geometry.num_kv_heads),
        thrash_({}),
        plan_(options.selected_pages) {}

  absl::Status Create();
  absl::StatusOr<ServingSimResult> Run();

 private:
  [[nodiscard]] uint32_t PagesFor(uint32_t tokens) const {
    const uint32_t page_tokens = options_.geometry.page_tokens();
    return (tokens + page_tokens - 1) / page_tokens;
  }

  [[nodiscard]] BudgetBounds BoundsFor(const Job& job) const;
  [[nodiscard]] Duration ArrivalGap();
  [[nodiscard]] Job MakeJob(Duration arrival);
  [[nodiscard]] std::vector<Digest> KeysOf(const Job& job) const;

  void Arrive(const Job& job);
  absl::Status AdmitWaiting();
  absl::StatusOr<bool> Admit(const Job& job);
  void Finish(size_t runner);
  std::vector<BudgetRequest> BudgetRequests(std::vector<Runner*>* runners, uint64_t* capacity);
  absl::Status Rebalance();
  absl::Status ApplySizes();
  uint32_t Prefill();
  uint32_t Decode(uint64_t* misses);
  void DecodeOne(Runner& runner, uint64_t* misses);
  void CommitTokens(Runner& runner, uint32_t tokens);
  absl::Status ControlThrash(uint64_t misses, double link_share);
  absl::Status Step();
  void NotePeaks();
  absl::Status CloseAll();

  ServingSimOptions options_;
  Pcg64 random_;
  uint32_t num_groups_;
  uint64_t capacity_frames_ = 0;  // of sampled groups, that requests may have
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<FastTier> tier_;
  ThrashController thrash_;
  GroupPlan plan_;

  Duration now_{};
  Duration next_arrival_{};
  Duration step_time_{};
  std::deque<Job> waiting_;
  uint64_t queued_tokens_ = 0;
  std::vector<Runner> running_;  // in order of admission
  uint64_t reserved_floor_frames_ = 0;
  uint64_t barren_steps_ = 0;
  bool sizes_are_old_ = false;
  uint64_t last_refaults_ = 0;  // of the last step
  ServingSimResult result_;

  // Used again every step.
  std::vector<uint32_t> pages_;
  std::vector<uint32_t> order_;
};

absl::Status ServingSim::Create() {
  const uint64_t stripes = options_.host_bytes / options_.geometry.stripe_bytes();
  if (stripes < 2 || stripes > kMaxHostStripes) {
    return absl::InvalidArgumentError("host_bytes must be 2..4194304 stripes of the model");
  }
  SPINDLE_ASSIGN_OR_RETURN(
      store_,
      KvStore::Create({.host_bytes = stripes * kSmallGeometry.stripe_bytes()}, kSmallGeometry));
  const uint64_t frames =
      options_.fast_bytes / options_.geometry.page_bytes() * options_.sampled_groups / num_groups_;
  FastTierOptions tier;
  tier.geometry = kSmallGeometry;
  tier.geometry.num_layers = options_.sampled_groups;
  tier.fast_bytes = frames * kSmallGeometry.page_bytes();
  tier.metadata_bytes = uint64_t{256} << 20;
  tier.pass_unit_tokens = kStripeTokens;
  tier.ring_frames = kRunFrames;  // nothing is attended, so nothing is gained by fewer passes
  if (frames < tier.ring_frames + uint64_t{kRunFrames} * options_.sampled_groups) {
    return absl::InvalidArgumentError("fast_bytes must be more than one run of frames per group");
  }
  SPINDLE_ASSIGN_OR_RETURN(tier_, FastTier::Create(tier, *kernels::BestKernels()));
  capacity_frames_ = tier_->num_free_frames();
  next_arrival_ = ArrivalGap();
  return absl::OkStatus();
}

BudgetBounds ServingSim::BoundsFor(const Job& job) const {
  const uint32_t pages = PagesFor(job.total_tokens());
  return BoundsOf({.mandatory_pages = static_cast<double>(std::min(options_.selected_pages, pages)),
                   .buffer_ratio = options_.buffer_ratio,
                   .total_pages = pages});
}

Duration ServingSim::ArrivalGap() {
  const double seconds = -std::log(1.0 - random_.Uniform()) / options_.arrivals_per_second;
  return Duration(static_cast<int64_t>(seconds * 1e9));
}

Job ServingSim::MakeJob(Duration arrival) {
  const auto between = [this](uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(random_.Below(uint64_t{high} - low + 1));
  };
  Job job;
  job.number = result_.arrived++;
  job.arrival = arrival;
  job.prompt_tokens = between(options_.min_prompt_tokens, options_.max_prompt_tokens);
  job.output_tokens = between(options_.min_output_tokens, options_.max_output_tokens);
  job.shared_prompt = between(0, options_.num_shared_prompts - 1);
  return job;
}

// Stripes of a system prompt have its keys, the others keys of their own.
std::vector<Digest> ServingSim::KeysOf(const Job& job) const {
  const auto num_shared =
      static_cast<uint32_t>(options_.shared_prompt_tokens / uint32_t{kStripeTokens});
  std::vector<Digest> keys(job.total_tokens() / kStripeTokens);
  for (uint32_t i = 0; i < keys.size(); ++i) {
    const uint64_t owner =
        i < num_shared ? job.shared_prompt : options_.num_shared_prompts + job.number;
    for (size_t byte = 0; byte < sizeof(owner); ++byte) {
      keys[i][byte] = static_cast<uint8_t>(owner >> (8 * byte));
      keys[i][sizeof(owner) + byte] = static_cast<uint8_t>(uint64_t{i} >> (8 * byte));
    }
  }
  return keys;
}

void ServingSim::Arrive(const Job& job) {
  const bool never_fits =
      KvStore::StripesFor(job.total_tokens()) > store_->Stats().capacity_stripes ||
      uint64_t{BoundsFor(job).floor} * options_.sampled_groups > capacity_frames_;
  if (never_fits) {
    ++result_.refused_never;
  } else if (waiting_.size() >= options_.max_waiting ||
             queued_tokens_ + job.prompt_tokens > options_.max_queued_tokens) {
    ++result_.refused_busy;
  } else {
    queued_tokens_ += job.prompt_tokens;
    waiting_.push_back(job);
  }
}

absl::StatusOr<bool> ServingSim::Admit(const Job& job) {
  const BudgetBounds bounds = BoundsFor(job);
  const uint64_t floor_frames = uint64_t{bounds.floor} * options_.sampled_groups;
  if (running_.size() >= options_.max_running ||
      reserved_floor_frames_ + floor_frames > capacity_frames_) {
    return false;
  }
  Runner runner;
  runner.job = job;
  runner.keys = KeysOf(job);
  // At least one token of the prompt is computed.
  const auto prompt_stripes = (job.prompt_tokens - 1) / static_cast<uint32_t>(kStripeTokens);
  const auto prompt_keys = std::span(runner.keys).first(prompt_stripes);
  runner.num_sealed = store_->MatchPrefix(prompt_keys);
  runner.seq = store_->Open(
      BudgetGroupId(static_cast<uint32_t>(job.number)), prompt_keys, runner.num_sealed);
  // The whole request, so that nothing has to be preempted later.
  if (!store_->Extend(runner.seq, job.total_tokens()).ok()) {
    store_->Close(runner.seq);
    return false;
  }
  SPINDLE_ASSIGN_OR_RETURN(
      runner.set,
      tier_->Open(BudgetGroupId(static_cast<uint32_t>(job.number)), PagesFor(job.total_tokens())));
  runner.bounds = bounds;
  runner.mandatory_pages = std::min(options_.selected_pages, PagesFor(job.prompt_tokens));
  runner.computed = runner.num_sealed * static_cast<uint32_t>(kStripeTokens);
  result_.prefix_tokens += runner.computed;
  result_.longest_wait = std::max(result_.longest_wait, now_ - job.arrival);
  reserved_floor_frames_ += floor_frames;
  running_.push_back(std::move(runner));
  sizes_are_old_ = true;
  return true;
}

absl::Status ServingSim::AdmitWaiting() {
  while (!waiting_.empty()) {
    SPINDLE_ASSIGN_OR_RETURN(const bool admitted, Admit(waiting_.front()));
    if (!admitted) {
      break;
    }
    queued_tokens_ -= waiting_.front().prompt_tokens;
    waiting_.pop_front();
  }
  return absl::OkStatus();
}

void ServingSim::Finish(size_t index) {
  Runner& runner = running_[index];
  store_->Close(runner.seq);
  tier_->Close(runner.set);
  reserved_floor_frames_ -= uint64_t{runner.bounds.floor} * options_.sampled_groups;
  running_.erase(running_.begin() + static_cast<int64_t>(index));
  sizes_are_old_ = true;
}

std::vector<BudgetRequest> ServingSim::BudgetRequests(std::vector<Runner*>* runners,
                                                      uint64_t* capacity) {
  const double miss_cost_us =
      1e6 * ToSeconds(options_.link.CopyTime(0, options_.geometry.page_bytes()));
  std::vector<BudgetRequest> requests;
  *capacity = capacity_frames_;
  for (Runner& runner : running_) {
    if (runner.is_paused) {  // its floor stays reserved
      *capacity -= uint64_t{runner.bounds.floor} * options_.sampled_groups;
      continue;
    }
    const auto mandatory = static_cast<double>(runner.mandatory_pages);
    runners->push_back(&runner);
    requests.push_back({.bounds = runner.bounds,
                        .num_groups = options_.sampled_groups,
                        .gain = MarginalGain(runner.refaults_per_step, mandatory, miss_cost_us),
                        .current = runner.frames,
                        .mandatory_pages = mandatory});
  }
  return requests;
}

absl::Status ServingSim::Rebalance() {
  std::vector<Runner*> runners;
  uint64_t capacity = 0;
  const std::vector<BudgetRequest> requests = BudgetRequests(&runners, &capacity);
  std::vector<uint32_t> wanted(requests.size());
  SPINDLE_RETURN_IF_ERROR(Distribute(requests, capacity, kMinGainUs, wanted));
  for (size_t i = 0; i < runners.size(); ++i) {
    runners[i]->wanted = wanted[i];
  }
  sizes_are_old_ = false;
  return absl::OkStatus();
}

absl::Status ServingSim::ApplySizes() {
  std::vector<Runner*> runners;
  uint64_t capacity = 0;
  const std::vector<BudgetRequest> requests = BudgetRequests(&runners, &capacity);
  std::vector<uint32_t> wanted;
  wanted.reserve(runners.size());
  for (const Runner* runner : runners) {
    wanted.push_back(runner->wanted);
  }
  std::vector<uint32_t> next(requests.size());
  NextSizes(requests, wanted, capacity, next);
  for (const bool is_growing : {false, true}) {  // what shrinks makes the room
    for (size_t i = 0; i < runners.size(); ++i) {
      if (next[i] != runners[i]->frames && (next[i] > runners[i]->frames) == is_growing) {
        SPINDLE_RETURN_IF_ERROR(tier_->Resize(runners[i]->set, next[i]));
        runners[i]->frames = next[i];
      }
    }
  }
  return absl::OkStatus();
}

void ServingSim::CommitTokens(Runner& runner, uint32_t tokens) {
  runner.computed += tokens;
  store_->Commit(runner.seq, runner.computed);
  while ((runner.num_sealed + 1) * kStripeTokens <= runner.computed) {
    store_->Seal(runner.seq, runner.num_sealed, runner.keys[runner.num_sealed]);
    ++runner.num_sealed;
  }
}

// A chunk of the first request whose prompt is not done. Returns its tokens.
uint32_t ServingSim::Prefill() {
  for (Runner& runner : running_) {
    if (runner.is_decoding()) {
      continue;
    }
    const uint32_t chunk =
        std::min(options_.prefill_chunk_tokens, runner.job.prompt_tokens - runner.computed);
    CommitTokens(runner, chunk);
    if (runner.computed == runner.job.prompt_tokens) {
      runner.produced = 1;
      const uint32_t pages = PagesFor(runner.job.prompt_tokens);
      for (uint32_t group = 0; group < options_.sampled_groups; ++group) {
        runner.selections.emplace_back(
            SelectionOptions{.profile = options_.profile,
                             .num_pages = pages,
                             .selected_pages = std::min(options_.selected_pages, pages),
                             .seed = options_.seed,
                             .stream = runner.job.number * options_.sampled_groups + group});
      }
    }
    return chunk;
  }
  return 0;
}

void ServingSim::DecodeOne(Runner& runner, uint64_t* misses) {
  CommitTokens(runner, 1);
  const uint32_t pages = PagesFor(runner.computed);
  tier_->BeginStep(runner.set);
  for (uint32_t group = 0; group < options_.sampled_groups; ++group) {
    SelectionGenerator& selection = runner.selections[group];
    if (pages > selection.num_pages()) {
      selection.Grow(pages);
    }
    selection.Next(&pages_);
    const GroupRef ref{runner.set, LayerIdx(static_cast<uint16_t>(group)), KvHeadIdx(0)};
    tier_->Plan(/*worker=*/0, /*ring=*/0, ref, pages_, Caching::kLru, &plan_);
    tier_->Commit(ref, plan_);
    *misses += plan_.loads.size();
    result_.page_hits += pages_.size() - plan_.loads.size();
  }
  ++runner.produced;
  const CacheSetStats stats = tier_->Stats(runner.set);
  const uint64_t refaults = stats.refaults - runner.last_stats.refaults;
  last_refaults_ += refaults;
  runner.refaults_per_step +=
      kRefaultSmoothing *
      (static_cast<double>(refaults) / options_.sampled_groups - runner.refaults_per_step);
  runner.working_set = stats.working_set_pages;
  runner.last_stats = stats;
}

// One token of each request that takes part. Returns how many do.
uint32_t ServingSim::Decode(uint64_t* misses) {
  std::vector<StepCandidate> candidates;
  std::vector<Runner*> runners;
  for (Runner& runner : running_) {
    ++runner.steps_in_state;
    if (runner.is_decoding() && !runner.is_paused && runner.frames >= runner.bounds.floor) {
      candidates.push_back({.floor_frames = uint64_t{runner.bounds.floor} * options_.sampled_groups,
                            .working_set_frames = runner.working_set,
                            .skipped_steps = runner.skipped_steps});
      runners.push_back(&runner);
    }
  }
  if (candidates.empty()) {
    return 0;
  }
  std::vector<uint8_t> takes_part(candidates.size());
  const uint32_t count = ComposeStep(candidates, capacity_frames_, &order_, takes_part);
  for (size_t i = 0; i < runners.size(); ++i) {
    if (takes_part[i] == 0) {
      ++runners[i]->skipped_steps;
      continue;
    }
    runners[i]->skipped_steps = 0;
    DecodeOne(*runners[i], misses);
  }
  return count;
}

absl::Status ServingSim::ControlThrash(uint64_t misses, double link_share) {
  std::vector<ThrashRequest> requests;
  std::vector<Runner*> runners;
  for (Runner& runner : running_) {
    if (runner.is_decoding()) {
      requests.push_back({.working_set_frames = runner.working_set,
                          .is_paused = runner.is_paused,
                          .steps_in_state = runner.steps_in_state});
      runners.push_back(&runner);
    }
  }
  const ThrashController::Decision decision = thrash_.Step({.refaults = last_refaults_,
                                                            .fetches = misses,
                                                            .link_utilisation = link_share,
                                                            .capacity_frames = capacity_frames_},
                                                           requests);
  if (decision.action == ThrashController::Action::kNone) {
    return absl::OkStatus();
  }
  Runner& runner = *runners[decision.request];
  runner.is_paused = decision.action == ThrashController::Action::kPause;
  runner.steps_in_state = 0;
  sizes_are_old_ = true;
  if (runner.is_paused) {
    ++result_.pauses;
    tier_->Drop(runner.set);
    runner.frames = 0;
    return absl::OkStatus();
  }
  return tier_->Cover(runner.set, PagesFor(runner.job.total_tokens()));
}

absl::Status ServingSim::Step() {
  if (sizes_are_old_ || result_.steps % kRebalanceSteps == 0) {
    SPINDLE_RETURN_IF_ERROR(Rebalance());
  }
  SPINDLE_RETURN_IF_ERROR(ApplySizes());
  uint64_t misses = 0;
  last_refaults_ = 0;
  const uint32_t rows = Decode(&misses);
  const uint32_t prefilled = Prefill();
  result_.page_misses += misses;
  const uint64_t bytes =
      misses * num_groups_ / options_.sampled_groups * options_.geometry.page_bytes();
  const Duration compute = options_.compute.StepTime(rows, prefilled);
  const Duration link =
      options_.link.CopyTime(misses > 0 ? options_.geometry.num_layers : 0, bytes);
  result_.link_bytes += bytes;
  const Duration step = PipelinedStepTime(compute,
                                          link,
                                          options_.geometry.num_layers,
                                          options_.async_copies ? options_.prefetch_depth : 0);
  step_time_ += step;
  result_.compute_time += compute;
  result_.link_time += link;
  now_ += step;
  ++result_.steps;
  barren_steps_ = rows + prefilled > 0 ? 0 : barren_steps_ + 1;
  result_.longest_barren_steps = std::max(result_.longest_barren_steps, barren_steps_);
  for (size_t i = running_.size(); i-- > 0;) {
    Runner& runner = running_[i];
    if (runner.is_decoding() && runner.first_token == Duration(0)) {
      runner.first_token = now_;
    }
    if (runner.produced < runner.job.output_tokens) {
      continue;
    }
    ++result_.completed;
    result_.output_tokens += runner.produced;
    result_.ttft_seconds.push_back(ToSeconds(runner.first_token - runner.job.arrival));
    if (runner.produced > 1) {
      result_.tpot_seconds.push_back(ToSeconds(now_ - runner.first_token) / (runner.produced - 1));
    }
    Finish(i);
  }
  SPINDLE_RETURN_IF_ERROR(ControlThrash(misses, std::min(1.0, ToSeconds(link) / ToSeconds(step))));
  NotePeaks();
  if (result_.steps % kIntegritySteps == 0) {
    SPINDLE_RETURN_IF_ERROR(store_->CheckIntegrity());
    SPINDLE_RETURN_IF_ERROR(tier_->CheckIntegrity());
  }
  return absl::OkStatus();
}

void ServingSim::NotePeaks() {
  ServingSimResult::Peaks& peaks =
      now_ < options_.arrival_time / 2 ? result_.first_half : result_.second_half;
  const auto raise = [](uint64_t& peak, uint64_t value) { peak = std::max(peak, value); };
  raise(peaks.waiting, waiting_.size());
  raise(peaks.queued_tokens, queued_tokens_);
  raise(peaks.running, running_.size());
  raise(peaks.host_stripes, store_->Stats().owned_stripes);
  raise(peaks.fast_frames, capacity_frames_ - tier_->num_free_frames());
  if (result_.steps % kRebalanceSteps == 0) {
    raise(peaks.metadata_bytes, tier_->MetadataBytes().total());
  }
}

absl::Status ServingSim::CloseAll() {
  result_.refused_closing += waiting_.size() + running_.size();
  waiting_.clear();
  while (!running_.empty()) {
    Finish(running_.size() - 1);
  }
  SPINDLE_RETURN_IF_ERROR(store_->CheckIntegrity());
  SPINDLE_RETURN_IF_ERROR(tier_->CheckIntegrity());
  if (tier_->num_free_frames() != capacity_frames_ || store_->Stats().owned_stripes != 0) {
    return absl::InternalError("frames or stripes are left when no request is");
  }
  return absl::OkStatus();
}

absl::StatusOr<ServingSimResult> ServingSim::Run() {
  const Duration end = options_.arrival_time + options_.drain_time;
  while (now_ < end) {
    while (next_arrival_ <= now_ && next_arrival_ < options_.arrival_time) {
      Arrive(MakeJob(next_arrival_));
      next_arrival_ += ArrivalGap();
    }
    SPINDLE_RETURN_IF_ERROR(AdmitWaiting());
    if (!running_.empty()) {
      SPINDLE_RETURN_IF_ERROR(Step());
    } else if (!waiting_.empty()) {
      return absl::InternalError("a request that fits is not admitted to an empty machine");
    } else if (next_arrival_ < options_.arrival_time) {
      now_ = next_arrival_;
    } else {
      break;
    }
  }
  SPINDLE_RETURN_IF_ERROR(CloseAll());
  result_.end = now_;
  const double busy = ToSeconds(step_time_);
  result_.stall_share = busy > 0 ? 1 - ToSeconds(result_.compute_time) / busy : 0;
  return std::move(result_);
}

}  // namespace

absl::StatusOr<ServingSimResult> SimulateServing(const ServingSimOptions& options) {
  SPINDLE_RETURN_IF_ERROR(ValidateServingSimOptions(options));
  ServingSim sim(options);
  SPINDLE_RETURN_IF_ERROR(sim.Create());
  return sim.Run();
}

}  // namespace spindle::kv::sim
