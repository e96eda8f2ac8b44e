// One generator for the process, so one module at a time.
#include "tessera/torch/make_module.hpp"

#include <ATen/Context.h>

#include "src/torch_generators.hpp"

namespace tessera::torch {

SeededGenerator::SeededGenerator(std::uint64_t seed) : alone_(generators_alone()) { at::manual_seed(seed); }

}  // namespace tessera::torch
