// The buffers of each strategy, and their places: category by category, each region page-aligned.
#include "plan/passes.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "plan/buckets.hpp"
#include "plan/collective_memory.hpp"
#include "plan/ranges.hpp"
#include "plan/residency.hpp"
#include "tessera/plan/checkpoint_memory.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera::plan {

namespace {

class BufferList {
 public:
  explicit BufferList(Plan& plan) : plan_(plan) {}

  std::size_t add(std::string name, Category category, Bytes size) {
    const MemorySpace space = category == Category::checkpoints ? MemorySpace::host : MemorySpace::device;
    plan_.buffers.push_back({std::move(name), category, space, size, Bytes(0)});
    return plan_.buffers.size() - 1;
  }

  // The slots that units take turns in: each as large as its largest tenant. Units without one have no_slot.
  std::vector<std::size_t> add_slots(std::string_view prefix, Category category,
                                     const std::vector<std::size_t>& slot_of_unit,
                                     const std::vector<Bytes>& size_of_unit) {
    std::vector<Bytes> sizes;
    for (std::size_t unit = 0; unit < slot_of_unit.size(); ++unit) {
      const std::size_t slot = slot_of_unit[unit];
      if (slot == no_slot) continue;
      if (slot >= sizes.size()) sizes.resize(slot + 1);
      sizes[slot] = std::max(sizes[slot], size_of_unit[unit]);
    }
    std::vector<std::size_t> buffers;
    for (std::size_t slot = 0; slot < sizes.size(); ++slot) {
      buffers.push_back(add(fmt::format("{}{}", prefix, slot), category, sizes[slot]));
    }
    std::vector<std::size_t> of_unit;
    for (const std::size_t slot : slot_of_unit) of_unit.push_back(slot == no_slot ? no_buffer : buffers[slot]);
    return of_unit;
  }

  // Of both parts, and of what is trained.
  Bytes of_parameters(std::size_t unit, AxisSet over, DType type) const {
    const UnitLayout& layout = plan_.layouts[unit];
    return size_of(type) * (layout.elements(over, Part::trained) + layout.elements(over, Part::frozen));
  }
  Bytes of_gradient(std::size_t unit, AxisSet over, DType type) const {
    return size_of(type) * plan_.layouts[unit].elements(over, Part::trained);
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

// Masters, and what is kept of the parameters beside them where it is more, or whole. Masters in the parameters' own
// type are what is kept, although the update writes a part of them only.
void add_parameters(Plan& plan, BufferList& list, std::size_t unit) {
  const std::string& name = plan.units[unit].name;
  UnitBuffers& buffers = plan.unit_buffers[unit];
  const DType type = plan.precision(unit).parameter;
  const AxisSet placement = plan.sharding(unit).parameters;
  const auto add = [&](std::string_view what, AxisSet over, DType of) {
    return list.add(fmt::format("{}.{}", name, what), Category::parameters, list.of_parameters(unit, over, of));
  };
  const AxisSet of_masters = type == DType::fp32 ? placement : plan.sharding(unit).optimizer;
  buffers.master = add("master", of_masters, DType::fp32);
  // Windows read whole parameters where they stand; what they gather is cast on the way.
  const bool masters_will_do = of_masters == placement && (type == DType::fp32 || !plan.parameters_stay_whole());
  const std::size_t kept = masters_will_do ? buffers.master : add("parameters", placement, type);
  (plan.parameters_stay_whole() ? buffers.parameters : buffers.kept) = kept;
}

// Reduced gradients, sums on the rank, and the optimizer's states: of what is trained.
void add_training(Plan& plan, BufferList& list, std::size_t unit) {
  const std::string& name = plan.units[unit].name;
  UnitBuffers& buffers = plan.unit_buffers[unit];
  const auto add = [&](std::string_view what, Category category, AxisSet over, DType type = DType::fp32) {
    return list.add(fmt::format("{}.{}", name, what), category, list.of_gradient(unit, over, type));
  };
  const bool in_place = accumulates_in_gradient(plan, unit);
  buffers.gradient = plan.buffers.size();  // the next one
  if (in_place) buffers.accumulation = buffers.gradient;
  add("gradient", Category::gradients, plan.placement(unit, buffers.gradient), sum_type(plan, unit));
  if (accumulates(plan, unit) && !in_place) {
    buffers.accumulation = add("accumulation", Category::accumulation, {});
  }
  for (const std::string& state : plan.unit_states(unit)) {
    buffers.states.push_back(add(state, Category::optimizer, plan.sharding(unit).optimizer));
  }
  if (!plan.diverges()) return;
  buffers.anchor = add("anchor", Category::optimizer, plan.common(unit));
  buffers.outer_momentum = add("outer momentum", Category::optimizer, plan.common(unit));
}

void add_untrained_state(Plan& plan, BufferList& list, std::size_t unit) {
  const UnitSpec& spec = plan.units[unit];
  if (spec.buffers.empty()) return;
  plan.unit_buffers[unit].untrained =
      list.add(spec.name + ".buffers", Category::buffers, size_of(DType::fp32) * plan.layouts[unit].buffer_elements());
}

// What is sharded over fewer axes between windows, of what some pass gathers more than once.
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
    plan.unit_buffers[unit].resharded = list.add(plan.units[unit].name + ".resharded", Category::parameter_slots,
                                                 list.of_parameters(unit, held, plan.precision(unit).parameter));
  }
}

void add_parameter_slots(Plan& plan, BufferList& list) {
  if (plan.parameters_stay_whole()) return;
  std::vector<Bytes> sizes;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    sizes.push_back(list.of_parameters(unit, {}, plan.precision(unit).parameter));
  }
  const auto slots = parameter_slots(plan.programs, gathering(plan));
  const auto buffers = list.add_slots("p", Category::parameter_slots, slots, sizes);
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) plan.unit_buffers[unit].parameters = buffers[unit];
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
  std::vector<Bytes> sizes;
  for (std::size_t unit = 0; unit < units; ++unit) {
    sizes.push_back(list.of_gradient(unit, {}, plan.precision(unit).gradient));
  }
  std::vector<std::vector<WindowUse>> micro_batches;
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    micro_batches.push_back(trained_windows(plan, program));
  }
  auto slots = gradient_slots(micro_batches, gradients_taken_after(plan), plan.options.overlap_reduction);
  slots.resize(units, no_slot);
  leave_out(slots, [&](std::size_t unit) { return is_written_in_place(plan, unit); });
  const auto buffers = list.add_slots("g", Category::gradient_slots, slots, sizes);
  for (std::size_t unit = 0; unit < units; ++unit) {
    UnitBuffers& of = plan.unit_buffers[unit];
    of.gradient_slot = is_written_in_place(plan, unit) ? of.gradient : buffers[unit];
  }
}

// Only one bucket at a time travels: the largest units of all buckets share a buffer, the second largest, and so on.
void add_staging(Plan& plan, BufferList& list) {
  std::vector<Bytes> sizes;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    sizes.push_back(list.of_gradient(unit, {}, plan.precision(unit).wire));
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
  const auto buffers = list.add_slots("staging", Category::staging, slots, sizes);
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) plan.unit_buffers[unit].staging = buffers[unit];
}

// Two, so that a unit's mean is formed while the one before is used.
void add_outer_means(Plan& plan, BufferList& list) {
  if (!plan.diverges()) return;
  std::vector<std::size_t> slots(plan.units.size(), no_slot);
  std::vector<Bytes> sizes;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    sizes.push_back(list.of_gradient(unit, plan.common(unit), DType::fp32));
    if (plan.trains(unit)) slots[unit] = plan.norm_columns[unit] % 2;
  }
  const auto buffers = list.add_slots("mean", Category::staging, slots, sizes);
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) plan.unit_buffers[unit].outer_mean = buffers[unit];
}

void add_programs(Plan& plan, BufferList& list) {
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    const std::string prefix = plan.programs.size() == 1 ? "" : plan.programs[program].name + ".";
    ProgramBuffers& buffers = plan.program_buffers.emplace_back();
    buffers.scalars = list.add(prefix + "scalars", Category::scalars, scalars_size);
    buffers.norms = list.add(prefix + "norms", Category::scalars, norm_row(plan, program) * plan.training_ranks());
  }
}

// One exchange at a time runs.
void add_exchanges(Plan& plan, BufferList& list) {
  Bytes most;
  for (const UnitSpec& unit : plan.units) {
    for (const ExchangeSpec& exchange : unit.exchanges) most = std::max(most, all_exchanged(plan, exchange).size);
  }
  if (most > Bytes(0)) plan.exchanged = list.add("exchanged", Category::collectives, most);
}

void add_collectives(Plan& plan, BufferList& list) {
  add_exchanges(plan, list);
  if (plan.options.collective_staging == CollectiveStaging::none) return;
  plan.gather_staging = list.add("gather staging", Category::collectives, gather_staging(plan.options.ranks));
  plan.reduce_staging = list.add("reduce staging", Category::collectives, reduce_staging(plan));
  if (plan.exchanged == no_buffer) return;
  plan.exchange_staging = list.add("exchange staging", Category::collectives, gather_staging(plan.options.ranks));
}

void add_checkpoints(Plan& plan, BufferList& list) {
  if (plan.options.checkpointing == Checkpointing::none) return;
  plan.checkpoint_staging =
      list.add("checkpoint staging", Category::checkpoints, checkpoint_staging(plan.options.ranks).size());
  if (plan.options.checkpointing != Checkpointing::background) return;
  plan.checkpoint_copy = list.add("checkpoint copy", Category::checkpoints, checkpoint_copy(plan));
}

// ---- places ----

// Memory that is read at two places exactly a large power of two apart may come from the same bank, one row after the
// other (AdamW on a Zen 4, its buffers 256 MiB apart: 17.5 instead of 53 GB/s). So the large buffers of a unit, which
// its optimizer reads side by side, keep away from each other's multiples of `stagger_period`, by pages that change the
// bits below it. What is smaller stands in a cache.
constexpr Bytes stagger_period{std::uint64_t{8} << 20};
constexpr Bytes stagger = region_alignment * 3;

class Placement {
 public:
  explicit Placement(Plan& plan) : plan_(plan), mates_(plan.buffers.size()), is_placed_(plan.buffers.size()) {
    for (const UnitBuffers& of : plan.unit_buffers) {
      std::vector<std::size_t> mates = of.states;
      mates.insert(mates.end(), {of.master, of.gradient, of.anchor, of.outer_momentum});
      std::erase(mates, no_buffer);
      for (const std::size_t mate : mates) mates_[mate] = mates;
    }
  }

  void place(std::size_t index, Bytes from) {
    Buffer& buffer = plan_.buffers[index];
    buffer.offset = round_up(from, buffer_alignment);
    while (meets_a_mate(index)) buffer.offset += stagger;
    is_placed_[index] = true;
  }

 private:
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
  add_programs(plan, list);
  if (plan.options.activations > Bytes(0)) {
    plan.activations = list.add("activations", Category::activations, plan.options.activations);
  }
  add_collectives(plan, list);
  add_checkpoints(plan, list);
  place(plan);
}

}  // namespace tessera::plan
