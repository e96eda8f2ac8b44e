// The conformance suite on the local backend, with 1 to 8 ranks.
#include <doctest/doctest.h>

#include <string>

#include "conformance.hpp"
#include "local_violations.hpp"

namespace {

using tessera::World;
using tessera::conformance::violations;

void check_with_all_sizes(void (*property)(World&), int least_ranks, std::chrono::milliseconds timeout) {
  for (int ranks = least_ranks; ranks <= 8; ++ranks) {
    CAPTURE(ranks);
    for (const std::string& line : violations({.ranks = ranks, .timeout = timeout}, property)) FAIL_CHECK(line);
  }
}

}  // namespace

#define TESSERA_LOCAL_PROPERTY(name, least_ranks, timeout)                                             \
  TEST_CASE("local: " #name) {                                                                         \
    check_with_all_sizes(tessera::conformance::name, least_ranks, std::chrono::milliseconds(timeout)); \
  }
TESSERA_CONFORMANCE_PROPERTIES(TESSERA_LOCAL_PROPERTY)
