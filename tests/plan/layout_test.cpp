// Properties of UnitLayout: alignment, equal shards, and every element owned exactly once.
#include "tessera/plan/layout.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "models.hpp"
#include "tessera/base/shape.hpp"

namespace tessera::plan::layout_test {

constexpr std::size_t rank_counts[] = {1, 2, 3, 4, 5, 7, 8, 13};

std::vector<UnitSpec> edge_units() {
  std::vector<UnitSpec> units = {unit_of("empty", {}),    unit_of("nothing", {0}),
                                 unit_of("one", {1}),     unit_of("primes", {2, 3, 1021, 7919}),
                                 unit_of("below", {127}), unit_of("even", {128}),
                                 unit_of("above", {129}), unit_of("mixed", {0, 129, 1, 0, 128, 127, 4093})};
  units.push_back({"shaped", {{"weight", {13, 7, 3}, false}, {"scale", {}, false}, {"none", {5, 0}, true}}});
  return units;
}

// The first and the last axis of a mesh of replicas; other axes behave alike.
MeshShape mesh_of(std::size_t replicas, std::size_t ranks_of_replica) {
  return {{Axis::replicate, replicas}, {Axis::shard, ranks_of_replica}};
}

template <typename Body>
void for_each_layout(Body body) {
  for (const UnitSpec& unit : edge_units()) {
    for (const std::size_t ranks : rank_counts) {
      INFO(unit.name << ", " << ranks << " ranks");
      body(unit, UnitLayout(unit, mesh_of(1, ranks)), 1);
    }
    for (const std::size_t replicas : {2u, 3u, 8u}) {
      for (const std::size_t ranks_of_replica : {1u, 2u, 7u}) {
        INFO(unit.name << ", " << replicas << " replicas of " << ranks_of_replica << " ranks");
        body(unit, UnitLayout(unit, mesh_of(replicas, ranks_of_replica)), replicas);
      }
    }
  }
}

std::size_t round_to_128(std::size_t count) { return (count + 127) / 128 * 128; }

TEST_CASE("owners_of_elements_are_the_ranks_whose_pieces_they_are_in") {
  for_each_layout([](const UnitSpec&, const UnitLayout& layout, std::size_t) {
    for (std::size_t rank = 0; rank < layout.ranks(); ++rank) {
      for (const ShardPiece& piece : layout.pieces(rank)) {
        const UnitLayout::Owned first = layout.owner(piece.parameter, piece.parameter_offset);
        CHECK(first.rank == rank);
        CHECK(first.count == piece.count);
        const UnitLayout::Owned last = layout.owner(piece.parameter, piece.parameter_offset + piece.count - 1);
        CHECK(last.rank == rank);
        CHECK(last.count == 1);
      }
    }
  });
}

TEST_CASE("parameters_follow_each_other_on_multiples_of_128") {
  for_each_layout([](const UnitSpec& unit, const UnitLayout& layout, std::size_t) {
    REQUIRE(layout.parameters() == unit.parameters.size());
    std::size_t end = 0;
    for (std::size_t p = 0; p < layout.parameters(); ++p) {
      CHECK(layout.offset(p) == end);
      CHECK(layout.offset(p) % 128 == 0);
      CHECK(layout.elements(p) == element_count(unit.parameters[p].shape));
      end = round_to_128(end + layout.elements(p));
    }
    CHECK(layout.padded_elements() >= end);
  });
}

TEST_CASE("with_states_of_blocks_no_block_is_two_parameters_or_two_ranks") {
  const std::vector<StateSpec> states = {"m", StateSpec("codes", DType::u8), StateSpec("scales", DType::fp32, 512)};
  CHECK(alignment_for(states) == 512);
  CHECK(alignment_for(std::vector<StateSpec>{"m", StateSpec("scales", DType::fp32, 8)}) == 128);
  for (const UnitSpec& unit : edge_units()) {
    for (const std::size_t ranks : rank_counts) {
      const UnitLayout layout(unit, mesh_of(1, ranks), alignment_for(states));
      CHECK(layout.shard_elements() % 512 == 0);
      for (std::size_t p = 0; p < layout.parameters(); ++p) {
        CHECK(layout.offset(p) % 512 == 0);
        for (std::size_t block = 0; block + 1 < layout.elements(p); block += 512) {
          CHECK(layout.owner(p, block).count >= std::min<std::size_t>(512, layout.elements(p) - block));
        }
      }
    }
  }
}

TEST_CASE("shards_are_equal_aligned_and_no_larger_than_padding_demands") {
  for_each_layout([](const UnitSpec&, const UnitLayout& layout, std::size_t replicas) {
    std::size_t used = 0;
    for (std::size_t p = 0; p < layout.parameters(); ++p) used = layout.offset(p) + round_to_128(layout.elements(p));
    CHECK(layout.shard_elements() % 128 == 0);
    CHECK(layout.padded_elements() == layout.ranks() * layout.shard_elements());
    CHECK(layout.padded_elements() - used < layout.ranks() * 128);
    const std::size_t ranks_of_replica = layout.ranks() / replicas;
    for (std::size_t rank = 0; rank < layout.ranks(); ++rank) {
      const std::size_t place = rank % ranks_of_replica * replicas + rank / ranks_of_replica;
      CHECK(layout.shard_begin(Part::trained, rank) == place * layout.shard_elements());
    }
  });
}

// The s-th rank of every replica; what it holds of the parameters is what these ranks own, in the order of replicas.
TEST_CASE("a_replicas_share_is_what_the_ranks_at_its_place_own_in_all_replicas") {
  for_each_layout([](const UnitSpec&, const UnitLayout& layout, std::size_t replicas) {
    const std::size_t ranks_of_replica = layout.ranks() / replicas;
    for (std::size_t rank = 0; rank < layout.ranks(); ++rank) {
      std::vector<std::size_t> held;  // by element of the share: the parameter and its element, mixed
      for (const ShardPiece& piece : layout.pieces(rank, Axis::shard)) {
        held.resize(piece.shard_offset);
        for (std::size_t i = 0; i < piece.count; ++i)
          held.push_back(piece.parameter * 1'000'003 + piece.parameter_offset + i);
      }
      std::vector<std::size_t> owned;
      for (std::size_t replica = 0; replica < replicas; ++replica) {
        for (const ShardPiece& piece : layout.pieces(replica * ranks_of_replica + rank % ranks_of_replica)) {
          owned.resize(replica * layout.shard_elements() + piece.shard_offset);
          for (std::size_t i = 0; i < piece.count; ++i)
            owned.push_back(piece.parameter * 1'000'003 + piece.parameter_offset + i);
        }
      }
      CHECK(held == owned);
    }
    CHECK(layout.elements(Axis::shard, Part::trained) * ranks_of_replica == layout.padded_elements(Part::trained));
  });
}

TEST_CASE("pieces_of_all_ranks_cover_every_element_exactly_once") {
  for_each_layout([](const UnitSpec&, const UnitLayout& layout, std::size_t) {
    std::vector<std::vector<std::size_t>> owners(layout.parameters());
    for (std::size_t p = 0; p < layout.parameters(); ++p) owners[p].assign(layout.elements(p), 0);
    for (std::size_t rank = 0; rank < layout.ranks(); ++rank) {
      for (const ShardPiece& piece : layout.pieces(rank)) {
        REQUIRE(piece.parameter_offset + piece.count <= layout.elements(piece.parameter));
        for (std::size_t i = 0; i < piece.count; ++i) ++owners[piece.parameter][piece.parameter_offset + i];
      }
    }
    for (const auto& counts : owners) {
      CHECK(std::all_of(counts.begin(), counts.end(), [](std::size_t count) { return count == 1; }));
    }
  });
}

TEST_CASE("pieces_stand_in_the_shard_where_the_flat_unit_has_them") {
  for_each_layout([](const UnitSpec&, const UnitLayout& layout, std::size_t) {
    for (std::size_t rank = 0; rank < layout.ranks(); ++rank) {
      std::size_t end = 0;
      for (const ShardPiece& piece : layout.pieces(rank)) {
        CHECK(piece.count > 0);
        CHECK(piece.shard_offset >= end);
        end = piece.shard_offset + piece.count;
        CHECK(end <= layout.shard_elements());
        CHECK(layout.shard_begin(Part::trained, rank) + piece.shard_offset ==
              layout.offset(piece.parameter) + piece.parameter_offset);
      }
    }
  });
}

TEST_CASE("ranks_that_own_only_padding_have_no_pieces") {
  const UnitLayout layout(unit_of("one", {1}), mesh_of(1, 5));
  CHECK(layout.shard_elements() == 128);
  CHECK(layout.pieces(0).size() == 1);
  for (std::size_t rank = 1; rank < 5; ++rank) CHECK(layout.pieces(rank).empty());
}

TEST_CASE("an_empty_unit_has_empty_shards") {
  const UnitLayout layout(unit_of("empty", {}), mesh_of(1, 3));
  CHECK(layout.padded_elements() == 0);
  CHECK(layout.pieces(2).empty());
}

TEST_CASE("a_scalar_is_one_element") {
  const UnitLayout layout({"u", {{"scale", {}, false}}}, mesh_of(1, 1));
  CHECK(layout.elements(0) == 1);
}

// Every axis along which ranks have the unit in common divides it, from the innermost on.
TEST_CASE("a_unit_is_divided_along_the_innermost_axis_first") {
  const MeshShape mesh = {{Axis::replicate, 2}, {Axis::shard, 3}, {Axis::tensor, 4}};
  UnitSpec unit = unit_of("u", {24 * 128});
  const UnitLayout all(unit, mesh);
  CHECK(all.shard_begin(Part::trained, 1) == 6 * 128);   // the next along tensor
  CHECK(all.shard_begin(Part::trained, 4) == 2 * 128);   // along shard
  CHECK(all.shard_begin(Part::trained, 12) == 1 * 128);  // along replicate
  CHECK(all.elements(Axis::tensor, Part::trained) == 6 * 128);
  CHECK(all.elements(Axis::tensor | Axis::shard, Part::trained) == 2 * 128);
  CHECK(all.owner(0, 6 * 128, Axis::tensor, {}).rank == 1);
  unit.apart = Axis::tensor;
  unit.prefix = "u.";
  const UnitLayout slice(unit, mesh);
  CHECK(slice.ranks() == 6);
  CHECK(slice.shard_elements() == 4 * 128);
  CHECK(slice.shard_begin(Part::trained, 3) == 0);
  CHECK(slice.shard_begin(Part::trained, 7) == 2 * 4 * 128);
}

}  // namespace tessera::plan::layout_test
