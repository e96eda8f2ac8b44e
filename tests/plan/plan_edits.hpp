// Edits of a compiled plan that keep its events pointing at the operations that they pointed at.
#pragma once

#include <cstddef>
#include <vector>

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// A wait by its place: plan.segments[segment].operations[operation].waits[wait].
struct WaitPlace {
  std::size_t segment;
  std::size_t operation;
  std::size_t wait;
};
std::vector<WaitPlace> waits_of(const Plan& plan);

// order[k] is the old index of the operation that comes to stand at k.
void reorder(Plan& plan, std::size_t segment, const std::vector<std::size_t>& order);

void exchange(Plan& plan, std::size_t segment, std::size_t a, std::size_t b);

// Launches operation `later` in front of `earlier`, of another stream, moving as few others as keep every stream's
// order: what stands between them on the stream of `later` goes in front, or what stands between them on the stream of
// `earlier` goes behind.
void launch_before(Plan& plan, std::size_t segment, std::size_t later, std::size_t earlier);

// Launches an operation right in front of `before`, on any stream.
void move_up(Plan& plan, std::size_t segment, std::size_t operation, std::size_t before);

// Waits for the operation disappear with it.
void erase(Plan& plan, EventPoint point);

// An operation that does nothing, launched in front of `point`. Returns its place.
EventPoint insert_nothing(Plan& plan, EventPoint point, StreamId stream);

// The operation before `operation` on its stream, in its segment; no_operation when it is the first.
inline constexpr std::size_t no_operation = static_cast<std::size_t>(-1);
std::size_t previous_on_stream(const Plan& plan, std::size_t segment, std::size_t operation);

}  // namespace tessera::plan
