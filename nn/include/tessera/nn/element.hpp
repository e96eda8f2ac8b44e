// The elements of activations have these types; layers calculate on them and keep statistics in the types named here.
#pragma once

#include <type_traits>

#include "tessera/base/half.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

// float, bf16, fp16; double is for gradient checks, and at home in functions only: no runtime has parameters of it.
template <typename T>
concept Element =
    std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, fp16> || std::is_same_v<T, double>;

// float, but double for double. Elements are rounded once, to nearest even, when they are stored.
template <typename T>
using Arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace tessera::nn

#pragma GCC visibility pop
