// Devices: names, and what a build without CUDA answers.
#include "tessera/device/device.hpp"

#include <doctest/doctest.h>

#include "tessera/base/error.hpp"

using namespace tessera;

TEST_CASE("the CPU is one device, called cpu") {
  CHECK(to_string(Device::cpu()) == "cpu");
  CHECK(Device::cpu() == Device::cpu());
}

TEST_CASE("asking for a CUDA device that cannot be had says what is missing") {
  CHECK_THROWS_WITH_AS(Device::cuda(3), doctest::Contains("cuda:3"), UnavailableError);
  CHECK_THROWS_WITH_AS(Device::cuda(3), doctest::Contains("no CUDA half"), UnavailableError);
}
