// Permutations, computed and stored: each element once, the same everywhere, and without a pattern that statistics
// find.
#include "data/permutation.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

using tessera::data::Permutation;

namespace {

std::vector<std::uint64_t> elements(const Permutation& permutation, std::uint64_t size) {
  std::vector<std::uint64_t> result;
  for (std::uint64_t place = 0; place < size; ++place) result.push_back(permutation[place]);
  return result;
}

// How many standard deviations a sum of squares is above what chance gives, by Pearson's test.
class Counts {
 public:
  explicit Counts(std::size_t kinds) : counts_(kinds) {}
  void add(std::size_t kind) { ++counts_.at(kind); }
  double deviations() const {
    double total = 0.0;
    for (const double count : counts_) total += count;
    const double expected = total / static_cast<double>(counts_.size());
    double sum = 0.0;
    for (const double count : counts_) sum += (count - expected) * (count - expected) / expected;
    const auto freedom = static_cast<double>(counts_.size() - 1);
    return (sum - freedom) / std::sqrt(2.0 * freedom);
  }

 private:
  std::vector<double> counts_;
};

}  // namespace

TEST_CASE("every_element_stands_at_one_place") {
  std::vector<std::uint64_t> sizes = {0, 1, 2, 3, 5, 7, 11, 13, 101, 1009, 7919, 65537, 100000};
  for (unsigned power = 2; power <= 16; power += 2) {
    for (const int offset : {-1, 0, 1})
      sizes.push_back((std::uint64_t{1} << power) + static_cast<std::uint64_t>(offset));
  }
  for (const std::uint64_t size : sizes) {
    CAPTURE(size);
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      std::vector<bool> seen(size);
      for (const std::uint64_t element : elements(Permutation(size, seed, 9), size)) {
        REQUIRE(element < size);
        REQUIRE_FALSE(seen[element]);
        seen[element] = true;
      }
    }
  }
}

TEST_CASE("the_largest_sizes_stay_within_them") {
  for (const std::uint64_t size : {~std::uint64_t{0}, std::uint64_t{1} << 63, (std::uint64_t{1} << 63) + 1}) {
    const Permutation permutation(size, 1, 2);
    for (const std::uint64_t place : {std::uint64_t{0}, std::uint64_t{1}, size / 2, size - 1}) {
      CHECK(permutation[place] < size);
    }
  }
}

TEST_CASE("it_is_a_function_of_size_seed_and_stream") {
  const auto order = elements(Permutation(1000, 3, 4), 1000);
  CHECK(order == elements(Permutation(1000, 3, 4), 1000));
  CHECK(order != elements(Permutation(1000, 4, 3), 1000));
  CHECK(order != elements(Permutation(1000, 3, 5), 1000));
  CHECK(order != elements(Permutation(1001, 3, 4), 1000));
  // Checkpoints count on this order: where it must change, sampler_order goes up.
  CHECK(elements(Permutation(10, 3, 4), 10) == std::vector<std::uint64_t>{0, 6, 1, 4, 9, 8, 7, 2, 5, 3});
}

TEST_CASE("small_sizes_have_all_their_permutations_equally_often") {
  constexpr std::uint64_t size = 5;
  std::map<std::vector<std::uint64_t>, std::size_t> numbers;
  Counts counts(120);
  for (std::uint64_t stream = 0; stream < 24000; ++stream) {
    const auto order = elements(Permutation(size, 17, stream), size);
    counts.add(numbers.emplace(order, numbers.size()).first->second);
  }
  CHECK(numbers.size() == 120);
  CHECK(std::abs(counts.deviations()) < 4.0);
}

TEST_CASE("an_element_stands_anywhere_and_its_neighbour_anywhere_else") {
  for (const std::uint64_t size : {17, 64, 100, 1797}) {
    CAPTURE(size);
    Counts places(size);
    Counts distances(size - 1);
    Counts from_epoch_to_epoch(size);
    std::uint64_t before = 0;
    for (std::uint64_t epoch = 0; epoch < 40 * size; ++epoch) {
      const Permutation permutation(size, 3, epoch);
      const std::uint64_t first = permutation[0];
      places.add(first);
      distances.add((permutation[1] + size - first) % size - 1);
      from_epoch_to_epoch.add((first + size - before) % size);
      before = first;
    }
    CHECK(std::abs(places.deviations()) < 4.0);
    CHECK(std::abs(distances.deviations()) < 4.0);
    CHECK(std::abs(from_epoch_to_epoch.deviations()) < 4.0);
  }
}

// Within one permutation: neither the distance of neighbours nor the place of an element shows.
TEST_CASE("a_large_permutation_has_no_pattern_within") {
  constexpr std::uint64_t size = 200'000;
  constexpr std::uint64_t parts = 40;
  const Permutation permutation(size, 5, 0);
  Counts distances(parts);
  Counts places(parts * parts);
  std::uint64_t before = permutation[size - 1];
  for (std::uint64_t place = 0; place < size; ++place) {
    const std::uint64_t element = permutation[place];
    distances.add((element + size - before) % size * parts / size);
    places.add(place * parts / size * parts + element * parts / size);
    before = element;
  }
  CHECK(std::abs(distances.deviations()) < 4.0);
  CHECK(places.deviations() < 4.0);
}
