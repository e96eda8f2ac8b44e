// Whether two ranges can share a byte on one rank. Exact for the first and the last rank, which represent all: ranges
// are linear in the rank.
#pragma once

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

struct Interval {
  std::uint64_t begin;
  std::uint64_t end;
};

inline Interval interval(const Range& range, std::size_t rank) {
  const Bytes begin = range.offset + range.rank_stride * rank;
  return {begin.count(), (begin + range.size).count()};
}

inline bool overlap(Interval a, Interval b) { return a.begin < b.end && b.begin < a.end; }
inline bool contains(Interval outer, Interval inner) {
  return inner.begin >= inner.end || (outer.begin <= inner.begin && inner.end <= outer.end);
}

inline bool writes(AccessMode mode) { return mode != AccessMode::read; }
inline bool reads(AccessMode mode) { return mode == AccessMode::read || mode == AccessMode::update; }

}  // namespace tessera::plan
