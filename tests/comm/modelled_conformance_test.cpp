// The conformance suite on the modelled backend. Alone in its job, a rank owes every property. In a job of several it
// has no peers; what does not make sense then, and why:
// - all_gather_collects_every_part, both sums and all_reduce in rank order, reduce_scatter_result_may_be_own_part,
// grouped_…,
//   broadcast_copies_from_every_root, host_conveniences_agree, two_communicators_run_concurrently,
//   buffers_may_be_reused, enqueue_never_blocks_the_host, communicator_may_end_…: they compare with the peers' values,
//   which are not there. What stands in their place: modelled_test.cpp.
// - require_equal_names_ranks_and_values, disagreement_about_…, rank_that_…: there is nobody who could say something
//   else, not come, or leave.
#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "conformance.hpp"
#include "tessera/comm/simulate.hpp"

namespace {

using tessera::World;
using Property = void (*)(World&);

// What went wrong on the rank. A world that the property itself made fail leaves nothing.
std::optional<std::string> violation(const tessera::SimulateOptions& options, Property property) {
  std::optional<std::string> text;
  try {
    tessera::simulate(options, [&](World& world) {
      try {
        property(world);
      } catch (const std::exception& error) {
        text = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {
    // Its text is there, unless the property meant the world to fail.
  }
  return text;
}

void check_alone(Property property, int least_ranks, int timeout) {
  if (least_ranks > 1) return;
  CHECK(violation({.timeout = std::chrono::milliseconds(timeout)}, property).value_or("") == "");
}

// The properties that end a world do so on the first rank or on the last.
void check_in_jobs(Property property, bool first) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    CAPTURE(ranks);
    CHECK(violation({.ranks = ranks, .rank = first ? 0 : ranks - 1}, property).value_or("") == "");
  }
}

}  // namespace

#define TESSERA_MODELLED_PROPERTY(name, least_ranks, timeout) \
  TEST_CASE("modelled, alone: " #name) { check_alone(tessera::conformance::name, least_ranks, timeout); }
TESSERA_CONFORMANCE_PROPERTIES(TESSERA_MODELLED_PROPERTY)

TEST_CASE("modelled, without its peers: misuse_is_an_error_at_the_call") {
  check_in_jobs(tessera::conformance::misuse_is_an_error_at_the_call, false);
  check_in_jobs(tessera::conformance::misuse_is_an_error_at_the_call, true);
}
TEST_CASE("modelled, without its peers: misuse_in_a_group_names_the_segment") {
  check_in_jobs(tessera::conformance::misuse_in_a_group_names_the_segment, false);
  check_in_jobs(tessera::conformance::misuse_in_a_group_names_the_segment, true);
}
TEST_CASE("modelled, without its peers: nobody_passes_a_barrier_before_all_have_come") {
  check_in_jobs(tessera::conformance::nobody_passes_a_barrier_before_all_have_come, false);
}
TEST_CASE("modelled, without its peers: abort_reaches_every_wait_with_the_first_cause") {
  check_in_jobs(tessera::conformance::abort_reaches_every_wait_with_the_first_cause, false);
}
TEST_CASE("modelled, without its peers: memory_may_be_freed_right_after_a_failure") {
  check_in_jobs(tessera::conformance::memory_may_be_freed_right_after_a_failure, true);
}
