// SPDX-License-Identifier: Apache-2.0
// libarchive turns names into the charset of the locale; a sample's key must not depend on the program's locale.
#pragma once

#include <locale.h>

namespace saturate::data::detail {

/// The locale of this thread while it lives: the bytes of names stay as they are.
class ArchiveLocale {
 public:
  enum class For { reading, writing };
  explicit ArchiveLocale(For use) : before_(::uselocale(use == For::reading ? c() : utf8())) {}
  ~ArchiveLocale() { ::uselocale(before_); }
  ArchiveLocale(const ArchiveLocale&) = delete;
  ArchiveLocale& operator=(const ArchiveLocale&) = delete;

 private:
  static ::locale_t c() {
    static const ::locale_t locale = ::newlocale(LC_ALL_MASK, "C", nullptr);
    return locale;
  }
  // Where the system has it, names in UTF-8 are marked as such in pax headers; else as bytes, which GNU tar remarks on.
  static ::locale_t utf8() {
    static const ::locale_t locale = ::newlocale(LC_ALL_MASK, "C.UTF-8", nullptr);
    return locale != nullptr ? locale : c();
  }
  ::locale_t before_;
};

}  // namespace saturate::data::detail
