// SPDX-License-Identifier: Apache-2.0
// A profile in memory: what PyTorch's profiler (Kineto) writes as JSON, from C++ or Python, in a form that is made for
// questions. One Trace holds one process (one rank):
//
//   Trace trace = read_trace("rank0.pt.trace.json.gz");
//   for (const TraceEvent& event : trace.events) std::cout << trace.text(event.name) << '\n';
//
// Nothing in this folder needs LibTorch: a trace is analysed on any machine.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace saturate {

/// A text of a trace, stored once: index for Trace::text. 0 is the empty text.
using TextId = uint32_t;

/// What an event is, from the category Kineto gives it.
enum class EventKind : uint8_t {
  op,              ///< an operator on a CPU thread ("cpu_op")
  annotation,      ///< a range of the user's or the profiler's on a CPU thread ("user_annotation": ProfilerStep#3)
  python,          ///< a Python function ("python_function")
  runtime,         ///< a call into the CUDA runtime or driver ("cuda_runtime", "cuda_driver")
  kernel,          ///< on a device stream
  memcpy,          ///< a copy on a device stream ("gpu_memcpy")
  memset,          ///< "gpu_memset"
  gpu_annotation,  ///< a CPU range projected onto a stream ("gpu_user_annotation"): covers kernels, does no work
  sync,            ///< a wait of a stream or an event, seen by the device ("cuda_sync")
  memory,          ///< one allocation or release; an instant ("cpu_instant_event" named [memory])
  overhead,        ///< of the profiler itself
  other,
};

/// Where events happen one after another: a thread of the CPU, or a stream of a device.
struct TraceLane {
  int64_t pid = 0;      ///< process; of a device's lane, the device's index
  int64_t tid = 0;      ///< thread; of a device's lane, the stream
  bool device = false;  ///< a stream
  std::string process;  ///< process_name, may be empty
  std::string thread;   ///< thread_name, may be empty
};

inline constexpr uint32_t no_details = std::numeric_limits<uint32_t>::max();

/// A span of time on one lane. Times are nanoseconds from Trace::origin_ns, exact (Kineto writes microseconds with
/// three decimals).
struct TraceEvent {
  int64_t start_ns = 0;
  int64_t duration_ns = 0;  ///< 0 for instants
  TextId name = 0;
  uint32_t lane = 0;              ///< index into Trace::lanes
  uint32_t details = no_details;  ///< index into Trace::details, or no_details
  int32_t correlation = -1;       ///< links a runtime call with the work it started; -1: none
  EventKind kind = EventKind::other;

  int64_t end_ns() const { return start_ns + duration_ns; }
};

/// Arguments of an event, where it has any that an analysis asks for. Unknown numbers are -1, unknown texts empty (0).
struct TraceDetails {
  int64_t external_id = -1;      ///< operator that a device event or runtime call belongs to ("External id")
  int64_t sequence = -1;         ///< "Sequence number": forward operator and its backward share it
  int64_t forward_thread = -1;   ///< "Fwd thread id" of a backward operator
  TextId shapes = 0;             ///< "Input Dims" as JSON text: [[64,128],[128,256],[]]
  TextId types = 0;              ///< "Input type": ["float","c10::BFloat16",""]
  TextId strides = 0;            ///< "Input Strides"
  TextId values = 0;             ///< "Concrete Inputs"
  int64_t bytes = -1;            ///< of a copy ("bytes"), or of an allocation ("Bytes": negative for a release)
  int64_t address = -1;          ///< "Addr" of an allocation
  int64_t total_allocated = -1;  ///< "Total Allocated" after it
  int64_t total_reserved = -1;   ///< "Total Reserved"
  int32_t device_type = -1;      ///< of an allocation: 0 CPU, 1 CUDA
  int32_t device = -1;
  int64_t stream = -1;            ///< of a device event, and of a "sync" or a runtime call that names one
  int64_t flops = -1;             ///< "flops", when the profile counted them
  TextId collective = 0;          ///< "Collective name" of a communication ("allreduce")
  TextId message_type = 0;        ///< "dtype" of its elements ("Float")
  int64_t message_elements = -1;  ///< "In msg nelems"
  int64_t group_size = -1;        ///< "Group size"
  int32_t grid_blocks = -1;       ///< product of "grid"
  int32_t block_threads = -1;     ///< product of "block"
};

/// An arrow of the trace: from a forward operator to its backward one ("fwdbwd"), or from a launch to its work
/// ("ac2g"). Both ends have the same id; the end is `finish`.
struct TraceFlow {
  int64_t id = 0;
  int64_t time_ns = 0;
  uint32_t lane = 0;
  bool forward_backward = false;
  bool finish = false;
};

/// A device as the profiler wrote it ("deviceProperties").
struct TraceDevice {
  int64_t id = 0;
  std::string name;  ///< "NVIDIA H100 80GB HBM3"
  int64_t memory_bytes = 0;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;  ///< "numSms"
};

/// One process's profile. Events are sorted by start, then longest first, so that a parent comes before its children.
/// Moved, not copied: it may hold millions of events.
class Trace {
 public:
  Trace() = default;
  Trace(Trace&&) = default;
  Trace& operator=(Trace&&) = default;

  std::vector<TraceEvent> events;
  std::vector<TraceDetails> details;
  std::vector<TraceLane> lanes;
  std::vector<TraceFlow> flows;
  std::vector<TraceDevice> devices;
  int64_t origin_ns = 0;  ///< what times count from, nanoseconds of the writer's clock (since 1970 in new traces)
  int rank = -1;          ///< -1: not told ("distributedInfo")
  int world_size = -1;
  std::string backend;  ///< "nccl", "gloo"
  std::string host;     ///< "host_name"
  std::string name;     ///< the file's path, for messages
  bool with_flops = false, record_shapes = false, with_stack = false, profile_memory = false;

  /// The text of an id. @throws std::out_of_range for an id of another trace.
  const std::string& text(TextId id) const { return texts_.at(id); }
  /// The id of a text, new if it was not there.
  TextId intern(std::string_view text);
  /// The id of a text that is there already; 0 when it is not (and of the empty text).
  TextId find(std::string_view text) const;
  std::size_t texts() const { return texts_.size(); }

  /// nullptr for an event without.
  const TraceDetails* details_of(const TraceEvent& event) const {
    return event.details == no_details ? nullptr : &details[event.details];
  }
  /// The event's, made when it has none.
  TraceDetails& make_details(TraceEvent& event);
  /// The lane of a process and thread, made when it is not there.
  uint32_t lane(int64_t pid, int64_t tid);

  /// Brings the events into the order that the class promises; what writes events calls it once at the end.
  void sort();
  int64_t begin_ns() const;  ///< of the first event; 0 without events
  int64_t end_ns() const;    ///< of the last one to end

 private:
  std::deque<std::string> texts_{std::string()};  // a deque: views into it stay good
  std::unordered_map<std::string_view, TextId> ids_;
  std::map<std::pair<int64_t, int64_t>, uint32_t> lane_ids_;
};

}  // namespace saturate
