// Questions that several tests ask of a plan: whether it is sound, what the verifier says of it, and what its shards
// and categories take.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "errors.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan {

// A failure tells the first violation.
inline void check_sound(const Verification& verification) {
  CHECK_MESSAGE(verification.ok(), (verification.ok() ? "" : verification.violations.front().text));
}

inline bool says(const Verification& verification, ViolationKind kind, const std::string& part) {
  return std::any_of(verification.violations.begin(), verification.violations.end(),
                     [&](const Violation& v) { return v.kind == kind && contains(v.text, part); });
}

// All segments' operations, in the plan's order.
inline std::vector<std::reference_wrapper<const Operation>> operations_of(const Plan& plan) {
  std::vector<std::reference_wrapper<const Operation>> result;
  for (const Segment& segment : plan.segments) {
    result.insert(result.end(), segment.operations.begin(), segment.operations.end());
  }
  return result;
}

inline bool is_micro_batch(SegmentKind kind) {
  using enum SegmentKind;
  return kind == only || kind == first || kind == middle || kind == last;
}

inline Bytes bytes_in(const Plan& plan, Category category) {
  Bytes sum;
  for (const Buffer& buffer : plan.buffers) sum += buffer.category == category ? buffer.size : Bytes(0);
  return sum;
}

inline std::uint64_t up(std::uint64_t value, std::uint64_t step) { return (value + step - 1) / step * step; }

// Elements of a unit's shard, of those that are frozen or are not, or of both: parameters on multiples of 128, then
// equal shards on multiples of 128.
inline std::uint64_t shard_of(const UnitSpec& unit, std::uint64_t ranks, std::optional<bool> frozen = std::nullopt) {
  std::uint64_t flat = 0;
  for (const ParameterSpec& parameter : unit.parameters) {
    if (parameter.frozen == frozen.value_or(parameter.frozen)) flat += up(element_count(parameter.shape), 128);
  }
  return up((flat + ranks - 1) / ranks, 128);
}

}  // namespace tessera::plan
