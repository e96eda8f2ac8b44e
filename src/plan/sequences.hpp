// A plan's sequences of segments are looked at two phases at a time. Between steps anything may follow anything, and
// all orders of all programs would be too many to look at. Two phases at a time are enough. Leave from any sequence of
// segments only the cold start and the segments of two phases: that is a sequence, too, in which no stream knows of
// more (a wait means the latest completion of one and the same operation, so that what is left out can only have told
// more) and in which less was written. So of a race only the phases of its two accesses are needed; of a stale read
// that of the reader, and of whoever last took away what it reads; of what is lost that of the writer and of who needs
// the place; and of an order of launch those of two collectives, of which one comes next after the other. Ranks get
// stuck inside one segment, whatever came before it. Over how many ranks a gradient is summed is decided inside one
// phase, its trainer's steps.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <utility>
#include <vector>

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// A program's steps with what belongs to them, its evaluation, the refresh, or the sharing of buffers.
struct Phase {
  SegmentKind kind;
  std::size_t program;
  auto operator<=>(const Phase&) const = default;
};

inline Phase phase_of(const Segment& segment) {
  using enum SegmentKind;
  switch (segment.kind) {
    case cold:
    case refresh:
    case synchronize: return {segment.kind, no_program};
    case evaluation: return {evaluation, segment.program};
    case outer: return {update, 0};  // with outer steps there is one program
    default: return {update, segment.program};
  }
}

using PairOfPhases = std::pair<Phase, Phase>;

// Every two phases that follow the cold start; a single one twice.
inline std::vector<PairOfPhases> pairs_of_phases(const Plan& plan) {
  std::vector<Phase> phases;
  for (const Segment& segment : plan.segments) {
    if (segment.kind != SegmentKind::cold) phases.push_back(phase_of(segment));
  }
  std::sort(phases.begin(), phases.end());
  phases.erase(std::unique(phases.begin(), phases.end()), phases.end());
  if (phases.size() == 1) return {{phases.front(), phases.front()}};
  std::vector<PairOfPhases> pairs;
  for (auto one = phases.begin(); one != phases.end(); ++one) {
    for (auto other = std::next(one); other != phases.end(); ++other) pairs.emplace_back(*one, *other);
  }
  return pairs;
}

// Returns what may follow a segment, as far as it is of the two.
inline std::vector<std::size_t> successors_among(const Plan& plan, std::size_t segment, const PairOfPhases& pair) {
  std::vector<std::size_t> result = successors(plan, segment);
  std::erase_if(result, [&](std::size_t next) {
    const Phase phase = phase_of(plan.segments[next]);
    return phase != pair.first && phase != pair.second;
  });
  return result;
}

}  // namespace tessera::plan
