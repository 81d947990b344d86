// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace support {

/// Values that Python gave, by case (tests/oracle).
inline std::map<std::string, std::vector<double>> oracle(const std::string& file_name) {
  std::ifstream file(SATURATE_SOURCE_DIR "/tests/oracle/" + file_name);
  std::map<std::string, std::vector<double>> cases;
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string name, word;
    words >> name;
    while (words >> word) cases[name].push_back(std::stod(word));
  }
  return cases;
}

}  // namespace support
