// Permutations, insertions and deletions in a segment's list, with events renamed to follow.
#include "plan_edits.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tessera::plan {

namespace {

std::vector<std::size_t> identity(const Plan& plan, std::size_t segment) {
  std::vector<std::size_t> order(plan.segments[segment].operations.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

}  // namespace

std::vector<WaitPlace> waits_of(const Plan& plan) {
  std::vector<WaitPlace> places;
  for (std::size_t s = 0; s < plan.segments.size(); ++s) {
    for (std::size_t o = 0; o < plan.segments[s].operations.size(); ++o) {
      for (std::size_t w = 0; w < plan.segments[s].operations[o].waits.size(); ++w) places.push_back({s, o, w});
    }
  }
  return places;
}

void reorder(Plan& plan, std::size_t segment, const std::vector<std::size_t>& order) {
  auto& operations = plan.segments[segment].operations;
  std::vector<Operation> reordered;
  std::vector<std::size_t> new_place(operations.size());
  for (std::size_t place = 0; place < order.size(); ++place) {
    new_place[order[place]] = place;
    reordered.push_back(std::move(operations[order[place]]));
  }
  operations = std::move(reordered);
  for (EventPoint& event : plan.events) {
    if (event.segment == segment) event.operation = new_place[event.operation];
  }
}

void exchange(Plan& plan, std::size_t segment, std::size_t a, std::size_t b) {
  std::vector<std::size_t> order = identity(plan, segment);
  std::swap(order[a], order[b]);
  reorder(plan, segment, order);
}

void launch_before(Plan& plan, std::size_t segment, std::size_t later, std::size_t earlier) {
  const auto& operations = plan.segments[segment].operations;
  const auto between_on = [&](std::size_t operation) {
    return std::count_if(operations.begin() + static_cast<std::ptrdiff_t>(earlier),
                         operations.begin() + static_cast<std::ptrdiff_t>(later) + 1,
                         [&](const Operation& other) { return other.stream == operations[operation].stream; });
  };
  const bool moves_later = between_on(later) <= between_on(earlier);
  std::vector<std::size_t> order = identity(plan, segment);
  std::stable_partition(order.begin() + static_cast<std::ptrdiff_t>(earlier),
                        order.begin() + static_cast<std::ptrdiff_t>(later) + 1, [&](std::size_t operation) {
                          return moves_later ? operations[operation].stream == operations[later].stream
                                             : operations[operation].stream != operations[earlier].stream;
                        });
  reorder(plan, segment, order);
}

void move_up(Plan& plan, std::size_t segment, std::size_t operation, std::size_t before) {
  std::vector<std::size_t> order = identity(plan, segment);
  const auto begin = order.begin();
  std::rotate(begin + static_cast<std::ptrdiff_t>(before), begin + static_cast<std::ptrdiff_t>(operation),
              begin + static_cast<std::ptrdiff_t>(operation) + 1);
  reorder(plan, segment, order);
}

void erase(Plan& plan, EventPoint point) {
  for (Segment& segment : plan.segments) {
    for (Operation& operation : segment.operations) {
      const auto for_it = [&](const Wait& wait) { return plan.events[wait.event] == point; };
      operation.waits.erase(std::remove_if(operation.waits.begin(), operation.waits.end(), for_it),
                            operation.waits.end());
    }
  }
  auto& operations = plan.segments[point.segment].operations;
  operations.erase(operations.begin() + static_cast<std::ptrdiff_t>(point.operation));
  for (EventPoint& event : plan.events) {
    if (event == point)
      event = {0, 0};  // nothing waits for it any more
    else if (event.segment == point.segment && event.operation > point.operation)
      --event.operation;
  }
}

EventPoint insert_nothing(Plan& plan, EventPoint point, StreamId stream) {
  auto& operations = plan.segments[point.segment].operations;
  operations.insert(operations.begin() + static_cast<std::ptrdiff_t>(point.operation),
                    {.kind = OperationKind::cast, .stream = stream, .accesses = {}, .waits = {}});
  for (EventPoint& event : plan.events) {
    if (event.segment == point.segment && event.operation >= point.operation) ++event.operation;
  }
  return point;
}

std::size_t previous_on_stream(const Plan& plan, std::size_t segment, std::size_t operation) {
  const auto& operations = plan.segments[segment].operations;
  for (std::size_t earlier = operation; earlier > 0; --earlier) {
    if (operations[earlier - 1].stream == operations[operation].stream) return earlier - 1;
  }
  return no_operation;
}

}  // namespace tessera::plan
