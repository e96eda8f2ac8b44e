// The conformance suite on the local backend with ranks that share CUDA devices.
#include <doctest/doctest.h>

#include <string>

#include "../comm/conformance.hpp"
#include "../comm/property.hpp"

namespace {

using tessera::World;
using tessera::conformance::violations;

void check_on_device(void (*property)(World&), int least_ranks, std::chrono::milliseconds timeout) {
  tessera::conformance::device_under_test() = tessera::Device::cuda(0);
  for (const int ranks : tessera::conformance::rank_counts(least_ranks, 4)) {
    CAPTURE(ranks);
    const tessera::LaunchOptions options{.ranks = ranks, .timeout = timeout, .device = tessera::DeviceChoice::cuda};
    for (const std::string& line : violations(options, property)) FAIL_CHECK(line);
  }
}

}  // namespace

#define TESSERA_CUDA_PROPERTY(name, least_ranks, timeout)                                                \
  TEST_CASE("cuda, local: " #name) {                                                                     \
    check_on_device(tessera::conformance::name, least_ranks, tessera::conformance::timeout_of(timeout)); \
  }
TESSERA_CONFORMANCE_PROPERTIES(TESSERA_CUDA_PROPERTY)
