#include "serving/engine_backend.h"

#include <utility>

namespace spindle::serving {
namespace {

class RealBackend final : public EngineBackend {
 public:
  explicit RealBackend(std::unique_ptr<engine::Engine> engine) : engine_(std::move(engine)) {}

  [[nodiscard]] const model::ModelConfig& model_config() const override {
    return engine_->model_config();
  }

  [[nodiscard]] const Digest& model_fingerprint() const override {
    return engine_->model_fingerprint();
  }

  [[nodiscard]] const kv::KvGeometry& kv_geometry() const override {
    return engine_->kv_geometry();
  }

  [[nodiscard]] bool keeps_sessions() const override { return engine_->keeps_sessions(); }

  [[nodiscard]] engine::SubmitResult Submit(engine::EngineRequest request) override {
    return engine_->Submit(std::move(request));
  }

  [[nodiscard]] engine::EngineLoad Load() const override { return engine_->Load(); }

  void BeginDrain() override { engine_->BeginDrain(); }

  void Shutdown(TimePoint deadline) override { engine_->Shutdown(deadline); }

 private:
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace

std::unique_ptr<EngineBackend> WrapEngine(std::unique_ptr<engine::Engine> engine) {
  return std::make_unique<RealBackend>(std::move(engine));
}

}  // namespace spindle::serving
