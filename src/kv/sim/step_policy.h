// The step of a policy that decides page by page: who stays, who comes in, what is streamed. What
// is left to the policy are the order of victims and what a use means. Internal to the simulator.
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/sim/page_policy.h"

namespace spindle::kv::sim {

class StepPolicy : public PagePolicy {
 public:
  StepPolicy(uint32_t capacity_pages, uint32_t num_pages)
      : capacity_(capacity_pages), pinned_step_(num_pages), resident_(num_pages) {}

  uint32_t Step(std::span<const uint32_t> pages, std::span<uint8_t> is_hit) final;

 protected:
  // A resident page is used. All hits of a step come before its first victim.
  virtual void OnHit(uint32_t page) = 0;
  // Chooses a page that is resident and not pinned, forgets it, and returns it; `page` takes its
  // frame. There is one.
  virtual uint32_t ChooseVictim(uint32_t page) = 0;
  // A page comes in; there is room.
  virtual void OnInsert(uint32_t page) = 0;

  // Before the first hit of a step, all of whose pages are pinned already.
  virtual void BeginStep() {}

  // After the last page of a step; `page` is resident afterwards if IsResident says so.
  virtual void EndStep(std::span<const uint32_t> /*pages*/, std::span<const uint8_t> /*is_hit*/) {}

  [[nodiscard]] bool IsPinned(uint32_t page) const { return pinned_step_[page] == step_; }

  [[nodiscard]] bool IsResident(uint32_t page) const { return resident_[page] != 0; }

  [[nodiscard]] uint32_t capacity() const { return capacity_; }

 private:
  uint32_t capacity_;
  uint32_t num_resident_ = 0;
  uint32_t step_ = 0;
  std::vector<uint32_t> pinned_step_;  // [num_pages] last step that selected the page, from 1
  std::vector<uint8_t> resident_;      // [num_pages]
};

}  // namespace spindle::kv::sim
