// SPDX-License-Identifier: Apache-2.0
#include "saturate/checkpoint/folder.hpp"

#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/util/StringUtil.h>

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <set>
#include <sstream>
#include <utility>

namespace saturate::checkpoint {
namespace {

constexpr std::size_t window_digits = 12;
constexpr int64_t bytes_at_once = int64_t{64} << 20;
const std::string run_ending = ".run";

std::string digits_of(int64_t window) {
  char text[32];
  std::snprintf(text, sizeof(text), "%012lld", static_cast<long long>(window));
  return text;
}

/// "000000000120.run" with the ending ".run" gives 120.
std::optional<int64_t> window_of(const std::string& name, const std::string& ending) {
  if (name.size() != window_digits + ending.size() || !name.ends_with(ending)) return std::nullopt;
  const std::string digits = name.substr(0, window_digits);
  if (digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return std::stoll(digits);
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) return names;
  while (const dirent* entry = ::readdir(folder)) names.emplace_back(entry->d_name);
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  return names;
}

void make_folder(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    struct stat status;
    const bool made =
        ::mkdir(part.c_str(), 0777) == 0 || (::stat(part.c_str(), &status) == 0 && S_ISDIR(status.st_mode));
    if (!made) throw ConfigError("checkpoint: the folder " + part + " cannot be made: " + std::strerror(errno));
    if (slash == std::string::npos) return;
  }
}

}  // namespace

void on_all_ranks(const distributed::ProcessGroup& group, const std::string& what, const std::function<void()>& work) {
  std::exception_ptr here;
  std::string text;
  try {
    work();
  } catch (const DistributedError&) {
    throw;  // nobody can be told
  } catch (const std::exception& error) {
    here = std::current_exception();
    text = error.what();
    if (text.empty()) text = "an error";
  }
  const auto texts = group.gather_text(text);
  if (here != nullptr) std::rethrow_exception(here);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) throw StateError(c10::str(what, ": rank ", rank, " failed: ", texts[rank]));
  }
}

Folder::Folder(std::string path, distributed::ProcessGroup group) : path_(std::move(path)), group_(std::move(group)) {
  if (path_.empty()) throw ConfigError("checkpoint: the folder's name is empty");
  on_all_ranks(group_, "checkpoint", [&] { make_folder(path_); });
}

std::string Folder::own_ending() const { return c10::str(".rank-", group_.rank(), "-of-", group_.world_size()); }
std::string Folder::run_file(int64_t window) const { return path_ + "/" + digits_of(window) + run_ending; }
std::string Folder::own_file(int64_t window) const { return path_ + "/" + digits_of(window) + own_ending(); }

std::vector<int64_t> Folder::complete() const {
  std::string text;  // one line a window: window and stamp
  for (const std::string& name : names_in(path_)) {
    const auto window = window_of(name, own_ending());
    if (!window) continue;
    const std::string stamp = stamp_of(own_file(*window));
    if (stamp.empty() || (group_.rank() == 0 && stamp_of(run_file(*window)) != stamp)) continue;
    text += c10::str(*window, " ", stamp, "\n");
  }
  std::map<std::string, int> ranks_with;
  for (const std::string& of_rank : group_.gather_text(text)) {
    std::istringstream lines(of_rank);
    for (std::string line; std::getline(lines, line);) ++ranks_with[line];
  }
  std::vector<int64_t> windows;
  for (const auto& [line, ranks] : ranks_with) {
    if (ranks == group_.world_size()) windows.push_back(std::stoll(line));
  }
  std::sort(windows.begin(), windows.end());
  return windows;
}

void Folder::save(int64_t window, const std::string& stamp, const Values& shared, const Values& own) const {
  on_all_ranks(group_, c10::str("checkpoint of window ", window), [&] {
    if (group_.rank() == 0) write_file(run_file(window), stamp, shared);
    write_file(own_file(window), stamp, own);
  });
}

std::optional<Folder::Saved> Folder::newest() const {
  std::vector<int64_t> windows = complete();
  std::string errors;
  for (; !windows.empty(); windows.pop_back()) {
    auto saved = read(windows.back(), errors);
    if (saved) return saved;
    log::warn("a checkpoint is passed over: " + errors);
  }
  if (!errors.empty()) throw DataError("no checkpoint in " + path_ + " can be read: " + errors);
  refuse_other_ranks();
  return std::nullopt;
}

// A run begun anew in silence would be a run lost.
void Folder::refuse_other_ranks() const {
  std::string found;
  for (const std::string& name : names_in(path_)) {
    const std::size_t of = name.rfind("-of-");
    if (of == std::string::npos || name.find(".tmp.") != std::string::npos ||
        !window_of(name, name.substr(std::min(window_digits, name.size()))))
      continue;
    if (name.substr(of + 4) != std::to_string(group_.world_size())) found = name;
  }
  for (const std::string& name : group_.gather_text(found)) {
    if (name.empty()) continue;
    throw StateError(c10::str("checkpoint: ", path_, " holds a checkpoint of another number of ranks (", name,
                              "), and these are ", group_.world_size(),
                              ": start as many as it was saved by, or give another folder"));
  }
}

std::optional<Folder::Saved> Folder::read(int64_t window, std::string& errors) const {
  Saved saved{.window = window};
  std::string archive, text;
  try {
    saved.own = read_file(own_file(window));
    if (group_.rank() == 0) archive = read_archive(run_file(window));
  } catch (const Error& error) {
    text = error.what();
  }
  bool good = true;
  for (const std::string& error : group_.gather_text(text)) {
    if (error.empty()) continue;
    good = false;
    errors += (errors.empty() ? "" : "; ") + error;
  }
  if (!good) return std::nullopt;
  archive = from_rank_0(std::move(archive));
  saved.shared = values_in(archive, run_file(window));
  return saved;
}

// In pieces: with NCCL they go through the GPU's memory, which the model fills.
std::string Folder::from_rank_0(std::string bytes) const {
  if (group_.world_size() == 1) return bytes;
  const at::TensorOptions there(group_.device());
  const at::Tensor size = at::full({1}, static_cast<int64_t>(bytes.size()), there.dtype(at::kLong));
  group_.broadcast(size);
  bytes.resize(static_cast<std::size_t>(size.item<int64_t>()));
  const int64_t total = static_cast<int64_t>(bytes.size());
  for (int64_t begin = 0; begin < total; begin += bytes_at_once) {
    const int64_t count = std::min(bytes_at_once, total - begin);
    const at::Tensor host = at::from_blob(bytes.data() + begin, {count}, at::TensorOptions(at::kByte));
    const at::Tensor piece = host.to(group_.device());
    group_.broadcast(piece);
    if (!piece.is_same(host)) host.copy_(piece);
  }
  return bytes;
}

void Folder::remove_all_but(const std::vector<int64_t>& keep) const {
  if (keep.empty()) return;
  const std::set<int64_t> kept(keep.begin(), keep.end());
  std::vector<std::string> endings{own_ending()};
  if (group_.rank() == 0) endings.push_back(run_ending);
  for (const std::string& name : names_in(path_)) {
    for (const std::string& ending : endings) {
      const auto window = window_of(name, ending);
      const bool old = window && *window < *kept.rbegin() && !kept.contains(*window);
      const std::size_t temporary = name.find(".tmp.");
      const bool left = temporary != std::string::npos && window_of(name.substr(0, temporary), ending);
      if (old || left) ::unlink((path_ + "/" + name).c_str());
    }
  }
}

}  // namespace saturate::checkpoint
