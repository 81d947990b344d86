// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/shard_list.hpp"

#include "saturate/error.hpp"
#include "unit/data/tar_support.hpp"

#include <catch2/catch_test_macros.hpp>

#include <string>
#include <vector>

using saturate::ConfigError;
using saturate::data::shard_list;
using saturate::test::message_of;
using Names = std::vector<std::string>;

TEST_CASE("a brace list stands for the names that bash makes of it", "[shard_list]") {
  CHECK(shard_list("train.tar") == Names{"train.tar"});
  CHECK(shard_list("t-{8..11}.tar") == Names{"t-8.tar", "t-9.tar", "t-10.tar", "t-11.tar"});
  CHECK(shard_list("t-{008..11}") == Names{"t-008", "t-009", "t-010", "t-011"});
  CHECK(shard_list("t-{8..011}") == Names{"t-008", "t-009", "t-010", "t-011"});
  CHECK(shard_list("{0..0}") == Names{"0"});
  CHECK(shard_list("{00..09..4}") == Names{"00", "04", "08"});
  CHECK(shard_list("{a,bc,d}.tar") == Names{"a.tar", "bc.tar", "d.tar"});
  CHECK(shard_list("{a,,b}x") == Names{"ax", "x", "bx"});
  CHECK(shard_list("{a..c}") == Names{"a", "b", "c"});
  CHECK(shard_list("{a,b}-{0..1}.tar") == Names{"a-0.tar", "a-1.tar", "b-0.tar", "b-1.tar"});
  CHECK(shard_list("x{a,b{1..2}c,d}y") == Names{"xay", "xb1cy", "xb2cy", "xdy"});
  CHECK(shard_list("/p/{000..127}.tar").size() == 128);
  CHECK(shard_list("/p/{000..127}.tar").back() == "/p/127.tar");
}

TEST_CASE("a pattern that cannot be meant is refused, and named", "[shard_list]") {
  const auto why = [](const std::string& pattern) {
    const std::string message = message_of<ConfigError>([&] { shard_list(pattern); });
    CHECK((pattern.empty() || message.find(pattern) != message.npos));
    return message;
  };
  const auto says = [](const std::string& message, const std::string& text) { return message.find(text) != text.npos; };
  CHECK(says(why(""), "is empty"));
  CHECK(says(why("a{0..3"), "without its '}'"));
  CHECK(says(why("a{0..3}{"), "without its '}'"));
  CHECK(says(why("a0..3}"), "without a '{'"));
  CHECK(says(why("a{}"), "empty brace list"));
  CHECK(says(why("a{x}"), "no list"));
  CHECK(says(why("a{9..0}"), "backwards"));
  CHECK(says(why("a{c..a}"), "backwards"));
  CHECK(says(why("a{0..x}"), "no range"));
  CHECK(says(why("a{..3}"), "no range"));
  CHECK(says(why("a{0..}"), "no range"));
  CHECK(says(why("a{-1..3}"), "no range"));
  CHECK(says(why("a{0..3..0}"), "no range"));
  CHECK(says(why("a{0..99999999999999999999}"), "too large"));
  CHECK(says(why("a{0..9999999999}"), "more than 1000000"));
  CHECK(says(why("{0..9999}{0..9999}"), "more than 1000000"));
}
