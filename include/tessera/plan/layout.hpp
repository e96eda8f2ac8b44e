// The flat layout of a unit: the one place that decides offset, size, padding and ownership. Pure integers, in
// elements.
//
// Parameters follow each other in the order given, each starting on a multiple of `alignment_elements` whatever the
// dtype; the whole is padded so that every rank's shard has the same size and starts on that multiple too.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tessera/base/shape.hpp"

namespace tessera::plan {

inline constexpr std::size_t alignment_elements = 128;

struct ParameterSpec {
  std::string name;  // full name, unique in the model
  Shape shape;
  bool optional = false;
};

struct UnitSpec {
  std::string name;
  std::vector<ParameterSpec> parameters;
};

// A run of one parameter's elements inside one rank's shard.
struct ShardPiece {
  std::size_t parameter;         // index in the unit
  std::size_t parameter_offset;  // first element of the parameter that this shard holds
  std::size_t shard_offset;      // where it stands in the shard
  std::size_t count;             // > 0
};

class UnitLayout {
 public:
  UnitLayout(const UnitSpec& unit, std::size_t ranks);  // ranks > 0

  std::size_t ranks() const { return ranks_; }
  std::size_t parameters() const { return offsets_.size(); }
  std::size_t offset(std::size_t parameter) const { return offsets_.at(parameter); }
  std::size_t elements(std::size_t parameter) const { return counts_.at(parameter); }
  std::size_t padded_elements() const { return shard_elements_ * ranks_; }  // of the whole flat unit
  std::size_t shard_elements() const { return shard_elements_; }            // of each rank
  std::size_t shard_begin(std::size_t rank) const { return shard_elements_ * rank; }

  // What rank `rank` owns, by parameter, in ascending order; empty when it owns padding only.
  std::vector<ShardPiece> pieces(std::size_t rank) const;

 private:
  std::size_t ranks_;
  std::vector<std::size_t> offsets_;
  std::vector<std::size_t> counts_;
  std::size_t shard_elements_;
};

}  // namespace tessera::plan
