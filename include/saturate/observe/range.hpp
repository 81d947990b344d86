// SPDX-License-Identifier: Apache-2.0
// Names for pieces of time, which profilers show:
//
//   {
//     const st::Range range("augment");
//     batch = augment(batch);
//   }
#pragma once

#include <memory>

namespace at {
struct RecordFunction;
}

namespace saturate {

/// The parts of a step, as the Trainer names them. A loop by hand that uses the same names is understood by the
/// analysis of its traces as well; it looks for `data_wait` in particular.
namespace ranges {
inline constexpr const char* data_wait = "data wait";            ///< for the loader's next batch
inline constexpr const char* copy_to_device = "copy to device";  ///< a batch that is not there yet; its memory format
inline constexpr const char* forward = "forward";                ///< the model and the loss
inline constexpr const char* backward = "backward";
inline constexpr const char* reduce = "reduce";        ///< what is left of the gradients' reduction over ranks
inline constexpr const char* clip = "clip";            ///< gradients unscaled, clipped, looked at
inline constexpr const char* optimizer = "optimizer";  ///< the update, averaged weights, gradients cleared
}  // namespace ranges

/// Runs from its construction to the end of its scope; ranges nest, on each thread for itself. PyTorch's profiler
/// (saturate's, Python's) shows it as an annotation; tools for NVTX, such as Nsight Systems, as a range where LibTorch
/// has CUDA: on its own when such a tool has started the process (it sets NVTX_INJECTION64_PATH), and under Python's
/// emit_nvtx(). It is no operator. When nobody listens it costs two reads of thread-local and global state.
class Range {
 public:
  /// @param name copied when somebody listens, and not looked at otherwise.
  explicit Range(const char* name);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  /// Whether ranges go to NVTX from now on. Takes no effect where LibTorch has no CUDA.
  static void set_nvtx(bool on);
  static bool nvtx();

 private:
  std::unique_ptr<at::RecordFunction> record_;
  bool pushed_ = false;
};

}  // namespace saturate
