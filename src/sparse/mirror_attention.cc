#include "sparse/mirror_attention.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/clock.h"
#include "base/status_macros.h"
#include "sparse/attention_scratch.h"
#include "sparse/selected_pages.h"

namespace spindle::sparse {
namespace {

// Kernels cut rows into blocks of at least so many.
constexpr uint32_t kMinUnitRows = 16;

}  // namespace

MirrorCounters& MirrorCounters::operator+=(const MirrorCounters& other) {
  page_hits += other.page_hits;
  page_misses += other.page_misses;
  pages_streamed += other.pages_streamed;
  page_refaults += other.page_refaults;
  bytes_copied += other.bytes_copied;
  multi_pass_heads += other.multi_pass_heads;
  stall_ns += other.stall_ns;
  return *this;
}

// Sized by Reserve, so that nothing is allocated during a layer.
struct MirrorAttention::Worker {
  explicit Worker(const kv::KvGeometry& geometry) : pages(geometry) {}

  kv::GroupPlan plan{0};
  Selection selection;               // of a job, in reach of its window
  SelectedPages pages;               // of this choice
  std::vector<kernels::KvRun> runs;  // of one pass
  std::vector<kernels::AttentionUnit> units;
  platform::AlignedBuffer state;  // [rows of a job][group][head_dim + 2]
  MirrorCounters counters;
};

// All jobs of one sequence for one KV head, on one worker.
class MirrorAttention::HeadTask {
 public:
  HeadTask(const MirrorAttention& of,
           const LayerQueries& queries,
           const StepSequence& sequence,
           uint32_t head,
           HeadPages* generated,
           kernels::Exec* exec)
      : of_(of),
        queries_(queries),
        sequence_(sequence),
        head_(head),
        generated_(generated),
        exec_(exec),
        worker_(*of.workers_[exec->worker]),
        group_{sequence.rows.cache_set, queries.layer, KvHeadIdx(static_cast<uint16_t>(head))},
        ids_(of.geometry_,
             sequence.rows.policy == nullptr ? nullptr : &sequence.rows.policy->algorithm()),
        page_tokens_(of.geometry_.page_tokens()),
        head_offset_(queries.layer.value() * of.geometry_.extent_bytes() +
                     head * of.geometry_.head_bytes()) {}

  int Run() {
    RefreshFrames();
    for (uint32_t job = sequence_.job_begin; job < sequence_.job_end; ++job) {
      if (const int code = RunJob(job); code != kernels::kOk) {
        return code;
      }
    }
    return kernels::kOk;
  }

 private:
  [[nodiscard]] uint8_t* HostPage(uint32_t page) const {
    const uint32_t position = page * page_tokens_;
    return sequence_.stripes[position / kStripeTokens] + head_offset_ +
           position % kStripeTokens / page_tokens_ * of_.geometry_.page_bytes();
  }

  // Rows that this step has appended on the host go to the frames of their pages as well.
  void RefreshFrames() {
    const size_t row_bytes = of_.geometry_.row_bytes();
    const uint32_t end = sequence_.rows.first_position + sequence_.rows.num_rows;
    for (uint32_t begin = sequence_.rows.first_position; begin < end;) {
      const uint32_t page = begin / page_tokens_;
      const uint32_t page_end = std::min(end, (page + 1) * page_tokens_);
      const uint32_t frame = of_.tier_.FrameOf(group_, ids_.OfPage(page));
      if (frame != kv::kNoFrame) {
        const size_t offset = begin % page_tokens_ * row_bytes;
        const size_t bytes = (page_end - begin) * row_bytes;
        const uint8_t* const from = HostPage(page);
        uint8_t* const to = of_.tier_.FrameData(frame);
        const size_t v_offset = of_.geometry_.v_offset() + offset;
        std::memcpy(to + offset, from + offset, bytes);
        std::memcpy(to + v_offset, from + v_offset, bytes);
        worker_.counters.bytes_copied += 2 * bytes;
      }
      begin = page_end;
    }
  }

  int RunJob(uint32_t job_idx) {
    const StepJob& job = of_.jobs_->jobs()[job_idx];
    FindPages(job_idx);
    const kv::Caching caching = CachingOf(job_idx);
    kv::GroupPlan& plan = worker_.plan;
    of_.tier_.Plan(exec_->worker, exec_->worker, group_, worker_.pages.ids(), caching, &plan);
    Count(plan, job);
    for (size_t pass = 0; pass < plan.passes.size(); ++pass) {
      Load(plan.passes[pass]);
      BuildRuns(plan.passes[pass]);
      const int code = AttendPass(job, pass > 0, pass + 1 < plan.passes.size());
      if (code != kernels::kOk) {
        of_.tier_.Abort(exec_->worker, group_, worker_.pages.ids(), plan);
        return code;
      }
    }
    of_.tier_.Commit(group_, plan);
    if (of_.recorder_ != nullptr) {
      of_.recorder_->Select(exec_->worker, group_, caching, worker_.pages.ids(), plan);
    }
    return kernels::kOk;
  }

  // Rows of a prompt and those that attend to everything fill what is free, and push nothing out;
  // prefill of a sequence that will choose pages later leaves its frames to them.
  [[nodiscard]] kv::Caching CachingOf(uint32_t job_idx) const {
    const StepJob& job = of_.jobs_->jobs()[job_idx];
    if (job.policy != nullptr && !queries_.choices->IsDense(job_idx)) {
      return kv::Caching::kLru;
    }
    const bool chooses_later = job.policy == nullptr && sequence_.rows.policy != nullptr;
    return chooses_later ? kv::Caching::kStream : kv::Caching::kFill;
  }

  // The choice of the job, and the pages of it that its first row's window reaches.
  void FindPages(uint32_t job_idx) {
    const StepJob& job = of_.jobs_->jobs()[job_idx];
    queries_.choices->Copy(job_idx, head_, &worker_.selection);
    std::vector<TileLive>& tiles = worker_.selection.tiles;
    const uint32_t window = queries_.spec->window;
    const uint32_t lowest =
        window != 0 && job.first_position >= window ? job.first_position - window + 1 : 0;
    std::erase_if(tiles, [lowest](const TileLive& tile) {
      return (tile.tile + 1) * kStripeTokens <= lowest;
    });
    worker_.pages.Assign(worker_.selection, ids_);
  }

  void Count(const kv::GroupPlan& plan, const StepJob& job) {
    MirrorCounters& counters = worker_.counters;
    counters.page_hits += plan.frames.size() - plan.loads.size();
    counters.page_misses += plan.loads.size();
    counters.pages_streamed += plan.num_streamed;
    counters.page_refaults += plan.num_refaults;
    counters.multi_pass_heads += plan.passes.size() > 1 ? 1U : 0U;
    if (generated_ != nullptr && job.first_position >= sequence_.rows.decode_begin) {
      generated_->hits += plan.frames.size() - plan.loads.size();
      generated_->misses += plan.loads.size();
    }
  }

  void Load(const kv::AttentionPass& pass) {
    uint64_t bytes = 0;
    for (uint32_t i = pass.load_begin; i < pass.load_end; ++i) {
      const kv::PageLoad& load = worker_.plan.loads[i];
      bytes += worker_.pages.AddCopies(
          load.index, sequence_.stripes, head_offset_, of_.tier_.FrameData(load.frame));
    }
    if (bytes == 0) {
      return;
    }
    TimePoint ready;
    if (of_.link_ != nullptr) {
      ready = of_.link_->Send(SteadyClock().Now(), bytes);
    }
    worker_.pages.RunCopies();
    worker_.counters.bytes_copied += bytes;
    if (of_.link_ != nullptr) {
      worker_.counters.stall_ns += static_cast<uint64_t>(of_.link_->Await(ready).count());
    }
  }

  void BuildRuns(const kv::AttentionPass& pass) {
    worker_.runs.clear();
    const auto frame_of = [this](uint32_t i) {
      return of_.tier_.FrameData(worker_.plan.frames[i]);
    };
    worker_.pages.AppendRuns(pass.page_begin, pass.page_end, frame_of, &worker_.runs);
  }

  int AttendPass(const StepJob& job, bool resumes, bool suspends) {
    const tensor::AttentionSpec& spec = *queries_.spec;
    const size_t first_float = queries_.HeadOffset(head_);
    const kernels::AttentionItem item{
        .q = queries_.q + job.row_begin * queries_.q_stride + first_float,
        .out = queries_.out + job.row_begin * queries_.out_stride + first_float,
        .lse = nullptr,
        .runs = worker_.runs.data(),
        .num_runs = static_cast<uint32_t>(worker_.runs.size()),
        .num_rows = job.num_rows,
        .first_position = job.first_position,
        .window = spec.window,
        .state = worker_.state.As<float>().data(),
        .resumes = resumes,
        .suspends = suspends,
        .last_span =
            worker_.selection.estimate.empty() ? nullptr : worker_.selection.estimate.data(),
    };
    const kernels::AttentionArgs args{
        .items = &item,
        .num_items = 1,
        .q_stride = queries_.q_stride,
        .out_stride = queries_.out_stride,
        .head_dim = spec.head_dim,
        .group = spec.group(),
        .scale = spec.scale,
        .softcap = spec.softcap,
        .kv_type = of_.geometry_.type,
    };
    kernels::AttentionPlan plan{};
    plan.units = worker_.units.data();
    plan.unit_capacity = static_cast<uint32_t>(worker_.units.size());
    if (const int code = of_.kernels_.plan_attention(args, 1, &plan); code != kernels::kOk) {
      return code;
    }
    return of_.kernels_.attention(args, plan, {0, plan.num_units}, exec_);
  }

  const MirrorAttention& of_;
  const LayerQueries& queries_;
  const StepSequence& sequence_;
  const uint32_t head_;
  HeadPages* const generated_;  // null: not counted
  kernels::Exec* const exec_;
  Worker& worker_;
  const kv::GroupRef group_;
  const FastPageIds ids_;
  const uint32_t page_tokens_;
  const size_t head_offset_;  // of the layer and head, in a stripe
};

MirrorAttention::MirrorAttention(const kv::KvGeometry& geometry,
                                 kv::FastTier& tier,
                                 kv::EmulatedLink* link,
                                 kv::AccessRecorder* recorder,
                                 platform::ComputePool& pool,
                                 const kernels::KernelTable& kernels)
    : geometry_(geometry),
      tier_(tier),
      link_(link),
      recorder_(recorder),
      pool_(pool),
      kernels_(kernels) {
  for (uint32_t i = 0; i < pool.num_workers(); ++i) {
    workers_.push_back(std::make_unique<Worker>(geometry));
  }
}

MirrorAttention::~MirrorAttention() = default;

void MirrorAttention::BeginStep(const StepJobs& jobs) {
  jobs_ = &jobs;
  const size_t num_tiles = kv::KvStore::StripesFor(uint64_t{jobs.last_position()} + 1);
  const size_t num_pages = num_tiles * (kStripeTokens / geometry_.page_tokens());
  for (const std::unique_ptr<Worker>& worker : workers_) {
    worker->selection.tiles.reserve(num_tiles);
    worker->pages.Reserve(num_pages);
    worker->runs.reserve(num_pages);
    worker->plan.Reserve(num_pages);
    worker->units.resize(
        std::max<size_t>(worker->units.size(), jobs.max_job_rows() / kMinUnitRows + 1));
  }
  bool counts_layers = false;
  for (const StepSequence& sequence : jobs.sequences()) {
    tier_.BeginStep(sequence.rows.cache_set);
    counts_layers = counts_layers || !sequence.rows.layers.empty();
  }
  head_pages_.resize(counts_layers ? jobs.sequences().size() * geometry_.num_kv_heads : 0);
  if (recorder_ != nullptr) {
    RecordRows();
  }
}

void MirrorAttention::RecordRows() const {
  recorder_->BeginStep();
  const uint32_t page_tokens = geometry_.page_tokens();
  for (const StepSequence& sequence : jobs_->sequences()) {
    const SequenceRows& rows = sequence.rows;
    const FastPageIds ids(geometry_, rows.policy == nullptr ? nullptr : &rows.policy->algorithm());
    const uint32_t end = rows.first_position + rows.num_rows;
    for (uint32_t position = rows.first_position; position < end;) {
      // Ids are consecutive inside a segment.
      const auto segment_end =
          static_cast<uint32_t>((position / kSegmentTokens + 1) * kSegmentTokens);
      const uint32_t last = std::min(end, segment_end) - 1;
      const uint32_t id_begin = ids.OfPage(position / page_tokens);
      const uint32_t id_end = ids.OfPage(last / page_tokens) + 1;
      if (rows.first_position >= rows.decode_begin) {
        recorder_->Append(rows.cache_set, id_begin, id_end);
      } else {
        recorder_->Prefill(rows.cache_set, id_begin, id_end);
      }
      position = last + 1;
    }
  }
}

absl::Status MirrorAttention::Attend(const LayerQueries& queries) {
  const uint64_t state_floats =
      uint64_t{jobs_->max_job_rows()} * queries.spec->group() * (geometry_.head_dim + 2);
  for (const std::unique_ptr<Worker>& worker : workers_) {
    SPINDLE_RETURN_IF_ERROR(GrowFloats(state_floats, &worker->state));
  }
  const std::span<const StepSequence> sequences = jobs_->sequences();
  const uint32_t num_heads = geometry_.num_kv_heads;
  const auto num_tasks = static_cast<uint32_t>(sequences.size()) * num_heads;
  std::fill(head_pages_.begin(), head_pages_.end(), HeadPages());
  SPINDLE_RETURN_IF_ERROR(
      pool_.Run(num_tasks, 1, [&](kernels::WorkRange range, kernels::Exec* exec) {
        for (uint32_t i = range.begin; i < range.end; ++i) {
          HeadPages* const generated = head_pages_.empty() ? nullptr : &head_pages_[i];
          HeadTask task(*this, queries, sequences[i / num_heads], i % num_heads, generated, exec);
          if (const int code = task.Run(); code != kernels::kOk) {
            return code;
          }
        }
        return static_cast<int>(kernels::kOk);
      }));
  CountLayer(queries.layer);
  return absl::OkStatus();
}

void MirrorAttention::CountLayer(LayerIdx layer) const {
  for (size_t i = 0; i < head_pages_.size(); ++i) {
    const std::span<LayerUse> layers = jobs_->sequences()[i / geometry_.num_kv_heads].rows.layers;
    if (!layers.empty()) {
      layers[layer.value()].page_hits += head_pages_[i].hits;
      layers[layer.value()].page_misses += head_pages_[i].misses;
    }
  }
}

MirrorCounters MirrorAttention::Counters() const {
  MirrorCounters sum;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    sum += worker->counters;
  }
  return sum;
}

}  // namespace spindle::sparse
