#include "kv/sim/page_policy.h"

#include <array>
#include <charconv>
#include <utility>

#include "base/status_macros.h"
#include "kv/sim/belady.h"
#include "kv/sim/bucketed_policy.h"
#include "kv/sim/list_policies.h"

namespace spindle::kv::sim {
namespace {

struct NamedKind {
  std::string_view name;
  PolicyKind kind;
};

constexpr std::array<NamedKind, 8> kKinds = {{{"lru", PolicyKind::kExactLru},
                                              {"bucketed", PolicyKind::kBucketed},
                                              {"fifo", PolicyKind::kFifo},
                                              {"random", PolicyKind::kRandom},
                                              {"clock", PolicyKind::kClock},
                                              {"slru", PolicyKind::kSlru},
                                              {"arc", PolicyKind::kArc},
                                              {"belady", PolicyKind::kBelady}}};

bool ParseNumber(std::string_view text, uint32_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

absl::Status UnknownPolicy(std::string_view text) {
  return absl::InvalidArgumentError(
      "policy must be lru, bucketed[:RANGE[/QUANTUM]], fifo, random, clock, slru, arc or belady, "
      "got '" +
      std::string(text) + "'");
}

}  // namespace

absl::StatusOr<PolicySpec> ParsePolicy(std::string_view text) {
  const size_t colon = text.find(':');
  PolicySpec spec;
  bool found = false;
  for (const NamedKind& named : kKinds) {
    if (named.name == text.substr(0, colon)) {
      spec.kind = named.kind;
      found = true;
    }
  }
  if (!found || (colon != std::string_view::npos && spec.kind != PolicyKind::kBucketed)) {
    return UnknownPolicy(text);
  }
  if (colon != std::string_view::npos) {
    const std::string_view parameters = text.substr(colon + 1);
    const size_t slash = parameters.find('/');
    if (!ParseNumber(parameters.substr(0, slash), &spec.lru.range) ||
        (slash != std::string_view::npos &&
         !ParseNumber(parameters.substr(slash + 1), &spec.lru.quantum_steps))) {
      return UnknownPolicy(text);
    }
    SPINDLE_RETURN_IF_ERROR(ValidateLruOptions(spec.lru));
  }
  return spec;
}

std::string PolicyName(const PolicySpec& spec) {
  std::string name;
  for (const NamedKind& named : kKinds) {
    if (named.kind == spec.kind) {
      name = named.name;
    }
  }
  const LruOptions usual;
  if (spec.kind == PolicyKind::kBucketed &&
      (spec.lru.range != usual.range || spec.lru.quantum_steps != usual.quantum_steps)) {
    name += ":" + std::to_string(spec.lru.range);
    if (spec.lru.quantum_steps != usual.quantum_steps) {
      name += "/" + std::to_string(spec.lru.quantum_steps);
    }
  }
  return name;
}

absl::StatusOr<std::unique_ptr<PagePolicy>> MakePagePolicy(const PolicySpec& spec,
                                                           uint32_t capacity_pages,
                                                           const SelectionTrace& trace) {
  if (capacity_pages == 0) {
    return absl::InvalidArgumentError("capacity must be at least 1 page, got 0");
  }
  switch (spec.kind) {
    case PolicyKind::kExactLru:
      return std::make_unique<ExactLru>(capacity_pages, trace.num_pages());
    case PolicyKind::kFifo:
      return std::make_unique<Fifo>(capacity_pages, trace.num_pages());
    case PolicyKind::kRandom:
      return std::make_unique<RandomReplacement>(
          capacity_pages, trace.num_pages(), spec.random_seed);
    case PolicyKind::kClock:
      return std::make_unique<Clock>(capacity_pages, trace.num_pages());
    case PolicyKind::kSlru:
      return std::make_unique<SegmentedLru>(capacity_pages, trace.num_pages());
    case PolicyKind::kArc:
      return std::make_unique<Arc>(capacity_pages, trace.num_pages());
    case PolicyKind::kBelady:
      return std::make_unique<Belady>(capacity_pages, trace);
    case PolicyKind::kBucketed:
      break;
  }
  if (capacity_pages % kRunFrames != 0) {
    return absl::InvalidArgumentError("capacity must be a multiple of 8 pages for bucketed, got " +
                                      std::to_string(capacity_pages));
  }
  SPINDLE_ASSIGN_OR_RETURN(std::unique_ptr<BucketedPolicy> bucketed,
                           BucketedPolicy::Create({.lru = spec.lru,
                                                   .max_frames = capacity_pages,
                                                   .num_pages = trace.num_pages(),
                                                   .max_step_pages = trace.max_step_pages()}));
  SPINDLE_RETURN_IF_ERROR(bucketed->Resize(capacity_pages));
  return std::unique_ptr<PagePolicy>(std::move(bucketed));
}

absl::StatusOr<HitCount> Simulate(const PolicySpec& spec,
                                  uint32_t capacity_pages,
                                  const SelectionTrace& trace) {
  SPINDLE_ASSIGN_OR_RETURN(const std::unique_ptr<PagePolicy> policy,
                           MakePagePolicy(spec, capacity_pages, trace));
  std::vector<uint8_t> is_hit(trace.max_step_pages());
  HitCount count;
  for (uint32_t step = 0; step < trace.num_steps(); ++step) {
    const std::span<const uint32_t> pages = trace.step(step);
    const uint32_t hits = policy->Step(pages, std::span(is_hit).first(pages.size()));
    if (step >= trace.warmup_steps()) {
      count += {pages.size(), hits};
    }
  }
  return count;
}

}  // namespace spindle::kv::sim
