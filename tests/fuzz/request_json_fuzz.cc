// Arbitrary bytes as the body of every JSON endpoint of serving. The first byte chooses the
// endpoint. A body that is accepted must give a request that keeps its promises.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include <nlohmann/json.hpp>

#include "unit/serving/serving_fakes.h"

namespace {

using namespace spindle::serving;  // NOLINT(google-build-using-namespace): one small file

void Require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

void CheckPrepared(const FakeService& service, const PreparedRequest& request) {
  Require(!request.prompts.empty());
  for (const auto& prompt : request.prompts) {
    Require(!prompt.empty() && prompt.size() <= service.engine->model_config().max_model_len);
    for (const spindle::TokenId id : prompt) {
      Require(id >= 0 && id < 268);
    }
  }
  Require(request.sampling.num_choices >= 1 && request.sampling.num_choices <= 128);
  Require(request.sampling.temperature >= 0.0F && request.sampling.temperature <= 2.0F);
  Require(request.sampling.max_tokens <= service.engine->model_config().max_model_len);
  Require(request.sampling.min_tokens <= request.sampling.max_tokens);
  Require(request.stop.size() <= 4 && request.ignored_fields.size() <= 16);
}

void CheckError(const ApiError& error) {
  Require(!error.code.empty() && !error.message.empty());
  // Messages and paths must be fit for a JSON answer.
  Require(!nlohmann::json(error.message).dump().empty());
  Require(!nlohmann::json(error.param.value_or("")).dump().empty());
}

void CheckAnswer(const Result<std::string>& answer) {
  if (answer.ok()) {
    Require(nlohmann::json::accept(answer.value()));
  } else {
    CheckError(answer.error());
  }
}

void PrepareAndStart(FakeService& service, Endpoint endpoint, std::string_view body) {
  const Result<PreparedRequest> result = service.Prepare(endpoint, body);
  if (!result.ok()) {
    CheckError(result.error());
    return;
  }
  CheckPrepared(service, result.value());
  Require(service.api.Start(result.value(), service.caller).ok());
  service.engine->requests.clear();
  service.engine->streams.clear();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static FakeService& service = *new FakeService([] {
    ServingOptions options;
    options.trust_request_chat_template = true;
    return options;
  }());
  if (size == 0) {
    return 0;
  }
  // An exactly sized copy, so that a read past the end is seen.
  const size_t length = size - 1;
  const auto copy = std::make_unique<char[]>(length);
  for (size_t i = 0; i < length; ++i) {
    copy[i] = static_cast<char>(data[i + 1]);
  }
  const std::string_view body(copy.get(), length);
  switch (data[0] % 6) {
    case 0:
      CheckAnswer(service.api.Tokenize(body));
      break;
    case 1:
      CheckAnswer(service.api.Detokenize(body));
      break;
    case 2:
      CheckAnswer(service.api.ApplyTemplate(body, /*render=*/true));
      break;
    case 3:
      PrepareAndStart(service, Endpoint::kCompletions, body);
      break;
    default:
      PrepareAndStart(service, Endpoint::kChat, body);
  }
  return 0;
}
