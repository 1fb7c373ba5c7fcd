// Cutting attention into units of work; shared by all tables, since a plan never changes a bit of a
// result. Thread-safety: pure functions over the caller's memory.
#pragma once

#include <cstdint>

#include "kernels/api/attention.h"

namespace spindle::kernels {

// Runs [begin, end) of an item, whole tiles only.
struct RunSpan {
  uint32_t begin;
  uint32_t end;
};

// KernelTable::plan_attention of every table. Units come out in order of falling cost.
// ERRORS: kInvalidArgument (a shape outside AttentionArgs' limits, no worker, an item whose
// positions pass 2^32),
//         kScratchTooSmall (see AttentionPlan).
int PlanAttention(const AttentionArgs& args, uint32_t num_workers, AttentionPlan* plan);

// The runs that any of the rows [row_begin, row_end) may see under causality and window. O(log
// runs).
RunSpan VisibleRuns(const AttentionItem& item, uint32_t row_begin, uint32_t row_end);

// End of the span that starts at run `begin`: the first run at or after it in another segment, or
// `end`. O(log runs).
uint32_t SpanEnd(const AttentionItem& item, uint32_t begin, uint32_t end);

// Spans that the runs [begin, end) touch.
uint32_t CountSpans(const AttentionItem& item, RunSpan runs);

// Span states of a split item: `num_spans` × num_rows states, span-major, from `first` on.
struct PartialStates {
  uint32_t first;
  uint32_t num_spans;
};

// Finds the states of the items [begin, begin + count) in one pass over the plan's units; num_spans
// = 0 for an item that its units wrote themselves. REQUIRES: count ≤ kMergeBatch.
inline constexpr uint32_t kMergeBatch = 64;
void FindPartials(const AttentionArgs& args,
                  const AttentionPlan& plan,
                  uint32_t begin,
                  uint32_t count,
                  PartialStates* states);

}  // namespace spindle::kernels
