// Everything `spindle serve` can be told.
// Thread-safety: plain value.
#pragma once

#include <string>
#include <vector>

#include "base/log_options.h"
#include "config/load_options.h"
#include "config/option_table.h"
#include "server/common/api_keys.h"
#include "server/grpc/grpc_options.h"
#include "server/http/http_options.h"
#include "serving/serving_options.h"

namespace spindle::config {

struct ServeOptions {
  LoadOptions load;
  serving::ServingOptions serving;
  server::HttpOptions http;
  server::GrpcOptions grpc;
  server::ApiKeyOptions keys;
  log::Options log;
  Duration shutdown_timeout = std::chrono::seconds(30);
  std::string config_file;
};

// Adds all flags with llama.cpp's and vLLM's spellings. Fields are borrowed.
void AddServeOptions(OptionTable& table, ServeOptions& options);

// Fills what follows from other options (served name from the model's file name, limits in the
// model listing, shared TLS files and timeouts). ERRORS: kInvalidArgument naming the option.
absl::Status FinishServeOptions(ServeOptions* options);

}  // namespace spindle::config
