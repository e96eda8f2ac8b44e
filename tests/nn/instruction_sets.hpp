// Running something with every instruction set that this machine has.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tessera/kernels/instruction_set.hpp"

// The bytes of all vectors, one after the other.
template <typename... Vectors>
std::string bytes_of(const Vectors&... vectors) {
  std::string result;
  (result.append(reinterpret_cast<const char*>(vectors.data()), vectors.size() * sizeof(vectors[0])), ...);
  return result;
}

inline void check_same_bits(const std::function<std::string()>& result) {
  namespace kernels = tessera::kernels;
  const kernels::InstructionSet before = kernels::active_instruction_set();
  kernels::select_instruction_set(kernels::InstructionSet::portable);
  const std::string expected = result();
  for (const kernels::InstructionSet set : kernels::available_instruction_sets()) {
    kernels::select_instruction_set(set);
    CAPTURE(to_string(set));
    CHECK(result() == expected);
  }
  kernels::select_instruction_set(before);
}
