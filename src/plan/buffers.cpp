// The buffers of each strategy, and their places: category by category, each region page-aligned.
#include "plan/buffers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "plan/residency.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera::plan {

namespace {

class BufferList {
 public:
  explicit BufferList(Plan& plan) : plan_(plan) {}

  std::size_t add(std::string name, Category category, Bytes size) {
    plan_.buffers.push_back({std::move(name), category, MemorySpace::device, size, Bytes(0)});
    return plan_.buffers.size() - 1;
  }

  // The slots that units take turns in: each as large as its largest tenant.
  std::vector<std::size_t> add_slots(char letter, Category category, const std::vector<std::size_t>& slot_of_unit,
                                     DType type) {
    std::vector<Bytes> sizes;
    for (std::size_t unit = 0; unit < slot_of_unit.size(); ++unit) {
      const std::size_t slot = slot_of_unit[unit];
      if (slot >= sizes.size()) sizes.resize(slot + 1);
      sizes[slot] = std::max(sizes[slot], whole(unit, type));
    }
    std::vector<std::size_t> buffers;
    for (std::size_t slot = 0; slot < sizes.size(); ++slot) {
      buffers.push_back(add(fmt::format("{}{}", letter, slot), category, sizes[slot]));
    }
    std::vector<std::size_t> of_unit;
    for (const std::size_t slot : slot_of_unit) of_unit.push_back(buffers[slot]);
    return of_unit;
  }

  Bytes whole(std::size_t unit, DType type) const { return size_of(type) * plan_.layouts[unit].padded_elements(); }
  Bytes shard(std::size_t unit) const { return size_of(DType::fp32) * plan_.layouts[unit].shard_elements(); }
  Bytes whole_or_shard(std::size_t unit, bool is_whole) const {
    return is_whole ? whole(unit, DType::fp32) : shard(unit);
  }

 private:
  Plan& plan_;
};

// ddp and zero1 keep a whole gradient while micro-batches add up: their sums are formed where they are then reduced in
// place, unless earlier micro-batches' reduced gradients already stand there.
bool accumulates_in_gradient(const Plan& plan, std::size_t unit) {
  const bool may = plan.options.strategy == Strategy::ddp || plan.options.strategy == Strategy::zero1;
  const bool reduces_once = plan.options.micro_batches == 1 || plan.options.accumulation == AccumulationMode::local;
  return may && reduces_once && accumulates(plan, unit);
}

void add_persistent(Plan& plan, BufferList& list, std::size_t unit) {
  const std::string& name = plan.units[unit].name;
  UnitBuffers& buffers = plan.unit_buffers[unit];
  const DType type = plan.options.precision.parameter;
  const bool windows_read_masters = plan.parameters_stay_whole() && type == DType::fp32;
  buffers.master = list.add(name + ".master", Category::parameters,
                            list.whole_or_shard(unit, windows_read_masters || plan.updates_whole()));
  if (plan.parameters_stay_whole()) {
    buffers.parameters = windows_read_masters
                             ? buffers.master
                             : list.add(name + ".parameters", Category::parameters, list.whole(unit, type));
  }
  const bool in_place = accumulates_in_gradient(plan, unit);
  buffers.gradient =
      list.add(name + ".gradient", Category::gradients, list.whole_or_shard(unit, in_place || plan.updates_whole()));
  if (accumulates(plan, unit)) {
    buffers.accumulation =
        in_place ? buffers.gradient
                 : list.add(name + ".accumulation", Category::accumulation, list.whole(unit, DType::fp32));
  }
  for (const std::string& state : plan.optimizer_states) {
    buffers.states.push_back(
        list.add(name + "." + state, Category::optimizer, list.whole_or_shard(unit, plan.updates_whole())));
  }
}

void add_slots(Plan& plan, BufferList& list) {
  const std::size_t units = plan.units.size();
  if (!plan.parameters_stay_whole()) {
    const auto slots = parameter_slots(
        plan.program, {.units = units, .prefetch = plan.options.prefetch, .keep = !plan.options.reshard_after_forward});
    const auto buffers = list.add_slots('p', Category::parameter_slots, slots, plan.options.precision.parameter);
    for (std::size_t unit = 0; unit < units; ++unit) plan.unit_buffers[unit].parameters = buffers[unit];
  }
  std::vector<bool> accumulating(units);
  for (std::size_t unit = 0; unit < units; ++unit) accumulating[unit] = accumulates(plan, unit);
  const auto slots = gradient_slots(plan.program.micro_batch, accumulating, plan.options.overlap_reduction);
  const auto buffers = list.add_slots('g', Category::gradient_slots, slots, plan.options.precision.gradient);
  for (std::size_t unit = 0; unit < units; ++unit) plan.unit_buffers[unit].gradient_slot = buffers[unit];
}

void place(Plan& plan) {
  Bytes end;
  for (std::size_t category = 0; category < category_count; ++category) {
    end = round_up(end, region_alignment);
    for (Buffer& buffer : plan.buffers) {
      if (buffer.category != static_cast<Category>(category)) continue;
      buffer.offset = round_up(end, buffer_alignment);
      end = buffer.offset + buffer.size;
    }
  }
}

}  // namespace

bool accumulates(const Plan& plan, std::size_t unit) {
  if (plan.options.micro_batches > 1 && plan.options.accumulation == AccumulationMode::local) return true;
  const auto& windows = plan.program.micro_batch;
  return std::count(windows.begin(), windows.end(), WindowUse{unit, WindowKind::backward}) > 1;
}

void make_buffers(Plan& plan) {
  BufferList list(plan);
  plan.unit_buffers.resize(plan.units.size());
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) add_persistent(plan, list, unit);
  add_slots(plan, list);
  plan.scalars = list.add("scalars", Category::scalars, scalars_size);
  plan.norms = list.add("norms", Category::scalars, norm_size * (plan.options.ranks * plan.units.size()));
  place(plan);
}

}  // namespace tessera::plan
