// SPDX-License-Identifier: Apache-2.0
// Any bytes as a shard, as a stream, and as the index beside a shard: samples or a DataError, and never more memory
// than the bytes are worth.
#include "data/tar_index.hpp"
#include "saturate/data/tar_shards.hpp"
#include "saturate/data/tar_stream.hpp"
#include "saturate/error.hpp"
#include "saturate/log.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace saturate::data;

// In memory: a shard needs a name.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* bytes, std::size_t size) : file_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (file_ < 0 || ::write(file_, bytes, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~MemoryFile() { ::close(file_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

uint64_t touched = 0;  // every byte that is given out is read

void touch(const Record& record) {
  for (const Record::Part& part : record.parts) {
    for (const char c : part.extension) touched += static_cast<uint64_t>(c);
    for (const std::byte b : part.bytes) touched += static_cast<uint64_t>(b);
  }
}

void read_shard(const std::string& path) {
  try {
    const TarShards shards(std::vector<std::string>{path}, {.keep_index = false, .threads = 1});
    Record record;
    for (int64_t i = 0; i < shards.size(); ++i) {
      try {
        shards.read(i, record);
        touch(record);
      } catch (const saturate::DataError&) {
      }
      touched += shards.describe(i).size();
    }
  } catch (const saturate::DataError&) {
  }
}

void read_stream(const std::string& path) {
  const TarStream stream(std::vector<std::string>{path});
  Record record;
  std::string where;
  try {
    const auto pass = stream.open({});
    while (pass->next(record, where)) touch(record);
  } catch (const saturate::DataError&) {
  }
}

// The stamp and the checksum made to fit, so that the tables behind them are met. What is accepted must be served, and
// is written again as it was.
void parse_index(const uint8_t* from, std::size_t size) {
  if (size < 64) return;
  std::vector<uint8_t> bytes(from, from + size);
  detail::FileStamp stamp;
  std::memcpy(&stamp.bytes, bytes.data() + 16, 8);
  std::memcpy(&stamp.modified, bytes.data() + 24, 8);
  const auto checksum = static_cast<uint32_t>(::crc32_z(0, bytes.data() + 64, size - 64));
  std::memcpy(bytes.data() + 12, &checksum, 4);
  const auto index = detail::parse_tar_index(std::as_bytes(std::span(bytes)), stamp);
  if (!index) return;
  for (int64_t i = 0; i < index->size(); ++i) {
    touched += index->key(i).size();
    for (const auto& part : index->parts_of(i)) {
      touched += index->extensions[part.extension].size();
      if (part.offset + part.size > stamp.bytes) std::abort();
    }
  }
  const auto again = detail::write_tar_index(*index);
  if (again.size() != size || std::memcmp(again.data(), bytes.data(), size) != 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  saturate::log::set_level(saturate::log::Level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, std::size_t size) {
  const MemoryFile file(bytes, size);
  read_shard(file.path());
  read_stream(file.path());
  parse_index(bytes, size);
  return 0;
}
