// Communicators over groups of ranks, on collectives over the control channel: meshes 2 x 2, 2 x 3 and 3 x 2 among
// others.
#include <doctest/doctest.h>

#include <chrono>

#include "control_ranks.hpp"
#include "group_properties.hpp"

using namespace tessera;
using namespace tessera::comm;

namespace {

void check(Property property, std::chrono::milliseconds timeout) {
  for (const int ranks : {2, 4, 6, 9}) check_in_memory(property, ranks, timeout);
  for (const int ranks : {4, 6}) check_over_sockets(property, ranks, timeout);
}

}  // namespace

#define TESSERA_CONTROL_GROUP_PROPERTY(name, timeout) \
  TEST_CASE("control: " #name) { check(tessera::conformance::name, std::chrono::milliseconds(timeout)); }
TESSERA_GROUP_PROPERTIES(TESSERA_CONTROL_GROUP_PROPERTY)
