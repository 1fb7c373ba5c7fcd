// `spindle kv ls | stat | fsck | gc`: looks at the folder of the disk tier and repairs it.
// Thread-safety: call from one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace spindle::cli {

struct KvToolOptions {
  enum class Action : uint8_t {
    kList,   // the stores of a folder; works beside a running server
    kStat,   // what each holds; works beside a running server
    kCheck,  // reads and verifies every record
    kCollect,
  };

  Action action = Action::kList;
  std::string directory = {};  // the root given to the server, or one store in it
  bool json = false;
  bool repair = false;        // kCheck: write a new index; no server may use the store
  uint64_t target_bytes = 0;  // kCollect: drop the oldest until each store has at most this; 0 =
                              // only what is 20 % live or less
};

// Prints to standard output; `progress` gets fractions in [0, 1] while kCheck reads.
// ERRORS: kNotFound (no store there), kDataLoss (kCheck found damage and did not repair it),
// kFailedPrecondition (a server uses the store), kResourceExhausted (kCollect: more than the target
// is left, which saved sessions need), those of the file layer.
absl::Status KvTool(const KvToolOptions& options, const std::function<void(double)>& progress);

}  // namespace spindle::cli
