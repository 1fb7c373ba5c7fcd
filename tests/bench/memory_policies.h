// How pages that attention selects come into a bounded fast memory and stay there: the fast tier's
// way, and the ways of the original systems as small copies of their policies. All replay the same
// recorded selections over the same host pages, so that only the memory policy differs.
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "bench/huge_buffer.h"
#include "kv/sim/recorded_run.h"

namespace spindle::bench {

// All pages of all groups in host memory, in stripes as the store has them. Each begins with a
// number of its own.
class HostPages {
 public:
  HostPages(const kv::KvGeometry& geometry, uint32_t num_pages);

  [[nodiscard]] const uint8_t* Page(size_t group, uint32_t page) const {
    return pages_.data() + Place(group, page) * page_bytes_;
  }

  [[nodiscard]] uint64_t Number(size_t group, uint32_t page) const { return Place(group, page); }

  [[nodiscard]] size_t num_groups() const { return num_groups_; }

  [[nodiscard]] uint32_t num_pages() const { return num_pages_; }

  [[nodiscard]] size_t page_bytes() const { return page_bytes_; }

 private:
  [[nodiscard]] size_t Place(size_t group, uint32_t page) const {
    return (page / pages_per_stripe_ * num_groups_ + group) * pages_per_stripe_ +
           page % pages_per_stripe_;
  }

  size_t num_groups_;
  uint32_t num_pages_;
  uint32_t pages_per_stripe_;
  size_t page_bytes_;
  HugeBuffer pages_;
};

// Stands for attention: is given every selected page where it lies in fast memory.
class PageReader {
 public:
  explicit PageReader(const HostPages& host) : host_(host) {}

  // Reads the page's number and counts it if it is another page's.
  void Read(size_t group, uint32_t page, const uint8_t* place);

  [[nodiscard]] uint64_t num_read() const { return num_read_; }

  [[nodiscard]] uint64_t num_wrong() const { return num_wrong_; }

 private:
  const HostPages& host_;
  uint64_t num_read_ = 0;
  uint64_t num_wrong_ = 0;
};

class MemoryPolicy {
 public:
  virtual ~MemoryPolicy() = default;

  virtual void BeginStep() {}

  // Brings pages (ascending, distinct) of a group into fast memory and has them read.
  virtual void Attend(size_t group, std::span<const uint32_t> pages, PageReader* reader) = 0;

  // What a policy does beside the next layer: after attention of all KV heads of one.
  virtual void AfterLayer() {}

  // Fast memory of pages, all of it.
  [[nodiscard]] virtual uint64_t fast_bytes() const = 0;

  // Copied from host memory so far.
  [[nodiscard]] virtual uint64_t fetched_bytes() const = 0;
};

// Names: "shadowkv", "retroinfer", "seer_r". Null for others.
//   shadowkv    arXiv 2410.21465: per layer and head a buffer for exactly one selection. What the
//               last step had is moved to the front, the rest is gathered behind it; nothing older
//               is kept.
//   retroinfer  arXiv 2505.02922 section 4 (wave buffer): per layer and head a cache of 5 % of the
//               context under LRU in lists. Each step assembles an execution buffer, which a layer
//               hands to the next, from steady pages, cache and host; afterwards missed pages go
//               from it into the cache, as many as fit.
//   seer_r      arXiv 2506.08889: everything is in fast memory.
// Pages that (nearly) every step selects are steady for the first two: they have places of their
// own, as sinks, outliers and local tokens do there. REQUIRES: `run` has one request, and outlives
// the policy, as `host` does.
[[nodiscard]] std::unique_ptr<MemoryPolicy> MakeOriginal(std::string_view name,
                                                         const kv::sim::RecordedRun& run,
                                                         const HostPages& host);

// The fast tier with so much memory. Null if that is too little for its ring.
[[nodiscard]] std::unique_ptr<MemoryPolicy> MakeFastTier(const kv::KvGeometry& geometry,
                                                         const HostPages& host,
                                                         uint64_t fast_bytes);

}  // namespace spindle::bench
