// SPDX-License-Identifier: Apache-2.0
// What runs on spawned ranks: checks that are counted there, and reported by the test that has spawned them.
#pragma once

#include "saturate/distributed/process_group.hpp"
#include "saturate/distributed/spawn.hpp"
#include "support.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace support {

namespace dist = saturate::distributed;

/// Checks on a rank.
class RankChecks {
 public:
  void operator()(bool holds, const std::string& what) {
    if (holds) return;
    ++failed_;
    std::cerr << "FAILED: " << what << std::endl;
  }
  int exit_code() const { return failed_ == 0 ? 0 : 9; }

 private:
  int failed_ = 0;
};

/// An entry that joins the group and runs on one thread.
class RankEntry {
 public:
  RankEntry(std::string name, std::function<void(const dist::ProcessGroup&, RankChecks&)> run,
            std::chrono::milliseconds timeout = std::chrono::seconds(60))
      : entry_(std::move(name), [run, timeout](const std::vector<std::string>&) {
          at::set_num_threads(1);
          RankChecks checks;
          {
            const auto group = dist::ProcessGroup::from_environment({.timeout = timeout});
            run(group, checks);
            group.barrier();  // nobody leaves while another still talks to it
          }
          return checks.exit_code();
        }) {}

 private:
  dist::SpawnEntry entry_;
};

/// Every rank ran to its end and nothing failed there.
inline void check_ranks(int ranks, const std::string& entry, const dist::SpawnOptions& options = {}) {
  const auto results = dist::spawn(ranks, entry, options);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    CAPTURE(ranks, rank, results[rank].output, results[rank].signal, results[rank].exit_code);
    CHECK(results[rank].ok());
  }
}

/// Whether all ranks have these bits.
inline bool same_on_all_ranks(const dist::ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  bool same = true;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor all = group.all_gather(tensor.detach().contiguous());
    for (int64_t i = 1; i < all.size(0); ++i) same = same && same_bits(all[i], all[0]);
  }
  return same;
}

}  // namespace support
