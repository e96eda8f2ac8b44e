// Segments of grouped collectives missing, twice, in another order, in another bucket, or with another's place.
#include <fmt/format.h>

#include <utility>

#include "mutants.hpp"

namespace tessera::plan {

namespace {

bool is_group(const Operation& operation) {
  return is_collective(operation.kind) && operation.kind != OperationKind::redistribute &&
         operation.accesses.size() > 2;
}

// A sum that one rank alone forms, of what stands in its place already, changes nothing.
bool is_idle(const Operation& operation, std::size_t pair) {
  return operation.group.empty() && operation.divisor == 1 &&
         operation.accesses[pair].range == operation.accesses[pair + 1].range;
}

// The accesses of each segment of each group, one at a time: `change` gets the list and the place of a segment's pair.
template <typename Change>
void at_each_segment(const Plan& plan, const MutantSink& sink, Change change) {
  each_operation(plan, [&](EventPoint point, const Operation& operation) {
    for (std::size_t pair = 0; is_group(operation) && pair < operation.accesses.size(); pair += 2) {
      if (is_idle(operation, pair)) {
        sink.exclude();
        continue;
      }
      Plan mutant = plan;
      if (!change(mutant.segments[point.segment].operations[point.operation].accesses, pair)) continue;
      sink.take(std::move(mutant), fmt::format("{}, segment {}", describe(plan, point), pair / 2));
    }
  });
}

using Accesses = std::vector<Access>;

void erase_pair(Accesses& accesses, std::size_t pair) {
  const auto first = accesses.begin() + static_cast<std::ptrdiff_t>(pair);
  accesses.erase(first, first + 2);
}

void exchanged(const Plan& plan, const MutantSink& sink) {
  at_each_segment(plan, sink, [](Accesses& accesses, std::size_t pair) {
    if (pair == 0) return false;
    std::swap(accesses[pair], accesses[pair - 2]);
    std::swap(accesses[pair + 1], accesses[pair - 1]);
    return true;
  });
}

void missing_on_one_rank(const Plan& plan, const MutantSink& sink) {
  at_each_segment(plan, sink, [](Accesses& accesses, std::size_t pair) {
    erase_pair(accesses, pair);
    return true;
  });
}

// When all leave out an empty unit nothing is missing.
void group_missing_everywhere(const Plan& plan, const MutantSink& sink) {
  at_each_segment(plan, sink, [&](Accesses& accesses, std::size_t pair) {
    const bool empty = accesses[pair].range.size == Bytes(0);
    if (empty) sink.exclude();
    erase_pair(accesses, pair);
    return !empty;
  });
}

void twice(const Plan& plan, const MutantSink& sink) {
  at_each_segment(plan, sink, [](Accesses& accesses, std::size_t pair) {
    const Access source = accesses[pair];
    const Access target = accesses[pair + 1];
    accesses.push_back(source);
    accesses.push_back(target);
    return true;
  });
}

// Empty units have no place to be wrong about.
template <typename Exchange>
void with_the_one_before(const Plan& plan, const MutantSink& sink, Exchange exchange) {
  at_each_segment(plan, sink, [&](Accesses& accesses, std::size_t pair) {
    if (pair == 0) return false;
    const bool both_empty = accesses[pair].range.size == Bytes(0) && accesses[pair - 2].range.size == Bytes(0);
    if (both_empty) sink.exclude();
    exchange(accesses, pair);
    return !both_empty;
  });
}

void targets_exchanged(const Plan& plan, const MutantSink& sink) {
  with_the_one_before(plan, sink,
                      [](Accesses& accesses, std::size_t pair) { std::swap(accesses[pair + 1], accesses[pair - 1]); });
}
void sources_exchanged(const Plan& plan, const MutantSink& sink) {
  with_the_one_before(plan, sink,
                      [](Accesses& accesses, std::size_t pair) { std::swap(accesses[pair], accesses[pair - 2]); });
}
void ranges_of_targets_exchanged(const Plan& plan, const MutantSink& sink) {
  with_the_one_before(plan, sink, [](Accesses& accesses, std::size_t pair) {
    std::swap(accesses[pair + 1].range, accesses[pair - 1].range);
  });
}
void ranges_of_sources_exchanged(const Plan& plan, const MutantSink& sink) {
  with_the_one_before(plan, sink, [](Accesses& accesses, std::size_t pair) {
    std::swap(accesses[pair].range, accesses[pair - 2].range);
  });
}

// A segment goes with the next operation of its kind, whether that is a group or not. Sums may be gathered later than
// the others of their bucket: no hazard.
void in_the_next_bucket(const Plan& plan, const MutantSink& sink) {
  at_each(plan, sink, is_group, [&](Plan& mutant, EventPoint point) {
    auto& operations = mutant.segments[point.segment].operations;
    Operation& operation = operations[point.operation];
    if (operation.kind != OperationKind::reduce_scatter) {
      sink.exclude();
      return false;
    }
    std::size_t next = point.operation + 1;
    while (next < operations.size() && operations[next].kind != operation.kind) ++next;
    if (next == operations.size() || operation.accesses.back().range.size == Bytes(0)) return false;
    auto& from = operation.accesses;
    auto& to = operations[next].accesses;
    to.insert(to.end(), from.end() - 2, from.end());
    from.resize(from.size() - 2, from.front());
    return true;
  });
}

}  // namespace

std::vector<MutantClass> group_mutants() {
  return {{"segments of a group swapped on one rank", true, exchanged},
          {"segment missing on one rank", true, missing_on_one_rank},
          {"segment missing on all ranks", false, group_missing_everywhere},
          {"segment twice", false, twice},
          {"targets of two segments exchanged", false, targets_exchanged},
          {"sources of two segments exchanged", false, sources_exchanged},
          {"ranges of two targets exchanged", false, ranges_of_targets_exchanged},
          {"ranges of two sources exchanged", false, ranges_of_sources_exchanged},
          {"segment in the next bucket", false, in_the_next_bucket}};
}

}  // namespace tessera::plan
