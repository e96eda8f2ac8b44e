// Stretches of time: what overlaps counts once.
#include "tessera/base/stretches.hpp"

#include <doctest/doctest.h>

using namespace tessera;

TEST_CASE("stretches that overlap or touch become one, in the order of time") {
  CHECK(merged({}).empty());
  CHECK(merged({{5, 6}, {0, 2}, {1, 3}, {3, 4}, {0.5, 1}}) == Stretches{{0, 4}, {5, 6}});
}

TEST_CASE("what two lists have in common is counted once, and no more than either") {
  const Stretches a = {{0, 4}, {5, 6}, {8, 10}}, b = {{1, 2}, {3, 5.5}, {9, 12}};
  CHECK(length({}) == 0);
  CHECK(length(a) == 7);
  CHECK(common_length(a, b) == 3.5);
  CHECK(common_length(b, a) == 3.5);
  CHECK(common_length(a, a) == length(a));
  CHECK(common_length(a, {}) == 0);
}
