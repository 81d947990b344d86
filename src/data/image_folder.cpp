// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/image_folder.hpp"

#include "saturate/data/stage.hpp"
#include "saturate/error.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

namespace saturate::data {
namespace {

constexpr std::string_view extensions[] = {"jpg", "jpeg", "png"};

// The extension in lower case, as it stands in `extensions`; empty for other files.
std::string_view image_extension(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos) return {};
  std::string lower(name.substr(dot + 1));
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  const auto* const known = std::find(std::begin(extensions), std::end(extensions), lower);
  return known == std::end(extensions) ? std::string_view{} : *known;
}

struct Identity {
  ::dev_t device;
  ::ino_t inode;
  bool operator==(const Identity&) const = default;
};

struct Entries {
  std::vector<std::string> folders, files;  // sorted
};

Entries list(const std::string& path) {
  const std::unique_ptr<::DIR, int (*)(::DIR*)> folder(::opendir(path.c_str()), &::closedir);
  if (!folder) throw DataError(path + ": cannot be read as a folder: " + std::strerror(errno));
  Entries entries;
  for (;;) {
    errno = 0;
    const ::dirent* const entry = ::readdir(folder.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name.starts_with('.')) continue;
    auto type = entry->d_type;
    if (type != DT_DIR && type != DT_REG) {  // a link, or a file system that does not say
      struct ::stat status {};
      if (::stat((path + "/" + name).c_str(), &status) != 0) continue;  // a link to nothing
      type = S_ISDIR(status.st_mode) ? DT_DIR : S_ISREG(status.st_mode) ? DT_REG : DT_UNKNOWN;
    }
    if (type == DT_DIR) entries.folders.push_back(name);
    if (type == DT_REG) entries.files.push_back(name);
  }
  if (errno != 0) throw DataError(path + ": cannot be read as a folder: " + std::strerror(errno));
  std::sort(entries.folders.begin(), entries.folders.end());
  std::sort(entries.files.begin(), entries.files.end());
  return entries;
}

// Closes the file it holds.
struct OpenFile {
  explicit OpenFile(const std::string& path) : file(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~OpenFile() {
    if (file >= 0) ::close(file);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int file;
};

}  // namespace

struct ImageFolder::Listing {
  struct Image {
    uint32_t folder;
    uint32_t name;  // where it begins in `names`
  };
  struct Folder {
    std::string path;
    int64_t label;
  };

  explicit Listing(const std::string& root) {
    classes = list(root).folders;
    if (classes.empty()) {
      throw DataError(root + ": holds no folders; an image folder has one for each class, with the images in it");
    }
    for (std::size_t label = 0; label < classes.size(); ++label) add_class(root + "/" + classes[label], label);
    images.push_back({0, count(names)});
    names.shrink_to_fit();
    images.shrink_to_fit();
  }

  void add_class(const std::string& path, std::size_t label) {
    std::vector<std::pair<std::string, std::vector<std::string>>> found;
    std::vector<Identity> above;
    std::string other;
    walk(path, above, found, other);
    // torchvision sorts the folders by their paths, and the files in each.
    std::sort(found.begin(), found.end());
    const std::size_t before = images.size();
    for (const auto& [folder, files] : found) {
      folders.push_back({folder, static_cast<int64_t>(label)});
      for (const std::string& file : files) {
        images.push_back({static_cast<uint32_t>(folders.size() - 1), count(names)});
        names += file;
      }
    }
    if (images.size() > before) return;
    throw DataError(path + ": the class '" + classes[label] + "' holds no images (.jpg, .jpeg, .png)" +
                    (other.empty() ? std::string() : "; there is '" + other + "', for example") +
                    ". Remove the folder, or fill it");
  }

  // The images of a folder and of those in it. `other`: a file that is no image.
  static void walk(const std::string& path, std::vector<Identity>& above,
                   std::vector<std::pair<std::string, std::vector<std::string>>>& found, std::string& other) {
    struct ::stat status {};
    if (::stat(path.c_str(), &status) != 0) throw DataError(path + ": cannot be read: " + std::strerror(errno));
    const Identity self{status.st_dev, status.st_ino};
    if (std::find(above.begin(), above.end(), self) != above.end()) {
      throw DataError(path + ": is a link to a folder that contains it; remove the link");
    }
    above.push_back(self);
    Entries entries = list(path);
    std::vector<std::string> images;
    for (std::string& file : entries.files) {
      if (image_extension(file).empty()) {
        other = std::move(file);
      } else {
        images.push_back(std::move(file));
      }
    }
    if (!images.empty()) found.emplace_back(path, std::move(images));
    for (const std::string& folder : entries.folders) walk(path + "/" + folder, above, found, other);
    above.pop_back();
  }

  static uint32_t count(const std::string& text) {
    if (text.size() > std::numeric_limits<uint32_t>::max()) {
      throw DataError("the names of the images take more than 4 GB; pack them into tar shards with make_shards");
    }
    return static_cast<uint32_t>(text.size());
  }

  std::size_t place(int64_t index) const {
    const auto size = static_cast<int64_t>(images.size()) - 1;
    if (index < 0 || index >= size) {
      throw DataError("sample " + std::to_string(index) + " does not exist; the image folder holds " +
                      std::to_string(size));
    }
    return static_cast<std::size_t>(index);
  }
  std::string_view name(std::size_t at) const {
    return std::string_view(names).substr(images[at].name, images[at + 1].name - images[at].name);
  }
  const Folder& folder(std::size_t at) const { return folders[images[at].folder]; }
  std::string path(std::size_t at) const { return folder(at).path + "/" + std::string(name(at)); }

  std::vector<std::string> classes;
  std::vector<Folder> folders;
  std::vector<Image> images;  // and one more, where the last one's name ends
  std::string names;
};

ImageFolder::ImageFolder(const std::string& root) : listing_(std::make_shared<const Listing>(root)) {}

int64_t ImageFolder::size() const { return static_cast<int64_t>(listing_->images.size()) - 1; }

void ImageFolder::read(int64_t index, Record& out) const {
  const std::size_t at = listing_->place(index);
  const std::string path = listing_->path(at);
  out.parts.clear();
  out.label = listing_->folder(at).label;
  const StageScope timed(Stage::read);
  const auto fail = [&](const std::string& what) { throw DataError(path + ": " + what + std::strerror(errno)); };
  const OpenFile open(path);
  if (open.file < 0) fail("cannot be opened: ");
  struct ::stat status {};
  if (::fstat(open.file, &status) != 0) fail("cannot be read: ");
  if (!S_ISREG(status.st_mode)) throw DataError(path + ": is no regular file any more");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (out.storage.size() < bytes) out.storage.resize(bytes);  // never smaller: growing again fills with zeros
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = ::read(open.file, out.storage.data() + done, bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot be read: ");
    if (got == 0) {
      throw DataError(path + ": ends after " + std::to_string(done) + " of " + std::to_string(bytes) + " bytes");
    }
    done += static_cast<std::size_t>(got);
  }
  out.parts.push_back({image_extension(listing_->name(at)), {out.storage.data(), bytes}});
  count_bytes(static_cast<int64_t>(bytes));
}

std::string ImageFolder::describe(int64_t index) const { return listing_->path(listing_->place(index)); }

const std::vector<std::string>& ImageFolder::classes() const { return listing_->classes; }

int64_t ImageFolder::label(int64_t index) const { return listing_->folder(listing_->place(index)).label; }

}  // namespace saturate::data
