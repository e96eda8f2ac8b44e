// The flat layout of a unit: the one place that decides offset, size, padding and ownership. Pure integers, in
// elements.
//
// A flat unit has two parts: what is trained, then what is frozen, which has no gradient and no optimizer state. In
// each, parameters follow each other in the order given, each starting on a multiple of `alignment_elements` whatever
// the dtype, or of more where states of the optimizer have larger blocks (alignment_for); each part is padded so that
// every rank's shard of it has the same size and starts on that multiple too. Untrained state has a place of its own,
// whole, laid out in the same way and not padded to shards.
//
// The ranks that have a unit in common divide it along the innermost axis of the mesh first, each part along the next
// axis, and so on (MeshShape::index_of). On a mesh of R replicas by S ranks, rank r * S + s owns the shard at place
// s * R + r. So what is sharded over the innermost axes alone is one run of shards.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/shape.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/plan/slice.hpp"
#include "tessera/plan/state_spec.hpp"
#include "tessera/plan/strategy.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

inline constexpr std::size_t alignment_elements = 128;

// An optimizer sees a tensor whole (whole.hpp), for which the rank that has it needs this.
struct WholeSpec {
  Bytes workspace{};       // beside it, and beside others of its shape that it works on at once
  std::uint64_t cost = 0;  // floating-point operations, by which ranks share the work
  friend bool operator==(const WholeSpec&, const WholeSpec&) = default;
};

struct ParameterSpec {
  std::string name;  // full name, unique in the model
  Shape shape;
  bool optional = false;
  bool frozen = false;
  std::optional<WholeSpec> whole = std::nullopt;
  // In a unit that is apart along Axis::tensor this is none of many tensors then, but a part of one, or the same one on
  // all ranks.
  std::optional<Slice> slice = std::nullopt;
  bool is_alike() const { return slice && !slice->dimension; }
  SliceMap map() const { return {shape, slice}; }
};

// State that is not trained: whole and fp32 on every rank.
struct BufferSpec {
  std::string name;  // full name, unique in the model, also among parameters
  Shape shape;
};

// A collective inside a window of the unit does this with what its ranks bring.
enum class CollectiveKind {
  all_gather,      // everybody's elements, to all
  all_reduce,      // the sum of everybody's elements, to all
  reduce_scatter,  // the same, of which each rank gets its place
  all_to_all,      // from every rank its own part for each
  // A message between neighbours along the axis pipeline, whose ranks have roles (roles.hpp): in forward windows to the
  // next role, in backward windows to the one before; behind the last role stands the first. Both sides have one of the
  // same last name.
  send,
  receive,
};
std::string_view to_string(CollectiveKind kind);
constexpr bool is_message(CollectiveKind kind) {
  return kind == CollectiveKind::send || kind == CollectiveKind::receive;
}
constexpr bool sums(CollectiveKind kind) {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter;
}

// One that a module declares. The windows that have it are part of it, and so are the axes along which the ranks differ
// that take part. A window does those of its kind in the order of the unit's list, a backward window in reverse.
struct CollectiveSpec {
  std::string name;  // full name
  CollectiveKind kind = CollectiveKind::all_gather;
  std::optional<DType> type = std::nullopt;  // none: fp64, which is not summed
  std::size_t elements = 0;                  // that each rank brings; of reduce_scatter, that each gets; of
                                             // all_to_all, that each brings for each
  bool forward = true;                       // and recompute
  bool backward = true;                      // the second of two, where these go back in two
  bool backward_input = false;
  bool evaluate = false;
  // Default: those along which ranks have the unit in common. Ranks that train by themselves stay apart in any case. In
  // a Plan: always set.
  std::optional<AxisSet> axes = std::nullopt;
  bool of_granules = false;  // a gather whose granules are used each by itself, in the order of places
  std::size_t buffers = 1;   // of a message: each side has so many, which its windows take in turn
  bool overlaps = false;     // its window goes on until it asks for what came
  Bytes bytes() const { return (type ? size_of(*type) : Bytes(8)) * elements; }
  // A rank of so many writes this many of them.
  std::size_t parts(std::size_t ranks) const {
    return kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::all_to_all ? ranks : 1;
  }
  friend bool operator==(const CollectiveSpec&, const CollectiveSpec&) = default;
};

struct UnitSpec {
  std::string name;
  std::vector<ParameterSpec> parameters;
  std::vector<BufferSpec> buffers = {};
  std::vector<CollectiveSpec> collectives = {};
  // These are the unit's own; else the plan's count.
  std::optional<Precision> precision = std::nullopt;
  std::optional<std::size_t> prefetch = std::nullopt;
  std::optional<Resharding> reshard_after_forward = std::nullopt;
  bool recompute = false;  // a recompute window stands right before each backward one
  // The states of an optimizer of its own; else its program's.
  std::optional<std::vector<StateSpec>> optimizer_states = std::nullopt;
  // Where its optimizer's states, and its masters, stand between updates (Offload). In a Plan: always set.
  std::optional<MemorySpace> states_in = std::nullopt;
  std::optional<MemorySpace> masters_in = std::nullopt;
  MemorySpace updates_in = MemorySpace::device;  // and where they are updated; compile() sets it
  // A micro-batch's forward window leaves so many bytes to the backward one, which stand there in between (Offload).
  Bytes saved{};
  std::optional<MemorySpace> saved_in = std::nullopt;  // in a Plan: always set
  // Ranks that differ along these axes have other values of it: experts, or slices of a layer. Gradients are summed
  // along the others alone.
  AxisSet apart = {};
  // Tensors that the optimizer sees whole travel in this type, with so many values for each element.
  DType whole_type = DType::fp32;
  std::size_t whole_planes = 1;
  // Units of this name in the first role and the last are one, whose gradients are summed; the one that is tied leaves
  // norm and files to the other, of which `is_tied_to` says that it has such a one.
  bool tied = false;
  bool is_tied_to = false;
  bool is_of_two_roles() const { return tied || is_tied_to; }
  std::string prefix = {};  // of its tensors' full names, behind which those of a unit that is apart have their number
};

// The full name of one of the unit's tensors, as it is in files: of a unit that is apart "experts.up.weight" is
// "experts.3.up.weight" in variant 3 (Plan::variant_of). Of slices of one tensor it is that one's.
std::string name_of_variant(const UnitSpec& unit, const std::string& tensor, std::size_t variant);
std::string name_of_variant(const UnitSpec& unit, const ParameterSpec& parameter, std::size_t variant);

enum class Part { trained, frozen };
inline constexpr Part all_parts[] = {Part::trained, Part::frozen};

// A run of one parameter's elements inside what one rank holds.
struct ShardPiece {
  std::size_t parameter;         // index in the unit
  std::size_t parameter_offset;  // first element of the parameter that is held
  std::size_t shard_offset;      // where it stands in what is held: the trained part's elements come first
  std::size_t count;             // > 0
};

class UnitLayout {
 public:
  UnitLayout(const UnitSpec& unit, const MeshShape& mesh, std::size_t alignment = alignment_elements);

  AxisSet common() const { return common_; }    // axes along which ranks have the unit in common
  std::size_t ranks() const { return ranks_; }  // that have it in common
  std::size_t parameters() const { return offsets_.size(); }
  std::size_t offset(std::size_t parameter) const { return offsets_.at(parameter); }
  std::size_t elements(std::size_t parameter) const { return counts_.at(parameter); }
  Part part(std::size_t parameter) const { return parts_.at(parameter); }

  // These count both parts.
  std::size_t padded_elements() const { return shard_elements() * ranks_; }
  std::size_t shard_elements() const { return shard_elements(Part::trained) + shard_elements(Part::frozen); }

  // These count one part: elements of the whole flat unit, and of each rank's shard; where the part begins in the whole
  // unit; where a rank's shard of it begins there.
  std::size_t padded_elements(Part part) const { return shard_elements(part) * ranks_; }
  std::size_t shard_elements(Part part) const { return shard_elements_[static_cast<std::size_t>(part)]; }
  std::size_t begin(Part part) const { return part == Part::trained ? 0 : padded_elements(Part::trained); }
  std::size_t shard_begin(Part part, std::size_t rank) const {
    return begin(part) + shard_elements(part) * place(rank);
  }
  // The trained parameters in the order in which they stand: those that the optimizer sees whole first. The others
  // stand from one of these elements of the part to the other, and last of them those that are alike on ranks which
  // have the unit apart.
  const std::vector<std::size_t>& trained() const { return trained_; }
  std::size_t elementwise_begin() const { return elementwise_begin_; }
  std::size_t elementwise_end() const { return elementwise_end_; }
  std::size_t alike_begin() const { return alike_begin_; }

  // These take a part that is sharded over some axes, those that have the unit apart aside: what a rank holds of it,
  // and where it begins in a buffer that holds this alone.
  std::size_t elements(AxisSet over, Part part) const { return shard_elements(part) * shards_in(over); }
  std::size_t begin_in(AxisSet over, Part part) const {
    return part == Part::trained ? 0 : elements(over, Part::trained);
  }

  // These are of the unit's untrained state.
  std::size_t buffer_offset(std::size_t buffer) const { return buffer_offsets_.at(buffer); }
  std::size_t buffer_elements() const { return buffer_elements_; }  // of all, with the padding between them

  // The owner of one of a parameter's elements, and how many elements from there on are the same rank's.
  struct Owned {
    std::size_t rank;
    std::size_t count;  // > 0
  };
  Owned owner(std::size_t parameter, std::size_t element) const { return owner(parameter, element, common_, {}); }
  // The same of what is sharded over `over` alone, among ranks of these coordinates along the other axes.
  Owned owner(std::size_t parameter, std::size_t element, AxisSet over, Coordinates others) const;

  // Returns what rank `rank` of the job holds of the unit sharded so, by parameter, the trained ones first, each part
  // in the order of the unit's list; empty when that is padding only.
  std::vector<ShardPiece> pieces(std::size_t rank, AxisSet over = AxisSet::all()) const;
  // Returns where its trained part begins in the whole one.
  std::size_t share_begin(std::size_t rank, AxisSet over) const {
    return place(rank) / shards_in(over) * elements(over, Part::trained);
  }

 private:
  void lay_out(const UnitSpec& unit, Part part);
  // The shard that a rank owns, counted along the flat unit; how many stand in what is sharded so.
  std::size_t place(std::size_t rank) const { return mesh_.index_of(common_, mesh_.place_of(rank)); }
  std::size_t shards_in(AxisSet over) const { return ranks_ / mesh_.size(over & common_); }

  MeshShape mesh_;
  std::size_t alignment_;
  AxisSet common_;
  std::size_t ranks_;
  std::vector<std::size_t> offsets_;
  std::vector<std::size_t> counts_;
  std::vector<Part> parts_;
  std::array<std::size_t, 2> shard_elements_{};
  std::vector<std::size_t> trained_;
  std::size_t elementwise_begin_ = 0;
  std::size_t elementwise_end_ = 0;
  std::size_t alike_begin_ = 0;
  std::vector<std::size_t> buffer_offsets_;
  std::size_t buffer_elements_ = 0;
};

}  // namespace tessera::plan

#pragma GCC visibility pop
