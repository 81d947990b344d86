// SPDX-License-Identifier: Apache-2.0
#include "saturate/checkpoint/values.hpp"

#include "../data/atomic_file.hpp"
#include "saturate/error.hpp"

#include <ATen/core/Dict.h>
#include <torch/serialize/archive.h>

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <string_view>
#include <utility>

namespace saturate::checkpoint {
namespace {

constexpr std::string_view mark = "saturate-checkpoint ";
constexpr std::string_view version = "1 ";
constexpr std::size_t end_bytes = 35;

template <class Map>
const auto& value_named(const Map& map, const std::string& name) {
  const auto found = map.find(name);
  if (found == map.end()) throw StateError("checkpoint: it holds no '" + name + "': it is of another run or version");
  return found->second;
}

/// A copy where the tensor is on another device, not contiguous, or a view whose whole storage would be written.
at::Tensor to_be_written(const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().cpu().contiguous();
  return host.storage().nbytes() == host.nbytes() ? host : host.clone();
}

template <class T>
c10::Dict<std::string, T> dict_of(const std::map<std::string, T>& values) {
  c10::Dict<std::string, T> dict;
  for (const auto& [name, value] : values) dict.insert(name, value);
  return dict;
}

template <class T>
std::map<std::string, T> map_in(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue dict;
  archive.read(key, dict);
  std::map<std::string, T> result;
  for (const auto& item : dict.toGenericDict()) {
    result.emplace(item.key().toStringRef(), item.value().template to<T>());
  }
  return result;
}

/// Writes while it counts and sums up.
class SummedFile {
 public:
  explicit SummedFile(const std::string& path) : file_(path) {}
  void write(const void* data, std::size_t size) {
    if (size == 0) return;  // of a tensor without elements: zlib takes no data for the beginning of another sum
    file_.write({static_cast<const std::byte*>(data), size});
    crc_ = ::crc32_z(crc_, static_cast<const Bytef*>(data), size);
    bytes_ += size;
  }
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit() {
    char end[end_bytes + 1];
    std::snprintf(end, sizeof(end), "\nend %08lx %020llu\n", crc_, static_cast<unsigned long long>(bytes_));
    file_.write({reinterpret_cast<const std::byte*>(end), end_bytes});
    file_.commit();
  }

 private:
  data::detail::AtomicFile file_;
  uLong crc_ = 0;
  std::size_t bytes_ = 0;
};

[[noreturn]] void refuse_file(const std::string& path, const std::string& why) {
  throw DataError("checkpoint " + path + ": " + why);
}

std::string content_of(const std::string& path, std::size_t at_most) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) refuse_file(path, std::string("it cannot be opened: ") + std::strerror(errno));
  std::string content;
  char buffer[1 << 16];
  ssize_t count = 0;
  while (content.size() < at_most) {
    count = ::read(file, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    content.append(buffer, static_cast<std::size_t>(count));
  }
  const int reason = errno;
  ::close(file);
  if (count < 0) refuse_file(path, std::string("it cannot be read: ") + std::strerror(reason));
  return content;
}

}  // namespace

void Values::merge(const Values& others) {
  for (const auto& [name, value] : others.tensors) tensors.insert_or_assign(name, value);
  for (const auto& [name, value] : others.integers) integers.insert_or_assign(name, value);
  for (const auto& [name, value] : others.numbers) numbers.insert_or_assign(name, value);
  for (const auto& [name, value] : others.texts) texts.insert_or_assign(name, value);
}

const at::Tensor& Values::tensor(const std::string& name) const { return value_named(tensors, name); }
int64_t Values::integer(const std::string& name) const { return value_named(integers, name); }
double Values::number(const std::string& name) const { return value_named(numbers, name); }
const std::string& Values::text(const std::string& name) const { return value_named(texts, name); }

void write_file(const std::string& path, const std::string& stamp, const Values& values) {
  SummedFile file(path);
  file.write(std::string(mark) + std::string(version) + stamp + "\n");
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : values.tensors) tensors.emplace(name, to_be_written(tensor));
  torch::serialize::OutputArchive archive;
  archive.write("tensors", c10::IValue(dict_of(tensors)));
  archive.write("integers", c10::IValue(dict_of(values.integers)));
  archive.write("numbers", c10::IValue(dict_of(values.numbers)));
  archive.write("texts", c10::IValue(dict_of(values.texts)));
  archive.save_to([&](const void* data, std::size_t size) {
    file.write(data, size);
    return size;
  });
  file.commit();
}

std::string stamp_of(const std::string& path) {
  std::string begin;
  try {
    begin = content_of(path, 256);
  } catch (const DataError&) {
    return "";
  }
  const std::string expected = std::string(mark) + std::string(version);
  const std::size_t newline = begin.find('\n');
  if (!begin.starts_with(expected) || newline == std::string::npos) return "";
  return begin.substr(expected.size(), newline - expected.size());
}

std::string read_archive(const std::string& path) {
  std::string content = content_of(path, std::string::npos);
  const std::size_t newline = content.find('\n');
  if (!content.starts_with(mark) || newline == std::string::npos) refuse_file(path, "it is no checkpoint of saturate");
  if (content.compare(mark.size(), version.size(), version) != 0) {
    refuse_file(path, "its format is \"" + content.substr(0, std::min<std::size_t>(newline, 40)) +
                          "\", this program reads version 1");
  }
  unsigned long crc = 0;
  unsigned long long bytes = 0;
  const std::size_t end = content.size() < end_bytes ? 0 : content.size() - end_bytes;
  const bool whole =
      end > newline && std::sscanf(content.c_str() + end, "\nend %8lx %20llu\n", &crc, &bytes) == 2 && bytes == end;
  if (!whole) refuse_file(path, "it is torn: its end is missing. Remove it");
  if (::crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), end) != crc) {
    refuse_file(path, "it is damaged: its checksum does not fit. Remove it");
  }
  content.resize(end);
  content.erase(0, newline + 1);
  return content;
}

Values values_in(const std::string& archive_bytes, const std::string& path) {
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(archive_bytes.data(), archive_bytes.size(), c10::Device(c10::kCPU));
    Values values;
    values.tensors = map_in<at::Tensor>(archive, "tensors");
    values.integers = map_in<int64_t>(archive, "integers");
    values.numbers = map_in<double>(archive, "numbers");
    values.texts = map_in<std::string>(archive, "texts");
    return values;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string what = error.what();
    refuse_file(path, "it cannot be understood: " + what.substr(0, what.find('\n')));
  }
}

}  // namespace saturate::checkpoint
