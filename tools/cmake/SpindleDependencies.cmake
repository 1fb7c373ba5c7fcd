# Everything comes from Debian packages (tools/setup.sh installs them); nothing is fetched here.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(yaml-cpp CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(Boost 1.74 REQUIRED)

find_package(PkgConfig REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(LIBEDIT REQUIRED IMPORTED_TARGET libedit)

if(SPINDLE_GRPC)
  find_package(Protobuf REQUIRED) # 3.21 ships no config file in Debian 12
  find_package(gRPC CONFIG REQUIRED)
endif()
if(SPINDLE_TESTS)
  find_package(GTest CONFIG REQUIRED)
endif()
if(SPINDLE_BENCH)
  find_package(benchmark CONFIG REQUIRED)
endif()

find_program(SPINDLE_CARGO NAMES cargo REQUIRED HINTS "$ENV{HOME}/.cargo/bin" /usr/bin)
