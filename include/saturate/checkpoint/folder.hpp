// SPDX-License-Identifier: Apache-2.0
// A folder of checkpoints, as all ranks see it together.
#pragma once

#include "saturate/checkpoint/values.hpp"
#include "saturate/distributed/process_group.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace saturate::checkpoint {

/// After window 120, of two ranks:
///   000000000120.run            what all ranks share, by rank 0
///   000000000120.rank-0-of-2    what is rank 0's own (random streams, place in the data)
///   000000000120.rank-1-of-2
/// The folder may be shared, or each rank's own disk: a rank reads what it has written, and rank 0 tells the rest.
/// A checkpoint counts when every rank has its files, all of one save; whatever else a kill has left does not.
/// Everything here but the names is called by every rank, in the same order.
class Folder {
 public:
  /// Makes it. @throws ConfigError, on every rank: one cannot.
  Folder(std::string path, distributed::ProcessGroup group);

  /// Windows of checkpoints that count, ascending, by the files' first lines.
  std::vector<int64_t> complete() const;

  /// @param stamp the same on all ranks, and of no other save. @throws Error, on every rank: one could not write.
  void save(int64_t window, const std::string& stamp, const Values& shared, const Values& own) const;

  struct Saved {
    int64_t window = 0;
    Values shared, own;
  };
  /// The newest that can be read on every rank; none: there is none at all. One that is torn is named in a warning.
  /// @throws DataError, on every rank: all are torn. They are named. @throws StateError, on every rank: there is none
  /// of this number of ranks, but of another.
  std::optional<Saved> newest() const;

  /// @throws StateError, on every rank: there are checkpoints of another number of ranks.
  void refuse_other_ranks() const;

  /// Removes this rank's files of other windows up to the last in `keep`, and what a killed process left half-written.
  void remove_all_but(const std::vector<int64_t>& keep) const;

  std::string run_file(int64_t window) const;
  std::string own_file(int64_t window) const;

 private:
  std::string own_ending() const;
  std::optional<Saved> read(int64_t window, std::string& errors) const;
  std::string from_rank_0(std::string bytes) const;

  std::string path_;
  distributed::ProcessGroup group_;
};

/// Runs `work` on this rank; an error of any rank is thrown on every rank, as itself where it happened and as a
/// StateError that names the rank elsewhere.
void on_all_ranks(const distributed::ProcessGroup& group, const std::string& what, const std::function<void()>& work);

}  // namespace saturate::checkpoint
