#include "kv/sim/selection_trace.h"

#include <algorithm>

#include "base/status_macros.h"

namespace spindle::kv::sim {

void SelectionTrace::Append(std::span<const uint32_t> pages) {
  for (size_t i = 1; i < pages.size(); ++i) {
    SPINDLE_DCHECK(pages[i - 1] < pages[i]);
  }
  if (!pages.empty()) {
    num_pages_ = std::max(num_pages_, pages.back() + 1);
  }
  pages_.insert(pages_.end(), pages.begin(), pages.end());
  step_ends_.push_back(pages_.size());
  max_step_pages_ = std::max(max_step_pages_, static_cast<uint32_t>(pages.size()));
}

SelectionTrace MakeSyntheticTrace(const SelectionOptions& options,
                                  uint32_t num_steps,
                                  uint32_t warmup_steps) {
  SelectionGenerator generator(options);
  SelectionTrace trace(options.num_pages, warmup_steps);
  std::vector<uint32_t> pages;
  for (uint32_t step = 0; step < num_steps; ++step) {
    generator.Next(&pages);
    trace.Append(pages);
  }
  return trace;
}

SelectionTrace MakeScanTrace(uint32_t num_steps, uint32_t step_pages) {
  SelectionTrace trace(num_steps * step_pages, 0);
  std::vector<uint32_t> pages(step_pages);
  for (uint32_t step = 0; step < num_steps; ++step) {
    for (uint32_t i = 0; i < step_pages; ++i) {
      pages[i] = step * step_pages + i;
    }
    trace.Append(pages);
  }
  return trace;
}

SelectionTrace MakeCyclicTrace(uint32_t num_pages, uint32_t num_rounds) {
  SelectionTrace trace(num_pages, 2 * num_pages);
  for (uint32_t round = 0; round < num_rounds; ++round) {
    for (uint32_t page = 0; page < num_pages; ++page) {
      trace.Append({&page, 1});
    }
  }
  return trace;
}

double OverlapWithWindow(const SelectionTrace& trace, uint32_t window) {
  constexpr uint32_t kNever = ~uint32_t{0};
  std::vector<uint32_t> last_step(trace.num_pages(), kNever);
  uint64_t seen = 0;
  for (uint32_t step = 0; step < trace.num_steps(); ++step) {
    for (const uint32_t page : trace.step(step)) {
      const bool in_window = last_step[page] != kNever && step - last_step[page] <= window;
      seen += step >= trace.warmup_steps() && in_window ? 1U : 0U;
      last_step[page] = step;
    }
  }
  const uint64_t counted = trace.num_counted_accesses();
  return counted == 0 ? 0.0 : static_cast<double>(seen) / static_cast<double>(counted);
}

}  // namespace spindle::kv::sim
