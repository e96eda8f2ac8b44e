// The conformance suite of communicators: what every backend must do, written against World and Communicator only.
// Each property is a function that every rank runs; it throws when it finds the property violated on its rank.
//
// A backend instantiates the list with a macro X(name, least_ranks, timeout_in_milliseconds) and a way to start ranks.
// A rank that throws must end its world as failed; a world that a property aborted on purpose is no failure.
#pragma once

#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "../extent.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/world.hpp"

#define TESSERA_CONFORMANCE_PROPERTIES(X)                            \
  X(reduce_scatter_of_codes_sums_their_values_bitwise, 1, 60'000)    \
  X(minus_zeros_leave_results_as_they_are, 1, 60'000)                \
  X(grouped_reduce_scatters_equal_single_ones_bitwise, 1, 60'000)    \
  X(reduce_scatter_results_may_be_own_parts_of_data, 1, 60'000)      \
  X(redistribution_moves_what_the_list_says, 1, 60'000)              \
  X(nobody_passes_a_barrier_before_all_have_come, 1, 60'000)         \
  X(host_conveniences_agree_on_every_rank, 1, 60'000)                \
  X(require_equal_names_ranks_and_values, 2, 60'000)                 \
  X(two_communicators_run_concurrently, 1, 60'000)                   \
  X(rows_and_columns_run_concurrently, 1, 60'000)                    \
  X(buffers_may_be_reused_right_after_completion, 1, 60'000)         \
  X(enqueue_never_blocks_the_host, 1, 60'000)                        \
  X(stream_that_meets_peers_runs_collectives_at_the_call, 1, 60'000) \
  X(communicator_may_end_before_its_collectives_ran, 1, 60'000)      \
  X(misuse_is_an_error_at_the_call, 1, 60'000)                       \
  X(misuse_in_a_group_names_the_segment, 1, 60'000)                  \
  X(rank_that_never_comes_is_named, 2, 400)                          \
  X(rank_that_never_makes_a_communicator_is_named, 2, 400)           \
  X(rank_that_makes_progress_is_waited_for, 2, 1'000)                \
  X(rank_that_waits_elsewhere_is_told_with_where, 2, 400)            \
  X(rank_that_has_left_is_named_at_once, 2, 60'000)                  \
  X(disagreement_about_the_kind_names_both, 2, 60'000)               \
  X(disagreement_about_the_label_names_both, 2, 60'000)              \
  X(disagreement_about_the_bytes_names_both, 2, 60'000)              \
  X(disagreement_about_the_dtype_names_both, 2, 60'000)              \
  X(disagreement_about_the_divisor_names_both, 2, 60'000)            \
  X(disagreement_about_the_root_names_both, 2, 60'000)               \
  X(disagreement_about_a_segment_names_both, 2, 60'000)              \
  X(disagreement_about_the_number_of_segments_names_both, 2, 60'000) \
  X(disagreement_about_a_communicators_name_names_both, 2, 60'000)   \
  X(abort_reaches_every_wait_with_the_first_cause, 1, 60'000)        \
  X(memory_may_be_freed_right_after_a_failure, 1, 60'000)            \
  X(groups_have_their_sizes_and_places, 1, 60'000)                   \
  X(groups_gather_the_parts_of_their_ranks, 1, 60'000)               \
  X(groups_sum_in_the_order_of_places_bitwise, 1, 60'000)            \
  X(groups_reduce_large_data_bitwise, 1, 60'000)                     \
  X(large_data_is_gathered_and_broadcast, 1, 60'000)                 \
  X(groups_broadcast_from_every_place, 1, 60'000)                    \
  X(nobody_passes_a_groups_barrier_before_its_ranks_have, 1, 60'000) \
  X(groups_wait_for_none_but_their_ranks, 1, 60'000)                 \
  X(misuse_of_a_group_is_an_error_at_the_call, 1, 60'000)            \
  X(rank_that_never_comes_to_its_group_is_named, 2, 400)             \
  X(rank_of_a_group_that_makes_progress_is_waited_for, 4, 1'000)     \
  X(rank_that_makes_no_groups_communicator_is_named, 2, 400)         \
  X(rank_that_has_left_its_group_is_named_at_once, 2, 60'000)        \
  X(disagreement_in_one_group_reaches_all, 2, 60'000)                \
  X(disagreement_about_the_groups_names_both, 2, 60'000)

namespace tessera::conformance {

#define TESSERA_DECLARE_PROPERTY(name, least_ranks, timeout) void name(World& world);
TESSERA_CONFORMANCE_PROPERTIES(TESSERA_DECLARE_PROPERTY)
#undef TESSERA_DECLARE_PROPERTY

// The timeout of a property's ranks, given in milliseconds. ThreadSanitizer's are slow: one that does not get a
// processor in time would be named with those that really are missing.
constexpr std::chrono::milliseconds timeout_of(int milliseconds) {
  return std::chrono::milliseconds(TESSERA_THREAD_SANITIZER ? 3 * milliseconds : milliseconds);
}

// Numbers of ranks to try a property on. Under a sanitizer these are three, where each has a neighbour on both sides,
// and four, which make a mesh of 2 x 2; in a selection six and eight are left out.
inline std::vector<int> rank_counts(int least, int most) {
  std::vector<int> chosen;
  for (int ranks = least; ranks <= most; ++ranks) {
    if (tests::sanitized ? ranks == 3 || ranks == 4 : !tests::reduced() || ranks < 6 || ranks == 7)
      chosen.push_back(ranks);
  }
  return chosen;
}

// Whether ranks call communicators crosswise, which a backend with one order of all their collectives does not promise.
inline bool calls_crosswise(void (*property)(World&)) {
  return property == two_communicators_run_concurrently || property == rows_and_columns_run_concurrently;
}

// Runs a property on ranks that are threads. What went wrong on any rank, one line each. A world that the property
// itself made fail leaves none.
inline std::vector<std::string> violations(const LaunchOptions& options, void (*property)(World&)) {
  std::mutex mutex;
  std::vector<std::string> lines;
  try {
    launch(options, [&](World& world) {
      try {
        property(world);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        lines.push_back("rank " + std::to_string(world.rank()) + ": " + error.what());
        throw;
      }
    });
  } catch (const std::exception&) {
    // Its text is among the lines, unless the property meant the world to fail.
  }
  return lines;
}

}  // namespace tessera::conformance
