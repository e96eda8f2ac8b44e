// Groups of units whose optimizer sees tensors whole, the owners of those tensors, and what travels.
#include "tessera/plan/whole.hpp"

#include <algorithm>
#include <numeric>

#include "plan/passes.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera::plan {

namespace {

// A group goes on until each of its ranks has a few tensors to work on, and enough of them that a collective's latency
// does not count. Two groups are in memory at a time.
constexpr std::size_t tensors_per_rank = 4;
constexpr Bytes bytes_per_rank{std::uint64_t{8} << 20};

const WholeSpec& spec_of(const Plan& plan, const WholeTensor& tensor) {
  return *plan.units[tensor.unit].parameters[tensor.parameter].whole;
}

Bytes size_of_all_planes(const Plan& plan, const WholeTensor& tensor) {
  return whole_plane(plan, tensor) * plan.units[tensor.unit].whole_planes;
}

// The costliest first, each to the rank that has least to do so far; of one cost, those of a shape together.
void choose_owners(const Plan& plan, WholeGroup& group) {
  std::vector<std::size_t> order(group.tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto cost = [&](std::size_t index) { return spec_of(plan, group.tensors[index]).cost; };
  const auto shape = [&](std::size_t index) -> const Shape& {
    return plan.units[group.tensors[index].unit].parameters[group.tensors[index].parameter].shape;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return cost(a) != cost(b) ? cost(a) > cost(b) : shape(a) > shape(b);
  });
  const std::size_t ranks = plan.mesh.size(group.axes);
  std::vector<std::uint64_t> work(std::min(ranks, order.size()), 0);  // more ranks than tensors: the rest has none
  std::vector<Bytes> taken(work.size());
  for (const std::size_t index : order) {
    const auto least = std::min_element(work.begin(), work.end()) - work.begin();
    const auto owner = static_cast<std::size_t>(least);
    WholeTensor& tensor = group.tensors[index];
    tensor.owner = owner;
    tensor.offset = taken[owner];
    taken[owner] += size_of_all_planes(plan, tensor);
    work[owner] += std::max<std::uint64_t>(1, cost(index));
  }
  group.size = *std::max_element(taken.begin(), taken.end());
}

std::vector<WholeTensor> tensors_of(const Plan& plan, std::size_t unit) {
  std::vector<WholeTensor> result;
  const std::vector<ParameterSpec>& parameters = plan.units[unit].parameters;
  for (std::size_t parameter = 0; parameter < parameters.size(); ++parameter) {
    const bool is_trained = plan.layouts[unit].part(parameter) == Part::trained;
    if (parameters[parameter].whole && is_trained) result.push_back({unit, parameter, 0, Bytes(0)});
  }
  return result;
}

bool is_full(const Plan& plan, const WholeGroup& group) {
  const std::size_t ranks = plan.mesh.size(group.axes);
  Bytes bytes;
  for (const WholeTensor& tensor : group.tensors) bytes += size_of_all_planes(plan, tensor);
  return group.tensors.size() >= tensors_per_rank * ranks && bytes >= bytes_per_rank * ranks;
}

bool fits(const Plan& plan, const WholeGroup& group, std::size_t unit) {
  const UnitSpec &first = plan.units[group.units.front()], &next = plan.units[unit];
  return group.axes == plan.own(unit) && first.whole_type == next.whole_type && first.whole_planes == next.whole_planes;
}

}  // namespace

void make_whole_groups(Plan& plan) {
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    std::vector<std::size_t> open;  // groups that go on, one of each kind of units
    for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
      if (!plan.trains(unit, program)) continue;
      const std::vector<WholeTensor> tensors = tensors_of(plan, unit);
      if (tensors.empty()) continue;
      auto mine = std::find_if(open.begin(), open.end(),
                               [&](std::size_t group) { return fits(plan, plan.whole_groups[group], unit); });
      if (mine == open.end()) {
        mine = open.insert(mine, plan.whole_groups.size());
        plan.whole_groups.push_back({program, plan.own(unit), {}, {}, Bytes(0)});
      }
      WholeGroup& group = plan.whole_groups[*mine];
      group.units.push_back(unit);
      group.tensors.insert(group.tensors.end(), tensors.begin(), tensors.end());
      if (is_full(plan, group)) open.erase(mine);
    }
  }
  for (WholeGroup& group : plan.whole_groups) choose_owners(plan, group);
}

namespace {

// The first ones that come from elsewhere have come beside the backward pass. Behind them stand those of the device, so
// that the others travel meanwhile. What the host's processors update begins before all.
std::vector<std::size_t> with_copies_hidden(const Plan& plan, const std::vector<std::size_t>& units) {
  std::vector<std::size_t> on_host, first, on_device, last;
  for (const std::size_t unit : units) {
    const UnitSpec& spec = plan.units[unit];
    const bool comes = spec.masters_in != MemorySpace::device || spec.states_in != MemorySpace::device;
    auto& among = spec.updates_in != MemorySpace::device ? on_host
                  : !comes                               ? on_device
                  : first.size() < update_slots          ? first
                                                         : last;
    among.push_back(unit);
  }
  for (const auto* more : {&first, &on_device, &last}) on_host.insert(on_host.end(), more->begin(), more->end());
  return on_host;
}

}  // namespace

std::vector<std::size_t> updated_units(const Plan& plan, std::size_t program) {
  std::vector<std::size_t> leader(plan.units.size());  // the first of a unit's group
  std::iota(leader.begin(), leader.end(), std::size_t{0});
  for (const WholeGroup& group : plan.whole_groups) {
    for (const std::size_t unit : group.units) leader[unit] = group.units.front();
  }
  std::vector<std::size_t> result;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    if (plan.trainers[unit] == program) result.push_back(unit);
  }
  std::stable_sort(result.begin(), result.end(), [&](std::size_t a, std::size_t b) { return leader[a] < leader[b]; });
  const bool has_groups = std::any_of(plan.whole_groups.begin(), plan.whole_groups.end(),
                                      [&](const WholeGroup& group) { return group.program == program; });
  return has_groups ? result : with_copies_hidden(plan, result);
}

std::vector<WholeTensor> tensors_of_owner(const WholeGroup& group, std::size_t owner) {
  std::vector<WholeTensor> result;
  for (const WholeTensor& each : group.tensors) {
    if (each.owner == owner) result.push_back(each);
  }
  std::sort(result.begin(), result.end(),
            [](const WholeTensor& a, const WholeTensor& b) { return a.offset < b.offset; });
  return result;
}

Bytes whole_plane(const Plan& plan, const WholeTensor& tensor) {
  const UnitSpec& unit = plan.units[tensor.unit];
  return round_up(size_of(unit.whole_type) * plan.layouts[tensor.unit].elements(tensor.parameter), buffer_alignment);
}

namespace {

// Visits each share of each tensor on each rank that has it: the share's place, and the tensor's owner.
struct ShareOf {
  int rank;         // a place along the group's axes
  Bytes in_share;   // where it stands in what the rank has of its unit
  Bytes in_tensor;  // and in the tensor
  Bytes size;
};
template <typename Visit>
void for_each_share(const Plan& plan, const WholeGroup& group, const WholeTensor& tensor, const Coordinates& copy,
                    const Visit& visit) {
  const UnitLayout& layout = plan.layouts[tensor.unit];
  const AxisSet over = plan.sharding(tensor.unit).optimizer;
  const Bytes element = size_of(plan.units[tensor.unit].whole_type);
  const std::size_t elements = layout.elements(tensor.parameter);
  const std::size_t share = layout.elements(over, Part::trained);
  for (std::size_t first = 0; first < elements;) {
    const UnitLayout::Owned owned = layout.owner(tensor.parameter, first, over, copy);
    const std::size_t place = plan.mesh.index_of(group.axes, plan.mesh.place_of(owned.rank));
    visit(ShareOf{static_cast<int>(place), element * ((layout.offset(tensor.parameter) + first) % share),
                  element * first, element * owned.count});
    first += owned.count;
  }
}

// Those along which ranks have the same shares.
AxisSet copied(const Plan& plan, const WholeGroup& group) {
  return group.axes - plan.sharding(group.units.front()).optimizer;
}

Bytes begin_of_buffer(const Plan& plan, const Content& content) { return plan.buffers[content.buffer].offset; }

const Content& whole_of(const Plan& plan, const WholeGroup& group) {
  return plan.unit_buffers[group.units.front()][Role::whole];
}

}  // namespace

std::vector<Transfer> transfers_to_owners(const Plan& plan, const WholeGroup& group) {
  std::vector<Transfer> result;
  const Bytes whole = begin_of_buffer(plan, whole_of(plan, group));
  for (const WholeTensor& tensor : group.tensors) {
    const std::vector<Content>& directions = plan.unit_buffers[tensor.unit].directions;
    Coordinates nearest = plan.mesh.place_at(group.axes, tensor.owner);
    for (std::size_t axis = 0; axis < axis_count; ++axis) {
      if (!copied(plan, group).contains(static_cast<Axis>(axis))) nearest[axis] = 0;
    }
    for (std::size_t plane = 0; plane < directions.size(); ++plane) {
      const Bytes share = begin_of_buffer(plan, directions[plane]);
      const Bytes place = whole + tensor.offset + whole_plane(plan, tensor) * plane;
      for_each_share(plan, group, tensor, nearest, [&](const ShareOf& each) {
        result.push_back(
            {each.rank, static_cast<int>(tensor.owner), share + each.in_share, place + each.in_tensor, each.size});
      });
    }
  }
  return result;
}

std::vector<Transfer> transfers_from_owners(const Plan& plan, const WholeGroup& group) {
  std::vector<Transfer> result;
  const Bytes whole = begin_of_buffer(plan, whole_of(plan, group));
  const AxisSet copies = copied(plan, group);
  for (const WholeTensor& tensor : group.tensors) {
    const Bytes share = begin_of_buffer(plan, plan.unit_buffers[tensor.unit].directions.front());
    for (std::size_t copy = 0; copy < plan.mesh.size(copies); ++copy) {
      for_each_share(plan, group, tensor, plan.mesh.place_at(copies, copy), [&](const ShareOf& each) {
        result.push_back({static_cast<int>(tensor.owner), each.rank, whole + tensor.offset + each.in_tensor,
                          share + each.in_share, each.size});
      });
    }
  }
  return result;
}

namespace {

// Elements of all tensors in the type in which they travel.
std::uint64_t bytes_of(const Plan& plan, const WholeGroup& group, bool every_plane) {
  std::uint64_t bytes = 0;
  for (const WholeTensor& tensor : group.tensors) {
    const UnitSpec& unit = plan.units[tensor.unit];
    bytes += size_of(unit.whole_type).count() * plan.layouts[tensor.unit].elements(tensor.parameter) *
             (every_plane ? unit.whole_planes : 1);
  }
  return bytes;
}

}  // namespace

// All shares of a tensor but the owner's go to it.
Bytes bytes_to_owners(const Plan& plan, const WholeGroup& group) {
  const std::uint64_t ranks = plan.mesh.size(group.axes), copies = plan.mesh.size(copied(plan, group));
  return Bytes(bytes_of(plan, group, true) / ranks * (ranks - copies) / ranks);
}

// Each rank takes all that it has shares of from others, but what it owns itself.
Bytes bytes_from_owners(const Plan& plan, const WholeGroup& group) {
  const std::uint64_t ranks = plan.mesh.size(group.axes), copies = plan.mesh.size(copied(plan, group));
  return Bytes(bytes_of(plan, group, false) * copies / ranks * (ranks - 1) / ranks);
}

}  // namespace tessera::plan
