// SPDX-License-Identifier: Apache-2.0
#include "peaks_cache.hpp"

#include "../audit/text.hpp"
#include "../audit/write_file.hpp"
#include "saturate/error.hpp"

#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

namespace saturate::detail {
namespace {

using PeaksJson = nlohmann::ordered_json;

constexpr const char* peaks_format = "saturate-peaks";
constexpr int peaks_version = 1;

double rate_in(const PeaksJson& json, const char* name) {
  const auto rate = json.at(name).get<double>();
  if (!std::isfinite(rate) || rate < 0) throw DataError(std::string(name) + " is no rate");
  return rate;
}

Peaks peaks_of(const PeaksJson& json) {
  Peaks peaks;
  peaks.machine = json.at("machine").get<std::string>();
  peaks.device = json.at("device").get<std::string>();
  peaks.memory_bandwidth = rate_in(json, "memory_bandwidth");
  peaks.host_to_device_pinned = rate_in(json, "host_to_device_pinned");
  peaks.host_to_device_pageable = rate_in(json, "host_to_device_pageable");
  for (const auto& gemm : json.at("gemm")) {
    peaks.gemm.push_back({gemm.at("precision").get<std::string>(), rate_in(gemm, "flops"), gemm.at("size")});
  }
  if (peaks.memory_bandwidth == 0) throw DataError("memory_bandwidth is 0");
  return peaks;
}

// FNV-1a: the same on every machine that shares the folder.
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Not std::filesystem: LibTorch exports parts of it, which do not work in another library's hands.
void make_folders_of(const std::string& path) {
  for (auto end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    const std::string folder = path.substr(0, end);
    if (::mkdir(folder.c_str(), 0777) == 0 || errno == EEXIST) continue;
    throw Error("cannot make the folder " + folder + ": " + std::strerror(errno));
  }
}

}  // namespace

std::string peaks_file(const std::string& folder, const std::string& machine) {
  std::string where = folder;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  // A relative XDG_CACHE_HOME is to be ignored (XDG base directory specification).
  if (where.empty() && cache != nullptr && *cache == '/') where = std::string(cache) + "/saturate";
  if (where.empty() && home != nullptr && *home != '\0') where = std::string(home) + "/.cache/saturate";
  if (where.empty()) {
    throw ConfigError(
        "measure_peaks: neither XDG_CACHE_HOME nor HOME is set; give PeakOptions::cache_folder, or set "
        "use_cache to false");
  }
  return where + audit::text::format("/peaks-%016llx.json", static_cast<unsigned long long>(hash_of(machine)));
}

CachedPeaks read_peaks(const std::string& path, const std::string& machine) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  try {
    const auto json = PeaksJson::parse(text);
    if (json.at("format") != peaks_format || json.at("version") != peaks_version) {
      return {std::nullopt, path + " is of another version: measured anew"};
    }
    Peaks peaks = peaks_of(json);
    if (peaks.machine != machine) return {std::nullopt, path + " is of another machine: measured anew"};
    peaks.from_cache = true;
    return {std::move(peaks), {}};
  } catch (const std::exception& error) {
    return {std::nullopt, path + " is damaged (" + audit::text::first_line(error.what()) + "): measured anew"};
  }
}

void write_peaks(const std::string& path, const Peaks& peaks) {
  PeaksJson gemm = PeaksJson::array();
  for (const GemmPeak& peak : peaks.gemm) {
    gemm.push_back({{"precision", peak.precision}, {"flops", peak.flops}, {"size", peak.size}});
  }
  const PeaksJson json = {{"format", peaks_format},
                          {"version", peaks_version},
                          {"machine", peaks.machine},
                          {"device", peaks.device},
                          {"memory_bandwidth", peaks.memory_bandwidth},
                          {"host_to_device_pinned", peaks.host_to_device_pinned},
                          {"host_to_device_pageable", peaks.host_to_device_pageable},
                          {"gemm", gemm}};
  make_folders_of(path);
  // A CPU's name may be anything: bytes that are no UTF-8 are replaced rather than refused.
  audit::write_file(path, json.dump(2, ' ', false, PeaksJson::error_handler_t::replace) + "\n");
}

}  // namespace saturate::detail
