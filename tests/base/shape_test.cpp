// Shapes: counting elements.
#include "tessera/base/shape.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "tessera/base/error.hpp"

using namespace tessera;

TEST_CASE("a shape has as many elements as the product of its extents") {
  CHECK(element_count({}) == 1);
  CHECK(element_count({0}) == 0);
  CHECK(element_count({7}) == 7);
  CHECK(element_count({64, 10, 3}) == 1920);
}

TEST_CASE("a product that overflows is an error, unless an extent is zero") {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  CHECK(element_count({most}) == most);
  CHECK_THROWS_AS(element_count({most, 2}), UsageError);
  CHECK_THROWS_AS(element_count({std::size_t{1} << 32, std::size_t{1} << 32}), UsageError);
  CHECK(element_count({most, 2, 0}) == 0);
}

TEST_CASE("shapes are written as lists") {
  CHECK(to_string(Shape{}) == "[]");
  CHECK(to_string(Shape{64, 10}) == "[64, 10]");
}
