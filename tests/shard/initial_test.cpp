// Initial values are a function of (seed, name, index), and the generator is the published one.
#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

#include "tessera/base/philox.hpp"
#include "tessera/shard/initial.hpp"

namespace initial_test {

using namespace tessera;
using Values = std::vector<float>;

Values draw(const Initial& initial, std::uint64_t seed, std::string_view name, std::uint64_t first, std::size_t count) {
  Values values(count, -9.0f);
  initial.fill(values, seed, name, first);
  return values;
}

// Known answers of the reference implementation (Random123's kat_vectors).
TEST_CASE("philox_gives_the_published_vectors") {
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a_piece_has_the_values_of_the_whole") {
  for (const Initial& initial :
       {Initial::uniform(-2, 3), Initial::normal(1, 2), Initial::constant(4), Initial::fan_in(7)}) {
    const Values whole = draw(initial, 5, "w", 0, 301);
    for (const std::uint64_t first : {0, 1, 2, 127, 128, 299, 301}) {
      for (const std::size_t count : {0, 1, 2, 3, 100}) {
        if (first + count > whole.size()) continue;
        const Values piece = draw(initial, 5, "w", first, count);
        for (std::size_t i = 0; i < count; ++i) CHECK(piece[i] == whole[first + i]);
      }
    }
  }
}

TEST_CASE("seed_and_name_decide") {
  const Initial initial = Initial::uniform(0, 1);
  const Values reference = draw(initial, 1, "a.weight", 0, 64);
  CHECK(draw(initial, 1, "a.weight", 0, 64) == reference);
  CHECK(draw(initial, 2, "a.weight", 0, 64) != reference);
  CHECK(draw(initial, 1, "b.weight", 0, 64) != reference);
}

TEST_CASE("distributions_have_their_moments_and_bounds") {
  const std::size_t count = 200'000;
  const Values uniform = draw(Initial::uniform(-1, 3), 0, "u", 0, count);
  const Values normal = draw(Initial::normal(0.5f, 2), 0, "n", 0, count);
  double uniform_mean = 0, normal_mean = 0, normal_square = 0;
  for (std::size_t i = 0; i < count; ++i) {
    CHECK_UNARY(uniform[i] >= -1.0f && uniform[i] < 3.0f);
    CHECK_UNARY(std::isfinite(normal[i]));
    uniform_mean += uniform[i] / double(count);
    normal_mean += normal[i] / double(count);
    normal_square += (normal[i] - 0.5) * (normal[i] - 0.5) / double(count);
  }
  CHECK(uniform_mean == doctest::Approx(1.0).epsilon(0.01));
  CHECK(normal_mean == doctest::Approx(0.5).epsilon(0.02));
  CHECK(std::sqrt(normal_square) == doctest::Approx(2.0).epsilon(0.01));
}

}  // namespace initial_test
