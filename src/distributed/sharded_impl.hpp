// SPDX-License-Identifier: Apache-2.0
// What ShardedOptimizer keeps: sharded_optimizer.cpp makes it and steps, sharded_state.cpp sends its state.
#pragma once

#include "saturate/distributed/process_group.hpp"
#include "saturate/distributed/sharded_optimizer.hpp"

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace saturate::distributed {
namespace sharding {

constexpr const char* type_name = "ShardedOptimizer";
constexpr const char* stand_in_name = "no parameter of this rank";

/// Runs `work` on every rank, and learns of it on every rank when one fails, so that none goes on to wait for it.
/// @return what `work` gave on each. @throws E in place of another rank's exception.
template <class E, class Work>
std::vector<std::string> run_on_all(const ProcessGroup& group, const Work& work) {
  std::exception_ptr ours;
  std::string says;
  try {
    says = "=" + work();
  } catch (const std::exception& error) {
    ours = std::current_exception();
    says = std::string("!") + error.what();
  }
  auto texts = group.gather_text(says);
  if (ours) std::rethrow_exception(ours);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank][0] == '!') throw E(c10::str(type_name, ", on rank ", rank, ": ", texts[rank].substr(1)));
    texts[rank].erase(0, 1);
  }
  return texts;
}

/// A tensor of an optimizer's state, as it is announced to the other ranks.
struct Announced {
  std::size_t parameter = 0;
  int dtype = 0;
  std::vector<int64_t> sizes;
  std::string key;
  int64_t numel() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()); }
};

}  // namespace sharding

struct ShardedOptimizer::Impl {
  /// What one owner sends in one message.
  struct Shard {
    int owner;
    std::vector<at::Tensor> params;  // of one dtype and device
    int64_t numel = 0;
  };
  struct Message {
    std::size_t shard;
    at::Tensor flat;
    c10::intrusive_ptr<c10d::Work> work;
  };

  ProcessGroup group;
  std::vector<at::Tensor> params;
  std::vector<std::size_t> group_of;
  std::vector<std::string> names;
  std::vector<int> owners;
  std::shared_ptr<optim::Optimizer> inner;  // over this rank's, or the stand-in
  std::vector<std::size_t> mine;            // this rank's, in the order of inner->parameters()
  at::Tensor stand_in;                      // undefined where this rank has parameters
  bool widens = false;                      // the inner optimizer keeps gradients of half precision in float32
  std::vector<at::Tensor> wide_grads;       // then also those of the other ranks' parameters; parallel to params
  std::vector<bool> sent;                   // requires_grad of each parameter when shards were made
  std::vector<Shard> shards;
  std::vector<Message> under_way;

  bool alone() const { return group.world_size() == 1; }
  bool own(std::size_t i) const { return owners[i] == group.rank(); }

  std::vector<optim::ParamGroup> own_groups(const std::vector<optim::ParamGroup>& groups);
  void adopt(std::shared_ptr<optim::Optimizer> made);
  void name_inner();
  void check_gradients() const;
  void make_shards();
  static std::vector<at::Tensor> views(const Shard& shard, const at::Tensor& flat);
  void send();
  void wait();
  std::vector<sharding::Announced> announced(const optim::OptimizerState& state) const;
  void receive_state(int from, const std::string& text, optim::OptimizerState& state) const;
  optim::OptimizerState own_part(const optim::OptimizerState& full) const;
};

}  // namespace saturate::distributed
