// Devices: names, and what a build without CUDA answers.
#include "tessera/device/device.hpp"

#include <doctest/doctest.h>

#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"

using namespace tessera;

TEST_CASE("the CPU is one device, called cpu") {
  CHECK(to_string(Device::cpu()) == "cpu");
  CHECK(Device::cpu() == Device::cpu());
}

TEST_CASE("asking for a CUDA device that cannot be had says what is missing") {
  CHECK_THROWS_WITH_AS(Device::cuda(1000), doctest::Contains("cuda:1000"), UnavailableError);
  if (cuda_device_count() > 0) return;
  const std::string why = why_no_cuda();
  CHECK_THROWS_WITH_AS(Device::cuda(0), doctest::Contains(why.c_str()), UnavailableError);
  CHECK(has_cuda() == (why.find("no CUDA half") == std::string::npos));
}
