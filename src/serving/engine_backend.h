// What serving asks of the engine: a seam, so that its core runs over a scripted engine in tests.
// Thread-safety: as engine::Engine.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace spindle::serving {

class EngineBackend {
 public:
  virtual ~EngineBackend() = default;

  [[nodiscard]] virtual const model::ModelConfig& model_config() const = 0;
  [[nodiscard]] virtual const Digest& model_fingerprint() const = 0;
  [[nodiscard]] virtual const kv::KvGeometry& kv_geometry() const = 0;
  [[nodiscard]] virtual bool keeps_sessions() const = 0;
  [[nodiscard]] virtual engine::SubmitResult Submit(engine::EngineRequest request) = 0;
  [[nodiscard]] virtual engine::EngineLoad Load() const = 0;
  virtual void BeginDrain() = 0;
  virtual void Shutdown(TimePoint deadline) = 0;
};

// The real one.
[[nodiscard]] std::unique_ptr<EngineBackend> WrapEngine(std::unique_ptr<engine::Engine> engine);

}  // namespace spindle::serving
