// One clock for all ranks of a trace. A steady clock belongs to a host and counts from its start, so ranks of one host
// agree, and ranks of others are shifted to rank 0's clock by when they leave barriers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shard/trace_file.hpp"
#include "tessera/comm/world.hpp"

namespace tessera {

// By barrier and rank: when the rank left it, on its own clock.
using Departures = std::vector<std::vector<std::int64_t>>;

// What to take from each rank's clock: the median over barriers of how much later it left than rank 0; of a host's
// ranks, which share a clock, the median of theirs. `hosts`: by rank, equal numbers for one host.
std::vector<std::int64_t> clock_offsets(const Departures& departures, const std::vector<std::size_t>& hosts);

// Shifts the times of ranks on other hosts than rank 0's; says what the times rest on. Collective.
std::string align_clocks(World& world, std::vector<RankTimes>& ranks);

}  // namespace tessera
