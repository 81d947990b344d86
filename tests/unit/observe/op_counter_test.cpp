// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/op_counter.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/record_function.h>
#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <thread>

using saturate::OpCounter;

namespace {

using Reads = std::map<std::string, int64_t>;

// Tells the callbacks of a copy_ that never happens: no second device is here whose tensors could be copied.
void pretend_copy(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const auto schema = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "").schema();
  const std::vector<c10::IValue> inputs{to, from, non_blocking};
  at::RecordFunction op(at::RecordScope::FUNCTION);
  op.before(std::cref(schema), c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
}

}  // namespace

TEST_CASE("OpCounter: operators by name and in order, nested ones too, while it lives only") {
  auto x = torch::ones({2, 3});
  auto w = torch::ones({4, 3});
  auto b = torch::ones({4});
  OpCounter counter;
  auto y = torch::relu(at::linear(x, w, b));
  const auto names = counter.operators();
  const auto at_name = [&](const char* name) { return std::find(names.begin(), names.end(), name) - names.begin(); };
  CHECK(at_name("aten::linear") == 0);
  CHECK(at_name("aten::linear") < at_name("aten::addmm"));
  CHECK(at_name("aten::addmm") < at_name("aten::relu"));
  CHECK(counter.count("aten::relu") == 1);
  CHECK(counter.counts().at("aten::addmm") == 1);
  CHECK(counter.total() == static_cast<int64_t>(names.size()));
  CHECK(counter.host_reads() == 0);
  counter.clear();
  CHECK(counter.total() == 0);
}

TEST_CASE("OpCounter: sees the backward pass, and names operators only, no graph nodes") {
  auto x = torch::ones({4}, torch::requires_grad());
  auto y = torch::sigmoid(x).sum();
  OpCounter counter;
  y.backward();
  CHECK(counter.count("aten::sigmoid_backward") == 1);
  for (const auto& name : counter.operators()) CHECK(name.rfind("autograd::", 0) != 0);
  CHECK(counter.host_reads() == 0);
}

TEST_CASE("OpCounter: a planted item() is counted, once") {
  auto x = torch::ones({4});
  OpCounter counter;
  auto sum = x.sum();
  CHECK(counter.host_reads() == 0);
  (void)sum.item<float>();
  CHECK(counter.host_reads() == 1);
  CHECK(counter.host_reads_by_name() == Reads{{"aten::_local_scalar_dense", 1}});
}

TEST_CASE("OpCounter: a planted item() in a backward hook is counted") {
  auto x = torch::ones({4}, torch::requires_grad());
  auto y = x * 2;
  y.register_hook([](const at::Tensor& grad) { (void)grad.sum().item<float>(); });
  OpCounter counter;
  y.sum().backward();
  CHECK(counter.host_reads() == 1);
}

TEST_CASE("OpCounter: each kind of read is counted once, though one calls another") {
  auto x = torch::tensor({1.f, 0.f, 2.f});
  auto one = torch::ones({});
  const auto reads = [](auto&& action) {
    OpCounter counter;
    action();
    return counter.host_reads_by_name();
  };
  CHECK(reads([&] { (void)at::is_nonzero(one); }) == Reads{{"aten::is_nonzero", 1}});  // calls item()
  CHECK(reads([&] { (void)at::equal(x, x); }) == Reads{{"aten::equal", 1}});
  CHECK(reads([&] { (void)at::nonzero(x); }) == Reads{{"aten::nonzero", 1}});
  CHECK(reads([&] { (void)x.index({x > 0}); }) == Reads{{"aten::nonzero", 1}});
  CHECK(reads([&] { (void)at::masked_select(x, x > 0); }) == Reads{{"aten::masked_select", 1}});
  CHECK(reads([&] { (void)at::allclose(x, x); }) == Reads{{"aten::_local_scalar_dense", 1}});
  CHECK(reads([&] { (void)std::get<0>(at::_unique2(x)); }) == Reads{{"aten::_unique2", 1}});
  CHECK(reads([&] { (void)at::where(x > 0, x, one); }).empty());
  CHECK(reads([&] { (void)x.to(torch::kDouble).sum(); }).empty());  // a copy, but not between devices
}

TEST_CASE("OpCounter: copies from another device to the host are reads, the other way and asked-for async ones not") {
  const auto host = torch::ones({2});
  const auto device = torch::empty({2}, torch::kMeta);  // stands for a device
  OpCounter counter;
  pretend_copy(device, host, false);
  pretend_copy(host, host, false);
  CHECK(counter.host_reads() == 0);
  pretend_copy(host, device, false);
  CHECK(counter.host_reads_by_name() == Reads{{"aten::copy_", 1}});
  pretend_copy(host, device, true);  // into memory that is not pinned it blocks all the same
  CHECK(counter.host_reads() == 2);
  CHECK(counter.count("aten::is_pinned") == 0);  // the counter's own question
}

TEST_CASE("OpCounter: LibTorch's fused Adam reads its CPU step tensors, which is not the program's doing") {
  auto p = torch::ones({8}), g = torch::ones({8}), m = torch::zeros({8}), v = torch::zeros({8});
  auto step = torch::zeros({}), lr = torch::tensor(0.1), found_inf = torch::zeros({});
  OpCounter counter;
  at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {step}, lr, 0.9, 0.99, 0.0, 1e-8, false, false, {}, found_inf);
  // This finding is why the exception is there: when it no longer holds, the exception may go.
  CHECK(counter.count("aten::_local_scalar_dense") == 2);  // the step, the learning rate
  CHECK(counter.host_reads() == 0);
  at::_fused_sgd_({p}, {g}, {}, 0.0, 0.0, 0.1, 0.0, false, false, true, {}, found_inf);
  CHECK(counter.count("aten::_local_scalar_dense") == 2);
  (void)p[0].item<float>();  // after the kernel a read counts again
  CHECK(counter.host_reads() == 1);
}

TEST_CASE("OpCounter: other threads are seen unless asked not to") {
  OpCounter everywhere;
  OpCounter here({.this_thread_only = true});
  std::thread([] { (void)torch::ones({2}).sum().item<float>(); }).join();
  CHECK(everywhere.host_reads() == 1);
  CHECK(everywhere.count("aten::sum") >= 1);
  CHECK(here.total() == 0);
  (void)torch::ones({2});
  CHECK(here.count("aten::ones") == 1);
  CHECK(everywhere.count("aten::ones") == 2);
}

TEST_CASE("OpCounter: an operator that throws leaves the counting as it was") {
  OpCounter counter;
  CHECK_THROWS(at::masked_select(torch::ones({3}), torch::ones({2}, torch::kBool)));
  CHECK(counter.count("aten::masked_select") == 1);
  const int64_t so_far = counter.host_reads();
  (void)torch::ones({}).item<float>();
  CHECK(counter.host_reads() == so_far + 1);
}
