// Numbers equal ranges alike.
#include "plan/places.hpp"

#include <unordered_map>

#include "plan/ranges.hpp"

namespace tessera::plan {

namespace {

struct HashOfRange {
  std::size_t operator()(const Range& range) const {
    std::uint64_t value = range.buffer;
    const auto mix = [&](Bytes part) { value = (value ^ (value >> 29)) * 0x9e3779b97f4a7c15u + part.count(); };
    mix(range.offset);
    mix(range.size);
    for (const Bytes stride : range.strides) mix(stride);
    return value ^ (value >> 32);
  }
};

using Uses = std::vector<std::pair<std::uint32_t, PlaceUse>>;

Uses number(const Plan& plan, std::vector<Range>& ranges) {
  Uses uses;
  std::unordered_map<Range, std::uint32_t, HashOfRange> places;
  std::uint32_t operation = 0;
  for (const Segment& segment : plan.segments) {
    for (const Operation& of : segment.operations) {
      for (const Access& access : of.accesses) {
        if (access.range.size == Bytes(0)) continue;
        const auto [entry, is_new] = places.try_emplace(access.range, static_cast<std::uint32_t>(ranges.size()));
        if (is_new) ranges.push_back(access.range);
        uses.push_back({operation, {entry->second, writes(access.mode)}});
      }
      ++operation;
    }
  }
  return uses;
}

std::size_t operations_of(const Plan& plan) {
  std::size_t count = 0;
  for (const Segment& segment : plan.segments) count += segment.operations.size();
  return count;
}

}  // namespace

Places::Places(const Plan& plan) : uses_(operations_of(plan), number(plan, ranges_)) {
  const Coordinates last = plan.mesh.last();
  for (const Range& range : ranges_) bytes_.push_back({interval(range, Coordinates{}), interval(range, last)});
}

}  // namespace tessera::plan
