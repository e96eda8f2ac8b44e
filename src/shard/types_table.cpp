// What travels is read off the plan's own reductions.
#include "shard/types_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace tessera {

namespace {

using plan::OperationKind;

// By unit, the type of its reductions; "-" where nothing is reduced. One reduction may be of several units.
std::vector<std::string_view> wires_of(const plan::Plan& plan) {
  std::vector<std::string_view> result(plan.units.size(), "-");
  for (const plan::Segment& segment : plan.segments) {
    for (const plan::Operation& operation : segment.operations) {
      if (operation.kind != OperationKind::reduce_scatter) continue;
      for (const plan::Access& access : operation.accesses) result[access.tenant] = to_string(operation.wire);
    }
  }
  return result;
}

std::size_t elements_of(const plan::Plan& plan, std::size_t unit, plan::Part part) {
  const plan::UnitLayout& layout = plan.layouts[unit];
  std::size_t count = 0;
  for (std::size_t p = 0; p < layout.parameters(); ++p) count += layout.part(p) == part ? layout.elements(p) : 0;
  return count;
}

}  // namespace

std::string types_table(const plan::Plan& plan) {
  std::size_t width = 4;
  for (const plan::UnitSpec& unit : plan.units) width = std::max(width, unit.name.size());
  std::string text = fmt::format("{:<{}}  {:>10}  {:>8}  {:>5}  {:>4}  {:>6}  {:>12}  {:>12}\n", "unit", width,
                                 "parameters", "gradient", "wire", "sums", "master", "trained", "frozen");
  const std::vector<std::string_view> wires = wires_of(plan);
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const Precision& types = plan.precision(unit);
    const bool trains = plan.trains(unit);
    text += fmt::format("{:<{}}  {:>10}  {:>8}  {:>5}  {:>4}  {:>6}  {:>12}  {:>12}\n", plan.units[unit].name, width,
                        to_string(types.parameter), trains ? to_string(types.gradient) : "-", wires[unit],
                        trains ? "fp32" : "-", "fp32", elements_of(plan, unit, plan::Part::trained),
                        elements_of(plan, unit, plan::Part::frozen));
  }
  return text;
}

}  // namespace tessera
