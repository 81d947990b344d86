// SPDX-License-Identifier: Apache-2.0
#include "descriptor_cache.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace saturate::data::detail {

Descriptor::~Descriptor() { ::close(file_); }

std::shared_ptr<const Descriptor> DescriptorCache::get(std::size_t file, const std::string& path) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[file];
  slot.used = ++clock_;
  if (slot.descriptor) return slot.descriptor;
  if (open_.size() >= limit_) close_oldest();
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  while (descriptor < 0 && (errno == EMFILE || errno == ENFILE) && !open_.empty()) {  // the process has no more to give
    close_oldest();
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  }
  if (descriptor < 0) return nullptr;
  slot.descriptor = std::make_shared<const Descriptor>(descriptor);
  open_.push_back(file);
  return slot.descriptor;
}

void DescriptorCache::close_oldest() {
  const auto oldest = std::min_element(open_.begin(), open_.end(),
                                       [&](std::size_t a, std::size_t b) { return slots_[a].used < slots_[b].used; });
  slots_[*oldest].descriptor.reset();
  *oldest = open_.back();
  open_.pop_back();
}

}  // namespace saturate::data::detail
