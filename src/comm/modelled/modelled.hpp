// How long collectives of an imagined job take: the ring's formulas.
#pragma once

#include <chrono>

#include "comm/signature.hpp"
#include "tessera/comm/simulate.hpp"

namespace tessera::comm {

// The formula of CollectiveTime for one call. At most a year.
std::chrono::nanoseconds duration_of(const CollectiveTime& time, const Signature& signature, int ranks);

}  // namespace tessera::comm
