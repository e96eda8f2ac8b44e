// Updates of tensors that the optimizer sees whole: what travels, what owners do, and what comes of it.
#include "shard/operations.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/shard/whole_tensors.hpp"

namespace tessera {

using plan::Operation;

void note_whole_tensors(plan::UnitSpec& unit, const WholeTensors* optimizer, DeviceKind device) {
  if (optimizer == nullptr) return;
  unit.whole_type = optimizer->type();
  unit.whole_planes = optimizer->planes();
  for (plan::ParameterSpec& parameter : unit.parameters) {
    if (element_count(parameter.shape) == 0) continue;
    parameter.whole = optimizer->wants(parameter.name, parameter.shape, device);
  }
}

void Operations::find_owned_tensors() {
  directions_.resize(units_.size());
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (const plan::Content& each : plan_.unit_buffers[unit].directions) {
      directions_[unit].push_back({nullptr, each.type});
    }
  }
  for (const plan::WholeGroup& group : plan_.whole_groups) {
    std::vector<OwnedTensors>& owned = owned_tensors_.emplace_back();
    const plan::UnitBuffers& buffers = plan_.unit_buffers[group.units.front()];
    const plan::Content &whole = buffers[plan::Role::whole], &workspace = buffers[plan::Role::workspace];
    const std::size_t mine = plan_.mesh.index_of(group.axes, plan_.mesh.place_of(rank_));
    for (const plan::WholeTensor& tensor : plan::tensors_of_owner(group, mine)) {
      const WholeTensors* const optimizer = optimizer_of(tensor.unit).whole_tensors();
      const Parameter& parameter = *units_[tensor.unit]->parameters()[tensor.parameter];
      const bool goes_on = !owned.empty() && owned.back().optimizer == optimizer &&
                           owned.back().tensors.front().shape == parameter.shape();
      OwnedTensors& batch = goes_on ? owned.back() : owned.emplace_back(OwnedTensors{optimizer});
      std::vector<kernels::Target>& planes = batch.planes.emplace_back();
      Bytes place = tensor.offset;
      for (std::size_t plane = 0; plane < plan_.units[tensor.unit].whole_planes; ++plane) {
        planes.push_back({base(whole.buffer) + place.count(), whole.type});
        place += plan::whole_plane(plan_, tensor);
      }
      batch.tensors.push_back(
          {parameter.name(), parameter.shape(), planes, workspace.exists() ? base(workspace.buffer) : nullptr});
    }
  }
}

// A rank that has the units for itself copies.
void Operations::redistribute(const Operation& operation, const Call& call, Stream& on) {
  std::byte* const data = memory_.device();
  if (!operation.group.empty()) {
    return communicator_of(operation).redistribute(
        on, {.data = data, .transfers = call.transfers, .label = plan_.units[operation.unit].name});
  }
  for (const Transfer& each : call.transfers) {
    kernels::copy(on, data + each.target.count(), data + each.source.count(), each.size);
  }
}

void Operations::transform(const Operation& operation, Stream& on) {
  for (const OwnedTensors& each : owned_tensors_[operation.whole_group]) each.optimizer->transform(on, each.tensors);
}

}  // namespace tessera
