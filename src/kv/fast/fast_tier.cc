#include "kv/fast/fast_tier.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kv/fast/cache_group.h"
#include "kv/fast/metadata_slab.h"

namespace spindle::kv {
namespace {

// Largest multiple of a run that slots of 16 bits can name.
constexpr uint32_t kMaxGroupFrames = BucketedLru::kMaxSlots / kRunFrames * kRunFrames;
constexpr uint32_t kMaxWorkers = 1024;
constexpr uint32_t kMaxRings = 65536;
constexpr uint32_t kMaxWindowSteps = 255;

absl::Status OutOfRange(const char* name, const std::string& range, uint64_t value) {
  return absl::InvalidArgumentError(std::string(name) + " must be " + range + ", got " +
                                    std::to_string(value));
}

uint32_t PagesPerUnit(const FastTierOptions& options) {
  return options.pass_unit_tokens / options.geometry.page_tokens();
}

}  // namespace

absl::Status ValidateFastTierOptions(const FastTierOptions& options) {
  SPINDLE_RETURN_IF_ERROR(ValidateGeometry(options.geometry));
  SPINDLE_RETURN_IF_ERROR(ValidateLruOptions(options.lru));
  if (options.num_workers < 1 || options.num_workers > kMaxWorkers) {
    return OutOfRange("num_workers", "in 1..1024", options.num_workers);
  }
  if (options.num_rings < 1 || options.num_rings > kMaxRings) {
    return OutOfRange("num_rings", "in 1..65536", options.num_rings);
  }
  if (options.pass_unit_tokens < kStripeTokens || options.pass_unit_tokens > kSegmentTokens ||
      options.pass_unit_tokens % kStripeTokens != 0) {
    return OutOfRange("pass_unit_tokens", "a multiple of 64 in 64..1024", options.pass_unit_tokens);
  }
  const uint32_t unit = PagesPerUnit(options);
  if (options.ring_frames < unit || options.ring_frames > kMaxGroupFrames ||
      options.ring_frames % kRunFrames != 0) {
    return OutOfRange("ring_frames",
                      "a multiple of 8 in " + std::to_string(unit) + "..65528",
                      options.ring_frames);
  }
  if (options.max_group_frames < kRunFrames || options.max_group_frames > kMaxGroupFrames ||
      options.max_group_frames % kRunFrames != 0) {
    return OutOfRange("max_group_frames", "a multiple of 8 in 8..65528", options.max_group_frames);
  }
  if (options.window_steps < 1 || options.window_steps > kMaxWindowSteps) {
    return OutOfRange("window_steps", "in 1..255", options.window_steps);
  }
  return absl::OkStatus();
}

class FastTier::Impl {
 public:
  Impl(const FastTierOptions& options,
       const kernels::KernelTable& kernels,
       FramePool pool,
       std::unique_ptr<MetadataSlab> slab)
      : options_(options),
        lru_(options.lru, kernels),
        pool_(std::move(pool)),
        slab_(std::move(slab)),
        context_{.pool = pool_,
                 .slab = *slab_,
                 .lru = lru_,
                 .window_steps = options.window_steps,
                 .num_ring_frames = options.num_rings * options.ring_frames,
                 .refault_maps = options.refault_maps,
                 .poison_free_frames = options.poison_free_frames} {
    for (uint32_t i = 0; i < options.num_workers; ++i) {
      workers_.push_back(std::make_unique<GroupWorker>(*slab_, options.max_group_frames));
    }
  }

  // The rings are the first frames.
  [[nodiscard]] absl::Status AllocateRings() {
    std::vector<uint32_t> runs(context_.num_ring_frames / kRunFrames);
    return pool_.Allocate(runs);
  }

  [[nodiscard]] absl::StatusOr<CacheSetId> Open(uint32_t num_pages, uint32_t pages_per_unit) {
    if (unused_places_.empty()) {
      sets_.push_back(std::make_unique<Set>());
      sets_.back()->groups.resize(num_groups());
      unused_places_.reserve(sets_.size());
      unused_places_.push_back(static_cast<uint32_t>(sets_.size() - 1));
    }
    const CacheSetId id(unused_places_.back());
    unused_places_.pop_back();
    Set& set = *sets_[id.value()];
    set.is_open = true;
    set.pages_per_unit = pages_per_unit == 0 ? PagesPerUnit(options_) : pages_per_unit;
    set.step = 0;
    set.evicted_shrunk = 0;
    set.evicted_dropped = 0;
    std::fill(set.groups.begin(), set.groups.end(), CacheGroup());
    if (absl::Status status = Cover(id, num_pages); !status.ok()) {
      Close(id);
      return status;
    }
    return id;
  }

  [[nodiscard]] absl::Status Cover(CacheSetId id, uint32_t num_pages) {
    if (num_pages > FrameWord::kMaxPages) {
      return OutOfRange("pages of a sequence", "at most 4194304 per head", num_pages);
    }
    for (CacheGroup& group : SetOf(id).groups) {
      if (!group.Cover(context_, num_pages)) {
        return absl::ResourceExhaustedError("metadata of the fast tier is full: " +
                                            std::to_string(options_.metadata_bytes) + " bytes");
      }
    }
    return absl::OkStatus();
  }

  [[nodiscard]] absl::Status Resize(CacheSetId id, uint32_t frames_per_group) {
    CheckGroupFrames(frames_per_group);
    Set& set = SetOf(id);
    uint64_t wanted = 0;
    for (CacheGroup& group : set.groups) {
      wanted +=
          frames_per_group > group.num_slots() ? frames_per_group - group.num_slots() : uint64_t{0};
    }
    if (wanted > uint64_t{pool_.num_free_runs()} * kRunFrames) {
      return absl::ResourceExhaustedError(
          std::to_string(wanted) + " more frames wanted, " +
          std::to_string(uint64_t{pool_.num_free_runs()} * kRunFrames) + " free");
    }
    std::vector<uint32_t>& before = sizes_before_;
    before.clear();
    absl::Status status;
    for (CacheGroup& group : set.groups) {
      before.push_back(group.num_slots());
      // Shrinking cannot fail, so it waits until all growing is done.
      if (frames_per_group > group.num_slots() && status.ok()) {
        status = group.GrowTo(context_, *workers_[0], frames_per_group);
      }
    }
    for (size_t i = 0; i < set.groups.size(); ++i) {
      const uint32_t target = status.ok() ? frames_per_group : before[i];
      if (set.groups[i].num_slots() > target) {
        set.evicted_shrunk += set.groups[i].ShrinkTo(context_, *workers_[0], target);
      }
    }
    return status;
  }

  void BeginStep(CacheSetId id) { ++SetOf(id).step; }

  void Plan(uint32_t worker,
            uint32_t ring,
            const GroupRef& ref,
            std::span<const uint32_t> pages,
            Caching caching,
            GroupPlan* plan) {
    SPINDLE_DCHECK(worker < workers_.size() && ring < options_.num_rings);
    CacheGroup& group = GroupOf(ref);
    const Set& set = SetOf(ref.set);
    group.AdvanceTo(context_, set.step);
    const FrameRing frames{ring * options_.ring_frames, options_.ring_frames, set.pages_per_unit};
    group.Plan(context_, *workers_[worker], pages, caching, frames, plan);
  }

  void Commit(const GroupRef& ref, const GroupPlan& plan) { GroupOf(ref).Commit(context_, plan); }

  void Abort(uint32_t worker,
             const GroupRef& ref,
             std::span<const uint32_t> pages,
             const GroupPlan& plan) {
    GroupOf(ref).Abort(context_, *workers_[worker], pages, plan);
  }

  [[nodiscard]] uint32_t FrameOf(const GroupRef& ref, uint32_t page) const {
    return GroupOf(ref).FrameOf(context_, page);
  }

  uint64_t Adopt(CacheSetId child, CacheSetId parent) {
    const std::vector<CacheGroup>& from = SetOf(parent).groups;
    std::vector<CacheGroup>& to = SetOf(child).groups;
    uint64_t adopted = 0;
    for (size_t i = 0; i < to.size(); ++i) {
      adopted += to[i].Adopt(context_, *workers_[0], from[i]);
    }
    return adopted;
  }

  void Drop(CacheSetId id) {
    Set& set = SetOf(id);
    for (CacheGroup& group : set.groups) {
      set.evicted_dropped += group.Drop(context_, *workers_[0]);
    }
  }

  void Close(CacheSetId id) {
    Drop(id);
    SetOf(id).is_open = false;
    unused_places_.push_back(id.value());
  }

  [[nodiscard]] CacheSetStats Stats(CacheSetId id) const {
    const Set& set = SetOf(id);
    CacheSetStats stats;
    stats.evicted_shrunk = set.evicted_shrunk;
    stats.evicted_dropped = set.evicted_dropped;
    for (const CacheGroup& group : set.groups) {
      const CacheGroup::Counters& counters = group.counters();
      stats.hits += counters.hits;
      stats.misses += counters.misses;
      stats.refaults += counters.refaults;
      stats.streamed += counters.streamed;
      stats.evicted_replaced += counters.replaced;
      stats.resident_pages += group.num_resident();
      stats.frames += group.num_slots();
      stats.working_set_pages += group.WorkingSetPages(context_);
    }
    return stats;
  }

  [[nodiscard]] FastMetadataBytes MetadataBytes() const {
    CacheGroup::MetadataBytes tables;
    FastMetadataBytes bytes;
    for (const std::unique_ptr<Set>& set : sets_) {
      bytes.groups += sizeof(Set) + set->groups.size() * sizeof(CacheGroup);
      for (const CacheGroup& group : set->groups) {
        group.AddMetadataBytes(context_, &tables);
      }
    }
    bytes.directory = tables.directory;
    bytes.leaves = tables.leaves;
    bytes.run_tables = tables.run_tables;
    bytes.refault_maps = tables.refault_maps;
    bytes.frames = pool_.metadata_bytes();
    bytes.slack = slab_->allocated_bytes() -
                  (bytes.directory + bytes.leaves + bytes.run_tables + bytes.refault_maps);
    return bytes;
  }

  [[nodiscard]] const FramePool& pool() const { return pool_; }

  [[nodiscard]] const FastTierOptions& options() const { return options_; }

  [[nodiscard]] absl::Status CheckIntegrity() const {
    std::vector<bool> run_is_owned(pool_.num_runs(), false);
    std::fill_n(run_is_owned.begin(), context_.num_ring_frames / kRunFrames, true);
    CacheGroup::MetadataBytes tables;
    for (const std::unique_ptr<Set>& set : sets_) {
      for (const CacheGroup& group : set->groups) {
        SPINDLE_RETURN_IF_ERROR(group.CheckIntegrity(context_, &run_is_owned));
        group.AddMetadataBytes(context_, &tables);
      }
    }
    for (uint32_t run = 0; run < pool_.num_runs(); ++run) {
      if (run_is_owned[run] == pool_.is_free(run)) {
        return absl::InternalError("run of frames is lost, or free and owned: run " +
                                   std::to_string(run));
      }
    }
    SPINDLE_RETURN_IF_ERROR(pool_.CheckIntegrity());
    SPINDLE_RETURN_IF_ERROR(slab_->CheckIntegrity());
    uint64_t item_bytes =
        tables.directory + tables.leaves + tables.run_tables + tables.refault_maps;
    for (const std::unique_ptr<GroupWorker>& worker : workers_) {
      item_bytes += worker->leaves.bytes();
    }
    if (item_bytes != slab_->item_bytes()) {
      return absl::InternalError("metadata: " + std::to_string(slab_->item_bytes()) +
                                 " bytes handed out, " + std::to_string(item_bytes) + " in tables");
    }
    return absl::OkStatus();
  }

 private:
  struct Set {
    std::vector<CacheGroup> groups;  // [num_layers, num_kv_heads]
    uint32_t pages_per_unit = 1;
    uint64_t evicted_shrunk = 0;
    uint64_t evicted_dropped = 0;
    uint16_t step = 0;
    bool is_open = false;
  };

  void CheckGroupFrames(uint32_t frames) const {
    SPINDLE_CHECK(frames % kRunFrames == 0 && frames <= options_.max_group_frames);
  }

  [[nodiscard]] uint32_t num_groups() const {
    return options_.geometry.num_layers * options_.geometry.num_kv_heads;
  }

  [[nodiscard]] Set& SetOf(CacheSetId id) const {
    Set& set = *sets_[id.value()];
    SPINDLE_DCHECK(set.is_open);
    return set;
  }

  [[nodiscard]] CacheGroup& GroupOf(const GroupRef& ref) const {
    return SetOf(ref.set)
        .groups[uint32_t{ref.layer.value()} * options_.geometry.num_kv_heads + ref.head.value()];
  }

  const FastTierOptions options_;
  const BucketedLru lru_;
  FramePool pool_;
  const std::unique_ptr<MetadataSlab> slab_;
  const GroupContext context_;
  std::vector<std::unique_ptr<GroupWorker>> workers_;
  std::vector<std::unique_ptr<Set>> sets_;  // places, reused
  std::vector<uint32_t> unused_places_;
  std::vector<uint32_t> sizes_before_;
};

absl::StatusOr<std::unique_ptr<FastTier>> FastTier::Create(const FastTierOptions& options,
                                                           const kernels::KernelTable& kernels) {
  SPINDLE_RETURN_IF_ERROR(ValidateFastTierOptions(options));
  SPINDLE_ASSIGN_OR_RETURN(FramePool pool,
                           FramePool::Create(options.fast_bytes, options.geometry.page_bytes()));
  const uint64_t ring_frames = uint64_t{options.num_rings} * options.ring_frames;
  if (ring_frames > pool.num_frames()) {
    return absl::InvalidArgumentError(
        "fast_bytes must hold the rings: " + std::to_string(ring_frames) +
        " frames, got room for " + std::to_string(pool.num_frames()));
  }
  SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<MetadataSlab> slab,
                           MetadataSlab::Create(options.metadata_bytes));
  auto impl = std::make_unique<Impl>(options, kernels, std::move(pool), std::move(slab));
  SPINDLE_RETURN_IF_ERROR(impl->AllocateRings());
  return std::unique_ptr<FastTier>(new FastTier(std::move(impl)));
}

FastTier::FastTier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

FastTier::~FastTier() = default;

absl::StatusOr<CacheSetId> FastTier::Open(BudgetGroupId /*group*/,
                                          uint32_t num_pages,
                                          uint32_t pages_per_unit) {
  return impl_->Open(num_pages, pages_per_unit);
}

absl::Status FastTier::Cover(CacheSetId set, uint32_t num_pages) {
  return impl_->Cover(set, num_pages);
}

absl::Status FastTier::Resize(CacheSetId set, uint32_t frames_per_group) {
  return impl_->Resize(set, frames_per_group);
}

void FastTier::BeginStep(CacheSetId set) {
  impl_->BeginStep(set);
}

void FastTier::Plan(uint32_t worker,
                    uint32_t ring,
                    const GroupRef& group,
                    std::span<const uint32_t> pages,
                    Caching caching,
                    GroupPlan* plan) {
  impl_->Plan(worker, ring, group, pages, caching, plan);
}

void FastTier::Commit(const GroupRef& group, const GroupPlan& plan) {
  impl_->Commit(group, plan);
}

void FastTier::Abort(uint32_t worker,
                     const GroupRef& group,
                     std::span<const uint32_t> pages,
                     const GroupPlan& plan) {
  impl_->Abort(worker, group, pages, plan);
}

uint32_t FastTier::FrameOf(const GroupRef& group, uint32_t page) const {
  return impl_->FrameOf(group, page);
}

uint64_t FastTier::Adopt(CacheSetId child, CacheSetId parent) {
  return impl_->Adopt(child, parent);
}

void FastTier::Drop(CacheSetId set) {
  impl_->Drop(set);
}

void FastTier::Close(CacheSetId set) {
  impl_->Close(set);
}

CacheSetStats FastTier::Stats(CacheSetId set) const {
  return impl_->Stats(set);
}

FastMetadataBytes FastTier::MetadataBytes() const {
  return impl_->MetadataBytes();
}

const FastTierOptions& FastTier::options() const {
  return impl_->options();
}

const FramePool& FastTier::pool() const {
  return impl_->pool();
}

absl::Status FastTier::CheckIntegrity() const {
  return impl_->CheckIntegrity();
}

}  // namespace spindle::kv
