// Programs in short, as schedules are drawn: windows("f0 f1 b1 b0") is a forward and a backward window of units 0
// and 1. The letters r, e and i stand for windows that recompute, evaluate and go back to the input alone; a + behind
// the unit's number for one that resumes.
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/program.hpp"

namespace tests {

inline std::vector<tessera::plan::WindowUse> windows(const std::string& text) {
  std::vector<tessera::plan::WindowUse> result;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t kind = std::string_view("fbrei").find(word.front());  // in the order of the enumerators
    result.push_back({std::stoul(word.substr(1)), static_cast<tessera::plan::WindowKind>(kind), word.back() == '+'});
  }
  return result;
}

inline tessera::plan::Program program(const std::string& micro_batch, const std::string& evaluation = "") {
  return {windows(micro_batch), windows(evaluation)};
}

}  // namespace tests
