// The table of bytes per rank: what the strategy that ran planned and took, beside what the other one would plan.
#pragma once

#include <span>
#include <string>

#include "probe/memory_report.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera::trainer {

// `ranks`: the figures of the model that ran. Figures that differ between ranks are shown by their largest.
std::string memory_table(const tessera::FullyShard& model, std::span<const tessera::probe::RankMemory> ranks);

}  // namespace tessera::trainer
