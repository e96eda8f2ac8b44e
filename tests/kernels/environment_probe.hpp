// A probe says which way is active of those that a variable chooses from, or why not: environment_test.py runs it with
// the variable set.
#pragma once

#include <cstdio>
#include <string>

#include "tessera/base/error.hpp"

template <typename Active>
int say(Active active) {
  try {
    std::puts(std::string(to_string(active())).c_str());
    return 0;
  } catch (const tessera::UsageError& error) {
    std::puts(error.what());
    return 2;
  }
}
