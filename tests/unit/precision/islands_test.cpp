// SPDX-License-Identifier: Apache-2.0
// FP32 islands, TF32, and the report of what precision each product ran in.
#include "saturate/error.hpp"
#include "saturate/observe/gemm_precision.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/precision/precision.hpp"
#include "saturate/trainer.hpp"
#include "support.hpp"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <set>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

// Notes in which dtype it computes.
struct ProbeImpl : torch::nn::Module {
  ProbeImpl() : linear(register_module("linear", torch::nn::Linear(6, 6))) {}
  at::Tensor forward(const at::Tensor& x) {
    input = x.scalar_type();
    autocast = at::autocast::is_autocast_enabled(at::kCPU);
    const at::Tensor y = saturate::call(linear, x);
    inner = y.scalar_type();
    return y;
  }
  torch::nn::Linear linear;
  at::ScalarType input = at::kByte, inner = at::kByte;
  bool autocast = false;
};
TORCH_MODULE(Probe);

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", Probe())),
        norm1(register_module("norm1", Probe())),
        last(register_module("last", Probe())),
        unmarked(register_module("unmarked", torch::nn::Linear(6, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = saturate::call(norm1, saturate::call(first, x));
    after_norm = y.scalar_type();
    return unmarked(saturate::call(last, y));
  }
  Probe first, norm1, last;
  torch::nn::Linear unmarked;
  at::ScalarType after_norm = at::kByte;
};
TORCH_MODULE(Net);

template <class Precision>
void check_island(Precision precision, at::ScalarType narrow) {
  Net net = support::seeded<Net>(1);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                      std::move(precision.keep_fp32("norm.*")));
  const auto batch = support::classes(8, 1);
  const auto check = [&] {
    CHECK(net->first->inner == narrow);
    CHECK(net->norm1->input == at::kFloat);
    CHECK(net->norm1->inner == at::kFloat);
    CHECK_FALSE(net->norm1->autocast);
    CHECK(net->after_norm == narrow);  // cast back
    CHECK(net->last->inner == narrow);
    CHECK(net->last->autocast);
  };
  CHECK(trainer.step(batch).taken());
  check();
  trainer.evaluate(std::vector<support::Batch>{batch});
  check();
}

}  // namespace

TEST_CASE("the parts that a pattern names run in float32, inputs cast and outputs cast back") {
  check_island(st::Bf16{}, at::kBFloat16);
  check_island(st::Fp16{}, at::kHalf);
}

TEST_CASE("an island's gradients are those of float32, and its weights get them") {
  // The only part is an island: the whole run equals one without autocast, but for the cast of the output.
  struct OneImpl : torch::nn::Module {
    OneImpl() : part(register_module("part", torch::nn::Linear(6, 4))) {}
    at::Tensor forward(const at::Tensor& x) { return saturate::call(part, x); }
    torch::nn::Linear part;
  };
  TORCH_MODULE(One);
  const auto gradients = [](auto precision) {
    One net = support::seeded<One>(1);
    std::vector<at::Tensor> seen;
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, std::move(precision),
                        support::SpyGradients{&seen});
    trainer.step(support::classes(8, 1));
    return seen;
  };
  CHECK(support::same_bits(gradients(st::Bf16{}.keep_fp32("part")), gradients(st::Fp32{})));
  CHECK_FALSE(support::same_bits(gradients(st::Bf16{}), gradients(st::Fp32{})));
}

TEST_CASE("a pattern that matches nothing is an error that lists the parts") {
  const auto make = [](const std::string& pattern) {
    Net net = support::seeded<Net>(1);
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                        st::Bf16{}.keep_fp32(pattern));
  };
  CHECK_THROWS_MATCHES(make("layernorm.*"), st::ConfigError,
                       MessageMatches(ContainsSubstring("'layernorm.*' matches no part") &&
                                      ContainsSubstring("norm1") && ContainsSubstring("last.linear")));
  CHECK_THROWS_MATCHES(make("norm"), st::ConfigError, MessageMatches(ContainsSubstring("matches no part")));
  CHECK_THROWS_MATCHES(make("norm("), st::ConfigError, MessageMatches(ContainsSubstring("not a regular expression")));
  make("norm1");
}

TEST_CASE("an island on a part that the model does not mark is a warning, once") {
  support::LogCapture log;
  Net net = support::seeded<Net>(1);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                      st::Bf16{}.keep_fp32("unmarked"));
  for (int i = 0; i < 2; ++i) trainer.step(support::classes(8, 1));
  CHECK(log.contains("keep_fp32 has no effect on unmarked"));
  CHECK(log.lines.size() == 1);
}

TEST_CASE("islands and other scopes act together, each is told") {
  struct Recorder : st::marks::Observer {
    std::vector<std::string> entered;
    int left = 0;
    void enter(const std::vector<std::string>& names, const torch::nn::Module&) override {
      entered.push_back(names.front());
    }
    void leave(const std::vector<std::string>&, const torch::nn::Module&) noexcept override { ++left; }
  } recorder;
  Net net = support::seeded<Net>(1);
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{},
                      st::Bf16{}.keep_fp32("norm1"));
  const st::marks::Scope scope(trainer.names(), &recorder);
  trainer.step(support::classes(8, 1));
  CHECK(recorder.entered ==
        std::vector<std::string>{"first", "first.linear", "norm1", "norm1.linear", "last", "last.linear"});
  CHECK(recorder.left == 6);
  CHECK(net->norm1->inner == at::kFloat);
}

TEST_CASE("TF32's switches are on inside the scope, and as they were after it, exceptions included") {
  auto& context = at::globalContext();
  const auto matmul = [&] { return context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL); };
  const auto before = matmul();
  const bool old_switch = context.allowTF32CuBLAS(), convolutions = context.allowTF32CuDNN();
  {
    const st::Tf32Scope on;
    CHECK(matmul() == at::Float32Precision::TF32);
    CHECK(context.allowTF32CuBLAS());
    const st::Tf32Scope off(false);
    CHECK(matmul() == at::Float32Precision::IEEE);
    CHECK_FALSE(context.allowTF32CuBLAS());
    CHECK_FALSE(context.allowTF32CuDNN());
  }
  CHECK(matmul() == before);
  CHECK(context.allowTF32CuBLAS() == old_switch);
  CHECK(context.allowTF32CuDNN() == convolutions);

  context.setFloat32MatmulPrecision("medium");
  { const st::Tf32Scope off(false); }
  CHECK(context.float32MatmulPrecision() == at::Float32MatmulPrecision::MEDIUM);
  CHECK(context.float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL) == at::Float32Precision::BF16);
  context.setFloat32MatmulPrecision("highest");

  support::LogCapture log;
  support::Mlp net = support::seeded(1);
  struct Sees {
    bool* inside;
    at::Tensor operator()(const at::Tensor& output, const at::Tensor&) const {
      *inside = at::globalContext().allowTF32CuBLAS();
      if (output.size(0) == 3) throw std::runtime_error("thrown");
      return output.square().sum();
    }
  };
  bool inside = false;
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), Sees{&inside}, st::Tf32{});
  CHECK(log.contains("Tf32 has no effect on cpu"));
  trainer.step(support::classes(8, 1));
  CHECK(inside);
  CHECK_FALSE(context.allowTF32CuBLAS());
  CHECK_THROWS(trainer.step(support::classes(3, 1)));
  CHECK_FALSE(context.allowTF32CuBLAS());
}

TEST_CASE("the report says in which precision each product really ran, by part and direction") {
  const auto uses = [](auto precision) {
    Net net = support::seeded<Net>(1);
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{}, std::move(precision));
    const st::GemmPrecision report(*net);
    trainer.step(support::classes(8, 1));
    CHECK(report.table().find("first.linear") != std::string::npos);
    return report.uses();
  };
  const auto precisions = [](const std::vector<st::GemmUse>& all, const std::string& module, bool backward) {
    std::set<std::string> result;
    for (const auto& use : all) {
      if (use.module == module && use.backward == backward) result.insert(use.precision);
    }
    return result;
  };
  using Set = std::set<std::string>;
  const auto mixed = uses(st::Bf16{}.keep_fp32("norm1"));
  for (const bool backward : {false, true}) {
    CHECK(precisions(mixed, "first.linear", backward) == Set{"bfloat16"});
    CHECK(precisions(mixed, "norm1.linear", backward) == Set{"float32"});
    CHECK(precisions(mixed, "last.linear", backward) == Set{"bfloat16"});
    CHECK(precisions(mixed, "", backward) == Set{"bfloat16"});  // the part without a mark
  }
  const auto plain = uses(st::Fp32{});
  CHECK(precisions(plain, "first.linear", false) == Set{"float32"});
  CHECK(precisions(uses(st::Fp16{}), "first.linear", true) == Set{"float16"});
  int64_t forward_calls = 0;
  for (const auto& use : plain) forward_calls += use.backward ? 0 : use.calls;
  CHECK(forward_calls == 4);  // one a layer: what runs inside one another counts once
}
