// Each segment by itself: its kind says which micro-batches came before it.
#include "plan/verify_parts.hpp"

#include <fmt/format.h>

#include <vector>

namespace tessera::plan {

namespace {

class Sums {
 public:
  Sums(const Plan& plan, std::size_t segment, const Report& report)
      : plan_(plan), segment_(segment), kind_(plan.segments[segment].kind), report_(report) {}

  void check() {
    find_last_reductions();
    std::vector<bool> added(plan_.units.size(), false);
    std::vector<bool> reduced(plan_.units.size(), false);
    const auto& operations = plan_.segments[segment_].operations;
    for (std::size_t index = 0; index < operations.size(); ++index) {
      const Operation& operation = operations[index];
      if (operation.kind == OperationKind::accumulate) {
        const bool adds = added[operation.unit] || (follows_another() && !reduces_each());
        require(index, operation.add == adds, adds ? "forgets what was added up" : "adds to what an earlier step left");
        added[operation.unit] = true;
      }
      if (operation.kind != OperationKind::reduce_scatter) continue;
      for (std::size_t pair = 0; pair < operation.accesses.size(); pair += 2) {
        const std::size_t unit = operation.accesses[pair].tenant;
        const bool adds = !reduced[unit] && follows_another() && reduces_each();
        require(index, operation.add == adds, adds ? "forgets what was reduced" : "adds to what an earlier step left");
        require(index, operation.continues == (adds && plan_.options.granules > 0),
                operation.continues ? "takes ranks one after the other where their sum is to be added"
                                    : "adds the sum of ranks where granules are to be added one after the other");
        require(index, operation.divisor == divisor(unit, index), "divides by another number than that of gradients");
        reduced[unit] = true;
      }
    }
    for (std::size_t unit = 0; unit < plan_.units.size() && is_last(); ++unit) {
      if (!plan_.trains(unit, plan_.segments[segment_].program) || reduced[unit]) continue;
      if (divisor(unit, last_reductions_[unit]) == 1) continue;
      const EventPoint here{segment_, 0};
      report_(
          ViolationKind::lost, here, {segment_, unit},
          fmt::format("nothing in segment {} divides the gradient of {}", to_string(kind_), plan_.units[unit].name));
    }
  }

 private:
  bool is_step() const { return is_last() || kind_ == SegmentKind::first || kind_ == SegmentKind::middle; }
  bool is_last() const { return kind_ == SegmentKind::only || kind_ == SegmentKind::last; }
  bool follows_another() const { return kind_ == SegmentKind::middle || kind_ == SegmentKind::last; }
  bool reduces_each() const {
    return is_step() && plan_.accumulation(plan_.segments[segment_].program) == AccumulationMode::reduced;
  }

  void find_last_reductions() {
    last_reductions_.assign(plan_.units.size(), 0);
    const auto& operations = plan_.segments[segment_].operations;
    for (std::size_t index = 0; index < operations.size(); ++index) {
      if (operations[index].kind != OperationKind::reduce_scatter) continue;
      for (const Access& access : operations[index].accesses) last_reductions_[access.tenant] = index;
    }
  }

  // An outer step's masters are divided by the ranks that train by themselves. Ranks that work on the same samples
  // count where each has the whole unit's gradient.
  std::size_t divisor(std::size_t unit, std::size_t index) const {
    if (kind_ == SegmentKind::outer) return plan_.mesh.size(outer_axes);
    if (!is_last() || last_reductions_[unit] != index) return 1;
    if (plan_.options.granules > 0) {
      const std::size_t program = plan_.segments[segment_].program;
      return plan_.programs[program].micro_batches.value_or(plan_.options.granules);
    }
    AxisSet axes = AxisSet::all() - (plan_.units[unit].apart & same_samples);
    if (plan_.options.outer_every > 0) axes = axes - outer_axes;
    return plan_.mesh.size(axes) * plan_.micro_batches(plan_.segments[segment_].program);
  }

  void require(std::size_t index, bool holds, const char* why) const {
    if (holds) return;
    const EventPoint here{segment_, index};
    report_(ViolationKind::lost, here, here, fmt::format("{} {}", describe(plan_, here), why));
  }

  const Plan& plan_;
  std::size_t segment_;
  SegmentKind kind_;
  const Report& report_;
  std::vector<std::size_t> last_reductions_;  // by unit: of those in the segment
};

// A program's micro-batches as its steps run them.
void check_segments(const Plan& plan, std::size_t program, const Report& report) {
  using enum SegmentKind;
  const std::size_t count = plan.micro_batches(program);
  const auto require = [&](SegmentKind kind, bool expected) {
    const auto found = plan.find(kind, program);
    if (plan.programs[program].micro_batch.empty() || found.has_value() == expected) return;
    const EventPoint here{found.value_or(0), 0};
    report(
        ViolationKind::lost, here, {static_cast<std::size_t>(kind), program},
        fmt::format("a step of {} micro-batches {} segment {}", count, expected ? "without" : "with", to_string(kind)));
  };
  require(only, count == 1);
  require(first, count > 1);
  require(middle, count > 2);
  require(last, count > 1);
}

}  // namespace

void verify_sums(const Plan& plan, const Report& report) {
  for (std::size_t program = 0; program < plan.programs.size(); ++program) check_segments(plan, program, report);
  for (std::size_t segment = 0; segment < plan.segments.size(); ++segment) Sums(plan, segment, report).check();
}

}  // namespace tessera::plan
