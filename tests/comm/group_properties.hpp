// What communicators over groups of ranks must do on backends with a control channel, over rows and columns of every
// mesh that the ranks can make: properties as the conformance suite's (conformance.hpp).
#pragma once

#include "tessera/comm/world.hpp"

#define TESSERA_GROUP_PROPERTIES(X)                                 \
  X(rows_and_columns_gather_their_members_parts, 60'000)            \
  X(rows_and_columns_sum_by_place_bitwise, 60'000)                  \
  X(rows_and_columns_broadcast_from_every_place, 60'000)            \
  X(rows_and_columns_take_turns, 60'000)                            \
  X(a_group_needs_nobody_of_another_one, 60'000)                    \
  X(misuse_names_the_rank_of_the_job, 60'000)                       \
  X(disagreement_in_one_group_names_job_ranks_everywhere, 60'000)   \
  X(rank_that_its_group_misses_is_named_though_others_go_on, 1'000) \
  X(disagreement_about_the_partition_names_both, 60'000)            \
  X(rank_that_has_left_is_named_in_its_group, 60'000)

namespace tessera::conformance {

#define TESSERA_DECLARE_PROPERTY(name, timeout) void name(World& world);
TESSERA_GROUP_PROPERTIES(TESSERA_DECLARE_PROPERTY)
#undef TESSERA_DECLARE_PROPERTY

}  // namespace tessera::conformance
