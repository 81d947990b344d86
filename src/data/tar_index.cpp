// SPDX-License-Identifier: Apache-2.0
#include "tar_index.hpp"

#include "archive_reader.hpp"
#include "atomic_file.hpp"
#include "member_name.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace saturate::data::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "the index file is written as it lies in memory");
static_assert(sizeof(TarIndex::Sample) == 8 && sizeof(TarIndex::Part) == 16);

constexpr char magic[8] = {'S', 'A', 'T', 'T', 'A', 'R', 'I', 'X'};
constexpr uint32_t version = 1;
constexpr std::size_t most_extensions = std::size_t{1} << 16;
constexpr uint64_t most = std::numeric_limits<uint32_t>::max();

struct IndexHeader {
  char magic[8];
  uint32_t version;
  uint32_t checksum;
  uint64_t tar_bytes;
  int64_t tar_modified;
  uint64_t samples, parts, extension_bytes, key_bytes;
};
static_assert(sizeof(IndexHeader) == 64 && std::has_unique_object_representations_v<IndexHeader>);

class Builder {
 public:
  explicit Builder(const std::string& path) : reader_(path, ArchiveReader::Kind::plain_tar), rules_(path) {}

  TarIndex build() {
    index_.stamp = reader_.stamp();
    try {
      Member member;
      while (reader_.next(member) && add(member)) {
      }
    } catch (const ArchiveDamage& damage) {
      index_.damage = std::string(damage.what()).substr(reader_.path().size() + 2);
    }
    if (index_.samples.empty()) fail(index_.damage.empty() ? "holds no samples" + seen() : index_.damage);
    index_.samples.push_back({count(index_.parts), count(index_.keys)});
    if (reader_.stamp() != index_.stamp) fail("changed while its index was made");
    index_.parts.shrink_to_fit();
    index_.samples.shrink_to_fit();
    index_.keys.shrink_to_fit();
    return std::move(index_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw DataError(reader_.path() + ": " + why); }

  std::string seen() const {
    if (first_.empty()) return " (an empty tar)";
    return "; a sample is a file whose name has a dot that is not its first character, and '" + first_ + "' is none";
  }

  template <class Table>
  uint32_t count(const Table& table) const {
    if (table.size() > most) fail("holds too many samples for one shard; split it");
    return static_cast<uint32_t>(table.size());
  }

  // false: the file ends within the member.
  bool add(const Member& member) {
    if (first_.empty()) first_ = member.path;
    MemberName name;
    const auto place = rules_.place(member.path, name);
    if (place == SampleRules::Place::new_sample) {
      index_.samples.push_back({count(index_.parts), count(index_.keys)});
      index_.keys += name.key;
    }
    if (!reader_.complete(member)) {
      index_.damage = "the shard ends within '" + member.path + "', which has " + std::to_string(member.size) +
                      " bytes at byte " + std::to_string(member.offset) + " of " + std::to_string(index_.stamp.bytes);
      return false;
    }
    if (place == SampleRules::Place::no_sample) return true;
    TarIndex::Part part;
    part.offset = member.offset;
    part.size = member.size;  // below 2^48: it lies in the file
    part.extension = extension(name.extension);
    index_.parts.push_back(part);
    return true;
  }

  uint16_t extension(const std::string& name) {
    const auto [known, added] = extensions_.try_emplace(name, static_cast<uint16_t>(index_.extensions.size()));
    if (!added) return known->second;
    if (index_.extensions.size() == most_extensions) {
      fail("has more than " + std::to_string(most_extensions) +
           " different extensions; a sample's key ends at the first dot of the file's name");
    }
    index_.extensions.push_back(name);
    return known->second;
  }

  ArchiveReader reader_;
  SampleRules rules_;
  TarIndex index_;
  std::unordered_map<std::string, uint16_t> extensions_;
  std::string first_;
};

template <class T>
void put(std::vector<std::byte>& out, const T* from, std::size_t count) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(from);
  out.insert(out.end(), bytes, bytes + count * sizeof(T));
}

// The tables lie one after the other; the header's counts have been checked against the length of the file.
template <class Table>
void take(std::span<const std::byte>& from, Table& table, uint64_t count) {
  table.resize(static_cast<std::size_t>(count));
  const std::size_t bytes = table.size() * sizeof(table[0]);
  if (bytes > 0) std::memcpy(table.data(), from.data(), bytes);
  from = from.subspan(bytes);
}

uint32_t checksum(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

bool header_fits(const IndexHeader& header, std::span<const std::byte> rest) {
  if (std::memcmp(header.magic, magic, sizeof magic) != 0 || header.version != version) return false;
  if (header.samples == 0 || header.samples > most || header.parts > most || header.key_bytes > most) return false;
  if (header.extension_bytes > rest.size()) return false;
  const uint64_t bytes = (header.samples + 1) * sizeof(TarIndex::Sample) + header.parts * sizeof(TarIndex::Part) +
                         header.extension_bytes + header.key_bytes;
  return bytes == rest.size() && header.checksum == checksum(rest);
}

bool split_extensions(std::string_view text, std::vector<std::string>& extensions) {
  while (!text.empty()) {
    const std::size_t end = text.find('\0');
    if (end == text.npos || extensions.size() == most_extensions) return false;
    extensions.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return true;
}

// What the reading of samples relies on. A checksum can be forged, and a program that wrote it can be wrong.
bool consistent(const TarIndex& index) {
  const auto& samples = index.samples;
  if (samples.front().first_part != 0 || samples.front().key != 0) return false;
  if (samples.back().first_part != index.parts.size() || samples.back().key != index.keys.size()) return false;
  for (std::size_t i = 0; i + 1 < samples.size(); ++i) {
    if (samples[i].first_part >= samples[i + 1].first_part || samples[i].key > samples[i + 1].key) return false;
  }
  uint64_t end = 0;
  for (const TarIndex::Part& part : index.parts) {
    if (part.offset < end || part.offset > index.stamp.bytes || part.size > index.stamp.bytes - part.offset)
      return false;
    if (part.extension >= index.extensions.size()) return false;
    end = part.offset + part.size;
  }
  return true;
}

class File {
 public:
  explicit File(const std::string& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~File() {
    if (file_ >= 0) ::close(file_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

std::vector<std::byte> whole_file(const std::string& path) {
  const File file(path);
  struct ::stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return {};
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

FileStamp stamp_of(const std::string& path) {
  struct ::stat status {};
  if (::stat(path.c_str(), &status) != 0) throw DataError(path + ": cannot be opened: " + std::strerror(errno));
  return FileStamp::of(status);
}

}  // namespace

TarIndex build_tar_index(const std::string& path) { return Builder(path).build(); }

std::string tar_index_path(const std::string& tar) { return tar + ".index"; }

std::vector<std::byte> write_tar_index(const TarIndex& index) {
  std::vector<std::byte> out(sizeof(IndexHeader));
  put(out, index.samples.data(), index.samples.size());
  put(out, index.parts.data(), index.parts.size());
  const std::size_t before = out.size();
  for (const std::string& extension : index.extensions) put(out, extension.c_str(), extension.size() + 1);
  const std::size_t extension_bytes = out.size() - before;
  put(out, index.keys.data(), index.keys.size());
  IndexHeader header{};
  std::memcpy(header.magic, magic, sizeof magic);
  header.version = version;
  header.checksum = checksum(std::span(out).subspan(sizeof header));
  header.tar_bytes = index.stamp.bytes;
  header.tar_modified = index.stamp.modified;
  header.samples = static_cast<uint64_t>(index.size());
  header.parts = index.parts.size();
  header.extension_bytes = extension_bytes;
  header.key_bytes = index.keys.size();
  std::memcpy(out.data(), &header, sizeof header);
  return out;
}

std::optional<TarIndex> parse_tar_index(std::span<const std::byte> bytes, const FileStamp& tar) {
  IndexHeader header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  auto rest = bytes.subspan(sizeof header);
  TarIndex index;
  index.stamp = {header.tar_bytes, header.tar_modified};
  if (index.stamp != tar || !header_fits(header, rest)) return std::nullopt;
  std::string extensions;
  take(rest, index.samples, header.samples + 1);
  take(rest, index.parts, header.parts);
  take(rest, extensions, header.extension_bytes);
  take(rest, index.keys, header.key_bytes);
  if (!split_extensions(extensions, index.extensions) || !consistent(index)) return std::nullopt;
  return index;
}

void save_tar_index(const TarIndex& index, const std::string& tar) {
  AtomicFile file(tar_index_path(tar));
  file.write(write_tar_index(index));
  file.commit();
}

TarIndex open_tar_index(const std::string& tar, bool keep) {
  if (auto kept = parse_tar_index(whole_file(tar_index_path(tar)), stamp_of(tar))) return std::move(*kept);
  TarIndex index = build_tar_index(tar);
  if (!index.damage.empty()) {
    log::warn(tar + ": " + index.damage + "; " + std::to_string(index.size() - 1) + " samples before it can be read");
  } else if (keep) {
    try {
      save_tar_index(index, tar);
    } catch (const Error& error) {
      log::warn_once("tar index", std::string(error.what()) +
                                      ". The index of the shard stays in memory, and each "
                                      "program makes it again");
    }
  }
  return index;
}

}  // namespace saturate::data::detail
