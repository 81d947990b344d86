// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/image_folder.hpp"

#include "saturate/error.hpp"
#include "unit/data/tar_support.hpp"

#include <catch2/catch_test_macros.hpp>

#include <cstdio>
#include <string>
#include <vector>

using namespace saturate::test;
using saturate::DataError;
using saturate::data::ImageFolder;
using saturate::data::Record;

namespace {

void add(const TempFolder& folder, const std::string& name) {
  for (std::size_t slash = name.find('/'); slash != name.npos; slash = name.find('/', slash + 1)) {
    make_folder(folder / name.substr(0, slash));
  }
  write_file(folder / name, "content of " + name);
}

std::string error_of(const std::string& root) {
  return message_of<DataError>([&] { ImageFolder{root}; });
}

}  // namespace

TEST_CASE("an image folder has torchvision's classes, labels and order", "[image_folder]") {
  const TempFolder folder;
  // sorted(os.walk(class)) and then sorted(names): folders by their whole path, files in each by name.
  const std::vector<std::pair<std::string, int64_t>> expected = {
      {"Zebra/x.png", 0},   {"cat/10.JPG", 1},       {"cat/2.jpeg", 1},  {"cat/a/1.jpg", 1},
      {"cat/a-b/1.jpg", 1}, {"cat/a/deep/0.Png", 1}, {"dog.v2/1.jpg", 2}};
  for (auto it = expected.rbegin(); it != expected.rend(); ++it) add(folder, it->first);
  for (const char* other :
       {"cat/.hidden.jpg", "cat/notes.txt", "cat/jpg", ".cache/1.jpg", "cat/.thumbs/1.jpg", "top.jpg"}) {
    add(folder, other);
  }
  const ImageFolder images(folder.path());
  CHECK(images.classes() == std::vector<std::string>{"Zebra", "cat", "dog.v2"});
  REQUIRE(images.size() == static_cast<int64_t>(expected.size()));
  Record record;
  for (int64_t i = 0; i < images.size(); ++i) {
    const auto& [name, label] = expected[static_cast<std::size_t>(i)];
    images.read(i, record);
    CHECK(images.describe(i) == folder / name);
    CHECK(record.label == label);
    CHECK(images.label(i) == label);
    REQUIRE(record.parts.size() == 1);
    CHECK(parts_of(record).begin()->second == "content of " + name);
  }
  images.read(1, record);
  CHECK(record.parts[0].extension == "jpg");
  CHECK(images.shard_sizes().empty());
  CHECK_THROWS_AS(images.read(7, record), DataError);
  CHECK_THROWS_AS(images.read(-1, record), DataError);
}

TEST_CASE("an image folder follows links to folders, and refuses those that lead back", "[image_folder]") {
  const TempFolder folder;
  add(folder, "elsewhere/1.jpg");
  add(folder, "root/a/2.jpg");
  REQUIRE(::symlink((folder / "elsewhere").c_str(), (folder / "root/a/link").c_str()) == 0);
  REQUIRE(::symlink("nothing", (folder / "root/a/dangling.jpg").c_str()) == 0);
  CHECK(ImageFolder(folder / "root").size() == 2);
  REQUIRE(::symlink("..", (folder / "root/a/up").c_str()) == 0);
  CHECK(error_of(folder / "root").find("root/a/up") != std::string::npos);
}

TEST_CASE("an image folder that cannot be one is refused, and named", "[image_folder]") {
  const TempFolder folder;
  const auto says = [](const std::string& message, const std::string& text) { return message.find(text) != text.npos; };
  CHECK(says(error_of(folder / "missing"), folder / "missing"));
  write_file(folder / "file", "");
  CHECK(says(error_of(folder / "file"), folder / "file"));
  CHECK(says(error_of(folder.path()), "holds no folders"));
  add(folder, "full/1.jpg");
  add(folder, "none/1.webp");
  CHECK(says(error_of(folder.path()), "the class 'none' holds no images"));
  CHECK(says(error_of(folder.path()), "1.webp"));
}

TEST_CASE("an image that vanishes is an error that names it", "[image_folder]") {
  const TempFolder folder;
  add(folder, "a/1.jpg");
  add(folder, "a/2.jpg");
  add(folder, "a/3.jpg");
  const ImageFolder images(folder.path());
  std::remove((folder / "a/1.jpg").c_str());
  std::remove((folder / "a/2.jpg").c_str());
  make_folder(folder / "a/2.jpg");
  Record record;
  CHECK(message_of<DataError>([&] { images.read(0, record); }).find(folder / "a/1.jpg") == 0);
  CHECK(message_of<DataError>([&] { images.read(1, record); }).find(folder / "a/2.jpg") == 0);
  images.read(2, record);
  CHECK(parts_of(record).at("jpg") == "content of a/3.jpg");
  CHECK(record.label == 0);
}
