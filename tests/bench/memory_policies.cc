#include "bench/memory_policies.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <utility>

#include "kernels/registry.h"
#include "kv/fast/fast_tier.h"
#include "kv/fast/page_copy.h"

namespace spindle::bench {
namespace {

using kv::sim::RecordedRun;
using kv::sim::SelectionTrace;

constexpr uint32_t kNowhere = ~uint32_t{0};
constexpr double kSteadyShare = 0.95;
constexpr double kCacheShare = 0.05;

// Pages that at least kSteadyShare of the steps select, ascending.
std::vector<uint32_t> SteadyPages(const SelectionTrace& trace) {
  std::vector<uint32_t> uses(trace.num_pages());
  for (const uint32_t page : trace.accesses()) {
    ++uses[page];
  }
  std::vector<uint32_t> steady;
  for (uint32_t page = 0; page < trace.num_pages(); ++page) {
    if (uses[page] >= kSteadyShare * trace.num_steps()) {
      steady.push_back(page);
    }
  }
  return steady;
}

// Frames side by side.
class Frames {
 public:
  Frames(size_t count, size_t page_bytes)
      : page_bytes_(page_bytes), data_(std::max<size_t>(count, 1) * page_bytes) {}

  [[nodiscard]] uint8_t* at(size_t frame) const { return data_.data() + frame * page_bytes_; }

 private:
  size_t page_bytes_;
  HugeBuffer data_;
};

// Where the steady pages of all groups lie: filled once, as prefill does.
class SteadyZone {
 public:
  SteadyZone(const RecordedRun& run, const HostPages& host)
      : place_of_(run.groups.size(), std::vector<uint32_t>(host.num_pages(), kNowhere)),
        frames_(CountAndPlace(run), host.page_bytes()) {
    for (size_t group = 0; group < place_of_.size(); ++group) {
      for (uint32_t page = 0; page < host.num_pages(); ++page) {
        if (place_of_[group][page] != kNowhere) {
          std::memcpy(
              frames_.at(place_of_[group][page]), host.Page(group, page), host.page_bytes());
        }
      }
    }
  }

  // Null for a page that is not steady.
  [[nodiscard]] const uint8_t* Find(size_t group, uint32_t page) const {
    const uint32_t place = place_of_[group][page];
    return place == kNowhere ? nullptr : frames_.at(place);
  }

  [[nodiscard]] size_t size() const { return size_; }

  // The most pages of one step of any group that are not steady.
  [[nodiscard]] uint32_t MostMoving(const RecordedRun& run) const {
    uint32_t most = 0;
    for (size_t group = 0; group < run.groups.size(); ++group) {
      const SelectionTrace& trace = run.groups[group].selections;
      for (uint32_t step = 0; step < trace.num_steps(); ++step) {
        const std::span<const uint32_t> pages = trace.step(step);
        const auto moving = std::count_if(pages.begin(), pages.end(), [&](uint32_t page) {
          return Find(group, page) == nullptr;
        });
        most = std::max(most, static_cast<uint32_t>(moving));
      }
    }
    return most;
  }

 private:
  size_t CountAndPlace(const RecordedRun& run) {
    for (size_t group = 0; group < run.groups.size(); ++group) {
      for (const uint32_t page : SteadyPages(run.groups[group].selections)) {
        place_of_[group][page] = static_cast<uint32_t>(size_++);
      }
    }
    return size_;
  }

  size_t size_ = 0;
  std::vector<std::vector<uint32_t>> place_of_;  // [group][page]
  Frames frames_;
};

class ShadowKvBuffer : public MemoryPolicy {
 public:
  ShadowKvBuffer(const RecordedRun& run, const HostPages& host)
      : host_(host),
        steady_(run, host),
        buffer_frames_(steady_.MostMoving(run)),
        frames_(host.num_groups() * buffer_frames_, host.page_bytes()),
        cached_(host.num_groups()) {}

  void Attend(size_t group, std::span<const uint32_t> pages, PageReader* reader) override {
    std::vector<uint32_t>& cached = cached_[group];
    const size_t base = group * buffer_frames_;
    wanted_.assign(host_.num_pages(), 0);
    for (const uint32_t page : pages) {
      const uint8_t* const steady = steady_.Find(group, page);
      if (steady != nullptr) {
        reader->Read(group, page, steady);
      } else {
        wanted_[page] = 1;
      }
    }
    // Hits move towards the front in their order, so that none is overwritten before it has moved.
    size_t filled = 0;
    for (size_t slot = 0; slot < cached.size(); ++slot) {
      const uint32_t page = cached[slot];
      if (wanted_[page] == 0) {
        continue;
      }
      wanted_[page] = 0;
      if (slot != filled) {
        std::memcpy(frames_.at(base + filled), frames_.at(base + slot), host_.page_bytes());
      }
      cached[filled++] = page;
    }
    cached.resize(filled);
    copies_.clear();
    for (const uint32_t page : pages) {
      if (wanted_[page] != 0) {
        copies_.push_back({host_.Page(group, page), frames_.at(base + cached.size())});
        cached.push_back(page);
      }
    }
    kv::CopyPages(copies_, host_.page_bytes());
    fetched_ += copies_.size();
    for (size_t slot = 0; slot < cached.size(); ++slot) {
      reader->Read(group, cached[slot], frames_.at(base + slot));
    }
  }

  [[nodiscard]] uint64_t fast_bytes() const override {
    return (host_.num_groups() * buffer_frames_ + steady_.size()) * host_.page_bytes();
  }

  [[nodiscard]] uint64_t fetched_bytes() const override { return fetched_ * host_.page_bytes(); }

 private:
  const HostPages& host_;
  SteadyZone steady_;
  uint32_t buffer_frames_;
  Frames frames_;
  std::vector<std::vector<uint32_t>> cached_;  // [group] pages by slot
  std::vector<uint8_t> wanted_;
  std::vector<kv::PageCopy> copies_;
  uint64_t fetched_ = 0;
};

class WaveBuffer : public MemoryPolicy {
 public:
  WaveBuffer(const RecordedRun& run, const HostPages& host)
      : host_(host),
        heads_(run.header.geometry.num_kv_heads),
        steady_(run, host),
        cache_frames_(std::max(1U, static_cast<uint32_t>(kCacheShare * host.num_pages()))),
        execution_frames_(LargestStep(run)),
        cache_(host.num_groups() * cache_frames_, host.page_bytes()),
        execution_(size_t{heads_} * execution_frames_, host.page_bytes()),
        groups_(host.num_groups()) {
    for (Group& group : groups_) {
      group.entries.resize(host.num_pages(), {kNowhere, group.order.end()});
      for (uint32_t frame = 0; frame < cache_frames_; ++frame) {
        group.free_frames.push_back(frame);
      }
    }
  }

  void Attend(size_t group, std::span<const uint32_t> pages, PageReader* reader) override {
    Group& own = groups_[group];
    own.hits.clear();
    own.misses.clear();
    copies_.clear();
    const size_t base = group % heads_ * execution_frames_;
    for (size_t i = 0; i < pages.size(); ++i) {
      const uint8_t* from = steady_.Find(group, pages[i]);
      if (from == nullptr && own.entries[pages[i]].frame != kNowhere) {
        from = cache_.at(group * cache_frames_ + own.entries[pages[i]].frame);
        own.hits.push_back(pages[i]);
      } else if (from == nullptr) {
        from = host_.Page(group, pages[i]);
        own.misses.push_back({pages[i], static_cast<uint32_t>(i)});
      }
      copies_.push_back({from, execution_.at(base + i)});
    }
    kv::CopyPages(copies_, host_.page_bytes());
    fetched_ += own.misses.size();
    for (size_t i = 0; i < pages.size(); ++i) {
      reader->Read(group, pages[i], execution_.at(base + i));
    }
    attended_.push_back(group);
  }

  void AfterLayer() override {
    for (const size_t group : attended_) {
      Update(group);
    }
    attended_.clear();
  }

  [[nodiscard]] uint64_t fast_bytes() const override {
    return (host_.num_groups() * cache_frames_ + steady_.size() +
            uint64_t{heads_} * execution_frames_) *
           host_.page_bytes();
  }

  [[nodiscard]] uint64_t fetched_bytes() const override { return fetched_ * host_.page_bytes(); }

 private:
  struct Entry {
    uint32_t frame;  // kNowhere: not in the cache
    std::list<uint32_t>::iterator place;
  };

  struct Miss {
    uint32_t page;
    uint32_t index;  // in the execution buffer
  };

  struct Group {
    std::list<uint32_t> order;   // of cached pages, the least recently used last
    std::vector<Entry> entries;  // [page]
    std::vector<uint32_t> free_frames;
    std::vector<uint32_t> hits;
    std::vector<Miss> misses;
  };

  static uint32_t LargestStep(const RecordedRun& run) {
    uint32_t most = 0;
    for (const kv::sim::RecordedGroup& group : run.groups) {
      most = std::max(most, group.selections.max_step_pages());
    }
    return most;
  }

  // Misses beyond the cache's size are not kept.
  void Update(size_t group) {
    Group& own = groups_[group];
    for (const uint32_t page : own.hits) {
      own.order.splice(own.order.begin(), own.order, own.entries[page].place);
    }
    copies_.clear();
    const size_t num_kept = std::min<size_t>(own.misses.size(), cache_frames_);
    while (own.free_frames.size() < num_kept) {
      Entry& last = own.entries[own.order.back()];
      own.free_frames.push_back(std::exchange(last.frame, kNowhere));
      own.order.pop_back();
    }
    for (const Miss& miss : std::span(own.misses).first(num_kept)) {
      own.order.push_front(miss.page);
      own.entries[miss.page] = {own.free_frames.back(), own.order.begin()};
      copies_.push_back({execution_.at(group % heads_ * execution_frames_ + miss.index),
                         cache_.at(group * cache_frames_ + own.free_frames.back())});
      own.free_frames.pop_back();
    }
    kv::CopyPages(copies_, host_.page_bytes());
  }

  const HostPages& host_;
  uint32_t heads_;
  SteadyZone steady_;
  uint32_t cache_frames_;
  uint32_t execution_frames_;
  Frames cache_;
  Frames execution_;
  std::vector<Group> groups_;
  std::vector<size_t> attended_;  // groups of the layer
  std::vector<kv::PageCopy> copies_;
  uint64_t fetched_ = 0;
};

class AllFast : public MemoryPolicy {
 public:
  explicit AllFast(const HostPages& host) : host_(host) {}

  void Attend(size_t group, std::span<const uint32_t> pages, PageReader* reader) override {
    for (const uint32_t page : pages) {
      reader->Read(group, page, host_.Page(group, page));
    }
  }

  [[nodiscard]] uint64_t fast_bytes() const override {
    return host_.num_groups() * uint64_t{host_.num_pages()} * host_.page_bytes();
  }

  [[nodiscard]] uint64_t fetched_bytes() const override { return 0; }

 private:
  const HostPages& host_;  // one memory is as good as another here
};

// Each group is a set of its own, since a set gives all its groups the same size.
class FastTierPolicy : public MemoryPolicy {
 public:
  FastTierPolicy(const HostPages& host, std::unique_ptr<kv::FastTier> tier, uint64_t fast_bytes)
      : host_(host), fast_bytes_(fast_bytes), tier_(std::move(tier)), plan_(host.num_pages()) {
    const uint64_t runs = tier_->num_free_frames() / kv::kRunFrames;
    const uint64_t most = (host.num_pages() + kv::kRunFrames - 1) / kv::kRunFrames;
    for (size_t group = 0; group < host.num_groups(); ++group) {
      // The first ones get what does not divide.
      const uint64_t own = runs / host.num_groups() + (group < runs % host.num_groups() ? 1 : 0);
      sets_.push_back(tier_->Open(BudgetGroupId(1), host.num_pages(), 1).value());
      tier_->Resize(sets_.back(), static_cast<uint32_t>(std::min(own, most) * kv::kRunFrames))
          .IgnoreError();
    }
  }

  void BeginStep() override {
    for (const kv::CacheSetId set : sets_) {
      tier_->BeginStep(set);
    }
  }

  void Attend(size_t group, std::span<const uint32_t> pages, PageReader* reader) override {
    tier_->Plan(0, 0, Ref(group), pages, kv::Caching::kLru, &plan_);
    for (const kv::AttentionPass& pass : plan_.passes) {
      copies_.clear();
      for (uint32_t i = pass.load_begin; i < pass.load_end; ++i) {
        const kv::PageLoad& load = plan_.loads[i];
        copies_.push_back({host_.Page(group, pages[load.index]), tier_->FrameData(load.frame)});
      }
      kv::CopyPages(copies_, host_.page_bytes());
      for (uint32_t i = pass.page_begin; i < pass.page_end; ++i) {
        reader->Read(group, pages[i], tier_->FrameData(plan_.frames[i]));
      }
    }
    fetched_ += plan_.loads.size();
    tier_->Commit(Ref(group), plan_);
  }

  [[nodiscard]] uint64_t fast_bytes() const override { return fast_bytes_; }

  [[nodiscard]] uint64_t fetched_bytes() const override { return fetched_ * host_.page_bytes(); }

 private:
  [[nodiscard]] kv::GroupRef Ref(size_t group) const {
    return {sets_[group], LayerIdx(0), KvHeadIdx(0)};
  }

  const HostPages& host_;
  uint64_t fast_bytes_;
  std::unique_ptr<kv::FastTier> tier_;
  std::vector<kv::CacheSetId> sets_;  // [group]
  kv::GroupPlan plan_;
  std::vector<kv::PageCopy> copies_;
  uint64_t fetched_ = 0;
};

}  // namespace

HostPages::HostPages(const kv::KvGeometry& geometry, uint32_t num_pages)
    : num_groups_(size_t{geometry.num_layers} * geometry.num_kv_heads),
      num_pages_(num_pages),
      pages_per_stripe_(static_cast<uint32_t>(kStripeTokens) / geometry.page_tokens()),
      page_bytes_(geometry.page_bytes()),
      pages_(num_groups_ * (num_pages / pages_per_stripe_ + 1) * pages_per_stripe_ * page_bytes_) {
  for (size_t group = 0; group < num_groups_; ++group) {
    for (uint32_t page = 0; page < num_pages; ++page) {
      const uint64_t number = Number(group, page);
      std::memcpy(pages_.data() + number * page_bytes_, &number, sizeof(number));
    }
  }
}

void PageReader::Read(size_t group, uint32_t page, const uint8_t* place) {
  uint64_t number = 0;
  std::memcpy(&number, place, sizeof(number));
  ++num_read_;
  num_wrong_ += number == host_.Number(group, page) ? 0U : 1U;
}

std::unique_ptr<MemoryPolicy> MakeOriginal(std::string_view name,
                                           const RecordedRun& run,
                                           const HostPages& host) {
  if (name == "shadowkv") {
    return std::make_unique<ShadowKvBuffer>(run, host);
  }
  if (name == "retroinfer") {
    return std::make_unique<WaveBuffer>(run, host);
  }
  if (name == "seer_r") {
    return std::make_unique<AllFast>(host);
  }
  return nullptr;
}

std::unique_ptr<MemoryPolicy> MakeFastTier(const kv::KvGeometry& geometry,
                                           const HostPages& host,
                                           uint64_t fast_bytes) {
  kv::FastTierOptions options;
  options.geometry = geometry;
  options.geometry.num_layers = 1;
  options.geometry.num_kv_heads = 1;
  options.metadata_bytes = uint64_t{64} << 20;
  options.fast_bytes = fast_bytes;
  // The least that a ring has: one segment.
  options.ring_frames = static_cast<uint32_t>(kSegmentTokens) / geometry.page_tokens();
  auto tier = kv::FastTier::Create(options, *kernels::BestKernels());
  if (!tier.ok()) {
    return nullptr;
  }
  return std::make_unique<FastTierPolicy>(host, *std::move(tier), fast_bytes);
}

}  // namespace spindle::bench
