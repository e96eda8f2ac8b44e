// Turns one rank's failure into an error on every rank, at a point that all ranks pass.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/comm/world.hpp"

namespace tessera::checkpoint {

// Every rank gives the same number of bytes; the result holds them in rank order.
using Gather = std::function<std::vector<std::byte>(std::span<const std::byte> mine)>;

// Runs `work` on this rank and waits until all ranks have run theirs. Where it threw, this rank's exception is
// rethrown; where only others' threw, a DataError has the text of the lowest such rank. Collective; synchronises.
void run_together(const Gather& gather, const std::function<void()>& work);
void run_together(World& world, std::string_view label, const std::function<void()>& work);

}  // namespace tessera::checkpoint
