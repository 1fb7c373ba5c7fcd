// Every memory bound the server will hold, summed before anything is taken. A new bound is one Add
// in PlanServing. Thread-safety: plain value and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "config/load_options.h"
#include "kv/kv_geometry.h"
#include "model/model_config.h"
#include "server/grpc/grpc_options.h"
#include "server/http/http_options.h"
#include "serving/serving_options.h"
#include "sparse/algorithm_set.h"

namespace spindle::config {

struct MemoryPart {
  std::string name;
  uint64_t bytes;
  std::string option;  // what makes it smaller; empty: nothing
};

class MemoryPlan {
 public:
  void Add(std::string name, uint64_t bytes, std::string option = "") {
    parts_.push_back({std::move(name), bytes, std::move(option)});
  }

  [[nodiscard]] uint64_t total_bytes() const;

  [[nodiscard]] const std::vector<MemoryPart>& parts() const { return parts_; }

  // What of `available_bytes` may be planned: 95 %.
  [[nodiscard]] static uint64_t LimitOf(uint64_t available_bytes) {
    return available_bytes / 100 * 95;
  }

  // `available_bytes`: of the host or its cgroup before any part was taken.
  // ERRORS: kResourceExhausted when the sum passes LimitOf, with the parts, largest first, and the
  // options that make them smaller.
  [[nodiscard]] absl::Status Check(uint64_t available_bytes) const;

 private:
  std::vector<MemoryPart> parts_;
};

// What the front ends hold.
struct FrontEndOptions {
  server::HttpOptions http;
  server::GrpcOptions grpc;
  uint64_t answer_memory_bytes = serving::ServingOptions().answer_memory_bytes;
  uint32_t max_choices = serving::ServingOptions().max_n;
};

// Shape of the KV of a model under the options.
[[nodiscard]] kv::KvGeometry GeometryOf(const LoadOptions& options,
                                        const model::ModelConfig& model);

// --kv-host-bytes or its default: min(25 % of RAM, what all sequences at full length need), whole
// stripes, at least two.
[[nodiscard]] uint64_t ResolveHostBytes(const LoadOptions& options,
                                        const model::ModelConfig& model,
                                        uint64_t total_memory_bytes);

// Of the fast tier; 0 in the mode that has none.
[[nodiscard]] uint64_t ResolveFastBytes(const LoadOptions& options,
                                        const model::ModelConfig& model,
                                        uint64_t total_memory_bytes);

// Bound of its tables: directories of all sequences at full length, leaves and run tables of all
// frames, twice, for slack.
[[nodiscard]] uint64_t FastMetadataBytes(const LoadOptions& options,
                                         const model::ModelConfig& model,
                                         uint64_t fast_bytes);

// All bounds of serving `model` with `weight_bytes` of weights. `front_ends` null: none (chat).
// `algorithms`: those that requests may name.
[[nodiscard]] MemoryPlan PlanServing(const LoadOptions& options,
                                     const model::ModelConfig& model,
                                     uint64_t weight_bytes,
                                     uint64_t total_memory_bytes,
                                     const FrontEndOptions* front_ends,
                                     const sparse::AlgorithmSet& algorithms);

// "1.5 GiB".
[[nodiscard]] std::string HumanBytes(uint64_t bytes);

}  // namespace spindle::config
