// A tensor is rows of slices: each block of each index of the dimensions before the one that is cut.
#include "tessera/plan/slice.hpp"

namespace tessera::plan {

Shape whole_shape(const Shape& shape, const std::optional<Slice>& slice) {
  Shape whole = shape;
  if (slice && slice->dimension) whole.at(*slice->dimension) = slice->extent;
  return whole;
}

SliceMap::SliceMap(const Shape& shape, const std::optional<Slice>& slice)
    : is_cut_(slice && slice->dimension), own_(element_count(shape)), whole_(own_) {
  if (!is_cut_) return;
  own_ = shape.at(*slice->dimension) / slice->blocks;
  whole_ = slice->extent / slice->blocks;
  for (std::size_t behind = *slice->dimension + 1; behind < shape.size(); ++behind) {
    own_ *= shape[behind];
    whole_ *= shape[behind];
  }
}

SliceMap::Place SliceMap::find(std::size_t whole) const {
  const std::size_t row = whole / whole_, at = whole % whole_;
  const std::size_t place = at / own_, behind = at % own_;
  return {place, row * own_ + behind, std::min(own_ - behind, whole_ - at)};
}

}  // namespace tessera::plan
