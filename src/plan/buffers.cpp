// The buffers of each strategy, and their places: category by category, each region page-aligned.
#include "plan/passes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "plan/buckets.hpp"
#include "plan/collective_memory.hpp"
#include "plan/ranges.hpp"
#include "plan/residency.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/checkpoint_memory.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera::plan {

namespace {

constexpr Part only_trained[] = {Part::trained};

class BufferList {
 public:
  explicit BufferList(Plan& plan) : plan_(plan) {}

  std::size_t add(std::string name, Category category, Bytes size, MemorySpace space = MemorySpace::device) {
    plan_.buffers.push_back({std::move(name), category, space, size, Bytes(0)});
    return plan_.buffers.size() - 1;
  }

  // A buffer of its own for some parts of a unit.
  Content add(std::string name, Category category, std::size_t unit, Content content, std::span<const Part> parts) {
    content.buffer = add(std::move(name), category, bytes_of(unit, content, parts), content.space);
    return content;
  }
  Bytes bytes_of(std::size_t unit, const Content& content, std::span<const Part> parts) const {
    std::size_t elements = 0;
    if (content.begin > 0) return content.size(plan_.packed_elements(unit, content));
    for (const Part part : parts) elements += plan_.layouts[unit].elements(content.over, part);
    return content.size(elements);
  }

  // The slots that units take turns in: each as large as its largest tenant. Units without one have no_slot.
  struct Slots {
    Role role;
    std::string_view prefix;
    Category category;
    std::span<const Part> parts;
  };
  template <typename ContentOf>
  void add_slots(const Slots& slots, const std::vector<std::size_t>& slot_of_unit, const ContentOf& content_of) {
    std::vector<Bytes> sizes;
    for (std::size_t unit = 0; unit < slot_of_unit.size(); ++unit) {
      const std::size_t slot = slot_of_unit[unit];
      if (slot == no_slot) continue;
      if (slot >= sizes.size()) sizes.resize(slot + 1);
      sizes[slot] = std::max(sizes[slot], bytes_of(unit, content_of(unit), slots.parts));
    }
    const std::size_t first = plan_.buffers.size();
    for (std::size_t slot = 0; slot < sizes.size(); ++slot) {
      add(fmt::format("{}{}", slots.prefix, slot), slots.category, sizes[slot]);
    }
    for (std::size_t unit = 0; unit < slot_of_unit.size(); ++unit) {
      if (slot_of_unit[unit] == no_slot) continue;
      UnitBuffers& buffers = plan_.unit_buffers[unit];
      Content& content = slots.role == Role::state_slot  ? buffers.state_slots.emplace_back()
                         : slots.role == Role::direction ? buffers.directions.emplace_back()
                                                         : buffers[slots.role];
      content = content_of(unit);
      content.buffer = first + slot_of_unit[unit];
    }
  }

 private:
  Plan& plan_;
};

// ddp and zero1 keep a whole gradient while micro-batches add up: their sums are formed where they are then reduced in
// place, unless earlier micro-batches' reduced gradients already stand there.
bool accumulates_in_gradient(const Plan& plan, std::size_t unit) {
  const std::size_t program = plan.trainers[unit];
  const bool reduces_once = plan.micro_batches(program) == 1 || plan.accumulation(program) == AccumulationMode::local;
  return sums_stay_whole(plan.options) && reduces_once && accumulates(plan, unit);
}

// Over which axes a reduced gradient is sharded: those of the strategy, but no more than the first of several sums is.
AxisSet placement_of_gradient(const Plan& plan, std::size_t unit) {
  const AxisSet kept = plan.sharding(unit).gradients;
  const std::vector<AxisSet> axes = plan.summed(unit);
  return axes.size() > 1 && kept.contains(axes[0]) ? axes[0] : kept;
}

Category kept_in(MemorySpace space, Category on_device) {
  switch (space) {
    case MemorySpace::device: return on_device;
    case MemorySpace::host: return Category::offloaded;
    case MemorySpace::disk: return Category::on_disk;
  }
  throw InternalError("a space that is none");
}

// Masters, and what is kept of the parameters beside them where it is more, or whole. Masters in the parameters' own
// type are what is kept, although the update writes a part of them only.
void add_parameters(Plan& plan, BufferList& list, std::size_t unit) {
  UnitBuffers& buffers = plan.unit_buffers[unit];
  const Precision& types = plan.precision(unit);
  const AxisSet placement = plan.sharding(unit).parameters;
  const auto add = [&](std::string_view what, AxisSet over, DType of, MemorySpace space = MemorySpace::device) {
    return list.add(fmt::format("{}.{}", plan.units[unit].name, what), kept_in(space, Category::parameters), unit,
                    {.type = of, .over = over, .space = space}, all_parts);
  };
  const AxisSet of_masters = types.reads_masters() ? placement : plan.sharding(unit).optimizer;
  const MemorySpace space = *plan.units[unit].masters_in;
  buffers[Role::master] = add("master", of_masters, types.masters, space);
  // Windows read whole parameters where they stand; what they gather is cast on the way, from masters of the device.
  const bool whole = plan.parameters_stay_whole();
  const bool masters_will_do =
      space == MemorySpace::device && of_masters == placement && (types.reads_masters() || !whole);
  buffers[whole ? Role::parameters : Role::kept] =
      masters_will_do ? buffers[Role::master]
                      : add("parameters", placement, whole ? types.parameter : types.gathered());
}

// Reduced gradients, sums on the rank, and the optimizer's states: of what is trained.
void add_training(Plan& plan, BufferList& list, std::size_t unit) {
  UnitBuffers& buffers = plan.unit_buffers[unit];
  const auto add = [&](std::string_view what, Category category, AxisSet over, DType type = DType::fp32) {
    return list.add(fmt::format("{}.{}", plan.units[unit].name, what), category, unit, {.type = type, .over = over},
                    only_trained);
  };
  const bool in_place = accumulates_in_gradient(plan, unit);
  buffers[Role::gradient] = add("gradient", Category::gradients,
                                in_place ? AxisSet() : placement_of_gradient(plan, unit), sum_type(plan, unit));
  if (in_place) buffers[Role::accumulation] = buffers[Role::gradient];
  if (accumulates(plan, unit) && !in_place) {
    buffers[Role::accumulation] = add("accumulation", Category::accumulation, {});
  }
  for (const StateSpec& state : plan.unit_states(unit)) {
    const Content content{.type = state.type,
                          .over = plan.sharding(unit).optimizer,
                          .space = *plan.units[unit].states_in,
                          .block = state.block,
                          .begin = state.elementwise ? plan.layouts[unit].elementwise_begin() : 0};
    buffers.states.push_back(list.add(fmt::format("{}.{}", plan.units[unit].name, state.name),
                                      kept_in(content.space, Category::optimizer), unit, content, only_trained));
  }
  if (!plan.diverges()) return;
  buffers[Role::anchor] = add("anchor", Category::optimizer, plan.common(unit));
  buffers[Role::outer_momentum] = add("outer momentum", Category::optimizer, plan.common(unit));
}

void add_untrained_state(Plan& plan, BufferList& list, std::size_t unit) {
  const UnitSpec& spec = plan.units[unit];
  if (spec.buffers.empty()) return;
  plan.unit_buffers[unit][Role::untrained].buffer =
      list.add(spec.name + ".buffers", Category::buffers, size_of(DType::fp32) * plan.layouts[unit].buffer_elements());
}

// Adds buffers for what is sharded over fewer axes between windows, of what some pass gathers more than once.
void add_resharded(Plan& plan, BufferList& list, const std::vector<std::size_t>& slots) {
  const std::vector<Gathering> units = gathering(plan);
  std::vector<bool> again(plan.units.size(), false);
  for (const Program& program : plan.programs) {
    for (const auto* windows : {&program.micro_batch, &program.evaluation}) {
      const std::vector<Residency> stays = residency(*windows, slots, units);
      for (std::size_t k = 0; k < stays.size(); ++k) {
        if (stays[k].gather && !stays[k].last_gather) again[(*windows)[k].unit] = true;
      }
    }
  }
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const AxisSet held = plan.held_between_windows(unit);
    if (!again[unit] || held.empty() || held == plan.sharding(unit).parameters) continue;
    plan.unit_buffers[unit][Role::resharded] =
        list.add(plan.units[unit].name + ".resharded", Category::parameter_slots, unit,
                 {.type = plan.precision(unit).gathered(), .over = held}, all_parts);
  }
}

// One for all: parameters are in it from their rounding until windows' type is made of them, one unit after the other.
void add_encoded_slot(Plan& plan, BufferList& list) {
  std::vector<std::size_t> slots(plan.units.size(), no_slot);
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    if (plan.precision(unit).encodes()) slots[unit] = 0;
  }
  list.add_slots({Role::encoded, "encoded", Category::parameter_slots, all_parts}, slots,
                 [&](std::size_t unit) { return Content{.type = plan.precision(unit).gathered()}; });
}

void add_parameter_slots(Plan& plan, BufferList& list) {
  add_encoded_slot(plan, list);
  if (plan.parameters_stay_whole()) return;
  const auto slots = parameter_slots(plan.programs, gathering(plan));
  list.add_slots({Role::parameters, "p", Category::parameter_slots, all_parts}, slots,
                 [&](std::size_t unit) { return Content{.type = plan.precision(unit).parameter}; });
  add_resharded(plan, list, slots);
}

// Gradients that travel from their slots wait there for their bucket's reduction; others leave at once.
std::vector<std::optional<std::size_t>> gradients_taken_after(const Plan& plan) {
  std::vector<std::optional<std::size_t>> result(plan.units.size());
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    const std::vector<WindowUse> windows = trained_windows(plan, program);
    const std::vector<bool> closing = closes(windows);
    std::size_t position = 0;
    for (std::size_t k = 0; k < windows.size(); ++k) {
      if (windows[k].kind != WindowKind::backward || !closing[k]) continue;
      if (converts(plan, windows[k].unit)) result[windows[k].unit] = position;
      ++position;
    }
    for (const Bucket& bucket : reduction_buckets(plan, program)) {
      for (const std::size_t unit : bucket.units) {
        if (!accumulates(plan, unit) && !converts(plan, unit)) result[unit] = bucket.closes;
      }
    }
  }
  return result;
}

// Slots that nobody is left in go, and the others close up.
template <typename Leaves>
void leave_out(std::vector<std::size_t>& slots, const Leaves& leaves) {
  std::vector<std::size_t> left;
  for (std::size_t unit = 0; unit < slots.size(); ++unit) {
    if (leaves(unit)) slots[unit] = no_slot;
    if (slots[unit] != no_slot) left.push_back(slots[unit]);
  }
  std::sort(left.begin(), left.end());
  left.erase(std::unique(left.begin(), left.end()), left.end());
  for (std::size_t& slot : slots) {
    if (slot == no_slot) continue;
    slot = static_cast<std::size_t>(std::lower_bound(left.begin(), left.end(), slot) - left.begin());
  }
}

void add_gradient_slots(Plan& plan, BufferList& list) {
  const std::size_t units = plan.units.size();
  std::vector<std::vector<WindowUse>> micro_batches;
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    micro_batches.push_back(trained_windows(plan, program));
  }
  auto slots = gradient_slots(micro_batches, gradients_taken_after(plan), plan.options.overlap_reduction);
  slots.resize(units, no_slot);
  leave_out(slots, [&](std::size_t unit) { return is_written_in_place(plan, unit); });
  list.add_slots({Role::gradient_slot, "g", Category::gradient_slots, only_trained}, slots,
                 [&](std::size_t unit) { return Content{.type = plan.precision(unit).gradient}; });
  for (std::size_t unit = 0; unit < units; ++unit) {
    UnitBuffers& of = plan.unit_buffers[unit];
    if (!is_written_in_place(plan, unit)) continue;
    of[Role::gradient_slot] = {of[Role::gradient].buffer, plan.precision(unit).gradient};
  }
}

// Only one bucket at a time travels: the largest units of all buckets share a buffer, the second largest, and so on.
void add_staging(Plan& plan, BufferList& list) {
  std::vector<Bytes> sizes;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    sizes.push_back(list.bytes_of(unit, {.type = plan.precision(unit).wire}, only_trained));
  }
  std::vector<std::size_t> slots(plan.units.size(), no_slot);
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    for (const Bucket& bucket : reduction_buckets(plan, program)) {
      if (!converts(plan, bucket.units.front())) continue;
      std::vector<std::size_t> by_size = bucket.units;
      std::stable_sort(by_size.begin(), by_size.end(),
                       [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
      for (std::size_t place = 0; place < by_size.size(); ++place) slots[by_size[place]] = place;
    }
  }
  list.add_slots({Role::staging, "staging", Category::staging, only_trained}, slots,
                 [&](std::size_t unit) { return Content{.type = plan.precision(unit).wire}; });
}

// Gradients and parameters travel where the host's processors update: each unit has places, because all gradients are
// there before the first update, and all parameters before the last has come back.
void add_host_updates(Plan& plan, BufferList& list) {
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    if (plan.units[unit].updates_in != MemorySpace::host) continue;
    UnitBuffers& buffers = plan.unit_buffers[unit];
    const auto add = [&](std::string_view what, DType type, std::span<const Part> parts) {
      return list.add(fmt::format("{}.{}", plan.units[unit].name, what), Category::offloaded, unit,
                      {.type = type, .over = plan.sharding(unit).optimizer, .space = MemorySpace::host}, parts);
    };
    buffers[Role::host_rounded] = add("rounded on the host", plan.precision(unit).gathered(), all_parts);
    if (!plan.trains(unit)) continue;
    buffers[Role::host_gradient] = add("gradient of the host", buffers[Role::gradient].type, only_trained);
    ProgramBuffers& program = plan.program_buffers[plan.trainers[unit]];
    const auto add_scalars = [&](std::size_t& scalars, const char* name) {
      if (scalars == no_buffer) scalars = list.add(name, Category::offloaded, scalars_size, MemorySpace::host);
    };
    add_scalars(program.host_scalars, "scalars of the host");
    if (plan.options.offload.ahead == Ahead::no) continue;
    add_scalars(program.supposed, "supposed scalars");
    if (plan.options.offload.ahead == Ahead::final) continue;
    buffers.before = {add("master before", buffers[Role::master].type, only_trained)};
    for (std::size_t state = 0; state < buffers.states.size(); ++state) {
      Content content = buffers.states[state];
      content.buffer = no_buffer;
      buffers.before.push_back(
          list.add(fmt::format("{}.{} before", plan.units[unit].name, plan.unit_states(unit)[state].name),
                   Category::offloaded, unit, content, only_trained));
    }
  }
}

// Two, so that a unit's mean is formed while the one before is used.
void add_outer_means(Plan& plan, BufferList& list) {
  if (!plan.diverges()) return;
  std::vector<std::size_t> slots(plan.units.size(), no_slot);
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    if (plan.trains(unit)) slots[unit] = plan.norm_columns[unit] % 2;
  }
  list.add_slots({Role::outer_mean, "mean", Category::staging, only_trained}, slots,
                 [&](std::size_t unit) { return Content{.over = plan.common(unit)}; });
}

// Values that the host's processors update come to the device only where ranks tell each other their shards, or average
// them.
bool visits_device(const Plan& plan, std::size_t unit) {
  if (plan.units[unit].updates_in == MemorySpace::device || plan.diverges()) return true;
  return !plan.mesh.group(plan.own(unit) - plan.sharding(unit).optimizer).empty();
}

// Slots for the masters and for each state.
void add_update_slots(Plan& plan, BufferList& list) {
  const auto brings_masters = [&](std::size_t unit) {
    return plan.units[unit].masters_in != MemorySpace::device && visits_device(plan, unit);
  };
  const auto brings_states = [&](std::size_t unit) {
    return plan.trains(unit) && plan.units[unit].states_in != MemorySpace::device && visits_device(plan, unit);
  };
  std::vector<std::size_t> slots(plan.units.size(), no_slot);
  const auto take_turns = [&](const std::vector<std::size_t>& units) {
    std::size_t so_far = 0;
    for (const std::size_t unit : units) {
      if (brings_masters(unit) || brings_states(unit)) slots[unit] = so_far++ % update_slots;
    }
  };
  for (std::size_t program = 0; program < plan.programs.size(); ++program) take_turns(updated_units(plan, program));
  take_turns(updated_units(plan, no_program));
  const auto add = [&](const BufferList::Slots& of, const auto& has, const auto& content_of) {
    std::vector<std::size_t> taken = slots;
    for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
      if (!has(unit)) taken[unit] = no_slot;
    }
    list.add_slots(of, taken, [&](std::size_t unit) {
      Content content = content_of(unit);
      content.space = MemorySpace::device;
      return content;
    });
  };
  add({Role::master_slot, "master.", Category::staging, all_parts}, brings_masters,
      [&](std::size_t unit) { return plan.unit_buffers[unit][Role::master]; });
  std::size_t most_states = 0;
  for (const UnitBuffers& unit : plan.unit_buffers) most_states = std::max(most_states, unit.states.size());
  for (std::size_t state = 0; state < most_states; ++state) {
    const std::string prefix = fmt::format("state{}.", state);
    add(
        {Role::state_slot, prefix, Category::staging, only_trained},
        [&](std::size_t unit) { return brings_states(unit) && state < plan.unit_buffers[unit].states.size(); },
        [&](std::size_t unit) { return plan.unit_buffers[unit].states[state]; });
  }
}

// One stretch at a time, so that all units share it.
void add_widened(Plan& plan, BufferList& list) {
  std::size_t most = 0;
  const auto widens = [&](std::size_t unit) {
    return plan.trains(unit) && plan.unit_buffers[unit][Role::master].type != DType::fp32;
  };
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    if (widens(unit)) most = std::max(most, plan.layouts[unit].elements(plan.sharding(unit).optimizer, Part::trained));
  }
  if (most == 0) return;
  const Bytes size = size_of(DType::fp32) * std::min(most, widened_elements);
  const std::size_t buffer = list.add("widened", Category::staging, size);
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    if (widens(unit)) plan.unit_buffers[unit][Role::widened].buffer = buffer;
  }
}

// Two sets for groups that take turns, so that one's tensors travel while another's are worked on. In a set the units
// of a group have a slot each, and ranks room for the tensors that they own; only one rank's work runs at a time.
void add_whole(Plan& plan, BufferList& list) {
  constexpr std::size_t sets = 2;
  std::vector<std::size_t> slots(plan.units.size(), no_slot);
  std::size_t most_units = 0, most_planes = 0;
  for (const WholeGroup& group : plan.whole_groups) most_units = std::max(most_units, group.units.size());
  Bytes sizes[sets], workspace;
  for (std::size_t index = 0; index < plan.whole_groups.size(); ++index) {
    const WholeGroup& group = plan.whole_groups[index];
    sizes[index % sets] = std::max(sizes[index % sets], group.size);
    for (std::size_t place = 0; place < group.units.size(); ++place) {
      slots[group.units[place]] = index % sets * most_units + place;
      most_planes = std::max(most_planes, plan.units[group.units[place]].whole_planes);
    }
    for (const WholeTensor& tensor : group.tensors) {
      workspace = std::max(workspace, plan.units[tensor.unit].parameters[tensor.parameter].whole->workspace);
    }
  }
  leave_out(slots, [](std::size_t) { return false; });
  for (std::size_t plane = 0; plane < most_planes; ++plane) {
    std::vector<std::size_t> of_plane = slots;
    leave_out(of_plane, [&](std::size_t unit) { return plane >= plan.units[unit].whole_planes; });
    list.add_slots({Role::direction, fmt::format("direction{}.", plane), Category::staging, only_trained}, of_plane,
                   [&](std::size_t unit) {
                     return Content{.type = plan.units[unit].whole_type, .over = plan.sharding(unit).optimizer};
                   });
  }
  std::size_t whole[sets] = {no_buffer, no_buffer}, scratch = no_buffer;
  for (std::size_t set = 0; set < sets; ++set) {
    if (sizes[set] > Bytes(0)) whole[set] = list.add(fmt::format("whole{}", set), Category::staging, sizes[set]);
  }
  if (workspace > Bytes(0)) scratch = list.add("workspace", Category::staging, workspace);
  for (std::size_t index = 0; index < plan.whole_groups.size(); ++index) {
    const std::size_t first = plan.whole_groups[index].units.front();
    plan.unit_buffers[first][Role::whole] = {.buffer = whole[index % sets], .type = plan.units[first].whole_type};
    plan.unit_buffers[first][Role::workspace].buffer = scratch;
  }
}

// Units whose values stand in the host's memory between their windows take turns in slots.
void add_saved(Plan& plan, BufferList& list) {
  std::vector<Bytes> sizes(saved_slots);
  std::vector<std::size_t> moved;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const UnitSpec& spec = plan.units[unit];
    if (spec.saved == Bytes(0)) continue;
    if (spec.saved_in == MemorySpace::device) {
      plan.unit_buffers[unit][Role::saved].buffer = list.add(spec.name + ".saved", Category::activations, spec.saved);
      continue;
    }
    plan.unit_buffers[unit][Role::saved_home] = {
        .buffer = list.add(spec.name + ".saved", Category::offloaded, spec.saved, MemorySpace::host),
        .space = MemorySpace::host};
    Bytes& size = sizes[moved.size() % saved_slots];
    size = std::max(size, spec.saved);
    moved.push_back(unit);
  }
  const std::size_t first = plan.buffers.size();
  for (std::size_t slot = 0; slot < std::min(moved.size(), saved_slots); ++slot)
    list.add(fmt::format("saved{}", slot), Category::activations, sizes[slot]);
  for (std::size_t i = 0; i < moved.size(); ++i)
    plan.unit_buffers[moved[i]][Role::saved].buffer = first + i % saved_slots;
}

void add_programs(Plan& plan, BufferList& list) {
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    const std::string prefix = plan.programs.size() == 1 ? "" : plan.programs[program].name + ".";
    ProgramBuffers& buffers = plan.program_buffers.emplace_back();
    buffers.scalars = list.add(prefix + "scalars", Category::scalars, scalars_size);
    buffers.norms = list.add(prefix + "norms", Category::scalars, norm_row(plan, program) * plan.training_ranks());
  }
}

// One collective of a window runs at a time. Returns whether there are any.
bool add_window_collectives(Plan& plan, BufferList& list) {
  Bytes most, most_summed;
  for (const UnitSpec& unit : plan.units) {
    for (const CollectiveSpec& each : unit.collectives) {
      if (is_message(each.kind)) continue;
      const Range after = received(plan, each);
      Bytes& here = each.overlaps && sums(each.kind) ? most_summed : most;
      here = std::max({here, collected(plan, each).size, after.offset + after.size});
    }
  }
  if (most > Bytes(0)) plan.collected = list.add("collected", Category::collectives, most);
  if (most_summed > Bytes(0)) plan.collected_sums = list.add("collected sums", Category::collectives, most_summed);
  return most + most_summed > Bytes(0);
}

// Returns whether there are any.
bool add_messages(Plan& plan, BufferList& list) {
  bool any = false;
  for (const UnitSpec& unit : plan.units) {
    std::vector<std::size_t>& buffers = plan.messages.emplace_back(unit.collectives.size(), no_buffer);
    for (std::size_t index = 0; index < buffers.size(); ++index) {
      const CollectiveSpec& each = unit.collectives[index];
      if (!is_message(each.kind)) continue;
      any = true;
      buffers[index] =
          list.add(each.name, Category::activations, round_up(each.bytes(), buffer_alignment) * each.buffers);
    }
  }
  return any;
}

void add_collectives(Plan& plan, BufferList& list) {
  const bool collects = add_window_collectives(plan, list), passes_messages = add_messages(plan, list);
  if (plan.options.collective_staging == CollectiveStaging::none) return;
  plan.gather_staging = list.add("gather staging", Category::collectives, gather_staging(plan.options.ranks));
  plan.reduce_staging = list.add("reduce staging", Category::collectives, reduce_staging(plan));
  if (!collects && !passes_messages) return;
  plan.window_staging = list.add("window staging", Category::collectives, window_staging(plan));
}

void add_disk_staging(Plan& plan, BufferList& list) {
  const bool has_any = std::any_of(plan.buffers.begin(), plan.buffers.end(),
                                   [](const Buffer& buffer) { return buffer.space == MemorySpace::disk; });
  if (!has_any || !plan.options.disk_staging) return;
  plan.fetch_staging = list.add("fetch staging", Category::offloaded, disk_staging, MemorySpace::host);
  plan.evict_staging = list.add("evict staging", Category::offloaded, disk_staging, MemorySpace::host);
}

void add_checkpoints(Plan& plan, BufferList& list) {
  if (plan.options.checkpointing == Checkpointing::none) return;
  plan.checkpoint_staging = list.add("checkpoint staging", Category::checkpoints,
                                     checkpoint_staging(plan.job_ranks()).size(), MemorySpace::host);
  if (plan.options.checkpointing != Checkpointing::background) return;
  plan.checkpoint_copy = list.add("checkpoint copy", Category::checkpoints, checkpoint_copy(plan), MemorySpace::host);
}

// ---- places ----

// Memory that is read at two places exactly a large power of two apart may come from the same bank, one row after the
// other (AdamW on a Zen 4, its buffers 256 MiB apart: 17.5 instead of 53 GB/s). So the large buffers of a unit, which
// its optimizer reads side by side, keep away from each other's multiples of `stagger_period`, by pages that change the
// bits below it. What is smaller stands in a cache.
constexpr Bytes stagger_period{std::uint64_t{8} << 20};
constexpr Bytes stagger = region_alignment * 3;

// Values that move between the disk and a slot without a copy begin on a page in both.
class Placement {
 public:
  explicit Placement(Plan& plan)
      : plan_(plan),
        mates_(plan.buffers.size()),
        is_placed_(plan.buffers.size()),
        alignment_(plan.buffers.size(), buffer_alignment) {
    for (const UnitBuffers& of : plan.unit_buffers) {
      for (std::size_t state = 0; state < of.state_slots.size(); ++state) {
        align_for_disk(of.states[state], of.state_slots[state]);
      }
      if (of[Role::master_slot].exists()) align_for_disk(of[Role::master], of[Role::master_slot]);
      std::vector<std::size_t> mates;
      for (const Content& state : of.states) mates.push_back(state.buffer);
      for (const Role role : {Role::master, Role::gradient, Role::anchor, Role::outer_momentum}) {
        if (of[role].exists()) mates.push_back(of[role].buffer);
      }
      for (const std::size_t mate : mates) mates_[mate] = mates;
    }
  }

  void place(std::size_t index, Bytes from) {
    Buffer& buffer = plan_.buffers[index];
    buffer.offset = round_up(from, alignment_[index]);
    while (meets_a_mate(index)) buffer.offset += stagger;
    is_placed_[index] = true;
  }

 private:
  void align_for_disk(const Content& home, const Content& slot) {
    if (home.space != MemorySpace::disk) return;
    for (const Content& each : {home, slot}) alignment_[each.buffer] = region_alignment;
  }

  bool meets_a_mate(std::size_t index) const {
    const Buffer& buffer = plan_.buffers[index];
    if (buffer.size < stagger_period) return false;
    return std::any_of(mates_[index].begin(), mates_[index].end(), [&](std::size_t mate) {
      if (!is_placed_[mate]) return false;
      const std::uint64_t apart = (buffer.offset - plan_.buffers[mate].offset).count() % stagger_period.count();
      return std::min(apart, stagger_period.count() - apart) < stagger.count();
    });
  }

  Plan& plan_;
  std::vector<std::vector<std::size_t>> mates_;  // by buffer
  std::vector<bool> is_placed_;
  std::vector<Bytes> alignment_;
};

void place(Plan& plan) {
  Placement placement(plan);
  Bytes end;
  for (std::size_t category = 0; category < category_count; ++category) {
    end = round_up(end, region_alignment);
    for (std::size_t index = 0; index < plan.buffers.size(); ++index) {
      if (plan.buffers[index].category != static_cast<Category>(category)) continue;
      placement.place(index, end);
      end = plan.buffers[index].offset + plan.buffers[index].size;
    }
  }
}

}  // namespace

void make_buffers(Plan& plan) {
  BufferList list(plan);
  const std::size_t units = plan.units.size();
  plan.unit_buffers.resize(units);
  for (std::size_t unit = 0; unit < units; ++unit) {
    add_parameters(plan, list, unit);
    if (plan.trains(unit)) add_training(plan, list, unit);
    add_untrained_state(plan, list, unit);
  }
  add_parameter_slots(plan, list);
  add_gradient_slots(plan, list);
  add_staging(plan, list);
  add_outer_means(plan, list);
  add_update_slots(plan, list);
  add_widened(plan, list);
  add_whole(plan, list);
  add_programs(plan, list);
  add_host_updates(plan, list);
  add_saved(plan, list);
  if (plan.options.activations > Bytes(0)) {
    plan.activations = list.add("activations", Category::activations, plan.options.activations);
  }
  add_collectives(plan, list);
  add_disk_staging(plan, list);
  add_checkpoints(plan, list);
  place(plan);
}

}  // namespace tessera::plan
