// The mesh in which ranks stand, and sets of its axes: which ranks form a group, over which ranks something is sharded,
// and which ranks have a unit in common are all such sets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)

namespace tessera {

// The names that an axis may have. What an axis is for is said by placements (strategy.hpp) and by units.
enum class Axis : std::uint8_t { pipeline, replicate, expert, shard, context, tensor };
inline constexpr std::size_t axis_count = 6;
std::string_view to_string(Axis axis);

// A set of axes, with or without those that a mesh does not have.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(1u << static_cast<unsigned>(axis)) {}
  static constexpr AxisSet all() { return AxisSet((1u << axis_count) - 1); }

  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool contains(AxisSet other) const { return (bits_ & other.bits_) == other.bits_; }
  constexpr unsigned bits() const { return bits_; }

  friend constexpr AxisSet operator|(AxisSet a, AxisSet b) { return AxisSet(a.bits_ | b.bits_); }
  friend constexpr AxisSet operator&(AxisSet a, AxisSet b) { return AxisSet(a.bits_ & b.bits_); }
  friend constexpr AxisSet operator-(AxisSet a, AxisSet b) { return AxisSet(a.bits_ & ~b.bits_); }
  friend constexpr bool operator==(AxisSet, AxisSet) = default;

 private:
  constexpr explicit AxisSet(unsigned bits) : bits_(bits) {}
  unsigned bits_ = 0;
};
constexpr AxisSet operator|(Axis a, Axis b) { return AxisSet(a) | AxisSet(b); }
std::string to_string(AxisSet axes);  // "shard x replicate", from Axis's last name to its first; "none", "all"

namespace plan {

// Where a rank stands along each axis, by Axis; 0 along an axis that the mesh does not have.
using Coordinates = std::array<std::size_t, axis_count>;

// The sizes of a mesh's axes, outermost first: neighbours along the innermost axis have neighbouring ranks.
//
// Axes of size 1 divide nothing. All but the innermost are left out of axes(), so that two sets which say the same of
// this mesh are equal.
class MeshShape {
 public:
  struct Extent {
    Axis axis;
    std::size_t size;  // > 0
  };
  // Throws UsageError for an axis that is named twice, and for a size of 0.
  explicit MeshShape(std::span<const Extent> axes);
  MeshShape(std::initializer_list<Extent> axes) : MeshShape(std::span(axes.begin(), axes.size())) {}
  MeshShape() : MeshShape({{Axis::shard, 1}}) {}

  AxisSet axes() const { return axes_; }
  // How many ranks differ in these axes alone; 1 for none, and along axes that the mesh does not have.
  std::size_t size(AxisSet axes = AxisSet::all()) const;
  // Those along which there is more than one rank: a group's name, the same for the same ranks.
  AxisSet group(AxisSet axes) const;

  MeshShape without(Axis axis) const;  // at least one axis stays

  Coordinates place_of(std::size_t rank) const;
  std::size_t rank_at(const Coordinates& place) const;
  Coordinates last() const;

  // Ranks that differ in these axes, one after the other in the order in which what they share is divided: the
  // innermost axis changes slowest. The place of one among them, and the coordinates of the one at a place (0 along the
  // other axes).
  std::size_t index_of(AxisSet axes, const Coordinates& place) const;
  Coordinates place_at(AxisSet axes, std::size_t index) const;

  // visit(axis), from the innermost to the outermost, or the other way.
  template <typename Visit>
  void inwards_out(Visit visit) const {
    for (std::size_t i = count_; i-- > 0;) visit(order_[i]);
  }
  template <typename Visit>
  void outwards_in(Visit visit) const {
    for (std::size_t i = 0; i < count_; ++i) visit(order_[i]);
  }

  std::string text() const;  // "replicate 2 x shard 3"
  friend bool operator==(const MeshShape&, const MeshShape&) = default;

 private:
  std::array<std::size_t, axis_count> sizes_;  // by Axis
  std::array<Axis, axis_count> order_{};       // the first count_ of them, outermost first
  std::size_t count_ = 0;
  AxisSet axes_;
};

}  // namespace plan

}  // namespace tessera

#pragma GCC visibility pop
