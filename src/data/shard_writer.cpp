// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/shard_writer.hpp"

#include "archive_locale.hpp"
#include "atomic_file.hpp"
#include "member_name.hpp"
#include "saturate/error.hpp"
#include "shard_name.hpp"
#include "tar_index.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <unordered_set>
#include <utility>

namespace saturate::data {
namespace {

using detail::ArchiveLocale;

constexpr int64_t block_bytes = 512;
constexpr int end_blocks = 2;

int64_t padded(std::size_t bytes) {
  return (static_cast<int64_t>(bytes) + block_bytes - 1) / block_bytes * block_bytes;
}

void check(const ShardWriterOptions& options) {
  if (options.max_samples < 0) {
    throw ConfigError("ShardWriterOptions: max_samples is " + std::to_string(options.max_samples) +
                      "; 0 sets no bound, or 1 and more");
  }
  if (options.max_bytes < 1) {
    throw ConfigError("ShardWriterOptions: max_bytes is " + std::to_string(options.max_bytes) +
                      "; it must be positive");
  }
}

// One tar on its way to its name.
class OpenShard {
 public:
  explicit OpenShard(const std::string& path) : path_(path), file_(path), archive_(archive_write_new()) {
    if (archive_ == nullptr) throw std::bad_alloc();
    const ArchiveLocale locale(ArchiveLocale::For::writing);
    archive_write_set_format_pax_restricted(archive_);
    archive_write_set_bytes_per_block(archive_, 1 << 20);
    archive_write_set_bytes_in_last_block(archive_, block_bytes);
    if (archive_write_open(archive_, this, nullptr, &OpenShard::write, nullptr) != ARCHIVE_OK) fail();
  }
  ~OpenShard() { archive_write_free(archive_); }
  OpenShard(const OpenShard&) = delete;
  OpenShard& operator=(const OpenShard&) = delete;

  void add(const std::string& name, std::span<const std::byte> bytes) {
    const ArchiveLocale locale(ArchiveLocale::For::writing);
    const std::unique_ptr<::archive_entry, void (*)(::archive_entry*)> entry(archive_entry_new(), &archive_entry_free);
    if (!entry) throw std::bad_alloc();
    archive_entry_set_pathname(entry.get(), name.c_str());
    archive_entry_set_size(entry.get(), static_cast<la_int64_t>(bytes.size()));
    archive_entry_set_filetype(entry.get(), AE_IFREG);
    archive_entry_set_perm(entry.get(), 0644);
    archive_entry_set_mtime(entry.get(), 0, 0);
    const int result = archive_write_header(archive_, entry.get());
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) fail();
    if (!bytes.empty() &&
        archive_write_data(archive_, bytes.data(), bytes.size()) != static_cast<la_ssize_t>(bytes.size())) {
      fail();
    }
  }

  // Its size.
  int64_t commit(bool write_index) {
    if (archive_write_close(archive_) != ARCHIVE_OK) fail();
    file_.sync();
    // Read back: what is renamed is what TarShards takes, and it has its index.
    const detail::TarIndex index = detail::build_tar_index(file_.temporary());
    if (!index.damage.empty()) throw Error(path_ + ": did not read back as it was written: " + index.damage);
    file_.commit();
    if (write_index) detail::save_tar_index(index, path_);
    return static_cast<int64_t>(index.stamp.bytes);
  }

  int64_t bytes() const { return archive_filter_bytes(archive_, 0); }
  const std::string& path() const { return path_; }

  int64_t samples = 0;
  std::unordered_set<std::string> keys;

 private:
  // Exceptions stay on this side of libarchive.
  static la_ssize_t write(::archive* archive, void* self, const void* from, std::size_t bytes) {
    auto& shard = *static_cast<OpenShard*>(self);
    try {
      shard.file_.write({static_cast<const std::byte*>(from), bytes});
      return static_cast<la_ssize_t>(bytes);
    } catch (...) {
      shard.error_ = std::current_exception();
      archive_set_error(archive, EIO, "cannot be written");
      return -1;
    }
  }

  [[noreturn]] void fail() {
    if (error_) std::rethrow_exception(error_);
    const char* const reason = archive_error_string(archive_);
    throw Error("cannot write " + path_ + ": " + (reason != nullptr ? reason : "libarchive gives no reason"));
  }

  std::string path_;
  detail::AtomicFile file_;
  ::archive* archive_;
  std::exception_ptr error_;
};

void check_sample(std::string_view key, std::span<const Record::Part> parts) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError("ShardWriter: sample '" + std::string(key) + "' " + why);
  };
  if (parts.empty()) refuse("has no parts");
  for (auto part = parts.begin(); part != parts.end(); ++part) {
    const std::string name = std::string(key) + "." + std::string(part->extension);
    detail::MemberName read;
    const bool zero = name.find('\0') != name.npos;
    if (zero || !detail::split_member_name(name, read) || read.key != key || read.extension != part->extension) {
      refuse("with the part '" + std::string(part->extension) +
             "' would not read back as it is: a key has no dot in its last component and is not empty, an extension is "
             "in lower case and without a slash");
    }
    if (std::any_of(parts.begin(), part, [&](const Record::Part& p) { return p.extension == part->extension; })) {
      refuse("has two parts '" + std::string(part->extension) + "'");
    }
  }
}

// What a sample needs at most: a name beyond ustar's brings a header of its own.
int64_t bytes_of(std::string_view key, std::span<const Record::Part> parts) {
  int64_t bytes = 0;
  for (const Record::Part& part : parts) {
    const std::size_t name = key.size() + 1 + part.extension.size();
    const bool plain = name <= 100 && std::all_of(key.begin(), key.end(), [](char c) { return c > 0; });
    bytes += block_bytes + padded(part.bytes.size()) + (plain ? 0 : 2 * block_bytes + padded(2 * name + 64));
  }
  return bytes;
}

}  // namespace

struct ShardWriter::Impl {
  Impl(std::string pattern, ShardWriterOptions wanted) : name(pattern), options(wanted) {
    check(options);
    const auto there = name.existing();
    if (!options.overwrite && !there.empty()) {
      throw ConfigError("ShardWriter: " + name.of(there.front()) + " is there already (" +
                        std::to_string(there.size()) +
                        " such shards); remove them, choose another name, or set overwrite");
    }
  }

  bool is_full(int64_t more) const {
    return (options.max_samples > 0 && shard->samples >= options.max_samples) ||
           shard->bytes() + more + end_blocks * block_bytes > options.max_bytes;
  }

  void add(std::string_view key, std::span<const Record::Part> parts) {
    if (shard && is_full(bytes_of(key, parts))) close();
    if (shard && shard->keys.contains(std::string(key))) {
      throw ConfigError("ShardWriter: sample '" + std::string(key) + "' is in " + shard->path() +
                        " already; keys are unique in a shard");
    }
    if (!shard) shard = std::make_unique<OpenShard>(name.of(static_cast<int64_t>(paths.size())));
    for (const Record::Part& part : parts) shard->add(std::string(key) + "." + std::string(part.extension), part.bytes);
    shard->keys.emplace(key);
    ++shard->samples;
    ++samples;
  }

  void close() {
    bytes += shard->commit(options.write_index);
    paths.push_back(shard->path());
    shard.reset();
  }

  // A longer run's last shards would be read along with the new ones.
  void remove_leftovers() const {
    if (!options.overwrite) return;
    for (const int64_t number : name.existing()) {
      if (number < static_cast<int64_t>(paths.size())) continue;
      ::unlink(name.of(number).c_str());
      ::unlink(detail::tar_index_path(name.of(number)).c_str());
    }
  }

  // What fails half-way leaves a tar that nobody can go on with.
  template <class Work>
  void guarded(Work work) {
    if (finished) throw StateError("ShardWriter: the shards are finished, or one could not be written");
    try {
      work();
    } catch (const ConfigError&) {
      throw;
    } catch (...) {
      finished = true;
      shard.reset();
      throw;
    }
  }

  detail::ShardName name;
  ShardWriterOptions options;
  std::unique_ptr<OpenShard> shard;
  std::vector<std::string> paths;
  int64_t samples = 0, bytes = 0;
  bool finished = false;
};

ShardWriter::ShardWriter(std::string pattern, ShardWriterOptions options)
    : impl_(std::make_unique<Impl>(std::move(pattern), options)) {}

ShardWriter::~ShardWriter() = default;

void ShardWriter::add(std::string_view key, std::span<const Record::Part> parts) {
  check_sample(key, parts);
  impl_->guarded([&] { impl_->add(key, parts); });
}

const std::vector<std::string>& ShardWriter::finish() {
  impl_->guarded([&] {
    if (impl_->samples == 0) throw ConfigError("ShardWriter: no sample has been added, so there is no shard to finish");
    if (impl_->shard) impl_->close();
    impl_->remove_leftovers();
    impl_->finished = true;
  });
  return impl_->paths;
}

int64_t ShardWriter::samples() const { return impl_->samples; }
int64_t ShardWriter::bytes() const { return impl_->bytes; }

}  // namespace saturate::data
