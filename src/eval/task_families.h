// Retrieval tasks in the manner of RULER (arXiv 2404.06654), in our own words and small enough for
// small models: something is hidden in a long context and asked for at its end.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace spindle::eval {

// Tokens of a text. Sums over sentences stand for their concatenation.
using TokenCounter = std::function<uint32_t(const std::string&)>;

struct TaskRequest {
  uint32_t num_tokens = 0;  // of context and question, about: never more, at most a sentence less
  uint32_t sample = 0;      // decides depth, together with
  uint32_t num_samples = 1;
  uint64_t seed = 0;
  // What is asked for and all that follows it in the context fill at most so many tokens; 0: no
  // such bound, samples hide it at all depths.
  uint32_t tail_tokens = 0;
};

struct TaskSample {
  std::string context;   // computed densely
  std::string control;   // the same without what the answer follows from
  std::string question;  // decoded token by token under a policy
  std::string answer;    // that a perfect model goes on with
  // What an answer must contain, whatever its case.
  std::vector<std::string> references;
};

struct TaskFamily {
  std::string_view name;
  uint32_t min_tokens;  // of a request
  // Least TaskRequest::tail_tokens; 0: what is asked for is everywhere, and has no place.
  uint32_t min_tail_tokens;
  TaskSample (*generate)(const TaskRequest& request, const TokenCounter& count);
};

[[nodiscard]] std::span<const TaskFamily> TaskFamilies();

// ERRORS: kInvalidArgument naming the families there are.
[[nodiscard]] absl::StatusOr<const TaskFamily*> FindTaskFamily(std::string_view name);

// Share of the references that the answer contains.
[[nodiscard]] double StringScore(std::string_view answer, std::span<const std::string> references);

}  // namespace spindle::eval
