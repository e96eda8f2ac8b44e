// One lock for the process, as there is one generator.
#include "tessera/torch/make_module.hpp"

#include <ATen/Context.h>

namespace tessera::torch {

namespace {

std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

SeededGenerator::SeededGenerator(std::uint64_t seed) : alone_(generator_mutex()) { at::manual_seed(seed); }

}  // namespace tessera::torch
