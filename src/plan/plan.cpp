// Names, successors and descriptions of a plan's parts.
#include "tessera/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "base/hash.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/draw.hpp"

namespace tessera::plan {

std::string_view to_string(Category category) {
  switch (category) {
    case Category::parameters: return "parameters";
    case Category::gradients: return "gradients";
    case Category::optimizer: return "optimizer";
    case Category::accumulation: return "accumulation";
    case Category::parameter_slots: return "parameter_slots";
    case Category::gradient_slots: return "gradient_slots";
    case Category::staging: return "staging";
    case Category::buffers: return "buffers";
    case Category::activations: return "activations";
    case Category::offloaded: return "offloaded";
    case Category::on_disk: return "on_disk";
    case Category::checkpoints: return "checkpoints";
    case Category::scalars: return "scalars";
    case Category::collectives: return "collectives";
  }
  throw InternalError("a category without a name");
}

std::string_view to_string(Role role) {
  switch (role) {
    case Role::master: return "master";
    case Role::kept: return "kept";
    case Role::parameters: return "parameters";
    case Role::encoded: return "encoded";
    case Role::resharded: return "resharded";
    case Role::gradient_slot: return "gradient slot";
    case Role::staging: return "staging";
    case Role::accumulation: return "accumulation";
    case Role::gradient: return "gradient";
    case Role::state: return "state";
    case Role::anchor: return "anchor";
    case Role::outer_momentum: return "outer momentum";
    case Role::outer_mean: return "outer mean";
    case Role::untrained: return "untrained";
    case Role::state_slot: return "state slot";
    case Role::master_slot: return "master slot";
    case Role::widened: return "widened";
    case Role::host_gradient: return "gradient of the host";
    case Role::host_rounded: return "rounded on the host";
    case Role::before: return "value before the step";
    case Role::saved: return "saved";
    case Role::saved_home: return "saved in the host's memory";
    case Role::direction: return "direction";
    case Role::whole: return "whole";
    case Role::workspace: return "workspace";
    case Role::scalars: return "scalars";
    case Role::host_scalars: return "scalars of the host";
    case Role::supposed: return "supposed scalars";
    case Role::norms: return "norms";
    case Role::collected: return "collected";
  }
  throw InternalError("a role without a name");
}

std::string_view to_string(StreamId stream) {
  switch (stream) {
    case StreamId::compute: return "compute";
    case StreamId::gather: return "gather";
    case StreamId::reduce: return "reduce";
    case StreamId::fetch: return "fetch";
    case StreamId::evict: return "evict";
    case StreamId::host: return "host";
    case StreamId::overlap: return "overlap";
    case StreamId::send: return "send";
    case StreamId::receive: return "receive";
    case StreamId::send_back: return "send back";
    case StreamId::receive_back: return "receive back";
  }
  throw InternalError("a stream without a name");
}

std::string_view to_string(WaitType type) {
  switch (type) {
    case WaitType::data: return "data";
    case WaitType::order: return "order";
    case WaitType::throttle: return "throttle";
  }
  throw InternalError("a wait type without a name");
}

std::string_view to_string(OperationKind kind) {
  switch (kind) {
    case OperationKind::initialize: return "initialize";
    case OperationKind::initialize_scalars: return "initialize scalars";
    case OperationKind::cast: return "cast";
    case OperationKind::all_gather: return "all-gather";
    case OperationKind::window: return "window";
    case OperationKind::collective: return "collective";
    case OperationKind::prepare_gradient: return "prepare gradient";
    case OperationKind::accumulate: return "accumulate";
    case OperationKind::convert: return "convert";
    case OperationKind::sum_tied: return "sum of tied gradients";
    case OperationKind::hook: return "hook";
    case OperationKind::broadcast: return "broadcast";
    case OperationKind::reduce_scatter: return "reduce-scatter";
    case OperationKind::all_gather_sum: return "all-gather sum";
    case OperationKind::sum_of_squares: return "sum of squares";
    case OperationKind::weight: return "weight";
    case OperationKind::gather_norms: return "gather norms";
    case OperationKind::begin_update: return "begin update";
    case OperationKind::optimize: return "optimize";
    case OperationKind::redistribute: return "redistribute";
    case OperationKind::transform: return "transform";
    case OperationKind::apply: return "apply";
    case OperationKind::keep: return "keep";
    case OperationKind::settle: return "settle";
    case OperationKind::outer_update: return "outer update";
    case OperationKind::release: return "release";
    case OperationKind::transfer: return "transfer";
  }
  throw InternalError("an operation kind without a name");
}

std::string_view to_string(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::cold: return "cold";
    case SegmentKind::refresh: return "refresh";
    case SegmentKind::only: return "only";
    case SegmentKind::first: return "first";
    case SegmentKind::middle: return "middle";
    case SegmentKind::last: return "last";
    case SegmentKind::update: return "update";
    case SegmentKind::outer: return "outer";
    case SegmentKind::evaluation: return "evaluation";
    case SegmentKind::synchronize: return "synchronize";
  }
  throw InternalError("a segment kind without a name");
}

const Access& Operation::operand(Role role) const {
  const auto found =
      std::find_if(accesses.begin(), accesses.end(), [&](const Access& access) { return access.role == role; });
  if (found != accesses.end()) return *found;
  throw InternalError(fmt::format("{} without an operand {}", to_string(kind), to_string(role)));
}

MeshShape mesh_of(const PlanOptions& options) {
  if (options.mesh) return options.role ? options.mesh->without(Axis::pipeline) : *options.mesh;
  return {{Axis::replicate, options.replicas}, {Axis::shard, options.ranks / options.replicas}};
}

namespace {

Sharding over(AxisSet axes, const Sharding& sharding) {
  return {sharding.parameters & axes, sharding.gradients & axes, sharding.optimizer & axes};
}

}  // namespace

Sharding sharding_of(const PlanOptions& options) {
  return over(mesh_of(options).axes(), options.sharding.value_or(options.strategy.sharding));
}

bool sums_stay_whole(const PlanOptions& options) {
  if (options.sharding) return options.sharding->gradients.empty();
  return options.strategy.accumulation == AccumulationMode::local;
}

Sharding Plan::sharding() const { return over(training(), options.sharding.value_or(options.strategy.sharding)); }

Sharding Plan::sharding(std::size_t unit) const { return over(common(unit), sharding()); }

bool Plan::parameters_stay_whole() const {
  const AxisSet over = sharding().parameters;
  if (over.empty() || mesh.size(over) > 1) return over.empty();
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    if (!precision(unit).reads_masters()) return false;
  }
  return true;
}

bool Plan::uses(StreamId stream) const {
  if (stream <= StreamId::reduce) return true;
  return std::any_of(segments.begin(), segments.end(), [&](const Segment& segment) {
    return std::any_of(segment.operations.begin(), segment.operations.end(),
                       [&](const Operation& operation) { return operation.stream == stream; });
  });
}

std::vector<AxisSet> Plan::summed(std::size_t unit) const {
  std::vector<AxisSet> result;
  mesh.inwards_out([&](Axis axis) {
    if (!own(unit).contains(axis) || (!result.empty() && mesh.size(axis) == 1)) return;
    if (has_granules() && !result.empty()) {
      result.back() = result.back() | axis;
    } else {
      result.push_back(axis);
    }
  });
  if (result.empty()) result.push_back({});
  return result;
}

AxisSet Plan::own(std::size_t unit, const Content& content) const {
  if (content.begin > 0) return content.over;
  const UnitBuffers& known = unit_buffers[unit];
  const bool of_outer_steps = content == known[Role::anchor] || content == known[Role::outer_momentum];
  return of_outer_steps ? common(unit) : own(unit);
}

std::size_t Plan::packed_elements(std::size_t unit, const Content& content) const {
  const UnitLayout& layout = layouts[unit];
  return std::min(layout.elements(content.over, Part::trained), layout.elementwise_end() - content.begin);
}

AxisSet Plan::held_between_windows(const Resharding& resharding, AxisSet parameters) const {
  const AxisSet held = resharding.held & parameters;
  return held != parameters && mesh.size(held) == 1 ? AxisSet() : held;
}

AxisSet Plan::held_between_windows(std::size_t unit) const {
  return held_between_windows(units[unit].reshard_after_forward.value_or(options.reshard_after_forward),
                              sharding(unit).parameters);
}

std::size_t Plan::trained_units(std::size_t program) const {
  return static_cast<std::size_t>(std::count(trainers.begin(), trainers.end(), program));
}

std::vector<std::string> Plan::trained_states(std::size_t program) const {
  std::vector<std::string> names = names_of(optimizer_states_of(program));
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    if (!trains(unit, program)) continue;
    for (const StateSpec& state : unit_states(unit)) {
      if (std::find(names.begin(), names.end(), state.name) == names.end()) names.push_back(state.name);
    }
  }
  return names;
}

std::optional<std::size_t> Plan::find(SegmentKind kind, std::size_t program) const {
  for (std::size_t index = 0; index < segments.size(); ++index) {
    const Segment& segment = segments[index];
    if (segment.kind == kind && (segment.program == no_program || segment.program == program)) return index;
  }
  return std::nullopt;
}

std::optional<std::size_t> Plan::find_outer(std::size_t fragment) const {
  for (std::size_t index = 0; index < segments.size(); ++index) {
    if (segments[index].kind == SegmentKind::outer && segments[index].fragment == fragment) return index;
  }
  return std::nullopt;
}

// Fragments follow each other by so many steps that no two have the same: the first after step H, 2 H, …
std::optional<std::size_t> Plan::outer_after(std::size_t step) const {
  if (!diverges()) return std::nullopt;
  const std::size_t apart = options.outer_every / options.outer_fragments;
  const std::size_t since = step % options.outer_every;
  if (since % apart != 0 || since / apart >= options.outer_fragments) return std::nullopt;
  return find_outer(since / apart);
}

std::string_view to_string(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_gather: return "all-gather";
    case CollectiveKind::all_reduce: return "all-reduce";
    case CollectiveKind::reduce_scatter: return "reduce-scatter";
    case CollectiveKind::all_to_all: return "all-to-all";
    case CollectiveKind::send: return "send";
    case CollectiveKind::receive: return "receive";
  }
  throw InternalError("a kind of collective without a name");
}

std::vector<std::size_t> collectives_in(const UnitSpec& unit, WindowKind window) {
  std::vector<std::size_t> result;
  for (std::size_t index = 0; index < unit.collectives.size(); ++index) {
    const CollectiveSpec& each = unit.collectives[index];
    const bool takes_part = window == WindowKind::backward         ? each.backward
                            : window == WindowKind::evaluate       ? each.evaluate
                            : window == WindowKind::backward_input ? each.backward_input
                                                                   : each.forward;
    if (takes_part) result.push_back(index);
  }
  const bool back = window == WindowKind::backward || window == WindowKind::backward_input;
  if (back) std::reverse(result.begin(), result.end());
  return result;
}

namespace {

std::initializer_list<SegmentKind> successor_kinds(SegmentKind kind) {
  using enum SegmentKind;
  static constexpr std::initializer_list<SegmentKind> between_steps = {refresh, only, first, evaluation, synchronize};
  static constexpr std::initializer_list<SegmentKind> after_update = {refresh,    only,        first,
                                                                      evaluation, synchronize, outer};
  static constexpr std::initializer_list<SegmentKind> within_step = {middle, last};
  static constexpr std::initializer_list<SegmentKind> step_end = {update};
  switch (kind) {
    case first:
    case middle: return within_step;
    case only:
    case last: return step_end;
    case update: return after_update;
    default: return between_steps;
  }
}

// True where the segment that follows is of the same program.
bool inside_step(SegmentKind kind) {
  return kind == SegmentKind::only || kind == SegmentKind::first || kind == SegmentKind::middle ||
         kind == SegmentKind::last;
}

}  // namespace

std::vector<std::size_t> successors(const Plan& plan, std::size_t segment) {
  std::vector<std::size_t> result;
  for (const SegmentKind kind : successor_kinds(plan.segments[segment].kind)) {
    // Two micro-batches have no middle; three and more have one that repeats, and the first never leads to the last.
    if (kind == SegmentKind::last && plan.segments[segment].kind == SegmentKind::first &&
        plan.micro_batches(plan.segments[segment].program) > 2) {
      continue;
    }
    for (std::size_t index = 0; index < plan.segments.size(); ++index) {
      if (plan.segments[index].kind != kind) continue;
      if (inside_step(plan.segments[segment].kind) && plan.segments[index].program != plan.segments[segment].program) {
        continue;
      }
      result.push_back(index);
    }
  }
  return result;
}

Bytes size_on_disk(const Plan& plan, const Operation& transfer) {
  Bytes size;
  for (const Access& access : transfer.accesses) {
    if (plan.buffers[access.range.buffer].space == MemorySpace::disk) size += access.range.size;
  }
  return size;
}

std::string describe(const Plan& plan, const Operation& operation) {
  const std::string_view unit = operation.unit == no_unit ? std::string_view() : plan.units[operation.unit].name;
  const bool of_some = is_collective(operation.kind) && !operation.passes_message() &&
                       operation.group != plan.mesh.group(plan.mesh.axes());
  const std::string where = of_some ? fmt::format(" over {}", to_string(operation.group)) : "";
  if (operation.kind == OperationKind::window) {
    return fmt::format("{} window {}{}", to_string(operation.window), unit, operation.resumes ? ", resumed" : "");
  }
  if (operation.kind == OperationKind::collective) {
    const std::vector<CollectiveSpec>& all = plan.units[operation.unit].collectives;
    const bool is_known = operation.collective < all.size();  // verify() is asked about any plan
    return fmt::format("{} {} in the {} window{}", to_string(operation.collective_kind),
                       is_known ? all[operation.collective].name : "of another unit than " + std::string(unit),
                       to_string(operation.window), where);
  }
  if (operation.unit == no_unit) return std::string(to_string(operation.kind));
  if (operation.kind == OperationKind::transfer) {
    return fmt::format("transfer {} to the {}", unit, to_string(plan.buffers[operation.target().range.buffer].space));
  }
  if (operation.kind == OperationKind::redistribute) {
    return fmt::format("redistribute {} {} owners{}", unit, operation.goes_to_owners() ? "to" : "from", where);
  }
  if (operation.kind == OperationKind::release) {
    return fmt::format("release {} of {}", plan.buffers[operation.accesses.front().range.buffer].name, unit);
  }
  const bool of_bucket =
      operation.kind == OperationKind::reduce_scatter || operation.kind == OperationKind::all_gather_sum;
  if (of_bucket && operation.moves() > 1) {
    return fmt::format("{} {} to {} ({} units){}", to_string(operation.kind), unit,
                       plan.units[operation.accesses.back().tenant].name, operation.moves(), where);
  }
  return fmt::format("{} {}{}", to_string(operation.kind), unit, where);
}

std::string describe(const Plan& plan, EventPoint point) {
  return fmt::format("{} (segment {}, #{})", describe(plan, plan.at(point)),
                     name_of(plan, plan.segments[point.segment]), point.operation);
}

std::string name_of(const Plan& plan, const Segment& segment) {
  const bool one_of_several = segment.kind == SegmentKind::outer && plan.options.outer_fragments > 1;
  if (one_of_several) return fmt::format("outer {}", segment.fragment);
  const bool names_program = segment.program != no_program && plan.programs.size() > 1;
  if (!names_program) return std::string(to_string(segment.kind));
  return fmt::format("{} of {}", to_string(segment.kind), plan.programs[segment.program].name);
}

std::uint64_t hash(const Plan& plan) { return fnv1a(canonical_text(plan)); }

}  // namespace tessera::plan
