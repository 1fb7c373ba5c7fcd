// The real engine and template compiler behind the service's seams. A file of its own, so that
// tests over scripted ones link neither.
#include <utility>

#include "serving/completion_service.h"
#include "serving/served_model.h"

namespace spindle::serving {

CompletionService::CompletionService(const ServingOptions& options,
                                     metrics::Registry& registry,
                                     const Clock& clock)
    : CompletionService(
          options, registry, clock, [](std::string_view source, const text::Tokenizer& tokenizer) {
            return text::ChatTemplate::Compile(
                source, tokenizer.bos_text(), tokenizer.eos_text(), tokenizer.special_texts());
          }) {}

void CompletionService::SetModel(LoadedModel model) {
  ServedModel served;
  served.real_engine = model.engine.get();
  served.engine = WrapEngine(std::move(model.engine));
  served.tokenizer = std::move(model.tokenizer);
  served.chat_template = std::move(model.chat_template);
  served.facts.temperature = model.temperature;
  served.facts.top_p = model.top_p;
  served.facts.top_k = model.top_k;
  served.algorithms = std::move(model.algorithms);
  served.kernel_name = std::move(model.kernel_name);
  served.file_bytes = model.file_bytes;
  served.num_parameters = model.num_parameters;
  served.created_unix_seconds = model.created_unix_seconds;
  SetServedModel(std::move(served));
}

}  // namespace spindle::serving
