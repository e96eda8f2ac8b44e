// Numbers equal ranges alike, and finds those that overlap by a sweep over each buffer.
#include "plan/places.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "plan/overlap.hpp"

namespace tessera::plan {

namespace {

struct HashOfRange {
  std::size_t operator()(const Range& range) const {
    std::uint64_t value = range.buffer;
    for (const Bytes part : {range.offset, range.rank_stride, range.size}) {
      value = (value ^ (value >> 29)) * 0x9e3779b97f4a7c15u + part.count();
    }
    return value ^ (value >> 32);
  }
};

using Uses = std::vector<std::pair<std::uint32_t, PlaceUse>>;
using Neighbours = std::vector<std::pair<std::uint32_t, Neighbour>>;

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

// Pairs of places of one buffer. Ranges are linear in the rank, so the first rank and the last tell for all.
class Sweep {
 public:
  Sweep(const std::vector<Range>& ranges, std::size_t ranks) : ranges_(ranges), last_rank_(ranks - 1) {}

  Neighbours run() {
    for (std::uint32_t place = 0; place < ranges_.size(); ++place) order_.push_back(place);
    sweep(0);
    sweep(last_rank_);
    return std::move(found_);
  }

 private:
  void sweep(std::size_t rank) {
    const auto key = [&](std::uint32_t place) {
      return std::pair(ranges_[place].buffer, interval(ranges_[place], rank).begin);
    };
    std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); });
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const Range& range = ranges_[order_[i]];
      if (rank == 0) add(order_[i], order_[i]);
      for (std::size_t j = i + 1; j < order_.size(); ++j) {
        const Range& other = ranges_[order_[j]];
        if (other.buffer != range.buffer || !overlap(interval(range, rank), interval(other, rank))) break;
        if (rank != 0 && overlap(interval(range, 0), interval(other, 0))) continue;  // found already
        add(order_[i], order_[j]);
        add(order_[j], order_[i]);
      }
    }
  }

  void add(std::uint32_t place, std::uint32_t other) {
    const auto inside = [&](std::size_t rank) {
      return contains(interval(ranges_[place], rank), interval(ranges_[other], rank));
    };
    found_.push_back({place, {other, inside(0) && inside(last_rank_)}});
  }

  const std::vector<Range>& ranges_;
  std::size_t last_rank_;
  std::vector<std::uint32_t> order_;
  Neighbours found_;
};

std::size_t operations_of(const Plan& plan) {
  std::size_t count = 0;
  for (const Segment& segment : plan.segments) count += segment.operations.size();
  return count;
}

}  // namespace

Places::Places(const Plan& plan)
    : uses_(operations_of(plan), number(plan, ranges_)),
      neighbours_(ranges_.size(), Sweep(ranges_, plan.options.ranks).run()) {}

}  // namespace tessera::plan
