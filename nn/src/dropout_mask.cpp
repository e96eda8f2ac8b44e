// From a dropout's key to what the row loops draw their words from.
#include "src/dropout_mask.hpp"

#include <fmt/format.h>

#include <cmath>

#include "tessera/base/error.hpp"

namespace tessera::nn {

namespace {

constexpr std::uint64_t largest_row = std::uint64_t{1} << 48;
constexpr std::uint64_t domain = 0x64726f706f757421;  // keeps these words apart from those of initial values

}  // namespace

DropoutMask mask_of(const Dropout& of, std::size_t rows) {
  if (!(of.probability >= 0.0f && of.probability < 1.0f)) {
    throw UsageError(fmt::format("dropout: probability must be in [0, 1), but is {}", of.probability));
  }
  if (of.key.first_row > largest_row || rows > largest_row - of.key.first_row) {
    throw UsageError(fmt::format("dropout: rows {} to {} of a step are wanted, but the mask has 2^48", of.key.first_row,
                                 of.key.first_row + rows));
  }
  const std::uint64_t seed = of.key.seed ^ domain;
  return {.key = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
          .step = of.key.step,
          .layer = of.key.layer,
          .first_row = of.key.first_row,
          .drop_below = static_cast<std::uint32_t>(std::lround(static_cast<double>(of.probability) * 0x1p32)),
          .scale = 1.0f / (1.0f - of.probability)};
}

}  // namespace tessera::nn
