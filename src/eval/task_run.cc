#include "eval/task_run.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/status_macros.h"
#include "eval/logit_metrics.h"
#include "eval/policy_forks.h"
#include "eval/statistics.h"

namespace spindle::eval {
namespace {

constexpr double kSolvedShare = 0.4;
constexpr double kSolvedNats = 0.5;
// Behind the gold answer's length, for answers that begin with other words.
constexpr size_t kExtraTokens = 6;
// Of a sequence in one step.
constexpr size_t kMostRows = 64;
static_assert(kMostRows <= EvalModel::kChunkRows);

using Policies = std::span<const EvalPolicy* const>;

// Sequences that go on together, each under its policy.
class Decoding {
 public:
  Decoding(EvalModel& model, Policies policies, const std::vector<SequenceId>& sequences)
      : model_(model), policies_(policies), sequences_(sequences) {}

  // Forks of another one's sequences, which go their own way from here.
  Decoding(const Decoding& from, const std::vector<SequenceId>& forks)
      : model_(from.model_), policies_(from.policies_), sequences_(forks), logits_(from.logits_) {}

  // The same tokens for all.
  absl::Status AppendAll(std::span<const TokenId> tokens) {
    for (size_t begin = 0; begin < tokens.size(); begin += kMostRows) {
      const std::vector<std::span<const TokenId>> parts(
          sequences_.size(), tokens.subspan(begin, std::min(kMostRows, tokens.size() - begin)));
      SPINDLE_RETURN_IF_ERROR(Append(parts));
    }
    return absl::OkStatus();
  }

  // Equally many for each; as many sequences per step as fit.
  absl::Status Append(std::span<const std::span<const TokenId>> tokens) {
    const size_t vocab = model_.config().vocab_size;
    const size_t per_step = EvalModel::kChunkRows / tokens.front().size();
    logits_.resize(sequences_.size() * vocab);
    for (size_t begin = 0; begin < sequences_.size(); begin += per_step) {
      std::vector<Continuation> step;
      for (size_t i = begin; i < std::min(begin + per_step, sequences_.size()); ++i) {
        step.push_back({sequences_[i], tokens[i], policies_[i]->policy.get()});
      }
      SPINDLE_ASSIGN_OR_RETURN(const std::span<const float> logits, model_.Append(step));
      std::copy(
          logits.begin(), logits.end(), logits_.begin() + static_cast<ptrdiff_t>(begin * vocab));
    }
    return absl::OkStatus();
  }

  [[nodiscard]] LogitRow Row(size_t i) const {
    const size_t vocab = model_.config().vocab_size;
    return ReadLogits(std::span(logits_).subspan(i * vocab, vocab));
  }

 private:
  EvalModel& model_;
  const Policies policies_;
  const std::vector<SequenceId>& sequences_;
  std::vector<float> logits_;  // [sequences][vocab]
};

// The gold answer, token by token, whatever the policies would say.
absl::Status ForceAnswer(Decoding& decoding,
                         std::span<const TokenId> answer,
                         std::span<SampleScore> scores) {
  for (size_t i = 0; i < answer.size(); ++i) {
    for (size_t p = 0; p < scores.size(); ++p) {
      const LogitRow row = decoding.Row(p);
      const auto length = static_cast<double>(answer.size());
      scores[p].nll += NegativeLogLikelihood(row, answer[i]) / length;
      scores[p].token_accuracy += row.top.front() == answer[i] ? 1 / length : 0;
    }
    if (i + 1 < answer.size()) {
      SPINDLE_RETURN_IF_ERROR(decoding.AppendAll(answer.subspan(i, 1)));
    }
  }
  return absl::OkStatus();
}

// What each policy says by itself.
absl::StatusOr<std::vector<std::string>> AnswerFreely(Decoding& decoding,
                                                      const text::Tokenizer& tokenizer,
                                                      size_t num_policies,
                                                      size_t num_tokens) {
  std::vector<std::vector<TokenId>> answers(num_policies);
  for (size_t i = 0; i < num_tokens; ++i) {
    std::vector<std::span<const TokenId>> next;
    for (size_t p = 0; p < num_policies; ++p) {
      answers[p].reserve(num_tokens);  // spans stay valid
      answers[p].push_back(decoding.Row(p).top.front());
      next.push_back(std::span(answers[p]).last(1));
    }
    if (i + 1 < num_tokens) {
      SPINDLE_RETURN_IF_ERROR(decoding.Append(next));
    }
  }
  std::vector<std::string> texts;
  for (const std::vector<TokenId>& answer : answers) {
    SPINDLE_ASSIGN_OR_RETURN(std::string text, tokenizer.Decode(answer, /*skip_special=*/true));
    texts.push_back(std::move(text));
  }
  return texts;
}

struct SampleTokens {
  std::vector<TokenId> context;
  std::vector<TokenId> control;
  std::vector<TokenId> question;
  std::vector<TokenId> answer;
};

absl::StatusOr<SampleTokens> Encode(const text::Tokenizer& tokenizer, const TaskSample& sample) {
  constexpr text::EncodeOptions kBeginning = {.add_special = true, .parse_special = false};
  constexpr text::EncodeOptions kMiddle = {.add_special = false, .parse_special = false};
  SampleTokens tokens;
  SPINDLE_ASSIGN_OR_RETURN(tokens.context, tokenizer.Encode(sample.context, kBeginning));
  SPINDLE_ASSIGN_OR_RETURN(tokens.control, tokenizer.Encode(sample.control, kBeginning));
  SPINDLE_ASSIGN_OR_RETURN(tokens.question, tokenizer.Encode(sample.question, kMiddle));
  SPINDLE_ASSIGN_OR_RETURN(tokens.answer, tokenizer.Encode(sample.answer, kMiddle));
  return tokens;
}

// Forks that hold the context without its generated part.
absl::StatusOr<ForkGroup> ForkContext(EvalModel& model,
                                      Policies policies,
                                      std::span<const TokenId> context,
                                      size_t num_generated) {
  return ForkPolicies(model, policies, context.first(context.size() - num_generated));
}

absl::StatusOr<std::vector<SampleScore>> ScorePolicies(EvalModel& model,
                                                       const text::Tokenizer& tokenizer,
                                                       Policies policies,
                                                       const TaskSample& sample,
                                                       const SampleTokens& tokens,
                                                       size_t num_generated) {
  const std::span<const TokenId> context = tokens.context;
  SPINDLE_ASSIGN_OR_RETURN(const ForkGroup forced,
                           ForkContext(model, policies, context, num_generated));
  Decoding forcing(model, policies, forced.forks());
  SPINDLE_RETURN_IF_ERROR(forcing.AppendAll(context.last(num_generated)));
  SPINDLE_RETURN_IF_ERROR(forcing.AppendAll(tokens.question));

  SPINDLE_ASSIGN_OR_RETURN(const ForkGroup free, ForkGroup::Create(model, forced.forks()));
  Decoding answering(forcing, free.forks());
  std::vector<SampleScore> scores(policies.size());
  SPINDLE_RETURN_IF_ERROR(ForceAnswer(forcing, tokens.answer, scores));
  SPINDLE_ASSIGN_OR_RETURN(
      const std::vector<std::string> answers,
      AnswerFreely(answering, tokenizer, policies.size(), tokens.answer.size() + kExtraTokens));
  for (size_t p = 0; p < policies.size(); ++p) {
    scores[p].string_score = StringScore(answers[p], sample.references);
  }
  return scores;
}

absl::StatusOr<double> ControlNll(EvalModel& model, Policies policies, const SampleTokens& tokens) {
  SPINDLE_ASSIGN_OR_RETURN(const ForkGroup group,
                           ForkContext(model, policies.first(1), tokens.control, 0));
  Decoding decoding(model, policies.first(1), group.forks());
  SPINDLE_RETURN_IF_ERROR(decoding.AppendAll(tokens.question));
  SampleScore score;
  SPINDLE_RETURN_IF_ERROR(ForceAnswer(decoding, tokens.answer, {&score, 1}));
  return score.nll;
}

TaskRequest RequestOf(const TaskOptions& options, uint32_t context_tokens, uint32_t sample) {
  // The question is no part of what is decoded before it.
  return {.num_tokens = context_tokens,
          .sample = sample,
          .num_samples = options.num_samples,
          .seed = options.seed,
          .tail_tokens = options.generated_tokens};
}

absl::Status RunSample(EvalModel& model,
                       const text::Tokenizer& tokenizer,
                       Policies policies,
                       const TaskSample& sample,
                       size_t num_generated,
                       TaskCell& cell) {
  SPINDLE_ASSIGN_OR_RETURN(const SampleTokens tokens, Encode(tokenizer, sample));
  SPINDLE_ASSIGN_OR_RETURN(const double control, ControlNll(model, policies, tokens));
  SPINDLE_ASSIGN_OR_RETURN(
      const std::vector<SampleScore> scores,
      ScorePolicies(model, tokenizer, policies, sample, tokens, num_generated));
  cell.control_nll.push_back(control);
  for (size_t p = 0; p < policies.size(); ++p) {
    cell.policies[p].push_back(scores[p]);
  }
  return absl::OkStatus();
}

}  // namespace

double TaskCell::MeanNll(size_t policy) const {
  double sum = 0;
  for (const SampleScore& score : policies[policy]) {
    sum += score.nll;
  }
  return sum / static_cast<double>(policies[policy].size());
}

double TaskCell::MeanControlNll() const {
  return Mean(control_nll);
}

double TaskCell::MeanString(size_t policy) const {
  double sum = 0;
  for (const SampleScore& score : policies[policy]) {
    sum += score.string_score;
  }
  return sum / static_cast<double>(policies[policy].size());
}

double TaskCell::Retention(size_t policy) const {
  const double control = MeanControlNll();
  return (control - MeanNll(policy)) / (control - MeanNll(0));
}

bool TaskCell::IsAdmissible() const {
  return MeanControlNll() > MeanNll(0) &&
         (MeanString(0) >= kSolvedShare || MeanControlNll() - MeanNll(0) >= kSolvedNats);
}

absl::Status CheckTaskOptions(const TaskOptions& options, uint32_t context_tokens) {
  for (const TaskFamily* family : options.families) {
    if (options.generated_tokens > 0 && family->min_tail_tokens == 0) {
      return absl::InvalidArgumentError(fmt::format(
          "--tasks {} asks for what is all over the context: not with --generated", family->name));
    }
    if (options.generated_tokens > 0 && options.generated_tokens < family->min_tail_tokens) {
      return absl::InvalidArgumentError(
          fmt::format("--tasks {} needs --generated of 0 or at least {}, got {}",
                      family->name,
                      family->min_tail_tokens,
                      options.generated_tokens));
    }
    if (context_tokens < family->min_tokens + options.generated_tokens) {
      return absl::InvalidArgumentError(
          fmt::format("--tasks {} needs --context of at least {}, got {}",
                      family->name,
                      family->min_tokens + options.generated_tokens,
                      context_tokens));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TaskCell>> RunTasks(EvalModel& model,
                                               const text::Tokenizer& tokenizer,
                                               Policies policies,
                                               const TaskOptions& options,
                                               uint32_t context_tokens,
                                               const RunProgress& progress) {
  SPINDLE_RETURN_IF_ERROR(CheckTaskOptions(options, context_tokens));
  std::vector<TaskCell> cells;
  absl::Status encoding = absl::OkStatus();
  const TokenCounter count = [&](const std::string& text) {
    const auto tokens = tokenizer.Encode(text, {.add_special = false, .parse_special = false});
    encoding.Update(tokens.status());
    return tokens.ok() ? static_cast<uint32_t>(tokens->size()) : 1U;
  };
  const size_t num_runs = options.families.size() * options.num_samples;
  size_t done = 0;
  for (const TaskFamily* family : options.families) {
    TaskCell& cell = cells.emplace_back();
    cell.family = family->name;
    cell.context_tokens = context_tokens;
    cell.policies.resize(policies.size());
    for (uint32_t i = 0; i < options.num_samples; ++i) {
      const TaskSample sample = family->generate(RequestOf(options, context_tokens, i), count);
      SPINDLE_RETURN_IF_ERROR(encoding);
      SPINDLE_RETURN_IF_ERROR(
          RunSample(model, tokenizer, policies, sample, options.generated_tokens, cell));
      progress(static_cast<double>(++done) / static_cast<double>(num_runs));
    }
  }
  return cells;
}

}  // namespace spindle::eval
