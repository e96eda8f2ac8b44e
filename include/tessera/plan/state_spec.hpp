// States are kept by an optimizer beside the parameters that it trains: buffers of values, each of which belongs to one
// element of a parameter, or to a block of consecutive elements of it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/bytes.hpp"
#include "tessera/base/dtype.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

// A name alone is a state of one fp32 value per element.
struct StateSpec {
  StateSpec(std::string of_name, DType of_type = DType::fp32, std::size_t elements_of_block = 1)
      : name(std::move(of_name)), type(of_type), block(elements_of_block) {}
  StateSpec(const char* of_name) : StateSpec(std::string(of_name)) {}

  std::string name;
  DType type;         // fp32 or u8
  std::size_t block;  // so many elements of the parameter share a value, the last block perhaps fewer: a power of two

  // Tensors that the optimizer sees whole (whole.hpp) have none of it: the others of a unit stand close together there.
  bool elementwise = false;

  friend bool operator==(const StateSpec&, const StateSpec&) = default;
};

// Values that stand for so many elements, which begin with a block.
constexpr std::size_t values_of(std::size_t elements, std::size_t block) { return (elements + block - 1) / block; }

std::vector<std::string> names_of(std::span<const StateSpec> states);
std::string describe(const StateSpec& state);  // "m", "m (u8)", "m_scale (fp32, one of 256 elements)"

// Parameters and shards of units with these states begin on multiples of so many elements, so that no block is two
// ranks'.
std::size_t alignment_for(std::span<const StateSpec> states);

}  // namespace tessera::plan

#pragma GCC visibility pop
