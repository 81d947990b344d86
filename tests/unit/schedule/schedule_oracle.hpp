// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch_test_macros.hpp>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace oracle {

/// The line of that name in tests/oracle/schedules.txt.
inline std::vector<double> values(const std::string& wanted) {
  std::ifstream file(SATURATE_SOURCE_DIR "/tests/oracle/schedules.txt");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name != wanted) continue;
    std::vector<double> result;
    for (double value; words >> value;) result.push_back(value);
    return result;
  }
  FAIL("no case " + wanted);
  return {};
}

}  // namespace oracle
