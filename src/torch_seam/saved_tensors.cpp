// SPDX-License-Identifier: Apache-2.0
#include "saved_tensors.hpp"

#include <torch/csrc/autograd/engine.h>

#include <cstring>

namespace saturate::torch_seam {
namespace {

using torch::autograd::Engine;

thread_local constinit SavedTensorPacker* packer = nullptr;

class PackingEngine final : public Engine {
 public:
  PackingEngine() { share_device_threads(); }
  ~PackingEngine() override {
    if (shares_threads_) device_ready_queues_.clear();  // they are not this engine's to stop
    stop();                                             // before this part of the object is gone, as Engine wants it
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return packer == nullptr ? nullptr : packer->hooks();
  }

 private:
  // The threads of the devices are started once in a process, by the first engine that runs a backward pass. When that
  // was LibTorch's own, this one must reach them through the same queues.
  void share_device_threads() {
    const auto queues = &PackingEngine::device_ready_queues_;
    device_ready_queues_ = get_base_engine().*queues;
    shares_threads_ = !device_ready_queues_.empty();
  }

  bool shares_threads_ = false;
};

Engine& packing_engine() {
  static PackingEngine engine;
  return engine;
}

}  // namespace

bool install_engine() {
  static const bool free_place = [] {
    if (&Engine::get_default_engine() != &Engine::get_base_engine()) return false;
    torch::autograd::set_default_engine_stub(&packing_engine);
    return true;
  }();
  return free_place && &Engine::get_default_engine() == &packing_engine();  // Python may have been loaded since
}

// LibTorch compares no counters, but each is nothing but a pointer to the shared one.
bool same_counter(const c10::VariableVersion& a, const c10::VariableVersion& b) {
  static_assert(sizeof(c10::VariableVersion) == sizeof(void*));
  return std::memcmp(static_cast<const void*>(&a), static_cast<const void*>(&b), sizeof(void*)) == 0;
}

SavedTensorPacker* current_packer() { return packer; }

PackScope::PackScope(SavedTensorPacker* inner) : outer_(packer) { packer = inner; }
PackScope::~PackScope() { packer = outer_; }

}  // namespace saturate::torch_seam
