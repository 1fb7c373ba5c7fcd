#include "kernels/attention_support.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "kernels/codes.h"
#include "kernels/cpu/attention_plan.h"

namespace spindle::kernels {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// 64-byte aligned scratch full of NaN.
class PoisonedScratch {
 public:
  PoisonedScratch() : bytes_(static_cast<float*>(std::aligned_alloc(64, kScratchBytes))) {}

  ~PoisonedScratch() { std::free(bytes_); }

  PoisonedScratch(const PoisonedScratch&) = delete;
  PoisonedScratch& operator=(const PoisonedScratch&) = delete;

  // Only the part that attention of this size may use, to save time.
  Exec Fresh() {
    std::fill(bytes_, bytes_ + kScratchBytes / 16, kNan);
    return {bytes_, kScratchBytes, 0, nullptr};
  }

 private:
  float* bytes_;
};

float Rounded(DType type, float value) {
  return type == DType::kBF16 ? Bf16ToFloat(FloatToBf16(value)) : value;
}

// One row and head of the oracle.
struct HeadOracle {
  const AttentionCase& c;
  const PagedKv& kv;
  const float* q;
  uint32_t position;

  [[nodiscard]] bool Sees(uint32_t j) const {
    return j <= position && (c.window == 0 || j + c.window > position) && (!c.live || c.live(j));
  }

  void Run(double* out, double* lse, double* lse_bound, double* bound, float* naive) const;
};

void HeadOracle::Run(
    double* out, double* lse, double* lse_bound, double* bound, float* naive) const {
  const uint32_t d = c.shape.head_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  std::vector<double> s;
  std::vector<float> s_naive;
  std::vector<uint32_t> keys;
  double magnitude = 0;
  for (uint32_t j = 0; j <= position && j < kv.length(); ++j) {
    if (!Sees(j)) {
      continue;
    }
    double dot = 0;
    double absolute = 0;
    float dot_naive = 0;
    for (uint32_t i = 0; i < d; ++i) {
      const float x = Rounded(c.kv_type, q[i]);
      dot += double{x} * double{kv.Key(j, i)};
      absolute += std::fabs(double{x} * double{kv.Key(j, i)});
      dot_naive += x * kv.Key(j, i);
    }
    const auto cap = [this](auto x) {
      return c.softcap == 0 ? x : c.softcap * std::tanh(x / c.softcap);
    };
    s.push_back(cap(dot * scale));
    s_naive.push_back(static_cast<float>(cap(dot_naive * scale)));
    keys.push_back(j);
    magnitude = std::max(magnitude, absolute * scale);
  }
  std::fill(out, out + d, 0.0);
  std::fill(bound, bound + d, 0.0);
  std::fill(naive, naive + d, 0.0F);
  *lse = kMinusInfinity;
  if (keys.empty()) {
    return;
  }
  const double m = *std::max_element(s.begin(), s.end());
  const float m_naive = *std::max_element(s_naive.begin(), s_naive.end());
  double l = 0;
  float l_naive = 0;
  for (size_t t = 0; t < keys.size(); ++t) {
    const double p = std::exp(s[t] - m);
    const float p_naive = std::exp(s_naive[t] - m_naive);
    const float p_rounded = Rounded(c.kv_type, p_naive);
    l += p;
    l_naive += p_naive;
    for (uint32_t i = 0; i < d; ++i) {
      out[i] += p * double{kv.Value(keys[t], i)};
      bound[i] += p * std::fabs(double{kv.Value(keys[t], i)});
      naive[i] += p_rounded * kv.Value(keys[t], i);
    }
  }
  // Relative error of a probability: d roundings of the dot product and five of scaling, capping
  // and the exponential, all in fp32, relative to the sum of magnitudes; the fp32 sums over keys;
  // the storage rounding of probabilities.
  const double unit = 0x1p-24;
  const double probability = 2 * (d + 8) * unit * (magnitude + 1) * (c.softcap == 0 ? 1 : 2) +
                             (c.softcap == 0 ? 0 : 8 * unit * double{c.softcap});
  const double storage = c.kv_type == DType::kBF16 ? 0x1p-8 : 0.0;
  const double relative =
      2 * probability + storage + 2 * (static_cast<double>(keys.size()) + 64) * unit;
  for (uint32_t i = 0; i < d; ++i) {
    out[i] /= l;
    bound[i] = bound[i] / l * relative;
    naive[i] /= l_naive;
  }
  *lse = m + std::log(l);
  *lse_bound =
      probability + (static_cast<double>(keys.size()) + 64) * unit + 4 * unit * std::fabs(*lse);
}

}  // namespace

PagedKv::PagedKv(
    DType type, uint32_t head_dim, uint32_t length, size_t misalign_bytes, std::mt19937& rng)
    : type_(type),
      head_dim_(head_dim),
      length_(length),
      page_tokens_(8),
      element_bytes_(type == DType::kBF16 ? 2 : 4),
      misalign_bytes_(misalign_bytes) {
  while (page_tokens_ < 32 && 2 * page_tokens_ * head_dim * element_bytes_ < 4096) {
    page_tokens_ *= 2;
  }
  const uint32_t num_pages = (length + page_tokens_ - 1) / page_tokens_ + 1;
  page_of_.resize(num_pages);
  std::iota(page_of_.begin(), page_of_.end(), 0U);
  std::shuffle(page_of_.begin(), page_of_.end(), rng);
  // All ones is a NaN in both types. Exactly sized, so that a sanitizer sees reads past the end.
  bytes_.assign(size_t{num_pages} * 2 * page_tokens_ * head_dim * element_bytes_ + misalign_bytes,
                0xFF);
  std::normal_distribution<float> normal;
  for (uint32_t j = 0; j < length; ++j) {
    for (uint32_t i = 0; i < head_dim; ++i) {
      SetKey(j, i, normal(rng));
      SetValue(j, i, normal(rng));
    }
  }
}

size_t PagedKv::Offset(uint32_t position, uint32_t i, uint32_t half) const {
  const size_t row =
      size_t{page_of_[position / page_tokens_]} * 2 * page_tokens_ + half + position % page_tokens_;
  return (row * head_dim_ + i) * element_bytes_ + misalign_bytes_;
}

float PagedKv::Get(uint32_t position, uint32_t i, uint32_t half) const {
  const uint8_t* const from = bytes_.data() + Offset(position, i, half);
  if (type_ == DType::kBF16) {
    return Bf16ToFloat(LoadU16(from));
  }
  float value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

void PagedKv::Set(uint32_t position, uint32_t i, uint32_t half, float value) {
  uint8_t* const to = bytes_.data() + Offset(position, i, half);
  if (type_ == DType::kBF16) {
    const uint16_t bits = FloatToBf16(value);
    std::memcpy(to, &bits, sizeof(bits));
  } else {
    std::memcpy(to, &value, sizeof(value));
  }
}

KvRun PagedKv::Run(uint32_t position,
                   uint32_t count,
                   const std::function<bool(uint32_t)>& live) const {
  KvRun run{};
  run.k = bytes_.data() + Offset(position, 0, 0);
  run.v = bytes_.data() + Offset(position, 0, page_tokens_);
  run.row_stride = head_dim_;
  run.tile = position / kTileTokens;
  run.count = static_cast<uint16_t>(count);
  run.first_lane = static_cast<uint8_t>(position % kTileTokens);
  for (uint32_t row = 0; row < count; ++row) {
    if (!live || live(position + row)) {
      run.live |= uint64_t{1} << (run.first_lane + row);
    }
  }
  return run;
}

std::vector<KvRun> PagedKv::Runs(const std::function<bool(uint32_t)>& live) const {
  std::vector<KvRun> runs;
  for (uint32_t position = 0; position < length_; position += page_tokens_) {
    runs.push_back(Run(position, std::min(page_tokens_, length_ - position), live));
    const uint32_t end = position + page_tokens_;
    runs.back().last_of_tile = end % kTileTokens == 0 || end >= length_ ? 1 : 0;
  }
  return runs;
}

std::vector<KvRun> PagedKv::RaggedRuns(const std::function<bool(uint32_t)>& live,
                                       std::mt19937& rng) const {
  std::vector<KvRun> runs;
  for (uint32_t tile = 0; tile * kTileTokens < length_; ++tile) {
    const uint32_t end = std::min(length_, (tile + 1) * kTileTokens);
    const size_t before = runs.size();
    bool any = false;
    for (uint32_t position = tile * kTileTokens; position < end;) {
      const uint32_t in_page = page_tokens_ - position % page_tokens_;
      const uint32_t count = 1 + static_cast<uint32_t>(rng() % std::min(in_page, end - position));
      runs.push_back(Run(position, count, live));
      any = any || runs.back().live != 0;
      position += count;
    }
    if (any) {
      runs.back().last_of_tile = 1;
    } else {
      runs.resize(before);
    }
  }
  return runs;
}

AttentionCase MakeCase(HeadShape shape,
                       DType kv_type,
                       uint32_t length,
                       uint32_t num_rows,
                       std::mt19937& rng,
                       size_t misalign_bytes) {
  AttentionCase c;
  c.shape = shape;
  c.kv_type = kv_type;
  c.num_rows = num_rows;
  c.first_position = length - num_rows;
  for (uint32_t h = 0; h < shape.num_kv_heads; ++h) {
    c.kv.emplace_back(kv_type, shape.head_dim, length, misalign_bytes, rng);
  }
  for (const PagedKv& kv : c.kv) {
    c.runs.push_back(kv.Runs());
  }
  c.q_stride = size_t{shape.num_q_heads} * shape.head_dim + 3;
  c.q.resize(num_rows * c.q_stride);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  for (float& x : c.q) {
    x = normal(rng);
  }
  return c;
}

AttentionCase SliceRows(const AttentionCase& from, uint32_t begin, uint32_t end) {
  AttentionCase c = from;  // the runs still point into `from`
  c.num_rows = end - begin;
  c.first_position = from.first_position + begin;
  c.q.assign(from.q.begin() + static_cast<std::ptrdiff_t>(begin * from.q_stride),
             from.q.begin() + static_cast<std::ptrdiff_t>(end * from.q_stride));
  return c;
}

namespace {

// The items of a case, one per KV head, and where their results go.
struct CaseRun {
  explicit CaseRun(const AttentionCase& c) : of(c) {
    const uint32_t d = c.shape.head_dim;
    const uint32_t group = c.group();
    result.out.assign(c.num_rows * size_t{c.shape.num_q_heads} * d, kNan);
    result.lse.assign(size_t{c.shape.num_kv_heads} * c.num_rows * group, kNan);
    for (uint32_t h = 0; h < c.shape.num_kv_heads; ++h) {
      AttentionItem item{};
      item.q = c.q.data() + size_t{h} * group * d;
      item.out = result.out.data() + size_t{h} * group * d;
      item.lse = result.lse.data() + size_t{h} * c.num_rows * group;
      item.runs = c.runs[h].data();
      item.num_runs = static_cast<uint32_t>(c.runs[h].size());
      item.num_rows = c.num_rows;
      item.first_position = c.first_position;
      item.window = c.window;
      items.push_back(item);
    }
  }

  // Plans, runs every unit on fresh poisoned scratch, merges.
  void Run(const KernelTable& table, uint32_t num_workers, const PlanEdit& edit) const {
    const uint32_t d = of.shape.head_dim;
    const AttentionArgs args{.items = items.data(),
                             .num_items = static_cast<uint32_t>(items.size()),
                             .q_stride = of.q_stride,
                             .out_stride = size_t{of.shape.num_q_heads} * d,
                             .head_dim = d,
                             .group = of.group(),
                             .scale = 1.0F / std::sqrt(static_cast<float>(d)),
                             .softcap = of.softcap,
                             .kv_type = of.kv_type};
    AttentionPlan plan{};
    std::vector<AttentionUnit> units;
    std::vector<float> partials;
    int code = table.plan_attention(args, num_workers, &plan);
    if (code == kScratchTooSmall) {
      units.resize(plan.num_units + 1024);  // room for a PlanEdit
      partials.assign((size_t{plan.num_partials} + 4096) * args.group * (d + 2), kNan);
      plan.units = units.data();
      plan.unit_capacity = static_cast<uint32_t>(units.size());
      plan.partials = partials.data();
      plan.partial_capacity = plan.num_partials + 4096;
      code = table.plan_attention(args, num_workers, &plan);
    }
    EXPECT_EQ(code, kOk);
    if (edit) {
      edit(args, &plan);
    }
    PoisonedScratch scratch;
    for (uint32_t u = plan.num_units; u-- > 0;) {
      Exec exec = scratch.Fresh();
      EXPECT_EQ(table.attention(args, plan, {u, u + 1}, &exec), kOk);
    }
    Exec exec = scratch.Fresh();
    EXPECT_EQ(table.merge_attention(args, plan, {0, args.num_items}, &exec), kOk);
  }

  const AttentionCase& of;
  AttentionResult result;
  std::vector<AttentionItem> items;
};

}  // namespace

AttentionResult RunAttention(const KernelTable& table,
                             const AttentionCase& c,
                             uint32_t num_workers,
                             const PlanEdit& edit) {
  CaseRun run(c);
  run.Run(table, num_workers, edit);
  return run.result;
}

AttentionResult RunAttentionInPasses(const KernelTable& table,
                                     const AttentionCase& c,
                                     uint32_t num_workers,
                                     uint32_t spans_per_pass) {
  CaseRun run(c);
  const size_t state_floats = size_t{c.num_rows} * c.group() * (c.shape.head_dim + 2);
  std::vector<float> states(c.shape.num_kv_heads * state_floats, kNan);
  std::vector<uint32_t> ends(run.items.size(), 0);
  const auto num_runs = [&c](size_t h) { return static_cast<uint32_t>(c.runs[h].size()); };
  for (bool first = true, last = false; !last; first = false) {
    last = true;
    for (size_t h = 0; h < run.items.size(); ++h) {
      AttentionItem whole = run.items[h];
      whole.runs = c.runs[h].data();
      const uint32_t begin = ends[h];
      for (uint32_t i = 0; i < spans_per_pass; ++i) {
        ends[h] = SpanEnd(whole, ends[h], num_runs(h));
      }
      last = last && ends[h] == num_runs(h);
      run.items[h].runs = c.runs[h].data() + begin;
      run.items[h].num_runs = ends[h] - begin;
    }
    for (size_t h = 0; h < run.items.size(); ++h) {
      run.items[h].state = states.data() + h * state_floats;
      run.items[h].resumes = !first;
      run.items[h].suspends = !last;
    }
    run.Run(table, num_workers, nullptr);
  }
  return run.result;
}

AttentionResult RunAttentionWithLastSpan(const KernelTable& table,
                                         const AttentionCase& c,
                                         const PlanEdit& edit) {
  CaseRun run(c);
  const size_t state_floats = size_t{c.num_rows} * c.group() * (c.shape.head_dim + 2);
  std::vector<float> states(c.shape.num_kv_heads * state_floats, kNan);
  std::vector<uint32_t> begins(run.items.size(), 0);
  for (size_t h = 0; h < run.items.size(); ++h) {
    const auto num_runs = static_cast<uint32_t>(c.runs[h].size());
    for (uint32_t end = 0; end < num_runs;) {
      begins[h] = end;
      end = SpanEnd(run.items[h], end, num_runs);
    }
    run.items[h].runs = c.runs[h].data() + begins[h];
    run.items[h].num_runs = num_runs - begins[h];
    run.items[h].state = states.data() + h * state_floats;
    run.items[h].suspends = true;
  }
  run.Run(table, 1, nullptr);
  for (size_t h = 0; h < run.items.size(); ++h) {
    AttentionItem& item = run.items[h];
    item.runs = c.runs[h].data();
    item.num_runs = begins[h];
    item.state = nullptr;
    item.suspends = false;
    item.last_span = states.data() + h * state_floats;
  }
  run.Run(table, 1, edit);
  return run.result;
}

OracleResult Oracle(const AttentionCase& c) {
  const uint32_t d = c.shape.head_dim;
  const uint32_t group = c.group();
  OracleResult result;
  const size_t size = size_t{c.num_rows} * c.shape.num_q_heads * d;
  result.out.resize(size);
  result.bound.resize(size);
  result.naive.resize(size);
  result.lse.resize(size_t{c.shape.num_q_heads} * c.num_rows);
  result.lse_bound.resize(result.lse.size());
  for (uint32_t row = 0; row < c.num_rows; ++row) {
    for (uint32_t h = 0; h < c.shape.num_q_heads; ++h) {
      const uint32_t kv_head = h / group;
      const size_t at = (size_t{row} * c.shape.num_q_heads + h) * d;
      const size_t lse_at = (size_t{kv_head} * c.num_rows + row) * group + h % group;
      const HeadOracle oracle{
          c, c.kv[kv_head], c.q.data() + row * c.q_stride + size_t{h} * d, c.first_position + row};
      oracle.Run(result.out.data() + at,
                 &result.lse[lse_at],
                 &result.lse_bound[lse_at],
                 result.bound.data() + at,
                 result.naive.data() + at);
    }
  }
  return result;
}

}  // namespace spindle::kernels
