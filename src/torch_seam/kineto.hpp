// SPDX-License-Identifier: Apache-2.0
// The one place that speaks to PyTorch's profiler: what it records becomes a Trace in memory, without a file.
#pragma once

#include "saturate/trace/trace.hpp"

#include <thread>

namespace saturate::torch_seam {

struct CaptureConfig {
  bool shapes = true;        ///< shapes, types, strides and plain values of operators' inputs
  bool memory = false;       ///< every allocation and release
  bool flops = true;         ///< of the operators that LibTorch knows a formula for
  bool cuda = true;          ///< kernels and copies, where there is a GPU
  bool cuda_syncs = true;    ///< waits of streams and events as the device sees them
  bool all_threads = false;  ///< operators of threads that this one has not started as well
};

/// One recording: prepared by the constructor, then started and stopped by the same thread. LibTorch has one profiler a
/// process, so there is one object at a time.
class KinetoCapture {
 public:
  /// @throws ConfigError another capture lives, PyTorch's profiler is on (started from Python or by hand), or a
  /// MemoryMeter holds the hook that the profiler needs.
  explicit KinetoCapture(const CaptureConfig& config);
  /// Ends the recording, if it runs, and drops what it has. Only the thread that started it can.
  ~KinetoCapture();
  KinetoCapture(const KinetoCapture&) = delete;
  KinetoCapture& operator=(const KinetoCapture&) = delete;

  /// @throws ConfigError as the constructor: what has come up since then.
  void start();
  /// Operators, ranges and device work between the two are left out.
  void pause();
  void resume();
  /// Waits for the devices, ends the recording and converts it. @throws StateError not the thread that started it, or
  /// not started.
  Trace stop();
  /// @throws StateError called by another thread than the one that made the object.
  void require_thread() const;

 private:
  enum class State { prepared, running, paused, over };
  void toggle(bool on);

  CaptureConfig config_;
  State state_ = State::prepared;
  std::thread::id owner_ = std::this_thread::get_id();
};

}  // namespace saturate::torch_seam
