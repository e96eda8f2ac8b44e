// The conformance suite on collectives over the control channel, with ranks that meet in memory and over sockets.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>

#include "conformance.hpp"
#include "control_ranks.hpp"

using namespace tessera;
using namespace tessera::comm;

namespace {

void check_all_in_memory(Property property, int least_ranks, std::chrono::milliseconds timeout) {
  for (const int ranks : conformance::rank_counts(least_ranks, 6)) check_in_memory(property, ranks, timeout);
}

// A sanitizer sees four ranks in memory.
void check_all_over_sockets(Property property, int least_ranks, std::chrono::milliseconds timeout) {
  const int most = tests::sanitized ? std::max(least_ranks, 3) : 5;
  for (const int ranks : conformance::rank_counts(least_ranks, most)) check_over_sockets(property, ranks, timeout);
}

}  // namespace

#define TESSERA_CONTROL_PROPERTY(name, least_ranks, timeout)                                                    \
  TEST_CASE("control in memory: " #name) {                                                                      \
    check_all_in_memory(tessera::conformance::name, least_ranks, tessera::conformance::timeout_of(timeout));    \
  }                                                                                                             \
  TEST_CASE("control over sockets: " #name) {                                                                   \
    check_all_over_sockets(tessera::conformance::name, least_ranks, tessera::conformance::timeout_of(timeout)); \
  }
TESSERA_CONFORMANCE_PROPERTIES(TESSERA_CONTROL_PROPERTY)
