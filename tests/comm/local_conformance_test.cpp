// The conformance suite on the local backend, with 1 to 8 ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "conformance.hpp"
#include "tessera/comm/run.hpp"

namespace {

using tessera::World;

// What went wrong on any rank, one line each. A world that the property itself made fail leaves none.
std::vector<std::string> violations(const tessera::LaunchOptions& options, void (*property)(World&)) {
  std::mutex mutex;
  std::vector<std::string> lines;
  try {
    tessera::launch(options, [&](World& world) {
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
