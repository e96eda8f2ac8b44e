// Products and mixed radices over axes.
#include "tessera/plan/axes.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera {

std::string_view to_string(Axis axis) {
  switch (axis) {
    case Axis::pipeline: return "pipeline";
    case Axis::replicate: return "replicate";
    case Axis::expert: return "expert";
    case Axis::shard: return "shard";
    case Axis::context: return "context";
    case Axis::tensor: return "tensor";
  }
  throw InternalError("an axis without a name");
}

std::string to_string(AxisSet axes) {
  if (axes.empty()) return "none";
  if (axes == AxisSet::all()) return "all";
  std::string text;
  for (std::size_t index = axis_count; index-- > 0;) {
    const auto axis = static_cast<Axis>(index);
    if (axes.contains(axis)) text += fmt::format("{}{}", text.empty() ? "" : " x ", to_string(axis));
  }
  return text;
}

namespace plan {

namespace {

std::size_t index(Axis axis) { return static_cast<std::size_t>(axis); }

}  // namespace

MeshShape::MeshShape(std::span<const Extent> axes) {
  sizes_.fill(1);
  AxisSet named;
  for (const Extent& each : axes) {
    if (each.size == 0) throw UsageError(fmt::format("axis {} of the mesh is of no ranks", to_string(each.axis)));
    if (named.contains(each.axis)) {
      throw UsageError(fmt::format("axis {} of the mesh is named twice", to_string(each.axis)));
    }
    named = named | each.axis;
    sizes_[index(each.axis)] = each.size;
    order_[count_++] = each.axis;
  }
  axes_ = group(named);
  if (count_ > 0) axes_ = axes_ | order_[count_ - 1];
}

std::size_t MeshShape::size(AxisSet axes) const {
  std::size_t product = 1;
  outwards_in([&](Axis axis) { product *= axes.contains(axis) ? sizes_[index(axis)] : 1; });
  return product;
}

AxisSet MeshShape::group(AxisSet axes) const {
  AxisSet result;
  outwards_in([&](Axis axis) {
    if (axes.contains(axis) && sizes_[index(axis)] > 1) result = result | axis;
  });
  return result;
}

MeshShape MeshShape::without(Axis axis) const {
  MeshShape rest({});
  outwards_in([&](Axis each) {
    if (each == axis) return;
    rest.order_[rest.count_++] = each;
    rest.sizes_[index(each)] = sizes_[index(each)];
  });
  if (rest.count_ == 0) return MeshShape();
  rest.axes_ = rest.group(AxisSet::all()) | rest.order_[rest.count_ - 1];
  return rest;
}

Coordinates MeshShape::place_of(std::size_t rank) const {
  Coordinates place{};
  inwards_out([&](Axis axis) {
    place[index(axis)] = rank % sizes_[index(axis)];
    rank /= sizes_[index(axis)];
  });
  return place;
}

std::size_t MeshShape::rank_at(const Coordinates& place) const {
  std::size_t rank = 0;
  outwards_in([&](Axis axis) { rank = rank * sizes_[index(axis)] + place[index(axis)]; });
  return rank;
}

Coordinates MeshShape::last() const { return place_of(size() - 1); }

std::size_t MeshShape::index_of(AxisSet axes, const Coordinates& place) const {
  std::size_t result = 0;
  inwards_out([&](Axis axis) {
    if (axes.contains(axis)) result = result * sizes_[index(axis)] + place[index(axis)];
  });
  return result;
}

Coordinates MeshShape::place_at(AxisSet axes, std::size_t at) const {
  Coordinates place{};
  outwards_in([&](Axis axis) {
    if (!axes.contains(axis)) return;
    place[index(axis)] = at % sizes_[index(axis)];
    at /= sizes_[index(axis)];
  });
  return place;
}

std::string MeshShape::text() const {
  std::string text;
  outwards_in([&](Axis axis) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", to_string(axis), sizes_[index(axis)]);
  });
  return text;
}

}  // namespace plan

}  // namespace tessera
