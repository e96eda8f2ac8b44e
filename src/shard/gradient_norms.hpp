// The norm of each parameter's gradient, from the shards that the last step reduced.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "shard/executor.hpp"

namespace tessera {

// Each rank sums the squares of its pieces (kernels/norm.hpp), and the ranks' sums are added in rank order in fp64.
// Between steps. Collective; synchronises.
std::vector<GradientNorm> gradient_norms(World& world, const plan::Plan& plan,
                                         std::span<const std::unique_ptr<Unit>> units, Executor& executor);

}  // namespace tessera
