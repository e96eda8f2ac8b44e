// The two texts of a plan.
#include "tessera/plan/draw.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "plan/ranges.hpp"

namespace tessera::plan {

namespace {

// "p0", or "p0[shard]": this rank's place in the buffer along these axes.
std::string part(const Plan& plan, const Access& access) {
  const Range& range = access.range;
  AxisSet axes;
  plan.mesh.outwards_in([&](Axis axis) {
    if (range.strides[static_cast<std::size_t>(axis)] != Bytes(0)) axes = axes | axis;
  });
  const std::string& name = plan.buffers[range.buffer].name;
  return axes.empty() ? name : fmt::format("{}[{}]", name, to_string(axes));
}

std::string parts(const Plan& plan, const Operation& operation, bool (*selects)(AccessMode)) {
  std::string result;
  for (const Access& access : operation.accesses) {
    if (!selects(access.mode)) continue;
    if (!result.empty()) result += ", ";
    result += part(plan, access);
  }
  return result;
}

// "5", or with its segment where that is another; what is launched later in the list was recorded in an earlier run.
std::string record(const Plan& plan, EventPoint here, EventPoint point) {
  if (point.segment != here.segment) return describe(plan, point);
  return fmt::format("{}{}", point.operation, point.operation < here.operation ? "" : " of the last run");
}

std::string waits(const Plan& plan, EventPoint here) {
  std::string result;
  for (const Wait& wait : plan.at(here).waits) {
    if (!result.empty()) result += "; ";
    result += record(plan, here, plan.events[wait.event]);
    if (wait.type != WaitType::data) result += fmt::format(" ({})", to_string(wait.type));
  }
  return result;
}

using Row = std::array<std::string, 5>;

// Columns as wide as their widest cell; no trailing blanks. Every cell but the arrow is ASCII.
std::string table(const std::vector<Row>& rows) {
  std::array<std::size_t, 5> widths{};
  for (const Row& row : rows) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t column = 0; column < row.size(); ++column) {
      line += fmt::format("{:<{}}  ", row[column], widths[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

std::string draw(const Plan& plan, std::size_t segment) {
  std::vector<Row> rows = {{"#", "stream", "operation", "reads -> writes", "waits for"}};
  const auto& operations = plan.segments[segment].operations;
  for (std::size_t index = 0; index < operations.size(); ++index) {
    const Operation& operation = operations[index];
    const std::string from = parts(plan, operation, reads);
    const std::string to = parts(plan, operation, writes);
    const std::string flow = to.empty() ? from : fmt::format("{}{}-> {}", from, from.empty() ? "" : " ", to);
    rows.push_back({fmt::format("{}", index), std::string(to_string(operation.stream)), describe(plan, operation), flow,
                    waits(plan, {segment, index})});
  }
  return fmt::format("segment {}\n{}", name_of(plan, plan.segments[segment]), table(rows));
}

std::string draw(const Plan& plan) {
  std::string text;
  for (std::size_t segment = 0; segment < plan.segments.size(); ++segment) {
    if (segment > 0) text += '\n';
    text += draw(plan, segment);
  }
  return text;
}

namespace {

void append_options(const Plan& plan, fmt::memory_buffer& out) {
  const PlanOptions& options = plan.options;
  fmt::format_to(std::back_inserter(out),
                 "options {} {} {} {} mesh {} outer {} {} micro {} {} prefetch {} reshard {} overlap {} "
                 "bucket {} hooks {} fp32 sums {} "
                 "activations {} checkpoints {} staging {}\n",
                 tessera::to_string(options.strategy, options.sharding), to_string(options.precision.parameter),
                 to_string(options.precision.gradient), to_string(options.precision.wire), plan.mesh.text(),
                 options.outer_every, options.outer_fragments, options.micro_batches, to_string(options.accumulation),
                 options.prefetch, to_string(options.reshard_after_forward), options.overlap_reduction,
                 options.bucket_cap->count(), options.gradient_hooks, options.fp32_sums, options.activations.count(),
                 to_string(options.checkpointing), to_string(options.collective_staging));
  if (options.precision.encodes())
    fmt::format_to(std::back_inserter(out), "gather {}\n", to_string(options.precision.gathered()));
  if (options.precision.masters != DType::fp32)
    fmt::format_to(std::back_inserter(out), "masters {}\n", to_string(options.precision.masters));
  if (options.granules > 0) fmt::format_to(std::back_inserter(out), "granules {}\n", options.granules);
  if (options.threaded_compute) fmt::format_to(std::back_inserter(out), "threads share the compute stream\n");
  if (options.role)
    fmt::format_to(std::back_inserter(out), "role {} of the mesh {} of up to {} units\n", *options.role,
                   options.mesh->text(), options.role_units);
}

std::string slice_text(const ParameterSpec& parameter) {
  if (!parameter.slice) return {};
  if (parameter.is_alike()) return " alike";
  return fmt::format(" cut along {} of {} in {}", *parameter.slice->dimension, parameter.slice->extent,
                     parameter.slice->blocks);
}

void append_units(const Plan& plan, fmt::memory_buffer& out) {
  for (const UnitSpec& unit : plan.units) {
    fmt::format_to(std::back_inserter(out), "unit {}", unit.name);
    if (unit.precision) {
      fmt::format_to(std::back_inserter(out), " {} {} {}", to_string(unit.precision->parameter),
                     to_string(unit.precision->gradient), to_string(unit.precision->wire));
      if (unit.precision->encodes())
        fmt::format_to(std::back_inserter(out), " gather {}", to_string(unit.precision->gathered()));
      if (unit.precision->masters != DType::fp32)
        fmt::format_to(std::back_inserter(out), " masters {}", to_string(unit.precision->masters));
    }
    for (const StateSpec& state : unit.optimizer_states.value_or(std::vector<StateSpec>{})) {
      fmt::format_to(std::back_inserter(out), " state {}", describe(state));
    }
    const auto moved = [&](std::string_view what, MemorySpace space) {
      if (space != MemorySpace::device) fmt::format_to(std::back_inserter(out), " {} in {}", what, to_string(space));
    };
    moved("states", *unit.states_in);
    moved("masters", *unit.masters_in);
    moved("updated", unit.updates_in);
    if (unit.saved > Bytes(0)) fmt::format_to(std::back_inserter(out), " saves {}", unit.saved.count());
    moved("saved", *unit.saved_in);
    if (unit.tied) fmt::format_to(std::back_inserter(out), " tied");
    if (unit.is_tied_to) fmt::format_to(std::back_inserter(out), " tied to");
    if (!unit.apart.empty()) fmt::format_to(std::back_inserter(out), " apart along {}", to_string(unit.apart));
    out.push_back('\n');
    for (const ParameterSpec& parameter : unit.parameters) {
      fmt::format_to(std::back_inserter(out), "parameter {} {}{}{}{}\n", parameter.name,
                     tessera::to_string(parameter.shape), parameter.optional ? " optional" : "",
                     parameter.frozen ? " frozen" : "", slice_text(parameter));
      if (parameter.whole)
        fmt::format_to(std::back_inserter(out), "whole {} {} {} {}\n", to_string(unit.whole_type), unit.whole_planes,
                       parameter.whole->workspace.count(), parameter.whole->cost);
    }
  }
  for (const UnitSpec& unit : plan.units) {
    for (const BufferSpec& buffer : unit.buffers) {
      fmt::format_to(std::back_inserter(out), "buffer of {}: {} {}\n", unit.name, buffer.name,
                     tessera::to_string(buffer.shape));
    }
  }
  for (const UnitSpec& unit : plan.units) {
    for (const CollectiveSpec& each : unit.collectives) {
      fmt::format_to(std::back_inserter(out), "{} of {}: {} {} x {}{}{}{}{}{}{} over {}\n", to_string(each.kind),
                     unit.name, each.name, each.elements, each.type ? tessera::to_string(*each.type) : "fp64",
                     each.forward ? " forward" : "", each.backward ? " backward" : "",
                     each.backward_input ? " backward input" : "", each.evaluate ? " evaluate" : "",
                     each.of_granules ? " of granules" : "", each.overlaps ? " overlaps" : "", to_string(*each.axes));
      if (each.buffers > 1) fmt::format_to(std::back_inserter(out), "buffers of {}: {}\n", each.name, each.buffers);
    }
  }
  for (const StateSpec& state : plan.optimizer_states) {
    fmt::format_to(std::back_inserter(out), "state {}\n", describe(state));
  }
}

// One program is told by its segments and the options.
void append_programs(const Plan& plan, fmt::memory_buffer& out) {
  if (plan.programs.size() == 1 && !plan.programs.front().micro_batches) return;
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    fmt::format_to(std::back_inserter(out), "program {}", plan.programs[program].name);
    if (const auto own = plan.programs[program].micro_batches) {
      fmt::format_to(std::back_inserter(out), " micro {}", *own);
    }
    for (const StateSpec& state : plan.optimizer_states_of(program)) {
      fmt::format_to(std::back_inserter(out), " state {}", describe(state));
    }
    for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
      if (plan.trains(unit, program)) fmt::format_to(std::back_inserter(out), " trains {}", unit);
    }
    out.push_back('\n');
  }
}

void append_operation(const Plan& plan, const Operation& operation, fmt::memory_buffer& out) {
  auto to = std::back_inserter(out);
  fmt::format_to(to, "{} {} {} {} add {} divisor {} wire {} group {}", to_string(operation.stream),
                 to_string(operation.kind), operation.unit, to_string(operation.window), operation.add,
                 operation.divisor, to_string(operation.wire), to_string(operation.group));
  if (operation.continues) fmt::format_to(to, " continues");
  if (operation.resumes) fmt::format_to(to, " resumes");
  if (operation.collective != no_collective) {
    fmt::format_to(to, " collective {} {}", operation.collective, to_string(operation.collective_kind));
  }
  if (operation.whole_group != no_group) fmt::format_to(to, " tensors {}", operation.whole_group);
  for (const Access& access : operation.accesses) {
    fmt::format_to(to, " access {} {}", access.range.buffer, access.range.offset.count());
    for (const Bytes stride : access.range.strides) fmt::format_to(to, "+{}", stride.count());
    fmt::format_to(to, " {} mode {} tenant {} {} {}", access.range.size.count(), static_cast<int>(access.mode),
                   access.tenant, to_string(access.role), access.state);
  }
  for (const Wait& wait : operation.waits) {
    const EventPoint point = plan.events[wait.event];
    fmt::format_to(to, " wait {} {}.{}", to_string(wait.type), point.segment, point.operation);
  }
  out.push_back('\n');
}

}  // namespace

std::string canonical_text(const Plan& plan) {
  fmt::memory_buffer out;
  append_options(plan, out);
  append_units(plan, out);
  append_programs(plan, out);
  for (const Buffer& buffer : plan.buffers) {
    fmt::format_to(std::back_inserter(out), "buffer {} {} {} {} {}\n", buffer.name, to_string(buffer.category),
                   static_cast<int>(buffer.space), buffer.size.count(), buffer.offset.count());
  }
  for (const WholeGroup& group : plan.whole_groups) {
    for (const WholeTensor& tensor : group.tensors) {
      fmt::format_to(std::back_inserter(out), "tensor {} of unit {} whole at {} along {} from {}\n", tensor.parameter,
                     tensor.unit, tensor.owner, to_string(group.axes), tensor.offset.count());
    }
  }
  for (const Segment& segment : plan.segments) {
    fmt::format_to(std::back_inserter(out), "segment {}\n", name_of(plan, segment));
    for (const Operation& operation : segment.operations) append_operation(plan, operation, out);
  }
  return fmt::to_string(out);
}

}  // namespace tessera::plan
