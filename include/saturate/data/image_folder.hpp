// SPDX-License-Identifier: Apache-2.0
// Images in a folder per class, as torchvision's ImageFolder reads them.
//
//   auto images = std::make_shared<st::data::ImageFolder>("train");  // train/cat/1.jpg train/cat/2.png train/dog/1.jpg
//   images->classes();                                               // {"cat", "dog"}: labels 0 and 1
#pragma once

#include "saturate/data/record_source.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace saturate::data {

/// Sample i has one part, the file's bytes, with the extension "jpg", "jpeg" or "png", and the class as its label.
///
/// Classes are the folders in `root` by name, bytes compared, so labels and the order of samples are those of
/// torchvision for the same files. Folders inside a class belong to it, links to folders are followed. Hidden files and
/// folders and files of other kinds are passed over. The names are read once, in the constructor: about 30 bytes a
/// sample, shared by all copies and threads.
class ImageFolder final : public RecordSource {
 public:
  /// @throws DataError naming the folder: missing, no folder, without class folders, a class without images, folders
  /// that contain each other through a link.
  explicit ImageFolder(const std::string& root);

  int64_t size() const override;
  /// @throws DataError naming the file when it has vanished or cannot be read.
  void read(int64_t index, Record& out) const override;
  /// The file's path.
  std::string describe(int64_t index) const override;

  /// The classes' names; a sample's label is an index into them.
  const std::vector<std::string>& classes() const;
  int64_t label(int64_t index) const;

 private:
  struct Listing;
  std::shared_ptr<const Listing> listing_;
};

}  // namespace saturate::data
