// Ranks must say this alike before they train: options, units, program and the optimizer's settings, a line each, so
// that a difference is told in words.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/world.hpp"
#include "tessera/kernels/optimizer.hpp"
#include "tessera/plan/compile.hpp"
#include "tessera/shard/optimizer.hpp"
#include "tessera/shard/unit.hpp"

namespace tessera {

struct AgreedSettings {
  const plan::CompileInput& input;
  std::uint64_t plan_hash;  // of what the input was compiled into
  std::uint64_t seed;
  const kernels::LossScaling& loss_scaling;
  const kernels::OuterSettings& outer;
  std::span<const Optimizer* const> optimizers;  // by program
  std::span<const std::unique_ptr<Unit>> units;  // some with optimizers of their own
};
// The hash comes last: it differs where anything does that no line has.
std::vector<std::string> lines_of(const AgreedSettings& settings);

// Compares one hash of all lines. Where it differs, finds the first line that does, and throws a CommunicationError
// with each rank's, on all of them. `call`: whose it is. Collective; blocks.
void require_agreement(World& world, std::span<const std::string> lines, std::string_view call);

}  // namespace tessera
