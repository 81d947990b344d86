// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/memory_report.hpp"

#include "saturate/error.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "saturate/saturate.hpp"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using st::MemoryKind;

namespace {

constexpr int64_t batch = 32;

// relu(x W + b) saves its input (for W's gradient) and relu's result.
struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(int64_t in, int64_t out) { linear = register_module("linear", torch::nn::Linear(in, out)); }
  at::Tensor forward(const at::Tensor& x) { return torch::relu(st::call(linear, x)); }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", Layer(10, 20));
    second = register_module("second", Layer(20, 40));
    head = register_module("head", torch::nn::Linear(40, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return st::call(head, st::call(second, st::call(first, x))); }
  Layer first{nullptr}, second{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

constexpr int64_t parameter_bytes = 4 * (10 * 20 + 20 + 20 * 40 + 40 + 40 * 5 + 5);

auto a_batch() { return std::pair(torch::randn({batch, 10}), torch::randint(0, 5, {batch})); }

template <class... Policies>
auto trainer_of(Net net, Policies... policies) {
  return st::Trainer(net, st::optim::AdamW(net->parameters(), {.lr = 1e-3}), st::CrossEntropy{}, policies...);
}

int64_t activations(const st::MemoryReport& report, const char* name) {
  const auto* module = report.module(name);
  REQUIRE(module != nullptr);
  return module->activations;
}

int hooks_on(const torch::nn::Module& module) {
  int count = 0;
  for (const auto& parameter : module.parameters()) {
    if (torch::autograd::impl::post_acc_grad_hooks(parameter)) ++count;
  }
  return count;
}

struct TempFile {
  std::string path = "/tmp/memory_report_test." + std::to_string(::getpid()) + ".json";
  ~TempFile() { std::remove(path.c_str()); }
};

}  // namespace

TEST_CASE("measure_memory: a small network's bytes, known by hand") {
  Net net;
  auto trainer = trainer_of(net);
  const auto data = a_batch();
  trainer.step(data);
  const auto report = st::measure_memory(trainer, data);

  const auto& memory = report.memory();
  CHECK(report.devices.size() == 1);
  CHECK(memory.device == "cpu");
  CHECK(report.saved_tensors_known);
  CHECK(report.optimizer_state_known);
  CHECK_FALSE(memory.allocator.has_value());

  CHECK(memory.before[MemoryKind::parameters] == parameter_bytes);
  CHECK(memory.before[MemoryKind::optimizer_state] == 2 * parameter_bytes);
  CHECK(memory.before[MemoryKind::gradients] == 0);
  CHECK(memory.peak[MemoryKind::parameters] == parameter_bytes);
  CHECK(memory.peak[MemoryKind::optimizer_state] == 2 * parameter_bytes);
  CHECK(memory.peak[MemoryKind::gradients] == parameter_bytes);
  CHECK(memory.after[MemoryKind::gradients] == 0);  // the Trainer lets them go
  CHECK(memory.after[MemoryKind::activations] == 0);
  CHECK(memory.allocations > 10);

  // The batch, older than the step, is kept by the first layer and the loss; relu's results by the relu that makes them
  // (once, though the next layer saves the same storage).
  CHECK(memory.peak[MemoryKind::inputs] == batch * 10 * 4 + batch * 8);
  CHECK(activations(report, "first") == batch * 20 * 4);
  CHECK(activations(report, "second") == batch * 40 * 4);
  CHECK(report.module("first")->own_activations == batch * 20 * 4);
  CHECK(activations(report, "first.linear") == 0);
  CHECK(activations(report, "head") == 0);
  const int64_t loss = activations(report, "");  // log_softmax saves its result, nll_loss its total weight
  CHECK(loss == batch * 5 * 4 + 4);
  CHECK(memory.peak[MemoryKind::activations] == batch * 20 * 4 + batch * 40 * 4 + loss);
  // addmm's result, and relu's: both are there at once.
  CHECK(report.module("second")->forward_peak == 2 * batch * 40 * 4);

  REQUIRE(report.modules.size() == 6);
  CHECK(report.modules.front().name == "first");
}

TEST_CASE("measure_memory: the kinds add up to what a meter around it counts") {
  Net net;
  auto trainer = trainer_of(net, st::Accumulate{2});
  const std::vector window{a_batch(), a_batch()};
  trainer.step(window);
  const st::MemoryMeter around;
  const auto report = st::measure_memory(trainer, window);
  const auto counts = around.counts();

  const auto& memory = report.memory();
  const int64_t older = 3 * parameter_bytes + 2 * (batch * 10 * 4 + batch * 8);
  CHECK(memory.before.total() == older);
  CHECK(memory.peak_bytes() == older + counts.peak_bytes);
  CHECK(memory.after.total() - older == counts.bytes);
  CHECK(memory.allocations <= counts.allocations);  // measuring itself clones 0-dim step numbers
  CHECK(report.timeline.peak_bytes() == memory.peak_bytes());
  CHECK(report.timeline.samples.back().memory == memory.after);
}

TEST_CASE("measure_memory: phases are told apart by what autograd does") {
  Net net;
  auto trainer = trainer_of(net, st::Accumulate{2});
  const std::vector window{a_batch(), a_batch()};
  trainer.step(window);
  const auto report = st::measure_memory(trainer, window);

  std::vector<std::string> stretches;
  double previous = 0;
  for (const auto& sample : report.timeline.samples) {
    CHECK(sample.seconds >= previous);
    previous = sample.seconds;
    const auto& phase = report.timeline.phases.at(static_cast<std::size_t>(sample.phase));
    if (stretches.empty() || stretches.back() != phase) stretches.push_back(phase);
  }
  CHECK(stretches == std::vector<std::string>{"before", "forward", "backward", "forward", "backward", "update"});
  REQUIRE(report.phases.size() == 4);
  CHECK(report.phase("before")->peak_bytes == report.memory().before.total());
  CHECK(report.phase("backward")->at_end[MemoryKind::gradients] == parameter_bytes);
  CHECK(report.phase("forward")->peak_bytes <= report.memory().peak_bytes());
  CHECK(report.phase("update")->at_end == report.memory().after);
  CHECK(report.phase("nothing") == nullptr);

  // One micro-batch's activations go before the next one's come.
  CHECK(activations(report, "first") == batch * 20 * 4);
  CHECK(activations(report, "second") == batch * 40 * 4);

  // Marks of the samples: allocations of the second layer's forward know it.
  const auto& marks = report.timeline.marks;
  bool seen = false;
  for (const auto& sample : report.timeline.samples) {
    seen = seen || marks.at(static_cast<std::size_t>(sample.mark)) == "second.linear";
  }
  CHECK(seen);
}

TEST_CASE("measure_memory: a loop by hand, with LibTorch's optimizer and phases of its own") {
  Net net;
  torch::optim::AdamW optimizer(net->parameters(), 1e-3);
  const auto data = a_batch();
  const auto step = [&] {
    optimizer.zero_grad();  // gradients that are older than the step end in it
    torch::cross_entropy_loss(net(data.first), data.second).backward();
    optimizer.step();
  };
  const auto first = st::measure_memory(net, optimizer, step);
  CHECK(first.memory().before[MemoryKind::optimizer_state] == 0);
  CHECK(first.memory().after[MemoryKind::optimizer_state] == 2 * parameter_bytes);
  CHECK(first.memory().after[MemoryKind::gradients] == parameter_bytes);

  const auto second = st::measure_memory(*net, optimizer, step);
  CHECK(second.memory().before[MemoryKind::optimizer_state] == 2 * parameter_bytes);
  CHECK(second.memory().before[MemoryKind::gradients] == parameter_bytes);
  CHECK(second.memory().peak[MemoryKind::gradients] == parameter_bytes);
  CHECK(second.memory().after[MemoryKind::gradients] == parameter_bytes);

  const auto named = st::measure_memory(net, optimizer, [&](st::StepPhases& phase) {
    phase("one");
    step();
    phase("two");
    step();
  });
  REQUIRE(named.phases.size() == 3);
  CHECK(named.phases[1].name == "one");
  CHECK(named.phases[2].name == "two");
}

namespace {

// Its parameters are listed twice.
struct SharingImpl : torch::nn::Module {
  SharingImpl() {
    register_module("one", linear);
    register_module("two", linear);
    table = register_buffer("table", torch::ones({100}));
  }
  torch::nn::Linear linear{8, 8};
  at::Tensor table;
};
TORCH_MODULE(Sharing);

}  // namespace

TEST_CASE("measure_memory: a storage counts once, whoever shares it") {
  Sharing net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  const at::Tensor x = torch::randn({4, 8});
  const auto report = st::measure_memory(net, optimizer, [&] {
    const at::Tensor y = st::call(net->linear, x).exp();
    const at::Tensor squares = y.view({-1}) * y.view({-1});  // saves y twice, which exp has saved
    squares.sum().backward();
    net->zero_grad();
  });
  const int64_t linear_bytes = 4 * (8 * 8 + 8);
  CHECK(report.memory().before[MemoryKind::parameters] == linear_bytes + 400);
  CHECK(report.memory().peak[MemoryKind::gradients] == linear_bytes);
  CHECK(report.memory().peak[MemoryKind::activations] == 4 * 8 * 4);
  CHECK(report.memory().peak[MemoryKind::inputs] == 4 * 8 * 4);
  CHECK(activations(report, "") == 4 * 8 * 4);
}

TEST_CASE("measure_memory: what somebody else holds when autograd has let go is workspace") {
  Net net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  const auto data = a_batch();
  at::Tensor held;
  const auto report = st::measure_memory(net, optimizer, [&] {
    held = net->first(data.first);
    held.sum().backward();
    net->zero_grad();
  });
  CHECK(report.memory().peak[MemoryKind::activations] == batch * 20 * 4);
  CHECK(report.memory().after[MemoryKind::activations] == 0);
  CHECK(report.memory().after[MemoryKind::workspace] == batch * 20 * 4);
}

TEST_CASE("measure_memory: recomputed parts keep no activations but their inputs") {
  const auto data = a_batch();
  const auto measure = [&](auto... recompute) {
    torch::manual_seed(1);
    Net net;
    auto trainer = trainer_of(net, recompute...);
    trainer.step(data);
    return st::measure_memory(trainer, data);
  };
  const auto plain = measure();
  const auto some = measure(st::Recompute::named({"second"}));
  const auto all = measure(st::Recompute::all());

  CHECK(activations(plain, "second") == batch * 40 * 4);
  CHECK(activations(some, "second") == 0);             // its input is what the first has saved
  CHECK(activations(some, "head") == batch * 40 * 4);  // the input that nobody else keeps now
  CHECK(activations(some, "first") == batch * 20 * 4);
  CHECK(activations(all, "first") == 0);  // of the batch, which is there anyway
  CHECK(activations(all, "second") == batch * 20 * 4);
  CHECK(activations(all, "head") == batch * 40 * 4);
  CHECK(all.memory().peak[MemoryKind::inputs] == plain.memory().peak[MemoryKind::inputs]);
  CHECK(all.memory().peak[MemoryKind::gradients] == parameter_bytes);
}

TEST_CASE("measure_memory: the step's numbers do not change") {
  const auto data = a_batch();
  const auto train = [&](bool measured, auto... recompute) {
    torch::manual_seed(1);
    Net net;
    auto trainer = trainer_of(net, recompute...);
    for (int i = 0; i < 3; ++i) {
      if (measured) {
        st::measure_memory(trainer, data);
      } else {
        trainer.step(data);
      }
    }
    return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  };
  CHECK(train(true).equal(train(false)));
  CHECK(train(true, st::Recompute::all()).equal(train(false)));
}

TEST_CASE("measure_memory: a saved tensor that changes in place is still noticed") {
  Net net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  const auto data = a_batch();
  const auto spoil = [&] {
    const at::Tensor y = net->first(data.first);
    {
      const at::NoGradGuard quiet;
      y.mul_(2);
    }
    y.sum().backward();
  };
  CHECK_THROWS_MATCHES(st::measure_memory(net, optimizer, spoil), st::StateError,
                       MessageMatches(ContainsSubstring("changed in place") && ContainsSubstring("[32, 20]")));
  // And where the graph outlives the measurement.
  at::Tensor y;
  st::measure_memory(net, optimizer, [&] { y = net->first(data.first); });
  {
    const at::NoGradGuard quiet;
    y.mul_(2);
  }
  CHECK_THROWS_AS(y.sum().backward(), st::StateError);
}

TEST_CASE("measure_memory: an exception in the step leaves nothing behind") {
  Net net;
  auto trainer = trainer_of(net);
  const auto data = a_batch();
  trainer.step(data);
  const auto before = st::measure_memory(trainer, data);
  struct Gone {};
  CHECK_THROWS_AS(st::measure_memory(net, trainer.optimizer(),
                                     [&] {
                                       CHECK(hooks_on(*net) == 6);
                                       trainer.step(data);
                                       CHECK_THROWS_AS(st::measure_memory(trainer, data), st::StateError);  // nested
                                       throw Gone();
                                     }),
                  Gone);
  CHECK(hooks_on(*net) == 0);
  CHECK(st::marks::current().empty());
  CHECK(st::marks::detail::active == nullptr);
  const auto after = st::measure_memory(trainer, data);
  CHECK(after.memory().at_peak == before.memory().at_peak);
  CHECK(after.memory().allocations == before.memory().allocations);
}

namespace {
struct Counts final : torch::autograd::PostAccumulateGradHook {
  explicit Counts(int& calls) : calls(calls) {}
  void operator()(const at::Tensor&) override { ++calls; }
  int& calls;
};
}  // namespace

TEST_CASE("measure_memory: a hook on a gradient stays, and is called") {
  Net net;
  auto trainer = trainer_of(net);
  const auto data = a_batch();
  int calls = 0;
  torch::autograd::impl::set_post_acc_grad_hooks(net->head->bias, std::make_unique<Counts>(calls));
  st::measure_memory(trainer, data);
  CHECK(calls == 1);
  CHECK(hooks_on(*net) == 1);
  trainer.step(data);
  CHECK(calls == 2);
}

TEST_CASE("measure_memory: a meter inside of the step sees it as always") {
  Net net;
  auto trainer = trainer_of(net);
  const auto data = a_batch();
  trainer.step(data);
  st::MemoryCounts inner;
  const auto report = st::measure_memory(net, trainer.optimizer(), [&] {
    const st::MemoryMeter meter;
    trainer.step(data);
    inner = meter.counts();
  });
  CHECK(inner.allocations == report.memory().allocations);
  CHECK(inner.peak_bytes + report.memory().before.total() == report.memory().peak_bytes());
}

TEST_CASE("MemoryReport: a snapshot reads back, and what is none is refused") {
  Net net;
  auto trainer = trainer_of(net);
  const auto data = a_batch();
  auto report = st::measure_memory(trainer, data, {.slot_bytes = 123});
  report.devices[0].allocator = st::AllocatorState{5, 4, 3, 2, 1};
  const TempFile file;
  report.save_snapshot(file.path);
  const auto again = st::MemoryReport::load_snapshot(file.path);
  CHECK(again == report);
  CHECK(again.slot_bytes == 123);
  CHECK(again.devices[0].allocator->unused_bytes() == 1);
  CHECK(st::MemoryTimeline::from_json(report.timeline.to_json()) == report.timeline);

  CHECK_THROWS_AS(report.save_snapshot("/nowhere/at/all.json"), st::Error);
  CHECK_THROWS_AS(st::MemoryReport::load_snapshot("/nowhere/at/all.json"), st::DataError);
  const std::string text = report.to_json();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    REQUIRE(changed.find(from) != std::string::npos);
    return changed.replace(changed.find(from), from.size(), to);
  };
  for (const auto& bad : {std::string("{"), std::string("[]"), with("saturate.memory", "other"),
                          with("\"version\":1", "\"version\":2"), with("\"slot_bytes\":123", "\"slot_bytes\":1.5"),
                          with("\"samples\":[[0.0,0,0,0,", "\"samples\":[[0.0,7,0,0,"), with("\"modules\"", "\"m\"")}) {
    CHECK_THROWS_AS(st::MemoryReport::from_json(bad), st::DataError);
  }
}

TEST_CASE("MemoryReport: a table and a chart") {
  Net net;
  auto trainer = trainer_of(net);
  const auto data = a_batch();
  trainer.step(data);
  const auto report = st::measure_memory(trainer, data);
  std::ostringstream out;
  report.print(out);
  for (const char* words : {"optimizer state", "activations", "first.linear", "backward", "resident"}) {
    CHECK_THAT(out.str(), ContainsSubstring(words));
  }
  const std::string svg = report.to_svg();
  CHECK(svg.rfind("<svg xmlns", 0) == 0);
  for (const char* words : {"forward", "backward", "at the peak", "<polygon"})
    CHECK_THAT(svg, ContainsSubstring(words));
  CHECK(report.timeline.to_svg(1).empty());
  CHECK(st::MemoryTimeline().to_svg().empty());
}

TEST_CASE("MemoryTimeline: thinned keeps peaks, the first and the last sample") {
  st::MemoryTimeline timeline{{"cpu"}, {"before", "forward"}, {""}, {}, 1.0};
  for (int i = 0; i < 10000; ++i) {
    st::MemoryByKind memory;
    memory[MemoryKind::workspace] = i == 5003 ? 1000000 : i % 100;
    timeline.samples.push_back({i * 1e-4, 0, i == 0 ? 0 : 1, 0, memory});
  }
  const auto thin = timeline.thinned(100);
  CHECK(thin.samples.size() <= 103);
  CHECK(thin.samples.size() >= 100);
  CHECK(thin.peak_bytes() == 1000000);
  CHECK(thin.samples.front() == timeline.samples.front());
  CHECK(thin.samples.back() == timeline.samples.back());
  CHECK(timeline.thinned(100000).samples.size() == timeline.samples.size());
}

TEST_CASE("loader_slot_bytes: what the loader's slots take") {
  const st::data::TensorSource source(torch::zeros({20, 3}), torch::zeros({20}, at::kLong));
  st::data::PrefetchLoader loader(source, {.batch_size = 5});
  for (auto& batch : loader) CHECK(batch.size() == 5);
  CHECK(st::loader_slot_bytes(loader) == loader.stats().slot_allocations * 5 * (12 + 8));
  CHECK(loader.stats().slot_allocations > 0);
}
