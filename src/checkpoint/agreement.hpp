// Turns one rank's failure into an error on every rank, at a point that all ranks pass.
#pragma once

#include <functional>
#include <string_view>

#include "tessera/comm/world.hpp"

namespace tessera::checkpoint {

// Runs `work` on this rank and waits until all ranks have run theirs. Where it threw, this rank's exception is
// rethrown; where only others' threw, a DataError has the text of the lowest such rank. Collective; synchronises.
void run_together(World& world, std::string_view label, const std::function<void()>& work);

}  // namespace tessera::checkpoint
