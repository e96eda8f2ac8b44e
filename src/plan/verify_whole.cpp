// Derives what groups of whole tensors must be from the options, without the helpers that the compiler used.
#include "plan/verify_whole.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace tessera::plan {

namespace {

AxisSet ranks_of(const Plan& plan, std::size_t unit) {
  const AxisSet alone = plan.options.outer_every > 0 ? outer_axes : AxisSet();
  return plan.mesh.axes() - plan.units[unit].apart - alone;
}

const WholeGroup* group_of_first(const Plan& plan, std::size_t unit) {
  const auto found = std::find_if(plan.whole_groups.begin(), plan.whole_groups.end(),
                                  [&](const WholeGroup& group) { return group.units.front() == unit; });
  return found == plan.whole_groups.end() ? nullptr : &*found;
}

// Bytes of a tensor with all of its planes, each in whole slots.
Bytes whole_size(const Plan& plan, const WholeTensor& tensor) {
  const UnitSpec& unit = plan.units[tensor.unit];
  const std::uint64_t plane = size_of(unit.whole_type).count() * element_count(unit.parameters[tensor.parameter].shape);
  return Bytes((plane + 511) / 512 * 512) * unit.whole_planes;
}

}  // namespace

Bytes room_of_group(const Plan& plan, std::size_t first, Role role) {
  const WholeGroup* const group = group_of_first(plan, first);
  if (group == nullptr) return Bytes(0);
  if (role == Role::whole) return group->size;
  Bytes most;
  for (const WholeTensor& tensor : group->tensors) {
    most = std::max(most, plan.units[tensor.unit].parameters[tensor.parameter].whole->workspace);
  }
  return most;
}

void check_whole_groups(const Plan& plan, const Report& report) {
  std::set<std::pair<std::size_t, std::size_t>> expected;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const auto& parameters = plan.units[unit].parameters;
    for (std::size_t p = 0; p < parameters.size() && plan.trains(unit); ++p) {
      if (parameters[p].whole && !parameters[p].frozen) expected.insert({unit, p});
    }
  }
  const auto object = [&](const WholeTensor& tensor, const char* why) {
    report(ViolationKind::layout, {tensor.unit, tensor.parameter}, {no_unit, 2},
           fmt::format("{} is to be whole: {}", plan.units[tensor.unit].parameters[tensor.parameter].name, why));
  };
  for (const WholeGroup& group : plan.whole_groups) {
    std::vector<std::pair<std::size_t, Interval>> places;
    for (const WholeTensor& tensor : group.tensors) {
      if (expected.erase({tensor.unit, tensor.parameter}) == 0)
        object(tensor, "it is not one that wants it, or is twice");
      const bool is_here = std::count(group.units.begin(), group.units.end(), tensor.unit) == 1;
      if (!is_here || plan.trainers[tensor.unit] != group.program || ranks_of(plan, tensor.unit) != group.axes)
        object(tensor, "its group is of other units, another program or other ranks");
      if (tensor.owner >= plan.mesh.size(group.axes)) object(tensor, "its owner is no rank");
      const Interval place{tensor.offset.count(), (tensor.offset + whole_size(plan, tensor)).count()};
      if (place.end > group.size.count() || place.begin % 512 != 0) object(tensor, "its owner has no room for it");
      for (const auto& [owner, other] : places) {
        if (owner == tensor.owner && overlap(place, other)) object(tensor, "another tensor stands there");
      }
      places.push_back({tensor.owner, place});
    }
  }
  for (const auto& [unit, parameter] : expected) object({unit, parameter, 0, Bytes(0)}, "it is in no group");
}

void check_whole_order(const Plan& plan, std::size_t segment, const Report& report) {
  const Segment& of = plan.segments[segment];
  if (of.kind != SegmentKind::update) return;
  std::vector<std::size_t> passed(plan.whole_groups.size(), 0);  // to owners, transformed, back
  std::vector<std::size_t> applied(plan.units.size(), 0);
  for (std::size_t index = 0; index < of.operations.size(); ++index) {
    const Operation& operation = of.operations[index];
    const EventPoint here{segment, index};
    const auto require = [&](bool holds, const char* why) {
      if (!holds) report(ViolationKind::layout, here, here, fmt::format("{}: {}", describe(plan, here), why));
    };
    if (operation.kind == OperationKind::redistribute || operation.kind == OperationKind::transform) {
      const bool known = operation.whole_group < plan.whole_groups.size() &&
                         plan.whole_groups[operation.whole_group].units.front() == operation.unit;
      require(known, "of no group");
      if (!known) continue;
      const std::size_t expected = operation.kind == OperationKind::transform ? 1 : operation.goes_to_owners() ? 0 : 2;
      require(passed[operation.whole_group] == expected, "not in the order of a group");
      ++passed[operation.whole_group];
    }
    if (operation.kind == OperationKind::apply) ++applied[operation.unit];
  }
  for (std::size_t group = 0; group < plan.whole_groups.size(); ++group) {
    if (plan.whole_groups[group].program != of.program) continue;
    for (const std::size_t unit : plan.whole_groups[group].units) {
      if (passed[group] == 3 && applied[unit] == 1) continue;
      report(ViolationKind::lost, {segment, 0}, {segment, unit},
             fmt::format("an update does not apply what comes of the whole tensors of {}", plan.units[unit].name));
    }
  }
}

bool is_whole_group(const Plan& plan, const Operation& operation) {
  if (operation.kind != OperationKind::redistribute) return true;
  if (operation.whole_group >= plan.whole_groups.size() || operation.accesses.size() < 2) return false;
  const WholeGroup& group = plan.whole_groups[operation.whole_group];
  const bool to_owners = operation.goes_to_owners();
  std::vector<Access> expected;
  for (const std::size_t unit : group.units) {
    const std::size_t planes = to_owners ? plan.units[unit].whole_planes : 1;
    for (std::size_t plane = 0; plane < planes; ++plane) expected.push_back({{}, {}, unit, Role::direction, plane});
  }
  if (operation.accesses.size() != expected.size() + 1) return false;
  const Access& whole = to_owners ? operation.accesses.back() : operation.accesses.front();
  const AccessMode of_whole = to_owners ? AccessMode::write : AccessMode::read;
  if (whole.role != Role::whole || whole.mode != of_whole || whole.tenant != group.units.front()) return false;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Access& direction = operation.accesses[to_owners ? i : i + 1];
    const AccessMode mode = to_owners ? AccessMode::read : AccessMode::write;
    if (direction.role != Role::direction || direction.mode != mode || direction.tenant != expected[i].tenant ||
        direction.state != expected[i].state)
      return false;
  }
  return true;
}

}  // namespace tessera::plan
