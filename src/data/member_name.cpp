// SPDX-License-Identifier: Apache-2.0
#include "member_name.hpp"

#include "saturate/error.hpp"

#include <algorithm>
#include <functional>

namespace saturate::data::detail {
namespace {

bool is_meta(std::string_view path) {
  const std::string_view top = path.substr(0, path.find('/'));
  return top.size() >= 4 && top.starts_with("__") && top.ends_with("__");
}

}  // namespace

bool split_member_name(std::string_view path, MemberName& name) {
  const std::size_t slash = path.rfind('/');
  const std::size_t begin = slash == path.npos ? 0 : slash + 1;
  const std::size_t dot = path.find('.', begin);
  if (dot == path.npos || dot == begin || is_meta(path)) return false;
  name.key = path.substr(0, dot);
  name.extension = path.substr(dot + 1);
  for (char& c : name.extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return true;
}

SampleRules::Place SampleRules::place(std::string_view path, MemberName& name) {
  if (!split_member_name(path, name)) return Place::no_sample;
  if (any_ && name.key == key_) {
    if (std::find(extensions_.begin(), extensions_.end(), name.extension) != extensions_.end()) {
      throw DataError(shard_ + ": holds a second '" + name.extension + "' of sample '" + key_ + "' (" +
                      std::string(path) + "); every part of a sample needs an extension of its own");
    }
    extensions_.push_back(name.extension);
    return Place::same_sample;
  }
  if (!seen_.insert(std::hash<std::string_view>{}(name.key)).second) {
    throw DataError(shard_ + ": sample '" + std::string(name.key) + "' comes back after others (" + std::string(path) +
                    "); the parts of a sample must follow each other: pack the files sorted by name (tar --sort=name)");
  }
  any_ = true;
  key_ = name.key;
  extensions_.assign(1, name.extension);
  return Place::new_sample;
}

}  // namespace saturate::data::detail
