#include "kernels/cpu/attention_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>

namespace spindle::kernels {
namespace {

// Query rows (tokens × heads) of a prefill unit. Large enough that fetching and packing a tile,
// ~700 cycles, is small beside the products of its rows; small enough that the fp32 state of a unit
// stays in L2.
constexpr uint32_t kBlockHeadRows = 192;
constexpr uint32_t kMinBlockRows = 16;
constexpr uint32_t kMaxBlockRows = 64;
// Units per worker below which prefill blocks shrink.
constexpr uint64_t kBlocksPerWorker = 4;
// A unit whose share of all work exceeds 1 / (this × workers) is cut at span borders.
constexpr uint64_t kShareDivisor = 8;
// Coarser units are preferred as long as the busiest worker has at most this part more than its
// share.
constexpr uint64_t kImbalanceDivisor = 16;
constexpr uint32_t kMaxBalancedWorkers = 256;
// Cost of a tile that does not depend on the rows, in query rows.
constexpr uint64_t kTileCost = 8;

bool IsValid(const AttentionArgs& args) {
  const bool type_ok = args.kv_type == DType::kBF16 || args.kv_type == DType::kF32;
  const bool dim_ok =
      args.head_dim >= kMinHeadDim && args.head_dim <= kMaxHeadDim && args.head_dim % 16 == 0;
  // Written so that a NaN is refused.
  const bool scale_ok =
      args.scale > 0 && args.scale < INFINITY && args.softcap >= 0 && args.softcap < INFINITY;
  if (!type_ok || !dim_ok || !scale_ok || args.group < 1 || args.group > kMaxGroup) {
    return false;
  }
  for (uint32_t i = 0; i < args.num_items; ++i) {
    if (uint64_t{args.items[i].first_position} + args.items[i].num_rows > (uint64_t{1} << 32)) {
      return false;
    }
  }
  return true;
}

uint64_t Cost(const AttentionArgs& args, uint64_t num_runs, uint32_t num_rows) {
  return (num_runs + 1) * (kTileCost + uint64_t{num_rows} * args.group);
}

uint64_t Cost(const AttentionArgs& args, const AttentionUnit& unit) {
  return unit.num_heads * Cost(args, unit.run_end - unit.run_begin, unit.row_end - unit.row_begin);
}

// Row blocks as large as allowed that still give every worker several units.
uint32_t BlockRows(const AttentionArgs& args, uint32_t num_workers) {
  uint32_t rows = kBlockHeadRows / args.group / kMinBlockRows * kMinBlockRows;
  rows = std::clamp(rows, kMinBlockRows, kMaxBlockRows);
  for (; rows > kMinBlockRows; rows -= kMinBlockRows) {
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < args.num_items; ++i) {
      blocks += (uint64_t{args.items[i].num_rows} + rows - 1) / rows;
    }
    if (blocks >= kBlocksPerWorker * num_workers) {
      break;
    }
  }
  return rows;
}

// How finely a plan cuts decode.
enum class Cut : uint8_t { kSequences, kHeads, kSpans };

// Items that `first` can share a unit with, itself included.
uint32_t CountSharing(const AttentionArgs& args, uint32_t first) {
  const AttentionItem& item = args.items[first];
  if (item.state != nullptr) {
    return 1;
  }
  uint32_t count = 1;
  while (count < kMaxUnitHeads && first + count < args.num_items) {
    const AttentionItem& next = args.items[first + count];
    if (next.runs != item.runs || next.num_runs != item.num_runs || next.num_rows != 1 ||
        next.first_position != item.first_position || next.window != item.window ||
        next.state != nullptr) {
      break;
    }
    ++count;
  }
  return count;
}

// Walks the units of a plan in item order and hands each to `visit`.
class UnitWalk {
 public:
  // Units above `limit` are cut into spans.
  UnitWalk(const AttentionArgs& args, uint32_t block_rows, Cut cut, uint64_t limit)
      : args_(args), block_rows_(block_rows), cut_(cut), limit_(limit) {}

  template <typename Visit>
  void ForEach(Visit visit) {
    num_partials_ = 0;
    for (uint32_t i = 0; i < args_.num_items;) {
      const AttentionItem& item = args_.items[i];
      if (cut_ == Cut::kSequences && item.num_rows == 1) {
        const RunSpan runs = VisibleRuns(item, 0, 1);
        const uint32_t sharing = CountSharing(args_, i);
        visit(AttentionUnit{i, 0, 1, runs.begin, runs.end, -1, sharing});
        i += sharing;
        continue;
      }
      for (uint32_t begin = 0; begin < item.num_rows; begin += block_rows_) {
        const uint32_t end = std::min(item.num_rows, begin + block_rows_);
        VisitBlock(i, begin, end, visit);
      }
      ++i;
    }
  }

  [[nodiscard]] uint64_t num_partials() const { return num_partials_; }

 private:
  template <typename Visit>
  void VisitBlock(uint32_t index, uint32_t row_begin, uint32_t row_end, Visit& visit) {
    const AttentionItem& item = args_.items[index];
    const RunSpan runs = VisibleRuns(item, row_begin, row_end);
    const uint32_t rows = row_end - row_begin;
    const bool whole = row_begin == 0 && row_end == item.num_rows;
    const bool split = cut_ == Cut::kSpans && whole && item.state == nullptr &&
                       Cost(args_, runs.end - runs.begin, rows) > limit_ &&
                       SpanEnd(item, runs.begin, runs.end) < runs.end;
    if (!split) {
      visit(AttentionUnit{index, row_begin, row_end, runs.begin, runs.end, -1});
      return;
    }
    for (uint32_t begin = runs.begin; begin < runs.end;) {
      // Whole spans up to the limit; always at least one.
      uint32_t end = begin;
      uint32_t spans = 0;
      do {
        end = SpanEnd(item, end, runs.end);
        ++spans;
      } while (end < runs.end && Cost(args_, SpanEnd(item, end, runs.end) - begin, rows) <= limit_);
      visit(AttentionUnit{
          index, row_begin, row_end, begin, end, static_cast<int32_t>(num_partials_)});
      num_partials_ += uint64_t{spans} * rows;
      begin = end;
    }
  }

  const AttentionArgs& args_;
  const uint32_t block_rows_;
  const Cut cut_;
  const uint64_t limit_;
  uint64_t num_partials_ = 0;
};

// Units in order of falling cost.
void FillPlan(const AttentionArgs& args, UnitWalk* walk, AttentionPlan* plan) {
  plan->num_units = 0;
  walk->ForEach([plan](const AttentionUnit& unit) { plan->units[plan->num_units++] = unit; });
  plan->num_partials = static_cast<uint32_t>(walk->num_partials());
  std::sort(plan->units,
            plan->units + plan->num_units,
            [&args](const AttentionUnit& a, const AttentionUnit& b) {
              const uint64_t cost_a = Cost(args, a);
              const uint64_t cost_b = Cost(args, b);
              if (cost_a != cost_b) {
                return cost_a > cost_b;
              }
              if (a.item != b.item) {
                return a.item < b.item;
              }
              return a.row_begin != b.row_begin ? a.row_begin < b.row_begin
                                                : a.run_begin < b.run_begin;
            });
}

// Whether workers that take the units in order end at nearly the same time.
bool IsBalanced(const AttentionArgs& args,
                const AttentionPlan& plan,
                uint32_t num_workers,
                uint64_t total) {
  if (num_workers > kMaxBalancedWorkers) {
    return false;
  }
  std::array<uint64_t, kMaxBalancedWorkers> loads{};
  const auto end = loads.begin() + num_workers;
  for (uint32_t u = 0; u < plan.num_units; ++u) {
    std::pop_heap(loads.begin(), end, std::greater<>());
    *(end - 1) += Cost(args, plan.units[u]);
    std::push_heap(loads.begin(), end, std::greater<>());
  }
  const uint64_t share = total / num_workers;
  return *std::max_element(loads.begin(), end) <= share + share / kImbalanceDivisor;
}

}  // namespace

RunSpan VisibleRuns(const AttentionItem& item, uint32_t row_begin, uint32_t row_end) {
  const uint64_t first = uint64_t{item.first_position} + row_begin;
  const uint64_t last = uint64_t{item.first_position} + row_end - 1;
  const KvRun* const runs_end = item.runs + item.num_runs;
  const KvRun* const end = std::partition_point(item.runs, runs_end, [last](const KvRun& run) {
    return uint64_t{run.tile} * kTileTokens <= last;
  });
  const KvRun* begin = item.runs;
  if (item.window != 0 && first >= item.window) {
    const uint64_t lowest = first - item.window + 1;
    begin = std::partition_point(item.runs, end, [lowest](const KvRun& run) {
      return uint64_t{run.tile} * kTileTokens + kTileTokens <= lowest;
    });
  }
  return {static_cast<uint32_t>(begin - item.runs), static_cast<uint32_t>(end - item.runs)};
}

uint32_t SpanEnd(const AttentionItem& item, uint32_t begin, uint32_t end) {
  if (begin >= end) {
    return end;
  }
  const uint32_t segment = item.runs[begin].tile / kSpanTiles;
  const KvRun* const found =
      std::partition_point(item.runs + begin, item.runs + end, [segment](const KvRun& run) {
        return run.tile / kSpanTiles == segment;
      });
  return static_cast<uint32_t>(found - item.runs);
}

uint32_t CountSpans(const AttentionItem& item, RunSpan runs) {
  uint32_t spans = 0;
  for (uint32_t begin = runs.begin; begin < runs.end; ++spans) {
    begin = SpanEnd(item, begin, runs.end);
  }
  return spans;
}

int PlanAttention(const AttentionArgs& args, uint32_t num_workers, AttentionPlan* plan) {
  plan->num_units = 0;
  plan->num_partials = 0;
  if (num_workers == 0 || !IsValid(args)) {
    return kInvalidArgument;
  }
  const uint32_t block_rows = BlockRows(args, num_workers);
  uint64_t total = 0;
  UnitWalk(args, block_rows, Cut::kHeads, 0).ForEach([&](const AttentionUnit& unit) {
    total += Cost(args, unit);
  });
  // The finest plan needs the most room.
  UnitWalk finest(args, block_rows, Cut::kSpans, total / (kShareDivisor * num_workers));
  uint64_t num_units = 0;
  finest.ForEach([&](const AttentionUnit&) { ++num_units; });
  if (num_units > INT32_MAX || finest.num_partials() > INT32_MAX) {
    return kInvalidArgument;
  }
  plan->num_units = static_cast<uint32_t>(num_units);
  plan->num_partials = static_cast<uint32_t>(finest.num_partials());
  if (num_units > plan->unit_capacity || finest.num_partials() > plan->partial_capacity) {
    return kScratchTooSmall;
  }
  for (const Cut cut : {Cut::kSequences, Cut::kHeads}) {
    UnitWalk walk(args, block_rows, cut, 0);
    FillPlan(args, &walk, plan);
    if (IsBalanced(args, *plan, num_workers, total)) {
      return kOk;
    }
  }
  FillPlan(args, &finest, plan);
  return kOk;
}

void FindPartials(const AttentionArgs& args,
                  const AttentionPlan& plan,
                  uint32_t begin,
                  uint32_t count,
                  PartialStates* states) {
  std::fill(states, states + count, PartialStates{UINT32_MAX, 0});
  if (plan.num_partials == 0) {
    return;
  }
  for (uint32_t u = 0; u < plan.num_units; ++u) {
    const AttentionUnit& unit = plan.units[u];
    if (unit.partial >= 0 && unit.item >= begin && unit.item - begin < count) {
      PartialStates& found = states[unit.item - begin];
      found.first = std::min(found.first, static_cast<uint32_t>(unit.partial));
      found.num_spans += CountSpans(args.items[unit.item], RunSpan{unit.run_begin, unit.run_end});
    }
  }
}

}  // namespace spindle::kernels
