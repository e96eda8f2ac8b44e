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
    std::vector<OwnedTensor>& owned = owned_tensors_.emplace_back();
    const plan::UnitBuffers& buffers = plan_.unit_buffers[group.units.front()];
    const std::size_t mine = plan_.mesh.index_of(group.axes, plan_.mesh.place_of(rank_));
    for (const plan::WholeTensor& tensor : group.tensors) {
      if (tensor.owner != mine) continue;
      OwnedTensor& here = owned.emplace_back(OwnedTensor{
          optimizer_of(tensor.unit).whole_tensors(), units_[tensor.unit]->parameters()[tensor.parameter], {}, nullptr});
      if (buffers[plan::Role::workspace].exists()) here.workspace = base(buffers[plan::Role::workspace].buffer);
      Bytes place = tensor.offset;
      for (std::size_t plane = 0; plane < plan_.units[tensor.unit].whole_planes; ++plane) {
        const plan::Content& whole = buffers[plan::Role::whole];
        here.planes.push_back({base(whole.buffer) + place.count(), whole.type});
        place += plan::whole_plane(plan_, tensor);
      }
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
  for (const OwnedTensor& each : owned_tensors_[operation.whole_group]) {
    each.optimizer->transform(on, {each.parameter->name(), each.parameter->shape(), each.planes, each.workspace});
  }
}

}  // namespace tessera
