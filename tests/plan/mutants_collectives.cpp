// Collectives swapped, missing, or of another unit or type on one rank; and missing on all.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "mutants.hpp"
#include "plan/passes.hpp"
#include "plan_edits.hpp"

namespace tessera::plan {

namespace {

std::vector<std::size_t> collectives_of(const Plan& plan, std::size_t segment) {
  std::vector<std::size_t> result;
  const auto& operations = plan.segments[segment].operations;
  for (std::size_t o = 0; o < operations.size(); ++o) {
    if (is_collective(operations[o].kind)) result.push_back(o);
  }
  return result;
}

bool moves_nothing(const Operation& operation) {
  return std::all_of(operation.accesses.begin(), operation.accesses.end(),
                     [](const Access& access) { return access.range.size == Bytes(0); });
}

std::string name_of(const Plan& plan, std::size_t segment, std::size_t a, std::size_t b) {
  return fmt::format("{} and {}", describe(plan, EventPoint{segment, a}), describe(plan, EventPoint{segment, b}));
}

// Any two of one stream. Two gathers of one unit in one group are the same operation, wherever they stand.
void swapped_on_one_stream(const Plan& plan, const MutantSink& sink) {
  for (std::size_t s = 0; s < plan.segments.size(); ++s) {
    const auto collectives = collectives_of(plan, s);
    const auto& operations = plan.segments[s].operations;
    for (std::size_t i = 0; i < collectives.size(); ++i) {
      for (std::size_t j = i + 1; j < collectives.size(); ++j) {
        const Operation& a = operations[collectives[i]];
        const Operation& b = operations[collectives[j]];
        if (a.stream != b.stream) continue;
        const bool alike = a.accesses.front().range.size == b.accesses.front().range.size;
        if (a.kind == b.kind && a.unit == b.unit && a.group == b.group && alike) {
          sink.exclude();
          continue;
        }
        Plan mutant = plan;
        exchange(mutant, s, collectives[i], collectives[j]);
        sink.take(std::move(mutant), name_of(plan, s, collectives[i], collectives[j]));
      }
    }
  }
}

// A rank launches two of different streams the other way round; finish(mutant).
template <typename Finish>
void swapped_across_streams(const Plan& plan, const MutantSink& sink, Finish finish) {
  for (std::size_t s = 0; s < plan.segments.size(); ++s) {
    const auto collectives = collectives_of(plan, s);
    for (std::size_t i = 0; i + 1 < collectives.size(); ++i) {
      const auto& operations = plan.segments[s].operations;
      if (operations[collectives[i]].stream == operations[collectives[i + 1]].stream) continue;
      Plan mutant = plan;
      launch_before(mutant, s, collectives[i + 1], collectives[i]);
      finish(mutant);
      sink.take(std::move(mutant), name_of(plan, s, collectives[i], collectives[i + 1]));
    }
  }
}

// The deviating rank's plan is sound in itself: only the comparison of ranks can tell.
void launched_in_other_order_with_its_own_waits(const Plan& plan, const MutantSink& sink) {
  swapped_across_streams(plan, sink, [](Plan& mutant) {
    for (Segment& segment : mutant.segments) {
      for (Operation& operation : segment.operations) operation.waits.clear();
    }
    mutant.events.clear();
    derive_waits(mutant);
  });
}

bool is_any(const Operation& operation) { return is_collective(operation.kind); }

// Nothing moves in a collective over an empty unit, and when all leave it out nobody waits. A rank that gets no
// broadcast goes on with its own values.
void missing_everywhere(const Plan& plan, const MutantSink& sink) {
  at_each(plan, sink, is_any, [&](Plan& mutant, EventPoint point) {
    const Operation& operation = plan.at(point);
    const bool excluded = moves_nothing(operation) || operation.kind == OperationKind::broadcast;
    if (excluded) sink.exclude();
    erase(mutant, point);
    return !excluded;
  });
}

// The same kind of collective, as the plan has it for the next unit.
void another_units(const Plan& plan, const MutantSink& sink) {
  at_each(plan, sink, is_any, [&](Plan& mutant, EventPoint point) {
    Operation& operation = operation_at(mutant, point);
    for (const std::size_t o : collectives_of(plan, point.segment)) {
      const Operation& other = plan.segments[point.segment].operations[o];
      if (other.kind != operation.kind || other.unit == operation.unit) continue;
      operation.unit = other.unit;
      operation.accesses = other.accesses;
      return true;
    }
    return false;  // the only one of its kind
  });
}

// A window's collective that moves otherwise than its unit says.
void another_kind(Operation& operation) {
  operation.collective_kind =
      operation.collective_kind == CollectiveKind::all_reduce ? CollectiveKind::all_gather : CollectiveKind::all_reduce;
}

// A sum that replaces what it should add to, or adds to what is none of its own; with the accesses that go with it.
void another_beginning(Operation& operation) {
  operation.add = !operation.add;
  for (std::size_t a = 1; a < operation.accesses.size(); a += 2) {
    operation.accesses[a].mode = operation.add ? AccessMode::update : AccessMode::write;
  }
}

// One micro-batch more of one program, and nothing in its segments that knows of it.
void another_number_of_micro_batches(const Plan& plan, const MutantSink& sink) {
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    Plan mutant = plan;
    mutant.programs[program].micro_batches = plan.micro_batches(program) + 1;
    sink.take(std::move(mutant), plan.programs[program].name);
  }
}

// Every other set of the mesh's axes.
void another_group(const Plan& plan, const MutantSink& sink) {
  std::set<unsigned> seen;
  for (const AxisSet axes : {AxisSet(), AxisSet(Axis::shard), AxisSet(Axis::replicate), AxisSet(Axis::tensor),
                             Axis::shard | Axis::tensor, AxisSet::all()}) {
    const AxisSet group = plan.mesh.group(axes);
    if (!seen.insert(group.bits()).second) continue;
    at_each(plan, sink, is_any, [&](Plan& mutant, EventPoint point) {
      Operation& operation = operation_at(mutant, point);
      if (operation.group == group) return false;
      if (moves_nothing(operation)) sink.exclude();
      operation.group = group;
      return !moves_nothing(operation);
    });
  }
}

// A stretch of a window, which may stand beside another collective, does not say that it writes what a collective
// brings. A rank alone has none, and reads it where it wrote it.
template <bool is_beside>
void undeclared_contribution(const Plan& plan, const MutantSink& sink) {
  each_operation(plan, [&](EventPoint point, const Operation& operation) {
    const auto [s, o] = point;
    const auto& all_here = plan.segments[s].operations;
    if (o == 0 || (all_here[o - 1].stream == StreamId::overlap) != is_beside) return;
    for (std::size_t a = 0; a < operation.accesses.size(); ++a) {
      const Access& access = operation.accesses[a];
      const bool brings = access.role == Role::collected && access.mode == AccessMode::write;
      if (operation.kind != OperationKind::window || !brings) continue;
      if (std::none_of(all_here.begin(), all_here.end(), [&](const Operation& other) {
            return other.kind == OperationKind::collective && other.accesses.front().range == access.range;
          })) {
        sink.exclude();
        continue;
      }
      Plan mutant = plan;
      auto& all = operation_at(mutant, point).accesses;
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(a));
      sink.take(std::move(mutant), describe(plan, point));
    }
  });
}

// Counts as if the elements were half as wide.
void another_width(const Plan& plan, const MutantSink& sink) {
  at_each(plan, sink, is_any, [&](Plan& mutant, EventPoint point) {
    for (Access& access : operation_at(mutant, point).accesses) {
      access.range.size = Bytes(access.range.size.count() / 2);
    }
    const bool empty = moves_nothing(plan.at(point));
    if (empty) sink.exclude();
    return !empty;
  });
}

}  // namespace

std::vector<MutantClass> collective_mutants() {
  const auto is_sum = is_of(OperationKind::reduce_scatter);
  return {
      {"collectives of a stream swapped on one rank", true, swapped_on_one_stream},
      {"launch order swapped on one rank", true,
       [](const Plan& plan, const MutantSink& sink) { swapped_across_streams(plan, sink, [](Plan&) {}); }},
      {"launch order swapped, with its own waits", true, launched_in_other_order_with_its_own_waits},
      {"collective missing on one rank", true, each(is_any, erase)},
      {"collective missing on all ranks", false, missing_everywhere},
      {"another unit's collective on one rank", true, another_units},
      {"another wire type on one rank", true,
       each_changed(
           is_any,
           [](Operation& operation) { operation.wire = operation.wire == DType::fp32 ? DType::bf16 : DType::fp32; })},
      {"a window's collective of another kind on one rank", true,
       each_changed(is_of(OperationKind::collective), another_kind)},
      {"a window's collective of another kind", false, each_changed(is_of(OperationKind::collective), another_kind)},
      {"a window's contribution that it does not declare", false, undeclared_contribution<false>},
      {"… beside another collective", false, undeclared_contribution<true>},
      {"another divisor", false, each_changed(is_sum, [](Operation& sum) { sum.divisor = sum.divisor == 1 ? 2 : 1; })},
      {"a sum begins elsewhere", false, each_changed(is_sum, another_beginning)},
      // Ranks one after the other in place of their sum, or the other way round.
      {"a sum in another order", false, each_changed(is_sum, [](Operation& sum) { sum.continues = !sum.continues; })},
      {"another number of micro-batches", false, another_number_of_micro_batches},
      {"another group on one rank", true, another_group},
      {"another group on all ranks", false, another_group},
      {"another element width on one rank", true, another_width}};
}

}  // namespace tessera::plan
