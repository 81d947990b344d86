// SPDX-License-Identifier: Apache-2.0
#include "kineto.hpp"

#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <c10/util/Logging.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/collection.h>
#include <torch/cuda.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace saturate::torch_seam {
namespace {

namespace kineto = torch::autograd::profiler;
namespace events = torch::profiler::impl;
using kineto::ActivityType;
using Op = events::ExtraFields<events::EventType::TorchOp>;

std::atomic<bool> capture_lives{false};

bool has_cuda() {
  static const bool there = torch::cuda::is_available();
  return there;
}

std::set<ActivityType> activities(const CaptureConfig& config) {
  std::set<ActivityType> result{ActivityType::CPU};
  if (config.cuda && has_cuda()) result.insert(ActivityType::CUDA);
  return result;
}

kineto::ProfilerConfig profiler_config(const CaptureConfig& config) {
  events::ExperimentalConfig more;
  more.enable_cuda_sync_events = config.cuda_syncs;
  more.profile_all_threads = config.all_threads;
  more.expose_kineto_event_metadata = true;  // grids, bytes and streams of device events
  return kineto::ProfilerConfig(kineto::ProfilerState::KINETO, config.shapes, config.memory, /*with_stack=*/false,
                                config.flops, /*with_modules=*/false, more);
}

// The slot that PyTorch's profiler and MemoryMeter both need. profilerEnabled() would take a meter for a profiler.
void require_free_profiler() {
  auto* const here = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  if (here != nullptr && dynamic_cast<events::ProfilerStateBase*>(here) == nullptr) {
    throw ConfigError(
        "profile: a MemoryMeter lives on this thread and holds the memory hook that the profiler needs; end it first.");
  }
  if (here != nullptr || kineto::isProfilerEnabledInMainThread() ||
      events::ProfilerStateBase::get(/*global=*/true) != nullptr) {
    throw ConfigError(
        "profile: PyTorch's profiler is on already, started from Python or by hand; there is one a process: end it "
        "first, or leave this profile out.");
  }
}

// --- Arguments as the JSON texts that Trace keeps -------------------------------------------------------------------

void append_list(std::string& out, const std::vector<int64_t>& numbers) {
  out += '[';
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(numbers[i]);
  }
  out += ']';
}

template <class Each>
void append_lists(std::string& out, const std::vector<events::TensorMetadata>& tensors, Each&& each) {
  out += '[';
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i > 0) out += ',';
    append_list(out, each(tensors[i]));
  }
  out += ']';
}

// [[64,128],[[2],[3]],[]]: a list of lists for a list of tensors, an empty one for what is no tensor.
template <class Each>
std::string lists_of(const std::vector<events::op_input_t>& inputs, Each&& each) {
  std::string out = "[";
  for (const auto& input : inputs) {
    if (out.size() > 1) out += ',';
    if (const auto* tensor = std::get_if<events::TensorMetadata>(&input)) {
      append_list(out, each(*tensor));
    } else if (const auto* list = std::get_if<std::vector<events::TensorMetadata>>(&input)) {
      append_lists(out, *list, each);
    } else {
      out += "[]";
    }
  }
  return out + ']';
}

// The profiler keeps single values with the tensors, and lists of values beside them.
const c10::IValue* value_at(const Op& op, std::size_t i) {
  if (const auto* single = std::get_if<c10::IValue>(&op.inputs_[i])) return single;
  return i < op.concrete_inputs_.size() ? std::get_if<c10::IValue>(&op.concrete_inputs_[i]) : nullptr;
}

std::string type_at(const Op& op, std::size_t i) {
  if (const auto* tensor = std::get_if<events::TensorMetadata>(&op.inputs_[i])) {
    return std::string(c10::scalarTypeToTypeMeta(tensor->dtype_).name());
  }
  if (std::holds_alternative<std::vector<events::TensorMetadata>>(op.inputs_[i])) return "TensorList";
  const c10::IValue* value = value_at(op, i);
  if (value == nullptr || value->isNone()) return "";
  return value->isList() ? "ScalarList" : "Scalar";
}

std::string text_at(const Op& op, std::size_t i) {
  const c10::IValue* value = value_at(op, i);
  if (value == nullptr || value->isNone()) return "";
  std::ostringstream text;
  text << *value;
  return text.str();
}

template <class Text>
std::string texts_of(const Op& op, Text&& text) {
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < op.inputs_.size(); ++i) list.push_back(text(op, i));
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int64_t whole_number(const std::string& text) {
  char* end = nullptr;
  const long long number = std::strtoll(text.c_str(), &end, 10);
  return end == text.c_str() ? -1 : number;
}

std::string_view without_quotes(std::string_view text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') return text.substr(1, text.size() - 2);
  return text;
}

int32_t product_of(const nlohmann::json& numbers) {
  int64_t product = 1;
  for (const auto& number : numbers) {
    if (number.is_number()) product *= number.get<int64_t>();
  }
  return product > 0 && product < (int64_t{1} << 31) ? static_cast<int32_t>(product) : -1;
}

// --- Events ---------------------------------------------------------------------------------------------------------

EventKind kind_of(libkineto::ActivityType type) {
  using Type = libkineto::ActivityType;
  switch (type) {
    case Type::CPU_OP: return EventKind::op;
    case Type::USER_ANNOTATION: return EventKind::annotation;
    case Type::GPU_USER_ANNOTATION: return EventKind::gpu_annotation;
    case Type::GPU_MEMCPY: return EventKind::memcpy;
    case Type::GPU_MEMSET: return EventKind::memset;
    case Type::CONCURRENT_KERNEL: return EventKind::kernel;
    case Type::CUDA_RUNTIME:
    case Type::CUDA_DRIVER: return EventKind::runtime;
    case Type::PYTHON_FUNCTION: return EventKind::python;
    case Type::OVERHEAD: return EventKind::overhead;
    case Type::CUDA_SYNC: return EventKind::sync;
    default: return EventKind::other;
  }
}

bool on_device(EventKind kind) {
  return kind == EventKind::kernel || kind == EventKind::memcpy || kind == EventKind::memset ||
         kind == EventKind::gpu_annotation || kind == EventKind::sync;
}

using Allocation = events::ExtraFields<events::EventType::Allocation>;
using AllocationKey = std::tuple<int64_t, int64_t, int>;  // start, bytes, kind of device

/// Puts a finished recording into a Trace. Operators and allocations come from the profiler's tree, which knows all of
/// their fields; what runs on a device, and calls into its runtime, from the flat list, which alone is complete there.
class Converter {
 public:
  explicit Converter(const kineto::ProfilerResult& result) : result_(result) {
    trace_.origin_ns = static_cast<int64_t>(result.trace_start_ns());
  }

  Trace run() {
    for (const auto& root : result_.event_tree()) walk(root);
    for (const auto& event : result_.events()) add_flat(event);
    for (const auto& [forward, backward] : backwards_) add_backward_flow(forward, backward);
    add_launch_flows();
    name_lanes();
    trace_.sort();
    return std::move(trace_);
  }

 private:
  using Key = std::pair<uint64_t, int64_t>;  // thread as LibTorch counts them, sequence number
  struct Place {
    int64_t time_ns = 0;
    uint32_t lane = 0;
  };

  // Without recursion: a chain of ranges and operators may be deep.
  void walk(const std::shared_ptr<events::Result>& root) {
    std::vector<const events::Result*> open{root.get()};
    while (!open.empty()) {
      const events::Result& at = *open.back();
      open.pop_back();
      at.visit_if_base<Op>([&](const Op& op) { add_op(at, op); });
      at.visit_if_base<Allocation>([&](const Allocation& allocation) { add_allocation(at, allocation); });
      for (const auto& child : at.children_) open.push_back(child.get());
    }
  }

  TraceEvent begun(int64_t start, int64_t pid, int64_t tid, const std::string& name, EventKind kind) {
    return {
        .start_ns = start - trace_.origin_ns, .name = trace_.intern(name), .lane = trace_.lane(pid, tid), .kind = kind};
  }

  void add_op(const events::Result& at, const Op& op) {
    if (op.end_time_ns_ < at.start_time_ns_) return;  // still open when the recording ended
    TraceEvent event =
        begun(at.start_time_ns_, at.kineto_info_.device, at.kineto_info_.resource, op.name_, kind_of(at.kinetoType()));
    event.duration_ns = op.end_time_ns_ - at.start_time_ns_;
    TraceDetails& details = trace_.make_details(event);
    details.external_id = static_cast<int64_t>(op.correlation_id_);
    if (op.sequence_number_ >= 0) {
      details.sequence = op.sequence_number_;
      details.forward_thread = static_cast<int64_t>(op.forward_tid_);
      note_sequence(at, op, event);
    }
    if (!op.inputs_.empty()) {
      details.shapes = trace_.intern(lists_of(op.inputs_, [](const auto& tensor) { return tensor.sizes_; }));
      details.strides = trace_.intern(lists_of(op.inputs_, [](const auto& tensor) { return tensor.strides_; }));
      details.types = trace_.intern(texts_of(op, type_at));
      details.values = trace_.intern(texts_of(op, text_at));
    }
    if (!op.extra_args_.empty()) {
      const auto flops = static_cast<int64_t>(events::computeFlops(op.name_, op.extra_args_));
      if (flops > 0) details.flops = flops;
    }
    for (const auto& [key, value] : op.extra_meta_) add_collective(details, key, value);
    trace_.events.push_back(event);
  }

  void add_collective(TraceDetails& details, std::string_view key, const std::string& value) {
    if (key == "Collective name") details.collective = trace_.intern(without_quotes(value));
    if (key == "dtype") details.message_type = trace_.intern(without_quotes(value));
    if (key == "In msg nelems") details.message_elements = whole_number(value);
    if (key == "Group size") details.group_size = whole_number(value);
  }

  void note_sequence(const events::Result& at, const Op& op, const TraceEvent& event) {
    const Place here{event.start_ns, event.lane};
    if (op.scope_ == at::RecordScope::BACKWARD_FUNCTION) {
      backwards_.emplace_back(Key(op.forward_tid_, op.sequence_number_), here);
    } else if (op.forward_tid_ == 0) {
      // Of operators inside of one another with the same number, the one that made the node begins last.
      Place& forward = forwards_[Key(at.start_tid_, op.sequence_number_)];
      if (here.time_ns >= forward.time_ns) forward = here;
    }
  }

  void add_allocation(const events::Result& at, const Allocation& allocation) {
    TraceEvent event =
        begun(at.start_time_ns_, at.kineto_info_.device, at.kineto_info_.resource, "[memory]", EventKind::memory);
    TraceDetails& details = trace_.make_details(event);
    details.bytes = allocation.alloc_size_;
    details.address = static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(allocation.ptr_));
    details.total_allocated = static_cast<int64_t>(allocation.total_allocated_);
    details.total_reserved = static_cast<int64_t>(allocation.total_reserved_);
    details.device_type = static_cast<int32_t>(allocation.device_type_);
    details.device = allocation.device_index_;
    trace_.events.push_back(event);
    ++allocations_[{at.start_time_ns_, allocation.alloc_size_, details.device_type}];
  }

  void add_flat(const kineto::KinetoEvent& from) {
    const auto type = static_cast<libkineto::ActivityType>(from.activityType());
    if (type == libkineto::ActivityType::CPU_INSTANT_EVENT) return add_lost_allocation(from);
    const EventKind kind = kind_of(type);
    if (kind == EventKind::op || kind == EventKind::annotation || kind == EventKind::python) return;
    const int64_t pid = on_device(kind) ? from.deviceIndex() : getpid();
    TraceEvent event = begun(static_cast<int64_t>(from.startNs()), pid, from.deviceResourceId(), from.name(), kind);
    event.duration_ns = static_cast<int64_t>(from.durationNs());
    event.correlation = from.correlationId() > 0 ? static_cast<int32_t>(from.correlationId()) : -1;
    if (on_device(kind)) trace_.lanes[event.lane].device = true;
    TraceDetails& details = trace_.make_details(event);
    if (from.linkedCorrelationId() > 0) details.external_id = static_cast<int64_t>(from.linkedCorrelationId());
    add_metadata(event, details, from.metadataJson());
    trace_.events.push_back(event);
  }

  // What lies in no operator or range of a device's allocations is not in the tree.
  void add_lost_allocation(const kineto::KinetoEvent& from) {
    const auto start = static_cast<int64_t>(from.startNs());
    const auto found = allocations_.find({start, from.nBytes(), static_cast<int>(from.deviceType())});
    if (from.name() != "[memory]" || (found != allocations_.end() && found->second-- > 0)) return;
    TraceEvent event = begun(start, getpid(), from.deviceResourceId(), from.name(), EventKind::memory);
    TraceDetails& details = trace_.make_details(event);
    details.bytes = from.nBytes();
    details.device_type = static_cast<int32_t>(from.deviceType());
    details.device = from.deviceIndex();
    trace_.events.push_back(event);
  }

  void add_metadata(TraceEvent& event, TraceDetails& details, const std::string& members) {
    if (members.empty()) return;
    const auto json = nlohmann::json::parse("{" + members + "}", nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return;
    const auto number = [&](const char* key, int64_t otherwise) {
      const auto found = json.find(key);
      return found != json.end() && found->is_number() ? found->get<int64_t>() : otherwise;
    };
    details.stream = number("stream", -1);
    details.bytes = number("bytes", -1);
    details.device = static_cast<int32_t>(number("device", -1));
    if (const auto grid = json.find("grid"); grid != json.end()) details.grid_blocks = product_of(*grid);
    if (const auto block = json.find("block"); block != json.end()) details.block_threads = product_of(*block);
    if (event.correlation < 0) event.correlation = static_cast<int32_t>(number("correlation", -1));
  }

  void add_flow(int64_t id, bool forward_backward, const Place& from, const Place& to) {
    TraceFlow flow{.id = id, .time_ns = from.time_ns, .lane = from.lane, .forward_backward = forward_backward};
    trace_.flows.push_back(flow);
    flow.time_ns = to.time_ns;
    flow.lane = to.lane;
    flow.finish = true;
    trace_.flows.push_back(flow);
  }

  void add_backward_flow(const Key& key, const Place& backward) {
    const auto forward = forwards_.find(key);
    if (forward != forwards_.end()) add_flow(++flow_ids_, true, forward->second, backward);
  }

  void add_launch_flows() {
    std::unordered_map<int32_t, Place> launches;
    for (const TraceEvent& event : trace_.events) {
      if (event.kind == EventKind::runtime && event.correlation >= 0) {
        launches[event.correlation] = {event.start_ns, event.lane};
      }
    }
    for (const TraceEvent& event : trace_.events) {
      if (!on_device(event.kind) || event.kind == EventKind::gpu_annotation) continue;
      const auto launch = launches.find(event.correlation);
      if (launch != launches.end()) add_flow(event.correlation, false, launch->second, {event.start_ns, event.lane});
    }
  }

  void name_lanes() {
    std::string program;
    std::ifstream("/proc/self/comm") >> program;
    for (TraceLane& lane : trace_.lanes) {
      if (lane.device) {
        lane.process = "GPU " + std::to_string(lane.pid);
        lane.thread = "stream " + std::to_string(lane.tid);
        continue;
      }
      lane.process = program;
      std::string name;
      std::getline(std::ifstream("/proc/self/task/" + std::to_string(lane.tid) + "/comm"), name);
      lane.thread = "thread " + std::to_string(lane.tid) + (name.empty() ? "" : " (" + name + ")");
    }
  }

  const kineto::ProfilerResult& result_;
  Trace trace_;
  std::map<Key, Place> forwards_;
  std::vector<std::pair<Key, Place>> backwards_;
  std::map<AllocationKey, int> allocations_;
  int64_t flow_ids_ = 0;
};

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

void synchronize_devices() {
  for (int64_t i = 0; i < static_cast<int64_t>(torch::cuda::device_count()); ++i) torch::cuda::synchronize(i);
}

}  // namespace

KinetoCapture::KinetoCapture(const CaptureConfig& config) : config_(config) {
  if (capture_lives.exchange(true)) {
    throw ConfigError(
        "profile: another profile of this process is being taken; there is one profiler a process: end it first, or "
        "give the two windows that do not meet.");
  }
  try {
    require_free_profiler();
    kineto::prepareProfiler(profiler_config(config_), activities(config_));
  } catch (...) {
    capture_lives = false;
    throw;
  }
}

KinetoCapture::~KinetoCapture() {
  try {
    // What was prepared is only let go of by a recording that ends.
    if (state_ == State::prepared) start();
    if (state_ != State::over) kineto::disableProfiler();
  } catch (const std::exception& error) {
    log::warn(std::string("profile: PyTorch's profiler could not be ended: ") + error.what());
  }
  capture_lives = false;
}

void KinetoCapture::start() {
  require_thread();
  if (state_ != State::prepared) throw StateError("profile: a recording starts once; make another object.");
  require_free_profiler();
  kineto::enableProfiler(profiler_config(config_), activities(config_));
  state_ = State::running;
}

void KinetoCapture::pause() {
  if (state_ == State::running) toggle(false);
}
void KinetoCapture::resume() {
  if (state_ == State::paused) toggle(true);
}

void KinetoCapture::toggle(bool on) {
  require_thread();
  if (!on && config_.cuda && has_cuda()) synchronize_devices();  // what was launched is still part of the recording
  // Each call logs a warning that tracks of a GPU may mix, with or without one; nothing runs on it at these moments.
  const int level = FLAGS_caffe2_log_level;
  FLAGS_caffe2_log_level = std::max(level, 2);  // errors
  kineto::toggleCollectionDynamic(on, activities(config_));
  FLAGS_caffe2_log_level = level;
  state_ = on ? State::running : State::paused;
}

Trace KinetoCapture::stop() {
  require_thread();
  if (state_ != State::running && state_ != State::paused) {
    throw StateError("profile: nothing is being recorded: start() comes before stop(), once each.");
  }
  if (config_.cuda && has_cuda()) synchronize_devices();  // the profiler drops kernels that have not ended
  state_ = State::over;
  const auto result = kineto::disableProfiler();
  Trace trace = Converter(*result).run();
  trace.host = host_name();
  trace.record_shapes = config_.shapes;
  trace.profile_memory = config_.memory;
  trace.with_flops = config_.flops;
  return trace;
}

void KinetoCapture::require_thread() const {
  if (owner_ != std::this_thread::get_id()) {
    throw StateError("profile: a profile is started, stepped and ended by one thread; this is another one.");
  }
}

}  // namespace saturate::torch_seam
