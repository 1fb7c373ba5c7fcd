// Replays page selections that were drawn or recorded beforehand, so that everything around an
// algorithm can be tested and measured without one. Says nothing about quality: answers are those
// of a model that looks at arbitrary parts of its context. Figures made with it are labelled
// "synthetic selection". Thread-safety: stateless after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparse/sparse_algorithm.h"

namespace spindle::sparse {

// Pages of `page_tokens` tokens, out of num_pages, that each step selects for each group.
struct PageSchedule {
  uint32_t page_tokens = 0;  // divides 64
  uint32_t num_pages = 0;
  uint32_t num_steps = 0;
  uint32_t num_layers = 0;
  uint32_t num_kv_heads = 0;
  uint32_t pages_per_step = 0;
  std::vector<uint32_t> pages;  // [num_steps][num_layers][num_kv_heads][pages_per_step], ascending
};

// Steps of the schedules that are drawn for measurements.
inline constexpr uint32_t kDrawnScheduleSteps = 256;

class ReplayAlgorithm final : public SparseAlgorithm {
 public:
  // REQUIRES: every dimension > 0 and `pages` of that size with ids below num_pages.
  explicit ReplayAlgorithm(PageSchedule schedule);

  [[nodiscard]] std::string_view name() const override { return "replay"; }

  [[nodiscard]] uint32_t index_bytes(const kv::KvGeometry& /*geometry*/) const override {
    return 0;
  }

  // The schedule's pages, stretched or squeezed from its num_pages to the pages that the context
  // has, the first page, and the tile of the row itself. Steps beyond the schedule begin anew.
  void Select(const SelectJob& job, SelectWorkspace& workspace, Selection* out) const override;

  // Most pages that a step selects, those that are always selected included.
  [[nodiscard]] uint32_t max_pages() const;

 private:
  const PageSchedule schedule_;
};

}  // namespace spindle::sparse
