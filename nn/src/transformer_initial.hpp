// How a transformer's linear layers start (Radford et al. 2019, GPT-2): normal weights, biases of zero.
#pragma once

#include "tessera/nn/linear.hpp"

namespace tessera::nn {

inline constexpr float transformer_deviation = 0.02f;

inline LinearOptions normal_weights(float deviation, const Slices& slices = {}, LinearCut cut = LinearCut::none,
                                    std::size_t blocks = 1) {
  return {.initial_weight = Initial::normal(0.0f, deviation),
          .initial_bias = Initial::zeros(),
          .slices = slices,
          .cut = cut,
          .blocks = blocks};
}

}  // namespace tessera::nn
