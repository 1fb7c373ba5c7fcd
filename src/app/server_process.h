// The running server: front ends first, then the model in the background, then signals until the
// end. Thread-safety: call from the main thread.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "app/model_loader.h"
#include "config/serve_options.h"

namespace spindle::app {

class ServerProcess {
 public:
  // `effective`: the configuration as shown by /admin/config.
  ServerProcess(config::ServeOptions options,
                std::vector<config::EffectiveOption> effective,
                const DiskEnvironment& disk);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // Opens the ports, loads, serves, drains. Returns the exit code.
  int Run();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spindle::app
