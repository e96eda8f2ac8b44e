// Where a granule's random numbers come from: generators that begin at a seed of its own, whichever rank computes it,
// whatever that rank has drawn before, and also where ranks are threads. On the CPU that is a generator of the rank's
// own; on a CUDA device torch's, which is the rank's alone, in a state of its own for a while, because some operators
// there take no other.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "src/generator_mode.hpp"

namespace tessera::torch {

struct GranuleOfStep {
  std::uint64_t seed;  // of the model
  std::uint64_t step;
  std::uint64_t granule;
};

class GranuleGenerators {
 public:
  explicit GranuleGenerators(at::Device device);
  GranuleGenerators(const GranuleGenerators&) = delete;
  GranuleGenerators& operator=(const GranuleGenerators&) = delete;
  ~GranuleGenerators() { leave(); }

  // Not between enter() and leave().
  void begin(const GranuleOfStep& granule);
  // Until leave(), which goes on where it was left before, this thread's operators draw from these.
  void enter();
  void leave() noexcept;

 private:
  at::Generator cpu_;
  at::Generator device_;        // torch's; undefined on the CPU
  at::Tensor state_on_device_;  // of device_ while it is not entered, and of torch while it is
  std::optional<GeneratorMode> mode_;
};

}  // namespace tessera::torch
