// Memory: tries the settings that save some, mildest first. Types: what travels is read off the plan's own reductions.
#include "shard/plan_advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/buckets.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera {

namespace {

struct Setting {
  const char* text;
  void (*apply)(plan::PlanOptions&);
  void (*apply_to_unit)(plan::UnitSpec&) = [](plan::UnitSpec&) {};
};

bool keeps_parameters_whole(const plan::PlanOptions& options) { return sharding_of(options).parameters.empty(); }

void choose(plan::PlanOptions& options, Strategy strategy) {
  options.strategy = strategy;
  options.sharding.reset();
}

// Each is tried on top of those before it.
constexpr Setting mildest_first[] = {
    {"reshard_after_forward = true", [](plan::PlanOptions& o) { o.reshard_after_forward = true; },
     [](plan::UnitSpec& unit) {
       if (unit.reshard_after_forward != Resharding(true)) unit.reshard_after_forward.reset();
     }},
    {"accumulation = reduced", [](plan::PlanOptions& o) { o.accumulation = AccumulationMode::reduced; }},
    {"bucket_cap = 0",
     [](plan::PlanOptions& o) {
       if (o.bucket_cap || keeps_parameters_whole(o)) o.bucket_cap = Bytes(0);
     }},
    {"overlap_reduction = false", [](plan::PlanOptions& o) { o.overlap_reduction = false; }},
    {"prefetch = 0", [](plan::PlanOptions& o) { o.prefetch = 0; },
     [](plan::UnitSpec& unit) {
       if (unit.prefetch != 0u) unit.prefetch.reset();
     }},
    {"strategy = zero2",
     [](plan::PlanOptions& o) {
       if (keeps_parameters_whole(o)) choose(o, Strategy::zero2);
     }},
    {"strategy = hfsdp",
     [](plan::PlanOptions& o) {
       if (!o.sharding && o.strategy == Strategy::hsdp && o.outer_every == 0) choose(o, Strategy::hfsdp);
     }},
    {"strategy = fsdp", [](plan::PlanOptions& o) { choose(o, Strategy::fsdp); }},
    {"offload.optimizer = host",
     [](plan::PlanOptions& o) {
       o.offload.optimizer = MemorySpace::host;
       o.offload.units = Offload{}.units;
     }},
};

// Takes from units what they have of their own of the setting, and says so.
std::string of_units(const Setting& setting, std::vector<plan::UnitSpec>& units) {
  std::string first;
  for (plan::UnitSpec& unit : units) {
    const auto before = std::pair(unit.reshard_after_forward, unit.prefetch);
    setting.apply_to_unit(unit);
    if (first.empty() && std::pair(unit.reshard_after_forward, unit.prefetch) != before) first = unit.name;
  }
  return first.empty() ? "" : fmt::format(", also of units that have their own, as {}", first);
}

std::string advice(plan::CompileInput input, Bytes limit) {
  std::string changed;
  Bytes smallest = plan::memory(plan::compile(input)).device();
  for (const Setting& setting : mildest_first) {
    const plan::PlanOptions before = input.options;
    setting.apply(input.options);
    const std::string units = of_units(setting, input.units);
    if (input.options == before && units.empty()) continue;
    changed += (changed.empty() ? "" : ", ") + std::string(setting.text) + units;
    const Bytes taken = plan::memory(plan::compile(input)).device();
    if (taken <= limit) return fmt::format("it fits ({}) with {}", to_string(taken), changed);
    smallest = std::min(smallest, taken);
  }
  return fmt::format("no setting fits on {} ranks (the smallest needs {}): use more ranks or smaller units",
                     input.options.ranks, to_string(smallest));
}

// Returns for each unit the type of its first reduction; "-" where nothing is reduced. One reduction may be of several
// units. Later ones are of sums, and of masters.
std::vector<std::string_view> wires_of(const plan::Plan& plan) {
  std::vector<std::string_view> result(plan.units.size(), "-");
  for (const plan::Segment& segment : plan.segments) {
    for (const plan::Operation& operation : segment.operations) {
      if (operation.kind != plan::OperationKind::reduce_scatter) continue;
      for (const plan::Access& access : operation.accesses) {
        if (result[access.tenant] == "-") result[access.tenant] = to_string(operation.wire);
      }
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

void require_fit(const plan::Plan& plan, const plan::CompileInput& input, Bytes limit) {
  const plan::MemoryReport report = plan::memory(plan);
  if (report.device() <= limit) return;
  const auto on_device = [&](const plan::CategoryBytes& category) {
    return category.offset < report.device() ? category.size : Bytes(0);
  };
  const auto largest = std::max_element(report.categories.begin(), report.categories.end(),
                                        [&](const auto& a, const auto& b) { return on_device(a) < on_device(b); });
  throw MemoryError(
      fmt::format("the plan needs {} per rank, more than the limit of {}; the largest term is {} with {}; {}",
                  to_string(report.device()), to_string(limit), to_string(largest->category), to_string(largest->size),
                  advice(input, limit)));
}

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
                        types.encodes() ? fmt::format("{}>{}", to_string(types.gathered()), to_string(types.parameter))
                                        : std::string(to_string(types.parameter)),
                        trains ? to_string(types.gradient) : "-", wires[unit],
                        trains ? to_string(plan::sum_type(plan, unit)) : "-", to_string(types.masters),
                        elements_of(plan, unit, plan::Part::trained), elements_of(plan, unit, plan::Part::frozen));
  }
  return text;
}

}  // namespace tessera
