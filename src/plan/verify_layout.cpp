// Compares every range with what UnitLayout says, without the helpers that the compiler used.
#include "plan/verify_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "plan/verify_whole.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera::plan {

namespace {

void check_arena(const Plan& plan, const Report& report) {
  std::vector<const Buffer*> sorted;
  for (const Buffer& buffer : plan.buffers) sorted.push_back(&buffer);
  std::sort(sorted.begin(), sorted.end(), [](const Buffer* a, const Buffer* b) {
    return std::pair(a->offset, a->size) < std::pair(b->offset, b->size);
  });
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i]->offset.count() % buffer_alignment.count() != 0) {
      report(ViolationKind::layout, {}, {i, 0}, fmt::format("buffer {} is not aligned in the arena", sorted[i]->name));
    }
    if (i == 0 || sorted[i - 1]->offset + sorted[i - 1]->size <= sorted[i]->offset) continue;
    report(ViolationKind::layout, {}, {i, 1},
           fmt::format("buffers {} and {} overlap in the arena", sorted[i - 1]->name, sorted[i]->name));
  }
}

// ---- what a unit has ----

bool has_frozen(Role role) {
  return role == Role::master || role == Role::master_slot || role == Role::kept || role == Role::parameters ||
         role == Role::encoded || role == Role::resharded || role == Role::host_rounded;
}

bool is_slot(const Buffer& buffer) {
  return buffer.category == Category::parameter_slots || buffer.category == Category::gradient_slots ||
         buffer.category == Category::staging;
}

const Precision& types_of(const Plan& plan, std::size_t unit) {
  return plan.units[unit].precision ? *plan.units[unit].precision : plan.options.precision;
}

// Parameters are rounded to another type on their way to windows.
bool has_encoded(const Plan& plan, std::size_t unit) {
  const Precision& types = types_of(plan, unit);
  return types.gather && *types.gather != types.parameter;
}

DType type_of(const Plan& plan, std::size_t unit, Role role) {
  const Precision& types = types_of(plan, unit);
  const UnitBuffers& buffers = plan.unit_buffers[unit];
  const auto shares = [&](Role other) { return buffers[role].buffer == buffers[other].buffer; };
  switch (role) {
    case Role::kept: return shares(Role::master) ? types.masters : types.gather.value_or(types.parameter);
    case Role::parameters: return shares(Role::master) ? types.masters : types.parameter;
    case Role::master:
    case Role::master_slot: return types.masters;
    case Role::encoded:
    case Role::host_rounded:
    case Role::resharded: return types.gather.value_or(types.parameter);
    case Role::gradient_slot: return types.gradient;
    case Role::staging: return types.wire;
    case Role::gradient:
    case Role::host_gradient: {
      const bool is_the_slot = buffers[Role::gradient].buffer == buffers[Role::gradient_slot].buffer;
      return is_the_slot ? types.gradient : DType::fp32;
    }
    case Role::direction:
    case Role::whole: return plan.units[unit].whole_type;
    default: return DType::fp32;
  }
}

// A rank may name this of a unit: what is sharded over some axes, of one part, or of both parts all that the buffer
// holds.
struct Share {
  AxisSet over;
  bool both_parts = false;
};

// Between outer steps ranks along these train by themselves, as jobs of the others do.
AxisSet alone(const Plan& plan) { return plan.options.outer_every > 0 ? outer_axes : AxisSet(); }
AxisSet together(const Plan& plan) { return plan.mesh.axes() - alone(plan); }
AxisSet in_common(const Plan& plan, std::size_t unit) { return plan.mesh.axes() - plan.units[unit].apart; }
AxisSet owned(const Plan& plan, std::size_t unit) { return in_common(plan, unit) - alone(plan); }

// Shards in what is sharded so.
std::size_t shards_of(const Plan& plan, std::size_t unit, AxisSet over) {
  return plan.mesh.size(in_common(plan, unit) - over);
}

// Everything, and what each axis more, from the innermost on, leaves of it.
std::vector<AxisSet> ways_to_shard(const Plan& plan, std::size_t unit) {
  std::vector<AxisSet> result = {AxisSet()};
  plan.mesh.inwards_out([&](Axis axis) {
    if (in_common(plan, unit).contains(axis)) result.push_back(result.back() | axis);
  });
  return result;
}

using Strides = decltype(Range::strides);

// Each rank along `axes` has a place of so many bytes; returns the strides along `moving`.
Strides strides_of(const Plan& plan, AxisSet axes, Bytes each, AxisSet moving) {
  Strides strides{};
  for (std::size_t axis = 0; axis < axis_count; ++axis) {
    Coordinates next{};
    next[axis] = 1;
    const bool moves = plan.mesh.group(moving).contains(static_cast<Axis>(axis));
    if (moves) strides[axis] = each * plan.mesh.index_of(axes, next);
  }
  return strides;
}
Strides strides_of(const Plan& plan, AxisSet axes, Bytes each) { return strides_of(plan, axes, each, axes); }

// Whether windows read masters that are sharded over one rank alone, where they stand.
bool are_masters_of_one_rank(const Plan& plan) {
  if (plan.mesh.size(sharding_of(plan.options).parameters & together(plan)) > 1) return false;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const Precision& types = types_of(plan, unit);
    if (types.parameter != types.masters || has_encoded(plan, unit)) return false;
  }
  return true;
}

// Over which axes a unit's values of a role are sharded where they stand. A reduced gradient may be so in several ways.
bool is_placed(const Plan& plan, std::size_t unit, Role role, const Content& content) {
  const Sharding sharding = sharding_of(plan.options);
  const AxisSet own = owned(plan, unit);
  const bool of_one_type = types_of(plan, unit).parameter == types_of(plan, unit).masters && !has_encoded(plan, unit);
  const Resharding& resharding = plan.units[unit].reshard_after_forward.value_or(plan.options.reshard_after_forward);
  switch (role) {
    case Role::master:
    case Role::master_slot: return content.over == ((of_one_type ? sharding.parameters : sharding.optimizer) & own);
    case Role::kept: return content.over == (sharding.parameters & own);
    case Role::parameters:
      return content.over == (are_masters_of_one_rank(plan) ? sharding.parameters & own : AxisSet());
    case Role::resharded: return content.over == (resharding.held & own);
    case Role::state:
    case Role::state_slot:
    case Role::host_gradient:
    case Role::host_rounded:
    case Role::before:
    case Role::direction: return content.over == (sharding.optimizer & own);
    case Role::gradient: {
      const std::vector<AxisSet> ways = ways_to_shard(plan, unit);
      return std::find(ways.begin(), ways.end(), content.over) != ways.end();
    }
    case Role::anchor:
    case Role::outer_momentum:
    case Role::outer_mean: return content.over == in_common(plan, unit);
    default: return content.over.empty();
  }
}

// A content of the unit is of this type, and so many elements share a value.
struct Values {
  DType type;
  std::size_t block = 1;
  bool elementwise = false;
};

// Trained tensors each stand on the unit's alignment, and those that the optimizer sees whole stand first.
std::size_t elements_of(const Plan& plan, std::size_t unit, bool seen_whole) {
  const Precision& types = types_of(plan, unit);
  const std::size_t alignment = std::max(
      {alignment_for(plan.unit_states(unit)), block_of(types.wire), block_of(types.gather.value_or(types.parameter))});
  std::size_t result = 0;
  for (const ParameterSpec& parameter : plan.units[unit].parameters) {
    if (parameter.frozen || parameter.whole.has_value() != seen_whole) continue;
    result += (element_count(parameter.shape) + alignment - 1) / alignment * alignment;
  }
  return result;
}

// A rank has no more of the other tensors than its share, and no more than there are.
Bytes packed_size(const Plan& plan, std::size_t unit, const Content& content) {
  const std::size_t share = plan.layouts[unit].shard_elements(Part::trained) * shards_of(plan, unit, content.over);
  return size_of(content.type) * (std::min(share, elements_of(plan, unit, false)) / content.block);
}

// Slots have room for their largest tenant, other buffers for what they hold.
void check_content(const Plan& plan, std::size_t unit, Role role, const Content& content, const Values& expected,
                   const Report& report) {
  if (!content.exists()) return;
  const Buffer& buffer = plan.buffers[content.buffer];
  const UnitLayout& layout = plan.layouts[unit];
  std::size_t elements = layout.shard_elements(Part::trained);
  if (has_frozen(role)) elements += layout.shard_elements(Part::frozen);
  const std::size_t block = std::max(expected.block, block_of(expected.type));
  const bool is_whole_blocks = elements % block == 0 && layout.shard_elements(Part::trained) % block == 0;
  Bytes size = size_of(content.type) * (elements / block) * shards_of(plan, unit, content.over);
  if (content.begin > 0) size = packed_size(plan, unit, content);
  if (role == Role::saved || role == Role::saved_home) size = plan.units[unit].saved;
  if (role == Role::untrained) size = size_of(content.type) * layout.buffer_elements();
  if (role == Role::widened) {
    const std::size_t shards = shards_of(plan, unit, sharding_of(plan.options).optimizer & owned(plan, unit));
    size = Bytes(4) * std::min(layout.shard_elements(Part::trained) * shards, widened_elements);
  }
  if (role == Role::whole || role == Role::workspace) size = room_of_group(plan, unit, role);
  const bool shared = role == Role::saved && plan.unit_buffers[unit][Role::saved_home].exists();
  const bool fits = is_slot(buffer) || shared ? size <= buffer.size : size == buffer.size;
  const bool waits_on_host =
      role == Role::host_gradient || role == Role::host_rounded || role == Role::before || role == Role::saved_home;
  const MemorySpace space = role == Role::state    ? *plan.units[unit].states_in
                            : role == Role::master ? *plan.units[unit].masters_in
                            : waits_on_host        ? MemorySpace::host
                                                   : MemorySpace::device;
  if (content.space != space || buffer.space != space) {
    report(ViolationKind::layout, {unit, static_cast<std::size_t>(role)}, {no_unit, 1},
           fmt::format("{} of {} in {} is not in the memory of the {}", to_string(role), plan.units[unit].name,
                       buffer.name, to_string(space)));
  }
  const bool is_typed = content.type == expected.type && content.block == expected.block && is_whole_blocks &&
                        content.begin == (expected.elementwise ? elements_of(plan, unit, true) : 0);
  if (fits && is_typed && is_placed(plan, unit, role, content)) return;
  report(ViolationKind::layout, {unit, static_cast<std::size_t>(role)}, {no_unit, 0},
         fmt::format("{} of {} in {} is of another type, placement or size than the options say", to_string(role),
                     plan.units[unit].name, buffer.name));
}

// No block of elements that share something is two parameters'.
void check_begins(const Plan& plan, std::size_t unit, std::size_t block, std::string_view what, const Report& report) {
  const UnitLayout& layout = plan.layouts[unit];
  for (std::size_t parameter = 0; parameter < layout.parameters(); ++parameter) {
    if (layout.offset(parameter) % block == 0) continue;
    report(ViolationKind::layout, {unit, static_cast<std::size_t>(Role::state)}, {no_unit, 1},
           fmt::format("{} of {} does not begin with a block of its {}", plan.units[unit].parameters[parameter].name,
                       plan.units[unit].name, what));
  }
}

// One content for each state of the unit's optimizer, of the type that it says; a block of elements is one rank's.
void check_states(const Plan& plan, std::size_t unit, const Report& report) {
  if (!plan.trains(unit)) return;
  const UnitBuffers& buffers = plan.unit_buffers[unit];
  const std::vector<StateSpec>& specs = plan.unit_states(unit);
  const bool has_slots = !buffers.state_slots.empty();
  if (buffers.states.size() != specs.size() || (has_slots && buffers.state_slots.size() != specs.size())) {
    return report(ViolationKind::layout, {unit, static_cast<std::size_t>(Role::state)}, {no_unit, 0},
                  fmt::format("{} has not the states of its optimizer", plan.units[unit].name));
  }
  for (std::size_t state = 0; state < specs.size(); ++state) {
    const Values expected{specs[state].type, specs[state].block, specs[state].elementwise};
    check_content(plan, unit, Role::state, buffers.states[state], expected, report);
    if (has_slots) check_content(plan, unit, Role::state_slot, buffers.state_slots[state], expected, report);
    check_begins(plan, unit, specs[state].block, fmt::format("state {}", specs[state].name), report);
  }
}

// A unit whose updates may be taken back has a place for each value as it was before.
void check_before(const Plan& plan, std::size_t unit, const Report& report) {
  const std::vector<Content>& before = plan.unit_buffers[unit].before;
  const bool ahead = plan.options.offload.ahead == Ahead::revocable &&
                     plan.units[unit].updates_in == MemorySpace::host && plan.trains(unit);
  const std::size_t expected = ahead ? 1 + plan.unit_states(unit).size() : 0;
  if (before.size() != expected) {
    return report(ViolationKind::layout, {unit, static_cast<std::size_t>(Role::before)}, {no_unit, 0},
                  fmt::format("{} has {} values as they are before a step, not {}", plan.units[unit].name,
                              before.size(), expected));
  }
  for (std::size_t value = 0; value < before.size(); ++value) {
    Values of{type_of(plan, unit, Role::master)};
    if (value > 0) {
      const StateSpec& spec = plan.unit_states(unit)[value - 1];
      of = {spec.type, spec.block, spec.elementwise};
    }
    check_content(plan, unit, Role::before, before[value], of, report);
  }
}

void check_contents(const Plan& plan, const Report& report) {
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const UnitBuffers& buffers = plan.unit_buffers[unit];
    for (std::size_t role = 0; role < role_count; ++role) {
      const Values expected{type_of(plan, unit, static_cast<Role>(role))};
      check_content(plan, unit, static_cast<Role>(role), buffers[static_cast<Role>(role)], expected, report);
    }
    check_states(plan, unit, report);
    check_before(plan, unit, report);
    const std::size_t travelling =
        std::max(block_of(type_of(plan, unit, Role::encoded)), block_of(types_of(plan, unit).wire));
    check_begins(plan, unit, travelling, "type on the wire", report);
    for (const Content& each : buffers.directions) {
      check_content(plan, unit, Role::direction, each, {type_of(plan, unit, Role::direction)}, report);
    }
  }
}

// ---- operands ----

struct Operands {
  OperationKind kind;
  AccessMode mode;
  std::initializer_list<Role> roles;
};

// Whether an operation of this kind has such an operand.
bool is_operand(OperationKind kind, const Access& access) {
  using enum AccessMode;
  using enum Role;
  using K = OperationKind;
  static const Operands all[] = {
      {K::initialize, write, {master, state, anchor, outer_momentum, untrained}},
      {K::initialize_scalars, write, {scalars, norms}},
      {K::cast, read, {master, master_slot, kept, encoded, resharded}},
      {K::cast, write, {kept, parameters, encoded, resharded, host_rounded}},
      {K::all_gather, read, {master, master_slot, kept, parameters, encoded, resharded, state, state_slot}},
      {K::all_gather, write, {master, master_slot, kept, parameters, encoded, resharded, state, state_slot}},
      {K::window, read, {parameters, scalars, collected}},
      {K::window, update, {untrained, gradient_slot, saved}},
      {K::window, write, {collected, saved}},
      {K::collective, read, {collected}},
      {K::collective, write, {collected}},
      {K::prepare_gradient, write, {gradient_slot}},
      {K::accumulate, read, {gradient_slot}},
      {K::accumulate, write, {accumulation}},
      {K::accumulate, update, {accumulation}},
      {K::convert, read, {gradient_slot}},
      {K::convert, write, {staging}},
      {K::reduce_scatter, read, {gradient_slot, staging, accumulation, gradient, master, master_slot}},
      {K::reduce_scatter, write, {gradient, outer_mean}},
      {K::reduce_scatter, update, {gradient}},
      {K::sum_tied, update, {gradient}},
      {K::hook, update, {gradient}},
      {K::hook, read, {scalars}},
      {K::all_gather_sum, read, {gradient}},
      {K::all_gather_sum, write, {gradient}},
      {K::sum_of_squares, read, {gradient}},
      {K::sum_of_squares, write, {norms}},
      {K::weight, write, {norms}},
      {K::gather_norms, read, {norms}},
      {K::gather_norms, write, {norms}},
      {K::begin_update, read, {norms}},
      {K::begin_update, update, {scalars, supposed}},
      {K::optimize, read, {gradient, scalars, host_gradient, host_scalars, supposed}},
      {K::optimize, update, {master, master_slot, state, state_slot}},
      {K::optimize, write, {kept, parameters, direction, widened, host_rounded}},
      {K::keep, read, {master, state}},
      {K::keep, write, {before}},
      {K::settle, read, {host_gradient, host_scalars, supposed, before}},
      {K::settle, update, {master, state, host_rounded}},
      {K::redistribute, read, {direction, whole}},
      {K::redistribute, write, {direction, whole}},
      {K::transform, update, {whole}},
      {K::transform, write, {workspace}},
      {K::apply, read, {direction, scalars}},
      {K::apply, update, {master}},
      {K::apply, write, {kept, parameters, widened}},
      {K::outer_update, read, {outer_mean}},
      {K::outer_update, update, {anchor, outer_momentum}},
      {K::outer_update, write, {master, master_slot}},
      {K::release, discard, {parameters, resharded, gradient_slot, staging, outer_mean, state_slot, master_slot}},
      {K::release, discard, {encoded, direction, whole, saved, before}},
      {K::broadcast, update, {untrained}},
      {K::transfer, read, {master, master_slot, state, state_slot, gradient, scalars, host_rounded}},
      {K::transfer, read, {saved, saved_home}},
      {K::transfer, write, {master, master_slot, state, state_slot, host_gradient, host_scalars, supposed}},
      {K::transfer, write, {kept, parameters, encoded, saved, saved_home}},
  };
  return std::any_of(std::begin(all), std::end(all), [&](const Operands& some) {
    return some.kind == kind && some.mode == access.mode &&
           std::find(some.roles.begin(), some.roles.end(), access.role) != some.roles.end();
  });
}

// Returns what each kind of operation may name of its unit, by access; pairs must fit besides (check_shape).
std::vector<Share> shares_of(const Plan& plan, const Operation& operation, const Access& access) {
  const std::size_t unit = access.tenant;
  const Sharding sharding = sharding_of(plan.options);
  const AxisSet own = owned(plan, unit);
  const Share updated{sharding.optimizer & own};
  const Share shard{in_common(plan, unit)};
  const Role role = access.role;
  std::vector<Share> result;
  switch (operation.kind) {
    case OperationKind::initialize:
      if (role == Role::anchor || role == Role::outer_momentum) return {shard};
      return {role == Role::master ? Share{own} : updated};
    case OperationKind::cast:
      result = {updated, {sharding.parameters & own}};
      if (const Content& resharded = plan.unit_buffers[unit][Role::resharded]; resharded.exists()) {
        result.push_back({resharded.over});
      }
      if (has_encoded(plan, unit)) result.push_back({});
      return result;
    case OperationKind::transfer: return {updated, {own}};
    case OperationKind::redistribute:
    case OperationKind::apply:
    case OperationKind::keep:
    case OperationKind::settle:
    case OperationKind::optimize: return {updated};
    case OperationKind::outer_update: return {shard};
    case OperationKind::all_gather:
    case OperationKind::all_gather_sum:
    case OperationKind::reduce_scatter:
      for (const AxisSet over : ways_to_shard(plan, unit)) result.push_back({over});
      return result;
    case OperationKind::sum_of_squares:
    case OperationKind::sum_tied:
    case OperationKind::hook: return {{own}};
    case OperationKind::release:
      if (role == Role::outer_mean) return {shard};
      if (role == Role::state_slot || role == Role::direction || role == Role::before) return {updated};
      [[fallthrough]];
    case OperationKind::window:
      return {{{}, role == Role::parameters || role == Role::resharded || role == Role::master_slot}};
    default: return {{}};
  }
}

// Where shares of a part stand in what the unit has.
bool is_part(const Plan& plan, const Access& access, AxisSet over, Part part) {
  const std::size_t unit = access.tenant;
  const UnitLayout& layout = plan.layouts[unit];
  const Content& content = plan.content(access);
  const Range& range = access.range;
  const Bytes element = size_of(content.type);
  const std::size_t block = content.block * block_of(content.type);
  const Bytes shard = element * (layout.shard_elements(part) / block);
  const std::size_t before = part == Part::frozen ? layout.shard_elements(Part::trained) / block : 0;
  if (part == Part::frozen && !has_frozen(access.role)) return false;
  return over.contains(content.over) && range.offset == element * before * shards_of(plan, unit, content.over) &&
         range.size == shard * shards_of(plan, unit, over) &&
         range.strides == strides_of(plan, in_common(plan, unit), shard, over - content.over);
}

// ---- collectives in windows ----

AxisSet axes_of(const Plan& plan, const CollectiveSpec& collective) { return together(plan) & *collective.axes; }

// The range is what a rank brings, or what it has of it afterwards: a place for each rank that takes part, its own one,
// of an all-to-all those that came behind those that go, or, of sums of 16 bits, the result with the fp32 sums behind
// it. What is summed for all has places of whole slots.
Range place_of_collected(const Plan& plan, const CollectiveSpec& collective, bool afterwards) {
  using enum CollectiveKind;
  const auto aligned = [](Bytes size) { return Bytes((size.count() + 511) / 512 * 512); };
  const AxisSet axes = axes_of(plan, collective);
  const std::size_t ranks = plan.mesh.size(axes);
  const std::size_t element = !collective.type ? 8 : *collective.type == DType::fp32 ? 4 : 2;
  const bool summed = collective.kind == all_reduce || collective.kind == reduce_scatter;
  const std::size_t buffer = collective.overlaps && summed ? plan.collected_sums : plan.collected;
  Bytes each(element * collective.elements);
  if (collective.kind == all_to_all)
    return fixed_range(buffer, afterwards && ranks > 1 ? aligned(each * ranks) : Bytes(0), each * ranks);
  if (collective.kind == all_reduce && ranks > 1) each = aligned(Bytes((each.count() + ranks - 1) / ranks));
  if (afterwards && summed && element == 2 && ranks > 1) {
    if (collective.kind == all_reduce) return fixed_range(buffer, Bytes(0), each * ranks + each * 2);
    return fixed_range(buffer, aligned(each * ranks), aligned(each) + each * 2);
  }
  if (collective.kind == all_reduce || afterwards != summed) return fixed_range(buffer, Bytes(0), each * ranks);
  return {buffer, Bytes(0), each, strides_of(plan, axes, each)};
}

// A forward window writes what its unit saves, and whoever computes with it later has it to read and write.
bool has_saved(const Plan& plan, const Operation& operation) {
  if (operation.kind != OperationKind::window || operation.window == WindowKind::evaluate) return true;
  if (plan.units[operation.unit].saved == Bytes(0)) return true;
  const bool begins = operation.window == WindowKind::forward && !operation.resumes;
  return std::any_of(operation.accesses.begin(), operation.accesses.end(), [&](const Access& access) {
    return access.role == Role::saved && access.tenant == operation.unit &&
           access.mode == (begins ? AccessMode::write : AccessMode::update);
  });
}

// A window writes what it brings, and reads what came; the collective is one of its unit's that belong to its kind.
bool is_collected(const Plan& plan, const Operation& operation, const Access& access) {
  const UnitSpec& unit = plan.units[access.tenant];
  if (operation.kind != OperationKind::window && operation.kind != OperationKind::collective) return false;
  if (operation.unit != access.tenant) return false;
  const bool moves = operation.kind == OperationKind::collective;
  for (const std::size_t index : collectives_in(unit, operation.window)) {
    if (moves && index != operation.collective) continue;
    const bool afterwards = (access.mode == AccessMode::read) != moves;
    if (is_message(unit.collectives[index].kind)) {
      if (access.range.buffer == plan.messages[access.tenant][index]) return true;  // which is check_messages()'s
      continue;
    }
    if (access.range == place_of_collected(plan, unit.collectives[index], afterwards)) return true;
  }
  return false;
}

// It takes what this rank wrote, and leaves what comes of it.
bool is_whole_collective(const Plan& plan, const Operation& operation) {
  if (operation.kind != OperationKind::collective) return operation.collective == no_collective;
  const std::vector<Access>& accesses = operation.accesses;
  if (operation.collective >= plan.units[operation.unit].collectives.size()) return false;
  if (operation.collective_kind != plan.units[operation.unit].collectives[operation.collective].kind) return false;
  if (is_message(operation.collective_kind)) {
    const bool sends = operation.collective_kind == CollectiveKind::send,
               back = operation.window == WindowKind::backward;
    const StreamId stream =
        sends ? (back ? StreamId::send_back : StreamId::send) : (back ? StreamId::receive_back : StreamId::receive);
    return accesses.size() == 1 && operation.stream == stream &&
           accesses.front().mode == (sends ? AccessMode::read : AccessMode::write) &&
           accesses.front().tenant == operation.unit;
  }
  const bool overlaps = plan.units[operation.unit].collectives[operation.collective].overlaps;
  return accesses.size() == 2 && operation.stream == (overlaps ? StreamId::overlap : StreamId::compute) &&
         accesses.front().mode == AccessMode::read && accesses.back().mode == AccessMode::write &&
         accesses.front().tenant == operation.unit && accesses.back().tenant == operation.unit;
}

// A message's windows, and its sends or receives, take its buffers in turn. It was received before its window, and sent
// behind it, with no more on their way than there are buffers.
void check_messages(const Plan& plan, std::size_t segment, const Report& report) {
  struct Uses {
    std::size_t windows = 0;
    std::size_t messages = 0;
  };
  std::map<std::pair<std::size_t, std::size_t>, Uses> uses;
  const auto& operations = plan.segments[segment].operations;
  for (std::size_t index = 0; index < operations.size(); ++index) {
    const Operation& operation = operations[index];
    const EventPoint here{segment, index};
    const auto check = [&](std::size_t message, bool in_window) {
      const CollectiveSpec& spec = plan.units[operation.unit].collectives[message];
      Uses& so_far = uses[{operation.unit, message}];
      const bool receives = spec.kind == CollectiveKind::receive;
      const std::size_t use = in_window ? so_far.windows++ : so_far.messages++;
      const std::size_t first = receives ? so_far.messages : so_far.windows;
      const std::size_t second = receives ? so_far.windows : so_far.messages;
      const Bytes place((spec.bytes().count() + 511) / 512 * 512 * (use % spec.buffers));
      const Range range = fixed_range(plan.messages[operation.unit][message], place, spec.bytes());
      const AccessMode mode = receives == in_window ? AccessMode::read : AccessMode::write;
      const bool has = std::any_of(operation.accesses.begin(), operation.accesses.end(), [&](const Access& access) {
        return access.range == range && access.mode == mode && access.tenant == operation.unit;
      });
      if (has && first >= second && first <= second + spec.buffers) return;
      report(ViolationKind::layout, here, {segment, message},
             fmt::format("{}: not with the buffer of {} that it has here", describe(plan, here), spec.name));
    };
    if (operation.passes_message()) check(operation.collective, false);
    if (operation.kind != OperationKind::window || operation.resumes) continue;
    for (const std::size_t each : collectives_in(plan.units[operation.unit], operation.window)) {
      if (is_message(plan.units[operation.unit].collectives[each].kind)) check(each, true);
    }
  }
  for (const auto& [message, count] : uses) {
    if (count.windows == count.messages) continue;
    report(ViolationKind::layout, {segment, message.first}, {segment, message.second},
           fmt::format("{} windows have {}, and it is passed {} times", count.windows,
                       plan.units[message.first].collectives[message.second].name, count.messages));
  }
}

// Between two stretches of one window stands a collective, or the end of one that overlaps, and every window has all
// that its unit declares for its kind, in their order; what only a rank alone would do is left out.
void check_collectives(const Plan& plan, std::size_t segment, const Report& report) {
  const auto& operations = plan.segments[segment].operations;
  std::vector<std::size_t> expected;  // of the window that was open last, the next one last
  for (std::size_t index = 0; index < operations.size(); ++index) {
    const Operation& operation = operations[index];
    const EventPoint here{segment, index};
    const auto object = [&](const char* why) {
      report(ViolationKind::layout, here, {segment, index}, fmt::format("{}: {}", describe(plan, here), why));
    };
    if (operation.passes_message() && expected.empty()) continue;
    const auto is_collective = [&](std::size_t before, bool overlapping) {
      if (index < before) return false;
      const Operation& other = operations[index - before];
      return other.kind == OperationKind::collective && !other.passes_message() &&
             (!overlapping || other.stream == StreamId::overlap);
    };
    if (operation.kind == OperationKind::collective) {
      if (is_collective(2, true)) object("begins before the one before it has ended");
      if (expected.empty() || expected.back() != operation.collective ||
          plan.at({segment, index - 1}).unit != operation.unit)
        object("not the collective that its window has here");
      if (!expected.empty()) expected.pop_back();
      const auto has = [&](std::size_t stretch, std::size_t access, AccessMode mode) {
        if (stretch >= operations.size() || access >= operation.accesses.size()) return false;
        const auto& all = operations[stretch].accesses;
        return std::any_of(all.begin(), all.end(), [&](const Access& each) {
          return each.mode == mode && each.range == operation.accesses[access].range;
        });
      };
      const std::size_t read_by = index + (operation.stream == StreamId::overlap ? 2 : 1);
      if (!has(index - 1, 0, AccessMode::write) || !has(read_by, 1, AccessMode::read))
        object("its window does not write what it brings, or does not read what comes of it");
      const auto place = [&](std::size_t at) {
        return operations[at].accesses.empty() ? no_buffer : operations[at].accesses.front().range.buffer;
      };
      const bool beside =
          operation.stream == StreamId::overlap && is_collective(3, true) && place(index - 3) != place(index);
      if (beside && !has(index - 2, 0, AccessMode::write))
        object("its window may write what it brings beside the one before it, and does not say so");
      continue;
    }
    const bool goes_on = is_collective(1, false) || is_collective(2, true);
    if (goes_on && (operation.kind != OperationKind::window || operation.unit != operations[index - 1].unit))
      object("comes between a collective and the rest of its window");
    if (goes_on) continue;
    if (!expected.empty()) object("comes before its window has done its collectives");
    expected.clear();
    if (operation.kind != OperationKind::window || operation.resumes) continue;
    expected = collectives_in(plan.units[operation.unit], operation.window);
    std::erase_if(expected, [&](std::size_t each) {
      const CollectiveSpec& collective = plan.units[operation.unit].collectives[each];
      return is_message(collective.kind) || plan.mesh.size(axes_of(plan, collective)) == 1;
    });
    std::reverse(expected.begin(), expected.end());
  }
  if (!expected.empty())
    report(ViolationKind::layout, {segment, 0}, {segment, 0}, "a window has not done its collectives");
}

bool is_layouts(const Plan& plan, const Operation& operation, const Access& access) {
  const Range& range = access.range;
  if (access.role == Role::collected) return is_collected(plan, operation, access);
  const Content& content = plan.content(access);
  if (content.buffer != range.buffer) return false;
  if (access.role == Role::whole) {
    return range == fixed_range(range.buffer, Bytes(0), room_of_group(plan, access.tenant, Role::whole));
  }
  if (access.role == Role::saved || access.role == Role::saved_home)
    return range == fixed_range(range.buffer, Bytes(0), plan.units[access.tenant].saved);
  if (access.role == Role::untrained || access.role == Role::workspace || access.role == Role::widened) {
    return range == fixed_range(range.buffer, Bytes(0), plan.buffers[range.buffer].size);
  }
  const UnitLayout& layout = plan.layouts[access.tenant];
  if (content.begin > 0) return range == fixed_range(range.buffer, Bytes(0), packed_size(plan, access.tenant, content));
  const std::vector<Share> shares = shares_of(plan, operation, access);
  return std::any_of(shares.begin(), shares.end(), [&](const Share& share) {
    if (share.both_parts) {
      const std::size_t shards = shards_of(plan, access.tenant, content.over);
      const std::size_t blocks = layout.shard_elements() / block_of(content.type);
      return range == fixed_range(range.buffer, Bytes(0), size_of(content.type) * blocks * shards);
    }
    return is_part(plan, access, share.over, Part::trained) || is_part(plan, access, share.over, Part::frozen);
  });
}

// The range may be all scalars, or the loss scale alone. Norms are a row per rank that trains with this one, with a
// cell for each unit, of all roles where they share norms, and one for what the rank brings to the mean; the range may
// be all, my row, my cell of the operation's unit, or what I bring; between roles the cells of mine, or of all; and at
// a cold start those of mine that no unit has, or that another role counts. They are those of the segment's program, or
// at a cold start of any.
bool is_of_program(const Plan& plan, const Operation& operation, const Range& range, std::size_t program) {
  const ProgramBuffers& buffers = plan.program_buffers[program];
  if (range.buffer == buffers.host_scalars || range.buffer == buffers.supposed)
    return range == fixed_range(range.buffer, Bytes(0), scalars_size);
  if (range.buffer == buffers.scalars) {
    return range == fixed_range(buffers.scalars, Bytes(0), scalars_size) ||
           range == fixed_range(buffers.scalars, loss_scale_offset, Bytes(4));
  }
  if (range.buffer != buffers.norms) return false;
  const auto own = static_cast<std::size_t>(std::count(plan.trainers.begin(), plan.trainers.end(), program));
  const bool shared = plan.options.role && plan.options.role_units > 0;
  const std::size_t of_role = shared ? plan.options.role_units : own;
  const std::size_t first = shared ? of_role * *plan.options.role : 0;
  const std::size_t units = shared ? of_role * plan.options.mesh->size(Axis::pipeline) : own;
  const std::size_t granules =
      plan.options.granules > 0 ? plan.programs[program].micro_batches.value_or(plan.options.granules) : 0;
  const std::size_t ranks = plan.mesh.size(together(plan));
  const Bytes cell = granules > 0 ? exact_norm_size : norm_size;
  const Bytes cells = cell * units;
  const Bytes brought = step_part_size + granule_weight_size * ((granules + ranks - 1) / ranks);
  const Bytes row = cells + brought;
  Range mine{buffers.norms, Bytes(0), row, strides_of(plan, together(plan), row)};
  if (operation.kind == OperationKind::weight) {
    mine.offset = cells;
    mine.size = brought;
    return range == mine;
  }
  const bool between_roles = operation.kind == OperationKind::gather_norms && operation.group.contains(Axis::pipeline);
  if (between_roles || operation.kind == OperationKind::initialize_scalars) {
    const Range all = {buffers.norms, Bytes(0), cells, mine.strides};
    for (std::size_t unit = 0; !between_roles && unit < plan.units.size(); ++unit) {
      if (!plan.units[unit].tied || plan.trainers[unit] != program) continue;
      mine.offset = cell * (first + plan.norm_columns[unit]);
      mine.size = cell;
      if (range == mine) return true;
    }
    mine.offset = cell * (between_roles ? first : first + own);
    mine.size = cell * (between_roles ? of_role : of_role - own);
    return shared && (range == mine || (between_roles && range == all));
  }
  if (operation.unit == no_unit) {
    return range == mine || range == fixed_range(buffers.norms, Bytes(0), row * ranks);
  }
  if (plan.trainers[operation.unit] != program) return false;
  mine.offset = cell * (first + plan.norm_columns[operation.unit]);
  mine.size = cell;
  return range == mine;
}

bool is_plans(const Plan& plan, EventPoint here, const Access& access) {
  const std::size_t of = plan.segments[here.segment].program;
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    if (of != no_program && of != program) continue;
    const ProgramBuffers& buffers = plan.program_buffers[program];
    const std::size_t buffer = access.role == Role::scalars        ? buffers.scalars
                               : access.role == Role::host_scalars ? buffers.host_scalars
                               : access.role == Role::supposed     ? buffers.supposed
                                                                   : buffers.norms;
    if (access.range.buffer != buffer) continue;
    if (is_of_program(plan, plan.at(here), access.range, program)) return true;
  }
  return false;
}

bool inside_buffer(const Plan& plan, const Range& range) {
  return hull(plan, range).end <= plan.buffers[range.buffer].size.count();
}

bool moves_shards(const Operation& operation) {
  return operation.kind == OperationKind::all_gather || operation.kind == OperationKind::all_gather_sum ||
         operation.kind == OperationKind::reduce_scatter;
}

// A source and a target for each unit; no unit twice, the operation's own first.
bool is_paired(const Operation& operation) {
  if (!moves_shards(operation)) return true;
  const std::vector<Access>& accesses = operation.accesses;
  if (accesses.empty() || accesses.size() % 2 != 0 || accesses.front().tenant != operation.unit) return false;
  std::set<std::size_t> units;
  for (std::size_t a = 0; a < accesses.size(); a += 2) {
    const AccessMode expected = operation.add ? AccessMode::update : AccessMode::write;
    if (accesses[a].mode != AccessMode::read || accesses[a + 1].mode != expected) return false;
    if (accesses[a].tenant != accesses[a + 1].tenant || !units.insert(accesses[a].tenant).second) return false;
  }
  return true;
}

// Where gradients add up, and what hooks see, is fp32: what windows write in 16 bits is nobody's sum.
bool forms_sums_in_fp32(const Plan& plan, const Operation& operation) {
  const bool adds = operation.kind == OperationKind::accumulate || operation.kind == OperationKind::reduce_scatter ||
                    operation.kind == OperationKind::sum_tied || operation.kind == OperationKind::hook ||
                    operation.kind == OperationKind::all_gather_sum;
  return !adds || std::all_of(operation.accesses.begin(), operation.accesses.end(), [&](const Access& access) {
    if (access.tenant == no_unit || access.mode == AccessMode::read) return true;
    return plan.content(access).type == DType::fp32;
  });
}

// A reduction reads the wire's type, and its sum stands in the unit's gradient; that of masters, in the slot of their
// mean.
bool is_sum(const Plan& plan, const Operation& operation) {
  if (operation.kind != OperationKind::reduce_scatter) return true;
  for (std::size_t move = 0; move < operation.moves(); ++move) {
    const Role from = operation.source(move).role;
    const bool of_masters = from == Role::master || from == Role::master_slot;
    if (plan.content(operation.source(move)).type != operation.wire) return false;
    if (of_masters != (operation.target(move).role == Role::outer_mean)) return false;
  }
  return true;
}

// Gathers are in place: what is mine and what is gathered are of one buffer and one part.
bool is_in_place(const Operation& operation) {
  if (!moves_shards(operation) || operation.kind == OperationKind::reduce_scatter) return true;
  for (std::size_t a = 0; a < operation.accesses.size(); a += 2) {
    const Range& mine = operation.accesses[a].range;
    const Range& whole = operation.accesses[a + 1].range;
    if (mine.buffer != whole.buffer || mine.offset != whole.offset) return false;
    if (operation.accesses[a].role != operation.accesses[a + 1].role) return false;
  }
  return true;
}

std::optional<AxisSet> share_in(const Plan& plan, const Access& access) {
  for (const AxisSet over : ways_to_shard(plan, access.tenant)) {
    for (const Part part : all_parts) {
      if (is_part(plan, access, over, part)) return plan.mesh.group(over);
    }
  }
  return std::nullopt;
}

// One of each pair is sharded over the group's axes more than the other. The norms of all that train together count,
// and one rank's state is for all that have its unit in common.
bool is_of_group(const Plan& plan, const Operation& operation) {
  const auto is_along = [&](AxisSet axes) { return operation.group == plan.mesh.group(axes); };
  if (operation.kind == OperationKind::gather_norms) {
    return is_along(together(plan)) || (plan.shares_norms() && operation.group == AxisSet(Axis::pipeline));
  }
  if (operation.kind == OperationKind::sum_tied) {
    return operation.group == AxisSet(Axis::pipeline) && plan.units[operation.unit].is_of_two_roles();
  }
  if (operation.kind == OperationKind::broadcast) return is_along(in_common(plan, operation.unit));
  if (operation.kind == OperationKind::redistribute) return is_along(owned(plan, operation.unit));
  if (operation.passes_message()) return operation.group.empty();
  if (operation.kind == OperationKind::collective) {
    return is_along(axes_of(plan, plan.units[operation.unit].collectives[operation.collective]));
  }
  if (!moves_shards(operation)) return operation.group.empty();
  const bool sums = operation.kind == OperationKind::reduce_scatter;
  for (std::size_t a = 0; a < operation.accesses.size(); a += 2) {
    const Access& few = operation.accesses[sums ? a + 1 : a];
    const Access& many = operation.accesses[sums ? a : a + 1];
    if (few.range.size == Bytes(0) && many.range.size == Bytes(0)) continue;
    const auto from = share_in(plan, few);
    const auto to = share_in(plan, many);
    if (!from || !to || !from->contains(*to) || !is_along(*from - *to)) return false;
  }
  return true;
}

// Where parameters are rounded on their way to windows, these see what has travelled: a cast makes theirs of it, and
// nothing else does.
bool is_rounded_on_its_way(const Plan& plan, const Operation& operation) {
  const bool casts = operation.kind == OperationKind::cast && !operation.accesses.empty();
  const bool decodes = casts && operation.source().role == Role::encoded;
  if (decodes) return operation.target().role == Role::parameters;
  return std::none_of(operation.accesses.begin(), operation.accesses.end(), [&](const Access& access) {
    const bool writes = access.mode == AccessMode::write || access.mode == AccessMode::update;
    return writes && access.role == Role::parameters && has_encoded(plan, access.tenant);
  });
}

// A cast keeps its place, and what an update rounds on the way stands where its masters do.
bool is_of_one_share(const Plan& plan, const Operation& operation) {
  const auto& accesses = operation.accesses;
  using enum OperationKind;
  const auto kinds = {cast, optimize, apply, keep, OperationKind::settle};
  if (std::find(kinds.begin(), kinds.end(), operation.kind) == kinds.end()) return true;
  if (operation.kind == OperationKind::cast && accesses.size() != 2) return false;
  const auto is_as_the_first = [&](const Access& access) {
    const bool nothing = access.range.size == Bytes(0) && accesses[0].range.size == Bytes(0);
    return nothing || access.role == Role::widened || plan.content(access).begin > 0 ||
           share_in(plan, access) == share_in(plan, accesses[0]);
  };
  return std::all_of(accesses.begin(), accesses.end(),
                     [&](const Access& access) { return access.tenant == no_unit || is_as_the_first(access); });
}

// Each to its own slot or back, on the stream of the direction.
bool is_a_visit(const Plan& plan, const Operation& operation, std::size_t move) {
  const auto space_of = [&](const Access& access) { return plan.buffers[access.range.buffer].space; };
  const bool fetches = operation.stream == StreamId::fetch;
  const Access& from = operation.source(move);
  const Access& to = operation.target(move);
  const Access& home = fetches ? from : to;
  const Access& slot = fetches ? to : from;
  const bool is_state = home.role == Role::state && slot.role == Role::state_slot && home.state == slot.state;
  const bool is_master = home.role == Role::master && slot.role == Role::master_slot;
  return from.mode == AccessMode::read && to.mode == AccessMode::write && from.tenant == operation.unit &&
         to.tenant == operation.unit && (is_state || is_master) && from.range.size == to.range.size &&
         space_of(home) != MemorySpace::device && space_of(slot) == MemorySpace::device;
}

// An update by the host's processors takes a gradient and the step's scalars, and gives parameters; what a unit saves
// goes and comes. Each travels by itself.
bool moves_alone(const Operation& operation) {
  if (operation.accesses.size() != 2) return false;
  const Access &from = operation.source(), &to = operation.target();
  const bool is_one = from.mode == AccessMode::read && to.mode == AccessMode::write && from.tenant == operation.unit &&
                      to.tenant == operation.unit && from.range.size == to.range.size;
  if (is_one && (from.role == Role::saved || to.role == Role::saved)) {
    const bool fetches = operation.stream == StreamId::fetch;
    return (fetches ? from : to).role == Role::saved_home && (fetches ? to : from).role == Role::saved;
  }
  if (operation.stream == StreamId::fetch) {
    const bool is_read = to.role == Role::kept || to.role == Role::parameters || to.role == Role::encoded;
    return is_one && from.role == Role::host_rounded && is_read;
  }
  return is_one && ((from.role == Role::gradient && to.role == Role::host_gradient) ||
                    (from.role == Role::scalars && (to.role == Role::host_scalars || to.role == Role::supposed)));
}

// A transfer moves all states of its unit, each once, or masters; for an update it moves both, of what is trained. Some
// come ahead of it, in the micro-batch that it follows.
bool moves_what_belongs_together(const Plan& plan, SegmentKind segment, const Operation& operation) {
  const UnitBuffers& unit = plan.unit_buffers[operation.unit];
  std::size_t states = 0;
  for (std::size_t move = 0; move < operation.moves(); ++move) {
    const Access& from = operation.source(move);
    const bool is_state = from.role == Role::state || from.role == Role::state_slot;
    if (is_state && from.state != states++) return false;
  }
  const std::size_t masters = operation.moves() - states;
  const bool all_states = states == unit.state_slots.size();
  const bool ends_in_update = segment == SegmentKind::only || segment == SegmentKind::last;
  if (ends_in_update && operation.stream != StreamId::fetch) return false;
  if (ends_in_update || segment == SegmentKind::update)
    return all_states && masters == (unit[Role::master_slot].exists() ? 1u : 0u);
  return states == 0 ? masters > 0 : all_states && masters == 0;
}

// Nothing but transfers touches the host's memory and the disk, what gives them initial values, and what the host's
// processors do there, which touch nothing else.
bool is_in_its_space(const Plan& plan, EventPoint here) {
  const Operation& operation = plan.at(here);
  if (operation.kind == OperationKind::initialize) return true;
  if (operation.kind != OperationKind::transfer) {
    const MemorySpace space = operation.stream == StreamId::host ? MemorySpace::host : MemorySpace::device;
    return std::all_of(operation.accesses.begin(), operation.accesses.end(),
                       [&](const Access& access) { return plan.buffers[access.range.buffer].space == space; });
  }
  if (!is_transferring(operation.stream) || operation.accesses.size() % 2 != 0) return false;
  if (moves_alone(operation)) return true;
  for (std::size_t move = 0; move < operation.moves(); ++move) {
    if (!is_a_visit(plan, operation, move)) return false;
  }
  return moves_what_belongs_together(plan, plan.segments[here.segment].kind, operation);
}

void check_shape(const Plan& plan, EventPoint here, const Report& report) {
  const Operation& operation = plan.at(here);
  const auto object = [&](const char* why) {
    report(ViolationKind::layout, here, here, fmt::format("{}: {}", describe(plan, here), why));
  };
  if (!is_whole_collective(plan, operation)) return object("not a collective of its unit's");
  if (!is_whole_group(plan, operation)) return object("not all that the ranks of its group have of its tensors");
  if (!is_paired(operation)) return object("not a source and a target for each of its units");
  if (!is_sum(plan, operation)) object("not a sum of gradients in the wire's type");
  if (!forms_sums_in_fp32(plan, operation)) object("not a sum in fp32");
  if (!is_in_its_space(plan, here)) object("not between memories as its stream says");
  if (!has_saved(plan, operation)) object("not with what its unit saves");
  if (!is_in_place(operation)) object("not in place");
  if (!is_of_one_share(plan, operation)) object("not of the same elements");
  if (!is_rounded_on_its_way(plan, operation)) object("not by way of what travels");
  if (!is_of_group(plan, operation)) object("not what the ranks of its group hold");
}

// A unit that recomputes has its values again when its backward window opens. The window around both may go on between
// them.
void check_recomputation(const Plan& plan, std::size_t segment, const Report& report) {
  const auto& operations = plan.segments[segment].operations;
  const Operation* last = nullptr;  // of the windows so far, those left out that only went on
  for (std::size_t index = 0; index < operations.size(); ++index) {
    const Operation& operation = operations[index];
    if (operation.kind != OperationKind::window) continue;
    const bool goes_back = operation.window == WindowKind::backward && !operation.resumes;
    const bool is_there = last != nullptr && last->window == WindowKind::recompute && last->unit == operation.unit;
    if (goes_back && plan.units[operation.unit].recompute && !is_there) {
      const EventPoint here{segment, index};
      report(ViolationKind::layout, here, here,
             fmt::format("{}: no recompute window stands right before it", describe(plan, here)));
    }
    if (!operation.resumes || operation.window == WindowKind::recompute) last = &operation;
  }
}

}  // namespace

void verify_layout(const Plan& plan, const Report& report) {
  check_arena(plan, report);
  check_contents(plan, report);
  check_whole_groups(plan, report);
  for (std::size_t segment = 0; segment < plan.segments.size(); ++segment) {
    const auto& operations = plan.segments[segment].operations;
    for (std::size_t index = 0; index < operations.size(); ++index) {
      const EventPoint here{segment, index};
      for (std::size_t a = 0; a < operations[index].accesses.size(); ++a) {
        const Access& access = operations[index].accesses[a];
        const bool is_right =
            access.tenant == no_unit ? is_plans(plan, here, access) : is_layouts(plan, operations[index], access);
        if (is_right && is_operand(operations[index].kind, access) && inside_buffer(plan, access.range)) continue;
        report(ViolationKind::layout, here, {segment, a},
               fmt::format("{}: its range of {} is not the layout's", describe(plan, here),
                           plan.buffers[access.range.buffer].name));
      }
      check_shape(plan, here, report);
    }
    check_recomputation(plan, segment, report);
    check_whole_order(plan, segment, report);
    check_collectives(plan, segment, report);
    check_messages(plan, segment, report);
  }
}

}  // namespace tessera::plan
