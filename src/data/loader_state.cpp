// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/loader_state.hpp"

#include "saturate/error.hpp"

#include <sstream>

namespace saturate::data {
namespace {
constexpr std::string_view mark = "saturate-loader-state-1";
}

std::string LoaderState::text() const {
  std::ostringstream out;
  out << mark << " epoch " << epoch << " position " << position << " seed " << seed << " length " << length << " ranks "
      << ranks << " sampler " << sampler;
  return out.str();
}

LoaderState LoaderState::parse(std::string_view text) {
  std::istringstream in{std::string(text)};
  LoaderState state;
  const auto word = [&](std::string_view expected) {
    std::string got;
    if (!(in >> got) || got != expected) {
      throw DataError("LoaderState: \"" + std::string(text.substr(0, 200)) + "\" is no saved state: \"" +
                      std::string(expected) + "\" is missing");
    }
  };
  const auto number = [&](std::string_view name, auto& value) {
    word(name);
    if (!(in >> value)) {
      throw DataError("LoaderState: \"" + std::string(text.substr(0, 200)) +
                      "\" is no saved state: no number after \"" + std::string(name) + "\"");
    }
  };
  word(mark);
  number("epoch", state.epoch);
  number("position", state.position);
  number("seed", state.seed);
  number("length", state.length);
  number("ranks", state.ranks);
  word("sampler");
  std::getline(in >> std::ws, state.sampler);
  return state;
}

}  // namespace saturate::data
