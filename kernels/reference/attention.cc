// Plain-loop attention in double precision, the oracle of the tests: q is rounded as the API says,
// probabilities are not. States of spans and rows are fp32, so splits and passes give the same bits
// here too.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/codes.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/functions.h"

namespace spindle::kernels::reference {
namespace {

constexpr double kNegInf = -std::numeric_limits<double>::infinity();

// Running (m, l, acc) of one row and head.
struct State {
  double m = kNegInf;
  double l = 0;
  double acc[kMaxHeadDim] = {};
};

// One query row and head against the KV of its item.
struct Query {
  const AttentionArgs& args;
  const AttentionItem& item;
  uint64_t position;
  float q[kMaxHeadDim];
};

double LoadElement(const AttentionArgs& args, const void* base, uint64_t offset, size_t index) {
  const char* bytes = static_cast<const char*>(base) + offset;
  if (args.kv_type == DType::kF32) {
    return reinterpret_cast<const float*>(bytes)[index];
  }
  return Bf16ToFloat(reinterpret_cast<const uint16_t*>(bytes)[index]);
}

bool IsVisible(const Query& query, const KvRun& run, uint32_t lane) {
  const uint64_t position = uint64_t{run.tile} * kTileTokens + lane;
  const bool live = ((run.live >> lane) & 1U) != 0;
  const bool in_window = query.item.window == 0 || position + query.item.window > query.position;
  return live && position <= query.position && in_window;
}

double Score(const Query& query, const KvRun& run, uint32_t row) {
  double dot = 0;
  for (uint32_t i = 0; i < query.args.head_dim; ++i) {
    dot += static_cast<double>(query.q[i]) *
           LoadElement(query.args, run.k, query.item.kv_offset, size_t{row} * run.row_stride + i);
  }
  const double s = dot * query.args.scale;
  const double cap = query.args.softcap;
  return cap == 0 ? s : cap * std::tanh(s / cap);
}

// Folds the tile made of runs [begin, end).
void FoldTile(const Query& query, uint32_t begin, uint32_t end, State* state) {
  double scores[kTileTokens];
  bool visible[kTileTokens] = {};
  double m = state->m;
  bool any = false;
  for (uint32_t r = begin; r < end; ++r) {
    const KvRun& run = query.item.runs[r];
    for (uint32_t row = 0; row < run.count; ++row) {
      const uint32_t lane = run.first_lane + row;
      visible[lane] = IsVisible(query, run, lane);
      if (visible[lane]) {
        scores[lane] = Score(query, run, row);
        m = std::isnan(scores[lane]) ? scores[lane] : std::max(m, scores[lane]);
        any = true;
      }
    }
  }
  if (!any || m == kNegInf) {
    return;
  }
  const double keep = state->m == kNegInf ? 0.0 : std::exp(state->m - m);
  state->l *= keep;
  for (uint32_t i = 0; i < query.args.head_dim; ++i) {
    state->acc[i] *= keep;
  }
  for (uint32_t r = begin; r < end; ++r) {
    const KvRun& run = query.item.runs[r];
    for (uint32_t row = 0; row < run.count; ++row) {
      if (!visible[run.first_lane + row]) {
        continue;
      }
      const double p = std::exp(scores[run.first_lane + row] - m);
      state->l += p;
      for (uint32_t i = 0; i < query.args.head_dim; ++i) {
        state->acc[i] +=
            p *
            LoadElement(query.args, run.v, query.item.kv_offset, size_t{row} * run.row_stride + i);
      }
    }
  }
  state->m = m;
}

void StoreState(uint32_t d, const State& state, float* out) {
  for (uint32_t i = 0; i < d; ++i) {
    out[i] = static_cast<float>(state.acc[i]);
  }
  out[d] = static_cast<float>(state.m);
  out[d + 1] = static_cast<float>(state.l);
}

// State of the span of runs [begin, end), written as acc, m, l in fp32.
void FoldSpan(const Query& query, uint32_t begin, uint32_t end, float* out) {
  State state;
  for (uint32_t r = begin; r < end;) {
    uint32_t tile_end = r;
    while (tile_end < end && query.item.runs[tile_end].last_of_tile == 0) {
      ++tile_end;
    }
    tile_end = std::min(tile_end + 1, end);
    FoldTile(query, r, tile_end, &state);
    r = tile_end;
  }
  StoreState(query.args.head_dim, state, out);
}

void MergeSpan(uint32_t d, const float* span, State* row) {
  const double m_span = span[d];
  if (m_span == kNegInf) {
    return;
  }
  const double m = std::isnan(m_span) ? m_span : std::max(row->m, m_span);
  const double keep = row->m == kNegInf ? 0.0 : std::exp(row->m - m);
  const double add = std::exp(m_span - m);
  row->l = static_cast<float>(row->l * keep + span[d + 1] * add);
  for (uint32_t i = 0; i < d; ++i) {
    row->acc[i] = static_cast<float>(row->acc[i] * keep + span[i] * add);
  }
  row->m = m;
}

void WriteRow(const AttentionArgs& args,
              const AttentionItem& item,
              uint32_t row,
              uint32_t head,
              const State& state) {
  float* const out = item.out + row * args.out_stride + size_t{head} * args.head_dim;
  const bool empty = state.m == kNegInf;
  for (uint32_t i = 0; i < args.head_dim; ++i) {
    out[i] = empty ? 0.0F : static_cast<float>(state.acc[i] / state.l);
  }
  if (item.lse != nullptr) {
    item.lse[size_t{row} * args.group + head] =
        empty ? -std::numeric_limits<float>::infinity()
              : static_cast<float>(state.m + std::log(state.l));
  }
}

void FinishRow(const AttentionArgs& args,
               const AttentionItem& item,
               uint32_t row,
               uint32_t head,
               State* merged) {
  if (item.last_span != nullptr) {
    MergeSpan(args.head_dim,
              item.last_span + (size_t{row} * args.group + head) * (args.head_dim + 2),
              merged);
  }
  WriteRow(args, item, row, head, *merged);
}

Query MakeQuery(const AttentionArgs& args, const AttentionItem& item, uint32_t row, uint32_t head) {
  Query query{args, item, uint64_t{item.first_position} + row, {}};
  const float* const q = item.q + row * args.q_stride + size_t{head} * args.head_dim;
  for (uint32_t i = 0; i < args.head_dim; ++i) {
    query.q[i] = args.kv_type == DType::kBF16 ? Bf16ToFloat(FloatToBf16(q[i])) : q[i];
  }
  return query;
}

void RunRow(const AttentionArgs& args,
            const AttentionPlan& plan,
            const AttentionUnit& unit,
            const AttentionItem& item,
            uint32_t row,
            uint32_t head) {
  const Query query = MakeQuery(args, item, row, head);
  const uint32_t num_rows = unit.row_end - unit.row_begin;
  State merged;
  const size_t kept = (size_t{row} * args.group + head) * (args.head_dim + 2);
  if (item.resumes) {
    MergeSpan(args.head_dim, item.state + kept, &merged);
  }
  uint32_t span = 0;
  for (uint32_t begin = unit.run_begin; begin < unit.run_end; ++span) {
    const uint32_t end = SpanEnd(item, begin, unit.run_end);
    float own[kMaxHeadDim + 2];
    FoldSpan(query, begin, end, own);
    if (unit.partial < 0) {
      MergeSpan(args.head_dim, own, &merged);
    } else {
      const size_t index =
          static_cast<size_t>(unit.partial) + size_t{span} * num_rows + (row - unit.row_begin);
      std::copy(own,
                own + args.head_dim + 2,
                plan.partials + (index * args.group + head) * (args.head_dim + 2));
    }
    begin = end;
  }
  if (item.suspends) {
    StoreState(args.head_dim, merged, item.state + kept);
  } else if (unit.partial < 0) {
    FinishRow(args, item, row, head, &merged);
  }
}

}  // namespace

int Attention(const AttentionArgs& args,
              const AttentionPlan& plan,
              WorkRange units,
              Exec* /*exec*/) {
  for (uint32_t u = units.begin; u < units.end; ++u) {
    const AttentionUnit& unit = plan.units[u];
    for (uint32_t i = unit.item; i < unit.item + unit.num_heads; ++i) {
      for (uint32_t row = unit.row_begin; row < unit.row_end; ++row) {
        for (uint32_t head = 0; head < args.group; ++head) {
          RunRow(args, plan, unit, args.items[i], row, head);
        }
      }
    }
  }
  return kOk;
}

int MergeAttention(const AttentionArgs& args,
                   const AttentionPlan& plan,
                   WorkRange items,
                   Exec* /*exec*/) {
  for (uint32_t i = items.begin; i < items.end; ++i) {
    PartialStates states;
    FindPartials(args, plan, i, 1, &states);
    const AttentionItem& item = args.items[i];
    for (uint32_t row = 0; states.num_spans != 0 && row < item.num_rows; ++row) {
      for (uint32_t head = 0; head < args.group; ++head) {
        State merged;
        for (uint32_t span = 0; span < states.num_spans; ++span) {
          const size_t index = size_t{states.first} + size_t{span} * item.num_rows + row;
          MergeSpan(args.head_dim,
                    plan.partials + (index * args.group + head) * (args.head_dim + 2),
                    &merged);
        }
        FinishRow(args, item, row, head, &merged);
      }
    }
  }
  return kOk;
}

}  // namespace spindle::kernels::reference
