// Slices of a tensor over the ranks along Axis::tensor: where their elements stand in the whole. Pure integers.
//
// A slice is cut along one dimension, of which each rank has as many rows as the others: extent / ranks, rounded up. In
// the last slices rows beyond the extent are padding: they start as zero, their gradient has to be zero, and no file
// has them. A dimension may be several blocks one after the other, each of which is cut by itself: queries, keys and
// values in one matrix, cut by heads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

#include "tessera/base/shape.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

struct Slice {
  std::optional<std::size_t> dimension = std::nullopt;  // none: it is not cut, and all ranks have the same values
  std::size_t extent = 0;                               // of the whole tensor along it
  std::size_t blocks = 1;                               // divides the extent
  friend bool operator==(const Slice&, const Slice&) = default;
};

// The shape of the whole tensor.
Shape whole_shape(const Shape& shape, const std::optional<Slice>& slice);

// The map of a tensor with this shape on a rank; where it is no slice, or not cut, to itself.
class SliceMap {
 public:
  SliceMap(const Shape& shape, const std::optional<Slice>& slice);

  // Calls visit(own, whole, count) for the elements [first, first + count) of the slice that has this place among all,
  // in runs that follow each other in both; what is padding is left out.
  template <typename Visit>
  void for_each_run(std::size_t place, std::size_t first, std::size_t count, const Visit& visit) const {
    const std::size_t before = std::min(is_cut_ ? place * own_ : 0, whole_), inside = std::min(own_, whole_ - before);
    for (const std::size_t end = first + count; first < end;) {
      const std::size_t row = first / own_, at = first % own_;
      const std::size_t run = std::min(own_ - at, end - first);
      if (at < inside) visit(first, row * whole_ + before + at, std::min(run, inside - at));
      first += run;
    }
  }

  // Whose an element of the whole is: of the first slice, where all have it. `count`: so many from there on are the
  // same one's, one after the other.
  struct Place {
    std::size_t place;
    std::size_t own;
    std::size_t count;  // > 0
  };
  Place find(std::size_t whole) const;

 private:
  bool is_cut_;
  std::size_t own_;    // elements of the slice that follow each other in the whole, padding among them
  std::size_t whole_;  // from where they begin in the whole to where those of the same slice begin next
};

}  // namespace tessera::plan

#pragma GCC visibility pop
