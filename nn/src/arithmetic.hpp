// From stored elements to the type that layers calculate in, and back with one rounding to nearest even.
#pragma once

#include "tessera/nn/element.hpp"

namespace tessera::nn {

template <typename T>
Arithmetic<T> load(T element) {
  return static_cast<Arithmetic<T>>(element);
}

template <typename T>
T store(Arithmetic<T> value) {
  return static_cast<T>(value);
}

}  // namespace tessera::nn
