// A LoadedModel as the service keeps it: its engine stands behind a seam.
// Thread-safety: plain value, immutable once published.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "serving/engine_backend.h"
#include "serving/request_fields.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace spindle::serving {

struct ServedModel {
  std::unique_ptr<EngineBackend> engine;
  engine::Engine* real_engine = nullptr;  // the one behind `engine`; null for a scripted one
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatTemplate> chat_template;  // null: the model has none
  ModelFacts facts;
  sparse::AlgorithmSet algorithms;  // that requests may name
  std::string kernel_name;
  uint64_t file_bytes = 0;
  uint64_t num_parameters = 0;
  int64_t created_unix_seconds = 0;
};

}  // namespace spindle::serving
