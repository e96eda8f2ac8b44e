// The conformance suite on the nccl backend, over the tests' NCCL. What it does not owe: the properties in which ranks
// call communicators in opposite orders; on NCCL all communicators have one order of launch (nccl_test.cpp has what
// stands in their place).
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "../comm/conformance.hpp"
#include "../comm/property.hpp"
#include "../extent.hpp"
#include "nccl_ranks.hpp"

using namespace tessera;
using namespace tessera::comm;

namespace {

using Property = void (*)(World&);

void check(Property property, NcclRanks how) {
  if (conformance::calls_crosswise(property)) return;
  CAPTURE(how.ranks);
  for (const std::string& text : run_nccl_ranks(how, property)) CHECK(text == "");
}

// Staging so small that sums go in many rounds; calls that take their time; an NCCL that keeps no order. Sanitizers see
// one of the ways of each property, in turn: all would take ThreadSanitizer 20 GB for the clocks of threads that ended.
void check_in_all_ways(Property property, int least_ranks, std::chrono::milliseconds timeout) {
  const bool reduced = tests::reduced();
  static std::size_t turn = 0;
  const std::size_t way = ++turn % 3;
  const auto takes = [&](std::size_t this_way) { return !tests::sanitized || way == this_way; };
  for (int ranks = reduced ? std::max(least_ranks, 3) : least_ranks; takes(0) && ranks <= (reduced ? 3 : 4); ++ranks) {
    check(property, {.ranks = ranks, .timeout = timeout});
  }
  if (takes(1)) check(property, {.ranks = 4, .timeout = timeout, .over_sockets = true});  // with meshes of 2 x 2
  if (!takes(2)) return;
  check(property, {.ranks = std::max(least_ranks, 3),
                   .timeout = timeout,
                   .faults = {.polls_until_ready = 3, .orders_launches = false, .delay_seed = 7},
                   .options = {.staging = Bytes(4096)}});
}

}  // namespace

#define TESSERA_NCCL_PROPERTY(name, least_ranks, timeout)                                                  \
  TEST_CASE("nccl: " #name) {                                                                              \
    check_in_all_ways(tessera::conformance::name, least_ranks, tessera::conformance::timeout_of(timeout)); \
  }
TESSERA_CONFORMANCE_PROPERTIES(TESSERA_NCCL_PROPERTY)
