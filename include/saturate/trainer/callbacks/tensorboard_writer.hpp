// SPDX-License-Identifier: Apache-2.0
// Writes a run's log as an event file that TensorBoard shows:
//
//   Trainer trainer(net, optimizer, loss, TensorBoardWriter("runs/first"));     // tensorboard --logdir runs
//
//   TensorBoardWriter board("runs/by_hand");                                    // or in a loop of one's own
//   board.scalar("train/loss", step, loss);
#pragma once

#include "saturate/trainer/events.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace saturate {

namespace detail {
class OutputFile;
}

/// One event file a writer, `events.out.tfevents.<seconds>.<host>.<pid>.<n>`, which TensorBoard joins with others of
/// its folder: a resumed run writes into the folder of the first. From `fit` come, by optimizer step, the tags
/// train/loss, train/learning_rate, train/grad_norm, train/samples_per_second, train/data_wait_share,
/// train/step_seconds and train/refused, and evaluate/<metric>. Values are stored as float32, like TensorBoard's own;
/// NaN and infinity stay what they are. Each record is written at once. Movable, not copyable.
class TensorBoardWriter {
 public:
  /// Makes the folder. @throws ConfigError naming the path when it cannot be made or written to.
  explicit TensorBoardWriter(const std::filesystem::path& folder);
  ~TensorBoardWriter();
  TensorBoardWriter(TensorBoardWriter&&) noexcept;
  TensorBoardWriter& operator=(TensorBoardWriter&&) noexcept;

  /// Writes one point. A "/" in the tag makes groups.
  /// @throws ConfigError for an empty tag; Error naming the path when it cannot be written (the disk is full).
  void scalar(std::string_view tag, int64_t step, double value);

  void on_log(const LogEvent& event);
  void on_evaluate(const EvaluateEvent& event);

  /// The event file.
  const std::filesystem::path& path() const;

 private:
  std::unique_ptr<detail::OutputFile> file_;
};

}  // namespace saturate
