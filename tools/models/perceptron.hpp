// A multilayer perceptron: each layer a unit "layers.N" with a weight [out, in] and a bias [out].
#pragma once

#include <cstddef>
#include <vector>

#include "models/model.hpp"

namespace models {

// widths: of the layers' inputs, and of the last one's output.
Model perceptron(const std::vector<std::size_t>& widths);

}  // namespace models
