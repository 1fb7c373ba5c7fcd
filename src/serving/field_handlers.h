// The handlers behind the rule lists of request_parser.cc, one per request field, grouped by the
// file that has them. Handlers get values that are not null. Thread-safety: pure functions over the
// context.
#pragma once

#include "serving/request_fields.h"

namespace spindle::serving {

// --- standard fields: standard_fields.cc
MaybeError ReadMaxTokens(JsonValue value, const FieldContext& context);
MaybeError ReadMaxCompletionTokens(JsonValue value, const FieldContext& context);
MaybeError ReadTemperature(JsonValue value, const FieldContext& context);
MaybeError ReadTopP(JsonValue value, const FieldContext& context);
MaybeError ReadN(JsonValue value, const FieldContext& context);
MaybeError ReadStop(JsonValue value, const FieldContext& context);
MaybeError ReadSeed(JsonValue value, const FieldContext& context);
MaybeError ReadPresencePenalty(JsonValue value, const FieldContext& context);
MaybeError ReadFrequencyPenalty(JsonValue value, const FieldContext& context);
MaybeError ReadLogitBias(JsonValue value, const FieldContext& context);
MaybeError ReadChatLogprobs(JsonValue value, const FieldContext& context);
MaybeError ReadTopLogprobs(JsonValue value, const FieldContext& context);
MaybeError ReadStream(JsonValue value, const FieldContext& context);
MaybeError ReadStreamOptions(JsonValue value, const FieldContext& context);

// --- fields that are checked and then change little: informational_fields.cc
MaybeError ReadResponseFormat(JsonValue value, const FieldContext& context);
MaybeError ReadTools(JsonValue value, const FieldContext& context);
MaybeError ReadToolChoice(JsonValue value, const FieldContext& context);
MaybeError ReadParallelToolCalls(JsonValue value, const FieldContext& context);
MaybeError ReadReasoningEffort(JsonValue value, const FieldContext& context);
MaybeError ReadVerbosity(JsonValue value, const FieldContext& context);
MaybeError ReadPrediction(JsonValue value, const FieldContext& context);
MaybeError ReadMetadata(JsonValue value, const FieldContext& context);
MaybeError ReadUser(JsonValue value, const FieldContext& context);
MaybeError ReadSafetyIdentifier(JsonValue value, const FieldContext& context);
MaybeError ReadServiceTier(JsonValue value, const FieldContext& context);
MaybeError ReadStore(JsonValue value, const FieldContext& context);
MaybeError ReadPromptCacheKey(JsonValue value, const FieldContext& context);
MaybeError AcceptAnything(JsonValue value, const FieldContext& context);
MaybeError ReadModalities(JsonValue value, const FieldContext& context);
MaybeError RefuseAudio(JsonValue value, const FieldContext& context);
MaybeError RefuseWebSearch(JsonValue value, const FieldContext& context);
MaybeError RefuseFunctions(JsonValue value, const FieldContext& context);
MaybeError RefuseFunctionCall(JsonValue value, const FieldContext& context);

// --- extra fields: extra_fields.cc
MaybeError ReadTopK(JsonValue value, const FieldContext& context);
MaybeError ReadMinP(JsonValue value, const FieldContext& context);
MaybeError ReadRepetitionPenalty(JsonValue value, const FieldContext& context);
MaybeError ReadRepeatPenalty(JsonValue value, const FieldContext& context);
MaybeError ReadTypicalP(JsonValue value, const FieldContext& context);
MaybeError ReadMinTokens(JsonValue value, const FieldContext& context);
MaybeError ReadStopTokenIds(JsonValue value, const FieldContext& context);
MaybeError ReadIgnoreEos(JsonValue value, const FieldContext& context);
MaybeError ReadIncludeStop(JsonValue value, const FieldContext& context);
MaybeError ReadSkipSpecialTokens(JsonValue value, const FieldContext& context);
MaybeError ReadBadWords(JsonValue value, const FieldContext& context);
MaybeError ReadAllowedTokenIds(JsonValue value, const FieldContext& context);
MaybeError ReadTruncatePromptTokens(JsonValue value, const FieldContext& context);
MaybeError ReadAddGenerationPrompt(JsonValue value, const FieldContext& context);
MaybeError ReadContinueFinalMessage(JsonValue value, const FieldContext& context);
MaybeError ReadChatTemplateKwargs(JsonValue value, const FieldContext& context);
MaybeError ReadChatTemplate(JsonValue value, const FieldContext& context);
MaybeError ReadReturnTokenIds(JsonValue value, const FieldContext& context);
MaybeError ReadCacheSalt(JsonValue value, const FieldContext& context);
MaybeError ReadCachePrompt(JsonValue value, const FieldContext& context);
MaybeError ReadPriority(JsonValue value, const FieldContext& context);
MaybeError ReadRequestId(JsonValue value, const FieldContext& context);
MaybeError RefuseStructuredOutputs(JsonValue value, const FieldContext& context);
MaybeError RefuseGrammar(JsonValue value, const FieldContext& context);
MaybeError RefuseJsonSchema(JsonValue value, const FieldContext& context);
MaybeError RefuseAdapter(JsonValue value, const FieldContext& context);

// --- the `spindle` object: spindle_fields.cc
MaybeError ReadSpindle(JsonValue value, const FieldContext& context);

// --- completions only: completion_request.cc
MaybeError ReadPrompt(JsonValue value, const FieldContext& context);
MaybeError PromptMissing(const FieldContext& context);
MaybeError ReadCompletionLogprobs(JsonValue value, const FieldContext& context);
MaybeError ReadEcho(JsonValue value, const FieldContext& context);
MaybeError ReadSuffix(JsonValue value, const FieldContext& context);
MaybeError ReadBestOf(JsonValue value, const FieldContext& context);
MaybeError ReadAddSpecialTokens(JsonValue value, const FieldContext& context);
MaybeError RefuseChatTools(JsonValue value, const FieldContext& context);
MaybeError RefuseChatToolChoice(JsonValue value, const FieldContext& context);
MaybeError RefuseChatTopLogprobs(JsonValue value, const FieldContext& context);

// --- chat only: chat_request.cc
MaybeError ReadMessages(JsonValue value, const FieldContext& context);
MaybeError MessagesMissing(const FieldContext& context);

}  // namespace spindle::serving
