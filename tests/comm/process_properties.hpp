// The mpi backend owes these beside the conformance suite. The same kind of list.
#pragma once

#include "tessera/comm/world.hpp"

#define TESSERA_MPI_PROPERTIES(X)                               \
  X(arenas_give_the_bits_of_other_memory, 1, 60'000)            \
  X(one_rank_without_an_arena_changes_no_bit, 2, 60'000)        \
  X(arenas_need_no_staging_on_one_host, 1, 60'000)              \
  X(arenas_of_a_group_on_one_host_need_no_staging, 1, 60'000)   \
  X(arenas_give_the_bits_of_other_memory_in_groups, 1, 60'000)  \
  X(arenas_may_end_and_begin_between_collectives, 1, 60'000)    \
  X(arena_is_zero_and_whole_pages, 1, 60'000)                   \
  X(more_segments_than_a_bucket_ever_has, 1, 60'000)            \
  X(call_too_long_to_describe_is_refused_and_no_more, 1, 5'000) \
  X(labels_that_differ_at_their_ends_disagree, 2, 60'000)       \
  X(rank_that_stops_in_the_middle_is_named, 2, 3'000)

// Takes gigabytes, so it runs only when asked for.
#define TESSERA_LARGE_MPI_PROPERTIES(X) X(more_than_two_gibibytes_travel, 2, 300'000)

namespace tessera::conformance {

#define TESSERA_DECLARE_MPI_PROPERTY(name, least_ranks, timeout) void name(World& world);
TESSERA_MPI_PROPERTIES(TESSERA_DECLARE_MPI_PROPERTY)
TESSERA_LARGE_MPI_PROPERTIES(TESSERA_DECLARE_MPI_PROPERTY)
#undef TESSERA_DECLARE_MPI_PROPERTY

}  // namespace tessera::conformance
