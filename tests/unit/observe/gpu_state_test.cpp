// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/gpu_state.hpp"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace {

namespace st = saturate;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

constexpr const char* fake = SATURATE_FAKE_NVML;  // tests/programs/fake_nvml.cpp

/// What the fake library does wrong while the object lives.
class Wrong {
 public:
  explicit Wrong(const char* what) { ::setenv("FAKE_NVML", what, 1); }
  ~Wrong() { ::unsetenv("FAKE_NVML"); }
  Wrong(const Wrong&) = delete;
  Wrong& operator=(const Wrong&) = delete;
};

}  // namespace

TEST_CASE("gpu_state: every value, in the units it promises") {
  const st::GpuStates states = st::read_gpu_states(fake);
  CHECK(states.available);
  CHECK(states.about == "driver 580.65.06");
  REQUIRE(states.gpus.size() == 2);
  const st::GpuState& gpu = states.gpus[0];
  CHECK(gpu.name == "NVIDIA H100 80GB HBM3");
  CHECK(gpu.pci_address == "0000:3b:00.0");
  CHECK(gpu.busy.value() == Approx(0.97));
  CHECK(gpu.memory_busy.value() == Approx(0.41));
  CHECK(gpu.memory_used_bytes.value() == int64_t{60} << 30);
  CHECK(gpu.memory_total_bytes.value() == int64_t{80} << 30);
  CHECK(gpu.sm_clock_mhz.value() == 1410);
  CHECK(gpu.max_sm_clock_mhz.value() == 1981);
  CHECK(gpu.memory_clock_mhz.value() == 2619);
  CHECK(gpu.max_memory_clock_mhz.value() == 2620);
  CHECK(gpu.temperature_celsius.value() == 71);
  CHECK(gpu.power_watts.value() == Approx(699.5));
  CHECK(gpu.power_limit_watts.value() == Approx(700));
  CHECK((gpu.throttle_reasons == std::vector<std::string>{"power cap", "thermal slowdown (driver)"}));
  CHECK_FALSE(gpu.idle);
  CHECK(gpu.errors.empty());
  CHECK(states.gpus[1].idle);
  CHECK(states.gpus[1].throttle_reasons.empty());
  CHECK_THAT(states.table(), ContainsSubstring("slowed by: power cap and thermal slowdown (driver)") &&
                                 ContainsSubstring("busy 97 %, memory 60.0 of 80.0 GiB, clock 1410 of 1981 MHz"));
  if (states.cuda(0) != nullptr) CHECK(states.cuda(0)->pci_address == gpu.pci_address);  // without CUDA: not known
}

TEST_CASE("gpu_state: without a driver it says so, and never throws") {
  for (const char* library : {"libsaturate-no-such-library.so.1", "/etc/hostname"}) {
    const st::GpuStates states = st::read_gpu_states(library);
    CHECK_FALSE(states.available);
    CHECK(states.gpus.empty());
    CHECK(states.about == std::string("no ") + library + ": it is not there");
    CHECK(states.table() == states.about + "\n");
    CHECK(states.cuda(0) == nullptr);
  }
  // A library, but another one.
  CHECK(st::read_gpu_states("libm.so.6").about == "no libm.so.6: functions are missing in it");
}

TEST_CASE("gpu_state: errors of the library are told") {
  {
    const Wrong start("start");
    CHECK(st::read_gpu_states(fake).about == std::string("no ") + fake + ": it does not start: error 9");
  }
  {
    const Wrong count("count");
    const auto states = st::read_gpu_states(fake);
    CHECK_FALSE(states.available);
    CHECK(states.about == "driver 580.65.06, whose GPUs cannot be counted: GPU is lost");
  }
  const Wrong lost("lost");
  const auto states = st::read_gpu_states(fake);
  REQUIRE(states.gpus.size() == 2);
  CHECK(states.gpus[0].errors.empty());
  CHECK(states.gpus[0].temperature_celsius.value() == 71);
  CHECK_FALSE(states.gpus[1].temperature_celsius);
  CHECK_FALSE(states.gpus[1].busy);
  CHECK_THAT(states.gpus[1].errors.front(), ContainsSubstring("GPU is lost"));
}

TEST_CASE("gpu_state: what a device does not support is left out, and is no error") {
  const Wrong old("old");
  const auto states = st::read_gpu_states(fake);
  REQUIRE(states.gpus.size() == 2);
  const st::GpuState& gpu = states.gpus[0];
  CHECK_FALSE(gpu.busy);
  CHECK_FALSE(gpu.power_limit_watts);
  CHECK(gpu.throttle_reasons.empty());
  CHECK(gpu.errors.empty());
  CHECK(gpu.power_watts.value() == Approx(699.5));
  CHECK_THAT(states.table(), ContainsSubstring("busy ?"));
}

TEST_CASE("gpu_state: the environment names the library; a monitor keeps it open and lets it go") {
  ::setenv("SATURATE_NVML", fake, 1);
  CHECK(st::read_gpu_states().gpus.size() == 2);
  void* const library = ::dlopen(fake, RTLD_NOW | RTLD_LOCAL);
  const auto users = reinterpret_cast<int (*)()>(::dlsym(library, "fake_nvml_users"));
  CHECK(users() == 0);
  {
    st::GpuMonitor monitor;
    CHECK(users() == 1);
    const st::GpuMonitor moved = std::move(monitor);
    CHECK(moved.read().gpus.size() == 2);
    CHECK(moved.read().gpus.size() == 2);
    CHECK(users() == 1);
  }
  CHECK(users() == 0);
  ::dlclose(library);
  ::unsetenv("SATURATE_NVML");
}
