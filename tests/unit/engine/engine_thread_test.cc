// The engine on its own thread, with many clients and observers at once; meant for TSan.
#include <atomic>
#include <random>
#include <semaphore>
#include <thread>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "support/engine_world.h"

namespace spindle::engine {
namespace {

using std::chrono::seconds;
using testing::Client;
using testing::ExpectedTokens;
using testing::MakePrompt;
using testing::MakeRequest;

class EngineThreadTest : public ::testing::Test {
 protected:
  void Start(const EngineOptions& options, uint64_t num_stripes) {
    auto store = testing::MakeFakeStore(num_stripes);
    auto runner = std::make_unique<testing::FakeRunner>(*store, testing::FakeRunner::Options{});
    runner_ = runner.get();
    auto engine = Engine::CreateWithRunner(options,
                                           std::move(runner),
                                           {.host = std::move(store)},
                                           testing::NaiveLogitKernels(),
                                           {testing::kFakeEndToken},
                                           registry_,
                                           SteadyClock());
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = std::move(engine).value();
  }

  std::unique_ptr<Client> Submit(EngineRequest request) {
    const uint32_t num_choices = request.sampling.num_choices;
    SubmitResult result = engine_->Submit(std::move(request));
    if (std::holds_alternative<SubmitRefusal>(result)) {
      return nullptr;
    }
    return std::make_unique<Client>(std::get<std::shared_ptr<OutputStream>>(std::move(result)),
                                    num_choices);
  }

  // Reads until the end, sleeping on the ready callback.
  static void ReadToEnd(Client& client) {
    std::counting_semaphore<> ready(0);
    client.stream().SetReadyCallback([&ready] { ready.release(); });
    while (!client.done()) {
      if (client.Read() == 0) {
        ready.acquire();
      }
    }
    client.stream().SetReadyCallback({});
  }

  metrics::Registry registry_{metrics::Labels{{"model_name", "fake"}}};
  testing::FakeRunner* runner_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineThreadTest, ManyClientsAndObservers) {
  EngineOptions options;
  options.max_num_seqs = 4;
  options.max_queue_size = 12;
  options.stream_capacity_events = 8;
  Start(options, 24);
  constexpr uint32_t kClients = 6;
  constexpr uint32_t kRequests = 25;
  std::atomic<uint32_t> completed{0};
  std::atomic<uint32_t> refused{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(c);
      for (uint32_t i = 0; i < kRequests; ++i) {
        EngineRequest request = MakeRequest(MakePrompt(1 + random() % 200, random() % 3), 80);
        request.id = std::to_string(c) + "-" + std::to_string(i);
        request.sampling.temperature = 1.0F;
        request.sampling.num_choices = 1 + static_cast<uint32_t>(random() % 2);
        request.priority = static_cast<int32_t>(random() % 201) - 100;
        auto client = Submit(request);
        if (client == nullptr) {
          refused.fetch_add(1);
          continue;
        }
        const auto action = random() % 5;
        if (action == 0) {
          client->Drop();
          continue;
        }
        if (action == 1) {
          engine_->Cancel(request.id, CancelCause::kAdmin);
        }
        ReadToEnd(*client);
        if (client->received.done->status.ok()) {
          completed.fetch_add(1);
          for (uint32_t choice = 0; choice < request.sampling.num_choices; ++choice) {
            EXPECT_EQ(client->received.tokens[choice],
                      ExpectedTokens(request.prompt, request.sampling, choice));
          }
        }
      }
    });
  }
  std::thread observer([&] {
    while (!stop.load()) {
      EXPECT_LE(engine_->Load().running, 4U);
      for (const ActiveRequest& active : engine_->ActiveRequests()) {
        EXPECT_FALSE(active.id.empty());
      }
      static_cast<void>(registry_.Expose(false));
      engine_->ResetPrefixCache();
      const absl::Status status = engine_->CheckIntegrity();
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_LT(engine_->SinceLastTick(), seconds(60));
    }
  });
  for (std::thread& client : clients) {
    client.join();
  }
  stop.store(true);
  observer.join();
  EXPECT_GT(completed.load(), 40U);
  engine_->BeginDrain();
  engine_->Shutdown(SteadyClock().Now() + seconds(60));
  EXPECT_TRUE(engine_->ActiveRequests().empty());
  EXPECT_EQ(engine_->Load().kv.owned_stripes, 0U);
  EXPECT_TRUE(engine_->CheckIntegrity().ok());
}

TEST_F(EngineThreadTest, ShutdownEndsWhatIsLeftAndRefusesTheRest) {
  Start({}, 256);
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t i = 0; i < 20; ++i) {
    EngineRequest request = MakeRequest(MakePrompt(20, i), 4000);
    request.sampling.ignore_eos = true;
    request.id = std::to_string(i);
    clients.push_back(Submit(request));
    ASSERT_NE(clients.back(), nullptr);
  }
  engine_->Shutdown(SteadyClock().Now());
  for (const auto& client : clients) {
    client->Read();
    ASSERT_TRUE(client->done());
    EXPECT_EQ(client->received.done->cause, EndCause::kShutdown);
    EXPECT_EQ(client->received.done->status.code(), absl::StatusCode::kUnavailable);
  }
  const SubmitResult late = engine_->Submit(MakeRequest(MakePrompt(5, 1), 5));
  ASSERT_TRUE(std::holds_alternative<SubmitRefusal>(late));
  EXPECT_EQ(std::get<SubmitRefusal>(late).kind, SubmitRefusal::Kind::kShuttingDown);
}

TEST_F(EngineThreadTest, DrainFinishesAcceptedRequests) {
  Start({}, 256);
  const EngineRequest request = MakeRequest(MakePrompt(20, 1), 60);
  auto client = Submit(request);
  engine_->BeginDrain();
  EXPECT_EQ(Submit(request), nullptr);
  ReadToEnd(*client);
  EXPECT_TRUE(client->received.done->status.ok());
  engine_->Shutdown(SteadyClock().Now() + seconds(60));
}

TEST_F(EngineThreadTest, StreamOutlivesTheEngine) {
  Start({}, 256);
  EngineRequest request = MakeRequest(MakePrompt(20, 1), 4000);
  request.sampling.ignore_eos = true;
  auto client = Submit(request);
  engine_.reset();
  client->stream().Cancel(CancelCause::kAdmin);
  client->Read();
  ASSERT_TRUE(client->done());
  EXPECT_EQ(client->received.done->cause, EndCause::kShutdown);
}

TEST_F(EngineThreadTest, RefusesBadOptionsByName) {
  EngineOptions options;
  options.max_num_seqs = 0;
  auto store = testing::MakeFakeStore(8);
  auto runner = std::make_unique<testing::FakeRunner>(*store, testing::FakeRunner::Options{});
  const auto engine = Engine::CreateWithRunner(options,
                                               std::move(runner),
                                               {.host = std::move(store)},
                                               testing::NaiveLogitKernels(),
                                               {},
                                               registry_,
                                               SteadyClock());
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(engine.status().message().find("max_num_seqs"), std::string_view::npos);
}

}  // namespace
}  // namespace spindle::engine
