// Running something with every instruction set that this machine has, and on several numbers of threads.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tessera/kernels/instruction_set.hpp"
#include "tessera/nn/threads.hpp"

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

// Checks that `result` gives on 2, 3 and 7 threads what it gives on one.
template <typename Result>
void check_same_bits_on_threads(const Result& result) {
  const std::string expected = result();
  for (const int threads : {2, 3, 7}) {
    tessera::nn::set_threads(threads);
    CAPTURE(threads);
    CHECK((result() == expected));
  }
  tessera::nn::set_threads(1);
}
