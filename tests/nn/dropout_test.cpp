// Dropout: the mask is Philox's, is replayed, keeps its rate, and does not depend on how rows are divided.
#include "tessera/nn/dropout.hpp"

#include <cmath>

#include "instruction_sets.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/philox.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace {

constexpr Dropout third{.probability = 0.3f, .key = {.seed = 7, .step = 5, .layer = 3, .first_row = 11}};

std::vector<float> dropped(const Dropout& of, const std::vector<float>& x, std::size_t rows, std::size_t columns) {
  Stream stream = immediate_stream();
  std::vector<float> y = unset<float>(x.size());
  dropout<float>(stream, of, matrix(x, rows, columns), matrix(y, rows, columns));
  stream.synchronize();
  return y;
}

// The factor of each element: the mask itself.
std::vector<float> factors(const Dropout& of, std::size_t rows, std::size_t columns) {
  return dropped(of, std::vector<float>(rows * columns, 1.0f), rows, columns);
}

// Written from the contract, one element at a time.
bool kept(const Dropout& of, std::uint64_t row, std::size_t column) {
  const auto counter = static_cast<std::uint32_t>(column / 64 * 16 + column % 16);
  const std::uint64_t seed = of.key.seed ^ 0x64726f706f757421;
  const PhiloxCounter drawn = philox({counter, static_cast<std::uint32_t>(row), of.key.step,
                                      static_cast<std::uint32_t>(row >> 32) << 16 | of.key.layer},
                                     {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return static_cast<double>(drawn[column / 16 % 4]) >= static_cast<double>(of.probability) * 0x1p32;
}

}  // namespace

TEST_CASE("the_mask_is_philox_of_seed_step_layer_row_and_column") {
  for (const std::uint64_t first_row : {std::uint64_t{0}, std::uint64_t{4294967290u}, std::uint64_t{1} << 47}) {
    for (const std::size_t columns : std::vector<std::size_t>{0, 1, 15, 64, 67, 200}) {
      Dropout of = third;
      of.key.first_row = first_row;
      const std::size_t rows = 13;
      const std::vector<float> mask = factors(of, rows, columns);
      for (std::size_t i = 0; i < mask.size(); ++i) {
        CHECK(mask[i] == (kept(of, first_row + i / columns, i % columns) ? 1.0f / (1.0f - 0.3f) : 0.0f));
      }
    }
  }
}

TEST_CASE("every_part_of_the_key_gives_another_mask_and_the_same_key_the_same") {
  const std::vector<float> mask = factors(third, 5, 40);
  CHECK(factors(third, 5, 40) == mask);
  for (int part = 0; part < 4; ++part) {
    Dropout other = third;
    if (part == 0) other.key.seed += std::uint64_t{1} << 40;
    if (part == 1) other.key.step += 1;
    if (part == 2) other.key.layer = static_cast<std::uint16_t>(other.key.layer + 1);
    if (part == 3) other.key.first_row += 1;
    CHECK(factors(other, 5, 40) != mask);
  }
}

TEST_CASE("the_mask_keeps_its_rate_and_the_mean") {
  for (const float probability : {0.1f, 0.5f, 0.9f}) {
    const std::size_t count = 1000 * 1000;
    const std::vector<float> mask = factors({.probability = probability, .key = third.key}, 1000, 1000);
    double sum = 0.0;
    std::size_t dropped_count = 0;
    for (const float factor : mask) {
      sum += static_cast<double>(factor);
      dropped_count += factor == 0.0f ? 1 : 0;
    }
    const double p = static_cast<double>(probability);
    const double deviation = std::sqrt(p * (1.0 - p) / static_cast<double>(count));  // of the dropped share
    CHECK(std::abs(static_cast<double>(dropped_count) / static_cast<double>(count) - p) < 5.0 * deviation);
    CHECK(std::abs(sum / static_cast<double>(count) - 1.0) < 5.0 * deviation / (1.0 - p) + 1e-6);
  }
}

TEST_CASE("how_rows_are_divided_among_ranks_does_not_change_the_mask") {
  const std::size_t rows = 21;
  const std::size_t columns = 35;
  const std::vector<float> whole = factors(third, rows, columns);
  for (const std::size_t ranks : std::vector<std::size_t>{1, 3, 7}) {
    std::vector<float> parts;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      Dropout of = third;
      of.key.first_row += rank * (rows / ranks);
      const std::vector<float> part = factors(of, rows / ranks, columns);
      parts.insert(parts.end(), part.begin(), part.end());
    }
    CHECK(parts == whole);
  }
}

TEST_CASE_TEMPLATE("dropout_multiplies_by_the_mask_in_place_or_not_alone_or_added", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  for (const std::size_t columns : std::vector<std::size_t>{1, 17, 64, 131}) {
    const std::size_t rows = 7;
    std::vector<T> x = random_elements<T>(rows * columns, 1);
    std::vector<T> residual = random_elements<T>(rows * columns, 2);
    std::vector<double> expected = widened(factors(third, rows, columns));
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] *= widened(x)[i];
    std::vector<T> y = unset<T>(x.size());
    dropout<T>(stream, third, matrix(std::as_const(x), rows, columns), matrix(y, rows, columns));
    check_elements(y, expected);
    std::vector<double> added = expected;
    for (std::size_t i = 0; i < added.size(); ++i) added[i] += widened(residual)[i];
    add_dropped<T>(stream, {.residual = matrix(std::as_const(residual), rows, columns),
                            .x = matrix(std::as_const(x), rows, columns),
                            .y = matrix(residual, rows, columns),
                            .dropout = third});
    check_elements(residual, added, 2.0 * tolerance<T>());
    dropout<T>(stream, third, matrix(std::as_const(x), rows, columns), matrix(x, rows, columns));
    check_elements(x, expected);
  }
  stream.synchronize();
}

TEST_CASE_TEMPLATE("a_probability_of_0_changes_nothing", T, TESSERA_ALL_ELEMENTS) {
  const std::vector<T> x = random_elements<T>(3 * 19, 1);
  const std::vector<T> residual = random_elements<T>(3 * 19, 2);
  std::vector<T> y = unset<T>(x.size());
  Stream stream = immediate_stream();
  dropout<T>(stream, {}, matrix(x, 3, 19), matrix(y, 3, 19));
  CHECK(bytes_of(y) == bytes_of(x));
  add_dropped<T>(stream, {.residual = matrix(residual, 3, 19), .x = matrix(x, 3, 19), .y = matrix(y, 3, 19)});
  std::vector<double> expected = widened(x);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += widened(residual)[i];
  check_elements(y, expected);
  stream.synchronize();
}

TEST_CASE("dropout_refuses_probabilities_that_are_none_and_rows_beyond_the_mask") {
  Stream stream = immediate_stream();
  std::vector<float> x(6);
  for (const float probability : {-0.1f, 1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    const Dropout of{.probability = probability};
    CHECK_THROWS_AS(dropout<float>(stream, of, matrix(x, 2, 3), matrix(x, 2, 3)), UsageError);
  }
  const Dropout far{.probability = 0.5f, .key = {.first_row = (std::uint64_t{1} << 48) - 1}};
  CHECK_THROWS_AS(dropout<float>(stream, far, matrix(x, 2, 3), matrix(x, 2, 3)), UsageError);
}
