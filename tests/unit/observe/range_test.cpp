// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/range.hpp"

#include <ATen/record_function.h>
#include <torch/csrc/profiler/stubs/base.h>
#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "saturate/observe/memory_meter.hpp"
#include "saturate/observe/op_counter.hpp"

namespace st = saturate;

namespace {

// What an observer of user scopes sees, begin and end.
struct Seen {
  std::vector<std::string> log;
  at::CallbackHandle handle;

  Seen() {
    current = this;
    handle =
        at::addThreadLocalCallback(at::RecordFunctionCallback(
                                       [](const at::RecordFunction& range) -> std::unique_ptr<at::ObserverContext> {
                                         current->log.push_back(std::string("+") + range.name());
                                         return nullptr;
                                       },
                                       [](const at::RecordFunction& range, at::ObserverContext*) {
                                         current->log.push_back(std::string("-") + range.name());
                                       })
                                       .scopes({at::RecordScope::USER_SCOPE}));
  }
  ~Seen() { at::removeCallback(handle); }

  inline static thread_local Seen* current = nullptr;
};

// Takes the place of LibTorch's way to NVTX.
struct FakeNvtx final : torch::profiler::impl::ProfilerStubs {
  explicit FakeNvtx(bool is_there) : is_there(is_there), before(torch::profiler::impl::cudaStubs()) {
    torch::profiler::impl::registerCUDAMethods(this);
    st::Range::set_nvtx(true);
  }
  ~FakeNvtx() override {
    st::Range::set_nvtx(false);
    torch::profiler::impl::registerCUDAMethods(const_cast<torch::profiler::impl::ProfilerStubs*>(before));
  }
  void rangePush(const char* name) const override { log.push_back(std::string("+") + name); }
  void rangePop() const override { log.push_back("-"); }
  bool enabled() const override { return is_there; }
  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*, int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char*) const override {}
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}

  bool is_there;
  const torch::profiler::impl::ProfilerStubs* before;
  mutable std::vector<std::string> log;
};

using Log = std::vector<std::string>;

}  // namespace

TEST_CASE("Range: observers see it begin and end, nested, and when an exception leaves it") {
  Seen seen;
  {
    const st::Range outer("outer");
    const st::Range inner(st::ranges::forward);
  }
  CHECK_THROWS_AS(([] {
                    const st::Range broken("broken");
                    throw std::runtime_error("no");
                  }()),
                  std::runtime_error);
  CHECK(seen.log == Log{"+outer", "+forward", "-forward", "-outer", "+broken", "-broken"});
}

TEST_CASE("Range: one that begins while nobody listens stays unseen, and ends well with a new listener") {
  auto range = std::make_unique<st::Range>("early");
  Seen seen;
  range.reset();
  CHECK(seen.log.empty());
}

TEST_CASE("Range: is no operator") {
  st::OpCounter counter;
  {
    const st::Range range("range");
    torch::ones({2}).add_(1);
  }
  CHECK(counter.count("range") == 0);
  const int64_t with = counter.total();
  counter.clear();
  torch::ones({2}).add_(1);
  CHECK(counter.total() == with);
}

TEST_CASE("Range: goes to NVTX where it is asked to and LibTorch has CUDA") {
  SECTION("there") {
    FakeNvtx nvtx(true);
    {
      const st::Range outer("outer");
      const st::Range inner("inner");
    }
    CHECK(nvtx.log == Log{"+outer", "+inner", "-", "-"});
  }
  SECTION("switched off in between: what was pushed is popped") {
    FakeNvtx nvtx(true);
    {
      const st::Range range("range");
      st::Range::set_nvtx(false);
      const st::Range unseen("unseen");
    }
    CHECK(nvtx.log == Log{"+range", "-"});
  }
  SECTION("while a MemoryMeter holds the profiler's slot") {
    FakeNvtx nvtx(true);
    const st::MemoryMeter meter;
    { const st::Range range("range"); }
    CHECK(nvtx.log == Log{"+range", "-"});
  }
  SECTION("no CUDA") {
    FakeNvtx nvtx(false);
    { const st::Range range("range"); }
    CHECK(nvtx.log.empty());
  }
}
