// Staging of collectives: what a backend that cannot read its peers' memory (NCCL) receives into before it sums.
#pragma once

#include <cstddef>
#include <span>

#include "tessera/plan/plan.hpp"
#include "tessera/plan/roles.hpp"

namespace tessera::plan {

// Parts that arrive from peers start at multiples of this.
inline constexpr Bytes staging_alignment{256};
// Larger reductions go in rounds of this size.
inline constexpr Bytes staging_most{std::uint64_t{64} << 20};

// Any communicator needs this: a place for every rank's part of the smallest round. It is all that gathering takes.
Bytes gather_staging(std::size_t ranks);

// So much that the plan's largest bucket is reduced in one round, or staging_most; for CollectiveStaging::results what
// its largest segment takes, which has no rounds.
Bytes reduce_staging(const Plan& plan);
// The same for the largest sum in a window; what gathering takes where there is none.
Bytes window_staging(const Plan& plan);
// So much of reduce_staging both the first role and the last have: sums of their tied units go in rounds of it, as many
// on either side. 0 where there is no staging.
Bytes tied_staging(std::span<const RankRole> roles);

}  // namespace tessera::plan
