// SPDX-License-Identifier: Apache-2.0
#include "saturate/observe/free_memory.hpp"

#include "saturate/error.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace saturate {
namespace {

constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();

// "MemAvailable:   123 kB", "inactive_file 123"; 0 where there is none.
int64_t field_of(const std::string& file, const std::string& field) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(field, 0) == 0) return std::stoll(line.substr(field.size()));
  }
  return 0;
}

// Nothing where the file is missing or says "max".
std::optional<int64_t> number_in(const std::string& file) {
  std::ifstream in(file);
  uint64_t value = 0;
  if (!(in >> value)) return std::nullopt;
  return static_cast<int64_t>(std::min<uint64_t>(value, no_limit));
}

// How the two versions of control groups call things.
struct GroupFiles {
  std::string root, limit, usage, cache;
};

// What one group leaves; pages of files count as used, and give way.
int64_t left_in(const std::string& folder, const GroupFiles& names) {
  const auto limit = number_in(folder + "/" + names.limit), used = number_in(folder + "/" + names.usage);
  if (!limit || !used) return no_limit;
  return std::max<int64_t>(0, *limit - *used + field_of(folder + "/memory.stat", names.cache + " "));
}

// Every group that this process is in, and those around them. In a container the path may be one that is not seen from
// inside; then the root is the container's own group.
int64_t left_in_groups() {
  static const GroupFiles first{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                "total_inactive_file"};
  static const GroupFiles second{"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
  int64_t left = no_limit;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/path" or "0::/path"
    const auto begin = line.find(':'), end = line.find(':', begin + 1);
    if (begin == std::string::npos || end == std::string::npos) continue;
    const std::string controllers = "," + line.substr(begin + 1, end - begin - 1) + ",";
    const bool version_one = controllers.find(",memory,") != std::string::npos;
    if (!version_one && controllers != ",,") continue;
    const GroupFiles& names = version_one ? first : second;
    std::string path = line.substr(end + 1);
    while (true) {
      if (path == "/") path.clear();
      left = std::min(left, left_in(names.root + path, names));
      if (path.empty()) break;
      path.resize(path.rfind('/'));
    }
  }
  return left;
}

}  // namespace

int64_t free_memory_bytes(c10::Device device) {
  if (device.is_cpu()) {
    const int64_t available = field_of("/proc/meminfo", "MemAvailable:") * 1024;
    return std::min(available > 0 ? available : no_limit, left_in_groups());
  }
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr) {
    throw ConfigError("free_memory_bytes: the allocator of device " + device.str() + " does not tell; give the limit");
  }
  const c10::DeviceIndex index = device.has_index() ? device.index() : 0;
  int64_t cached = 0;
  if (allocator->initialized()) {
    const auto stats = allocator->getDeviceStats(index);
    constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    cached = stats.reserved_bytes[all].current - stats.allocated_bytes[all].current;
  }
  return static_cast<int64_t>(allocator->getMemoryInfo(index).first) + cached;
}

}  // namespace saturate
