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

using Accesses = std::vector<Access>;

// The accesses of each segment of each group, one at a time: `change` gets the list and the place of a segment's pair,
// and says whether that makes a mutant.
MakeMutants each_segment(const std::function<bool(Accesses& accesses, std::size_t pair)>& change) {
  return [=](const Plan& plan, const MutantSink& sink) {
    each_operation(plan, [&](EventPoint point, const Operation& operation) {
      for (std::size_t pair = 0; is_group(operation) && pair < operation.accesses.size(); pair += 2) {
        Plan mutant = plan;
        if (is_idle(operation, pair) || !change(operation_at(mutant, point).accesses, pair)) {
          sink.exclude();
          continue;
        }
        sink.take(std::move(mutant), fmt::format("{}, segment {}", describe(plan, point), pair / 2));
      }
    });
  };
}

void erase_pair(Accesses& accesses, std::size_t pair) {
  const auto first = accesses.begin() + static_cast<std::ptrdiff_t>(pair);
  accesses.erase(first, first + 2);
}

// Exchanges something of a segment and of the one before. Empty units have no place to be wrong about.
MakeMutants with_the_one_before(const std::function<void(Accesses& accesses, std::size_t pair)>& exchange) {
  return each_segment([=](Accesses& accesses, std::size_t pair) {
    if (pair == 0 || (accesses[pair].range.size == Bytes(0) && accesses[pair - 2].range.size == Bytes(0))) return false;
    exchange(accesses, pair);
    return true;
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
  return {{"segments of a group swapped on one rank", true, each_segment([](Accesses& accesses, std::size_t pair) {
             if (pair == 0) return false;
             std::swap(accesses[pair], accesses[pair - 2]);
             std::swap(accesses[pair + 1], accesses[pair - 1]);
             return true;
           })},
          {"segment missing on one rank", true, each_segment([](Accesses& accesses, std::size_t pair) {
             erase_pair(accesses, pair);
             return true;
           })},
          // When all leave out an empty unit nothing is missing.
          {"segment missing on all ranks", false, each_segment([](Accesses& accesses, std::size_t pair) {
             if (accesses[pair].range.size == Bytes(0)) return false;
             erase_pair(accesses, pair);
             return true;
           })},
          {"segment twice", false, each_segment([](Accesses& accesses, std::size_t pair) {
             const Access source = accesses[pair], target = accesses[pair + 1];
             accesses.insert(accesses.end(), {source, target});
             return true;
           })},
          {"targets of two segments exchanged", false, with_the_one_before([](Accesses& accesses, std::size_t pair) {
             std::swap(accesses[pair + 1], accesses[pair - 1]);
           })},
          {"sources of two segments exchanged", false, with_the_one_before([](Accesses& accesses, std::size_t pair) {
             std::swap(accesses[pair], accesses[pair - 2]);
           })},
          {"ranges of two targets exchanged", false, with_the_one_before([](Accesses& accesses, std::size_t pair) {
             std::swap(accesses[pair + 1].range, accesses[pair - 1].range);
           })},
          {"ranges of two sources exchanged", false, with_the_one_before([](Accesses& accesses, std::size_t pair) {
             std::swap(accesses[pair].range, accesses[pair - 2].range);
           })},
          {"segment in the next bucket", false, in_the_next_bucket}};
}

}  // namespace tessera::plan
