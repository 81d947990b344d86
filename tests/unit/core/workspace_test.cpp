// SPDX-License-Identifier: Apache-2.0
#include "saturate/workspace.hpp"

#include "saturate/error.hpp"
#include "saturate/observe/memory_meter.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>

#include <stdexcept>
#include <thread>

namespace st = saturate;
using st::Workspace;

namespace {

// Two levels, several dtypes; values are written and read.
void round(Workspace& workspace, int64_t n) {
  const Workspace::Scope scope(workspace);
  at::Tensor a = workspace.take({n, 3}).fill_(1);
  for (int i = 0; i < 2; ++i) {
    const Workspace::Scope inner(workspace);
    at::Tensor b = workspace.take({n}, torch::kDouble).fill_(2);
    at::Tensor c = workspace.take({2, n}, torch::kInt64).fill_(3);
    CHECK(b.sum().item<double>() == 2.0 * static_cast<double>(n));
    CHECK(c.sum().item<int64_t>() == 6 * n);
  }
  at::Tensor d = workspace.take({n}).fill_(4);
  CHECK(a.sum().item<float>() == 3 * static_cast<float>(n));
}

// Blocks larger than the results of the reductions above.
int64_t large_blocks(const std::function<void()>& work) {
  int64_t count = 0;
  const st::MemoryMeter meter([&](const st::MemoryEvent& event) { count += event.bytes > 64; });
  work();
  return count;
}

}  // namespace

TEST_CASE("a workspace allocates nothing after two rounds, and again when a round needs more") {
  Workspace workspace;
  CHECK(large_blocks([&] { round(workspace, 100); }) > 0);
  CHECK(large_blocks([&] { round(workspace, 100); }) == 1);  // what the first one needed, in one block
  CHECK(large_blocks([&] {
          for (int i = 0; i < 10; ++i) round(workspace, 100 - i);
        }) == 0);
  const int64_t before = workspace.bytes();
  CHECK(before >= 100 * 12 + 100 * 8 + 200 * 8);
  CHECK(before <= 4096 + 256);
  round(workspace, 1000);
  round(workspace, 1000);
  CHECK(large_blocks([&] { round(workspace, 1000); }) == 0);
  CHECK(workspace.bytes() > before);
}

TEST_CASE("pieces do not overlap in their scope, and share memory from one scope to the next") {
  Workspace workspace;
  std::vector<void*> first;
  for (int turn = 0; turn < 3; ++turn) {
    const Workspace::Scope scope(workspace);
    std::vector<at::Tensor> pieces;
    for (int64_t i = 0; i < 5; ++i) pieces.push_back(workspace.take({10 + i, 7}).fill_(static_cast<double>(i)));
    for (int64_t i = 0; i < 5; ++i) {
      CHECK(pieces[i].eq(static_cast<double>(i)).all().item<bool>());
      CHECK(reinterpret_cast<std::uintptr_t>(pieces[i].data_ptr()) % 64 == 0);
    }
    if (turn == 1) {
      for (const at::Tensor& piece : pieces) first.push_back(piece.data_ptr());
    }
    if (turn == 2) {
      for (std::size_t i = 0; i < 5; ++i) CHECK(pieces[i].data_ptr() == first[i]);
    }
  }
}

TEST_CASE("a piece is an ordinary tensor") {
  Workspace workspace;
  const at::Tensor piece = workspace.take({2, 3, 4}, torch::kHalf);
  CHECK(piece.sizes() == at::IntArrayRef{2, 3, 4});
  CHECK(piece.is_contiguous());
  CHECK(piece.scalar_type() == torch::kHalf);
  CHECK_FALSE(piece.requires_grad());
  CHECK(piece.is_leaf());
  at::Tensor product = workspace.take({2, 2});
  const at::Tensor x = torch::arange(6, torch::kFloat).view({2, 3});
  at::mm_out(product, x, x.t());
  CHECK(support::same_bits(product, x.mm(x.t())));
  CHECK(workspace.take({0, 5}).numel() == 0);
  CHECK(workspace.take({}).dim() == 0);
  const at::Tensor weight = torch::ones({2, 2}).requires_grad_();
  (weight * product).sum().backward();
  CHECK(support::same_bits(weight.grad(), product));
}

TEST_CASE("a tensor that outlives its scope keeps its values, and is warned about") {
  support::LogCapture log;
  Workspace workspace;
  at::Tensor held, view;
  for (int turn = 0; turn < 3; ++turn) {
    const Workspace::Scope scope(workspace);
    at::Tensor piece = workspace.take({100}).fill_(turn);
    if (turn == 0) held = piece;
    if (turn == 1) view = piece.narrow(0, 10, 5);
  }
  {
    const Workspace::Scope scope(workspace), inner(workspace);
    workspace.take({100}).fill_(7);
  }
  CHECK(held.eq(0).all().item<bool>());
  CHECK(view.eq(1).all().item<bool>());
  CHECK(log.contains("still held after its scope"));
  CHECK(log.lines.size() == 1);
}

TEST_CASE("what autograd has saved stays right, whatever is taken later") {
  Workspace workspace;
  const at::Tensor weight = torch::ones({50}).requires_grad_();
  at::Tensor loss;
  {
    const Workspace::Scope scope(workspace);
    loss = (weight * workspace.take({50}).fill_(3)).sum();
  }
  for (int i = 0; i < 3; ++i) {
    const Workspace::Scope scope(workspace);
    workspace.take({50}).fill_(9);
  }
  loss.backward();
  CHECK(weight.grad().eq(3).all().item<bool>());
}

TEST_CASE("an outer scope's pieces outlast an inner one that escaped") {
  Workspace workspace;
  round(workspace, 100);
  round(workspace, 100);
  const Workspace::Scope scope(workspace);
  const at::Tensor outer = workspace.take({100}).fill_(1);
  at::Tensor escaped;
  {
    const Workspace::Scope inner(workspace);
    escaped = workspace.take({100}).fill_(2);
  }
  const at::Tensor later = workspace.take({100}).fill_(3);
  CHECK(outer.eq(1).all().item<bool>());
  CHECK(escaped.eq(2).all().item<bool>());
  CHECK(later.eq(3).all().item<bool>());
}

TEST_CASE("exceptions leave a scope like anything else") {
  Workspace workspace;
  for (int i = 0; i < 2; ++i) {
    try {
      const Workspace::Scope scope(workspace);
      workspace.take({1000});
      throw std::runtime_error("thrown");
    } catch (const std::runtime_error&) {
    }
  }
  CHECK(large_blocks([&] {
          const Workspace::Scope scope(workspace);
          workspace.take({1000});
        }) == 0);
}

TEST_CASE("without a scope pieces are good until reset; clear gives the memory back") {
  Workspace workspace;
  for (int i = 0; i < 3; ++i) {
    workspace.take({1000}).fill_(1);
    workspace.take({1000}).fill_(2);
    workspace.reset();
  }
  CHECK(large_blocks([&] { workspace.take({1000}), workspace.take({1000}); }) == 0);
  workspace.reset();
  CHECK(workspace.bytes() >= 8000);
  workspace.clear();
  CHECK(workspace.bytes() == 0);
  const Workspace::Scope scope(workspace);
  CHECK_THROWS_AS(workspace.reset(), st::StateError);
  CHECK_THROWS_AS(workspace.clear(), st::StateError);
}

TEST_CASE("a workspace refuses what it cannot give") {
  Workspace workspace;
  CHECK_THROWS_AS(workspace.take({-1}), st::ConfigError);
  CHECK_THROWS_AS(workspace.take({int64_t{1} << 40, int64_t{1} << 40}), st::ConfigError);
  CHECK_THROWS_AS(workspace.take({2}, at::TensorOptions().requires_grad(true)), st::ConfigError);
  CHECK_THROWS_AS(workspace.take({2}, at::TensorOptions().layout(at::kSparse)), st::ConfigError);
  CHECK_THROWS_AS(workspace.take({2}, at::TensorOptions().pinned_memory(true)), st::ConfigError);
  CHECK_THROWS_AS(workspace.take({2}, at::TensorOptions(at::kMeta)), st::ConfigError);
  const at::Tensor held = workspace.take({2});
  bool refused = false;
  std::thread([&] {
    try {
      workspace.take({2});
    } catch (const st::StateError&) {
      refused = true;
    }
  }).join();
  CHECK(refused);
  workspace.reset();
  std::thread([&] { workspace.take({2}), workspace.reset(); }).join();
}
