// Tensors that an optimizer sees whole, although ranks have shares of them (Muon orthogonalises matrices). Ranks bring
// the shares of each tensor to one of them, its owner, which works on it, and take their shares of the result back.
// Which rank that is, and where the tensor stands there, is data of the plan.
#pragma once

#include <cstddef>
#include <vector>

#include "tessera/base/bytes.hpp"
#include "tessera/base/transfer.hpp"
#include "tessera/plan/axes.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

struct Plan;

struct WholeTensor {
  std::size_t unit;
  std::size_t parameter;  // index in the unit
  std::size_t owner;      // a place along the group's axes, in the order of MeshShape::index_of
  Bytes offset;           // of its first plane in the owner's memory; the others follow (whole_plane)
  friend bool operator==(const WholeTensor&, const WholeTensor&) = default;
};

// Units whose tensors travel together, so that owners share the work evenly and collectives are few.
struct WholeGroup {
  std::size_t program;
  AxisSet axes;                    // along which its ranks differ: those that have the units in common
  std::vector<std::size_t> units;  // in the order in which they are updated; all of one type and number of planes
  std::vector<WholeTensor> tensors;
  Bytes size;  // that the owner with the most has, and every rank takes
  friend bool operator==(const WholeGroup&, const WholeGroup&) = default;
};

// Those of one rank in the order in which they stand in its memory: tensors of one shape follow each other.
std::vector<WholeTensor> tensors_of_owner(const WholeGroup& group, std::size_t owner);

// Returns the bytes from one plane of a tensor to the next.
Bytes whole_plane(const Plan& plan, const WholeTensor& tensor);

// Everything that travels in a group, counted from the begin of the plan's memory of the device, which is laid out
// alike on every rank: from the shares of all ranks to owners, every plane; and back from owners, the first one. Where
// several ranks have the same share, an owner takes those of the ranks nearest to it, and every rank gets its own.
std::vector<Transfer> transfers_to_owners(const Plan& plan, const WholeGroup& group);
std::vector<Transfer> transfers_from_owners(const Plan& plan, const WholeGroup& group);

// Returns what a rank sends to others, on average: by formula, as if owners had no larger shares of their tensors than
// other ranks.
Bytes bytes_to_owners(const Plan& plan, const WholeGroup& group);
Bytes bytes_from_owners(const Plan& plan, const WholeGroup& group);

}  // namespace tessera::plan

#pragma GCC visibility pop
