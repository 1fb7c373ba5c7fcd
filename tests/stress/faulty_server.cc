// The server over a disk that misbehaves as a plan says; takes the arguments of `spindle`.
//
// The variable FAULT_PLAN names a JSON file. All members but "report" may be left out:
//   {"report": "faults.json", "seed": 1,
//    "rates": {"read_error": 0.03125, …, "stall_ms": 500, "spare_logs": true},
//    "disk": {"max_errors": 8, "full_pause_ms": 60000, "probe_wait_ms": 10000,
//             "max_probe_wait_ms": 600000}}
// Rates are those of tests/support/fault_files.h; "disk" sets what no option of the server does.
//
// On SIGUSR1 the rates are read again and then the report is written: the faults so far by class of
// file, and in "number" how many reports there were. One more is written at the end.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <pthread.h>
#include <signal.h>

#include "app/commands.h"
#include "base/status_macros.h"
#include "support/fault_files.h"

namespace spindle::test {
namespace {

using nlohmann::json;

struct Plan {
  std::string report;
  uint64_t seed = 1;
  FaultRates rates;
  kv::disk::DiskOptions disk;
};

Duration Milliseconds(const json& value) {
  return std::chrono::milliseconds(value.get<int64_t>());
}

struct RateField {
  const char* name;
  double FaultRates::*rate;
};

constexpr std::array<RateField, 10> kRateFields = {{
    {"read_error", &FaultRates::read_error},
    {"write_error", &FaultRates::write_error},
    {"short_read", &FaultRates::short_read},
    {"short_write", &FaultRates::short_write},
    {"no_space", &FaultRates::no_space},
    {"flip", &FaultRates::flip},
    {"read_stall", &FaultRates::read_stall},
    {"write_stall", &FaultRates::write_stall},
    {"sync_error", &FaultRates::sync_error},
    {"unlink_error", &FaultRates::unlink_error},
}};

absl::Status Unknown(const std::string& member) {
  return absl::InvalidArgumentError("fault plan: unknown member '" + member + "'");
}

absl::StatusOr<FaultRates> ParseRates(const json& members) {
  FaultRates rates;
  for (const auto& [name, value] : members.items()) {
    const auto field = std::ranges::find(kRateFields, std::string_view(name), &RateField::name);
    if (field != kRateFields.end()) {
      rates.*field->rate = value.get<double>();
    } else if (name == "stall_ms") {
      rates.stall = Milliseconds(value);
    } else if (name == "spare_logs") {
      rates.spare_logs = value.get<bool>();
    } else {
      return Unknown(name);
    }
  }
  return rates;
}

absl::StatusOr<kv::disk::DiskOptions> ParseDisk(const json& members) {
  kv::disk::DiskOptions disk;
  for (const auto& [name, value] : members.items()) {
    if (name == "max_errors") {
      disk.max_errors = value.get<uint32_t>();
    } else if (name == "full_pause_ms") {
      disk.full_pause = Milliseconds(value);
    } else if (name == "probe_wait_ms") {
      disk.probe_wait = Milliseconds(value);
    } else if (name == "max_probe_wait_ms") {
      disk.max_probe_wait = Milliseconds(value);
    } else {
      return Unknown(name);
    }
  }
  return disk;
}

absl::StatusOr<Plan> ReadPlan(const std::string& path) {
  std::ifstream file(path);
  Plan plan;
  try {
    const json members = json::parse(file);
    for (const auto& [name, value] : members.items()) {
      if (name == "report") {
        plan.report = value.get<std::string>();
      } else if (name == "seed") {
        plan.seed = value.get<uint64_t>();
      } else if (name == "rates") {
        SPINDLE_ASSIGN_OR_RETURN(plan.rates, ParseRates(value));
      } else if (name == "disk") {
        SPINDLE_ASSIGN_OR_RETURN(plan.disk, ParseDisk(value));
      } else {
        return Unknown(name);
      }
    }
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(path + ": " + error.what());
  }
  if (plan.report.empty()) {
    return absl::InvalidArgumentError(path + ": \"report\" is missing");
  }
  return plan;
}

json AsJson(const FaultCounts& counts) {
  json object;
  for (const FaultField& field : kFaultFields) {
    object[field.name] = counts.*field.count;
  }
  object["damaged_reads"] = counts.damaged_reads;
  return object;
}

// Answers SIGUSR1 on a thread of its own while it lives. Construct before other threads start, so
// that all of them leave the signal to it.
class Reporter {
 public:
  Reporter(std::string plan_path, std::string report_path, FaultFiles& files)
      : plan_path_(std::move(plan_path)), report_path_(std::move(report_path)), files_(files) {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] { Answer(); });
  }

  ~Reporter() {
    stop_ = true;
    pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
    Write({});
  }

  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

 private:
  void Answer() {
    int signal = 0;
    while (sigwait(&signals_, &signal) == 0 && !stop_) {
      json report;
      if (const absl::StatusOr<Plan> plan = ReadPlan(plan_path_); plan.ok()) {
        files_.SetRates(plan->rates);
      } else {
        report["error"] = std::string(plan.status().message());
      }
      Write(std::move(report));
    }
  }

  void Write(json report) {
    report["number"] = ++num_reports_;
    report["segments"] = AsJson(files_.counts(FileClass::kSegment));
    report["probe"] = AsJson(files_.counts(FileClass::kProbe));
    report["logs"] = AsJson(files_.counts(FileClass::kLog));
    const std::string temporary = report_path_ + ".tmp";
    std::ofstream(temporary) << report.dump(2) << "\n";
    std::filesystem::rename(temporary, report_path_);  // whole, or not there
  }

  const std::string plan_path_;
  const std::string report_path_;
  FaultFiles& files_;
  sigset_t signals_{};
  uint64_t num_reports_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

int Main(const std::vector<std::string>& arguments) {
  const char* const plan_path = std::getenv("FAULT_PLAN");
  if (plan_path == nullptr || arguments.empty() || arguments.front() != "serve") {
    std::fputs("usage: FAULT_PLAN=plan.json faulty_server serve MODEL [options]\n", stderr);
    return app::kExitUsage;
  }
  const absl::StatusOr<Plan> plan = ReadPlan(plan_path);
  if (!plan.ok()) {
    return app::Fatal(app::kExitUsage, plan.status());
  }
  FaultFiles files(kv::disk::SystemFiles(), plan->seed);
  files.SetRates(plan->rates);
  const Reporter reporter(plan_path, plan->report, files);
  return app::ServeOver({.files = files, .options = plan->disk},
                        {arguments.begin() + 1, arguments.end()});
}

}  // namespace
}  // namespace spindle::test

int main(int argc, char** argv) {
  return spindle::test::Main({argv + 1, argv + argc});
}
