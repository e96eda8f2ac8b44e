// What each kind of operation does on its stream. Addresses and sizes come from the operation's own ranges.
#include <algorithm>

#include "device/cuda/cuda_queue.hpp"
#include "shard/executor.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/kernels/norm.hpp"
#include "tessera/kernels/step_scalars.hpp"

namespace tessera {

using plan::Access;
using plan::Operation;
using plan::OperationKind;

void Executor::dispatch(const Operation& operation, std::size_t index, Stream& on) {
  const Collective& collective = collectives_[segment_][index];
  switch (operation.kind) {
    case OperationKind::initialize: return initialize(operation, on);
    case OperationKind::initialize_scalars:
      return kernels::set_scalars(on, scalars(), {.loss_scale = loss_scaling_.initial});
    case OperationKind::cast:
    case OperationKind::convert: return cast(operation, on);
    case OperationKind::all_gather: return gather_communicator_->all_gather(on, collective.gathers);
    case OperationKind::prepare_gradient: return prepare_gradient(operation, on);
    case OperationKind::accumulate: return accumulate(operation, on);
    case OperationKind::hook: return hook(operation, on);
    case OperationKind::broadcast: return broadcast(operation, on);
    case OperationKind::reduce_scatter: return reduce_communicator_->reduce_scatter(on, collective.reductions);
    case OperationKind::all_gather_sum:
    case OperationKind::gather_norms: return reduce_communicator_->all_gather(on, collective.gathers);
    case OperationKind::sum_of_squares: {
      const Access& from = operation.accesses[0];
      const Access& to = operation.accesses[1];
      return kernels::sum_of_squares(on, reinterpret_cast<const float*>(address(from.range)),
                                     plan_.layouts[operation.unit].shard_elements(plan::Part::trained),
                                     reinterpret_cast<double*>(address(to.range)));
    }
    case OperationKind::begin_update: return begin_update(on);
    case OperationKind::optimize: return optimize(operation, on);
    case OperationKind::release: return release(operation, on);
    case OperationKind::window: break;
  }
  throw InternalError("an operation that the executor cannot run");
}

// Values are computed on the host, and on a CUDA device taken there by the task that computed them.
void Executor::fill_initial(const Initial& initial, const InitialPlace& place, Stream& on) {
  if (on.device().kind() == DeviceKind::cpu) return initial.fill(place.values, seed_, place.name, place.first);
  std::vector<float> values(place.values.size());
  initial.fill(values, seed_, place.name, place.first);
  device::cuda_queue(on).copy(place.values.data(), values.data(), Bytes(place.values.size_bytes()));
  device::cuda_queue(on).synchronize();
}

// The arena starts at zero, and with it padding and the optimizer's states.
void Executor::initialize(const Operation& operation, Stream& on) {
  const std::size_t unit = operation.unit;
  on.submit([this, unit, &on] {
    for (const ParameterPiece& piece : pieces_at(unit, plan_.unit_buffers[unit].master)) {
      fill_initial(piece.parameter->initial(), {piece.values, piece.parameter->name(), piece.first}, on);
    }
    for (const Buffer* state : units_[unit]->buffers()) {
      fill_initial(state->initial(), {buffer(*units_[unit], *state), state->name(), 0}, on);
    }
  });
}

DType Executor::type_of(std::size_t unit, std::size_t buffer) const {
  const plan::UnitBuffers& buffers = plan_.unit_buffers[unit];
  if (buffer == buffers.master) return DType::fp32;  // also where windows read the masters themselves
  if (buffer == buffers.parameters) return plan_.precision(unit).parameter;
  if (buffer == buffers.gradient_slot) return plan_.precision(unit).gradient;
  if (buffer == buffers.staging) return plan_.precision(unit).wire;
  return DType::fp32;
}

void Executor::cast(const Operation& operation, Stream& on) {
  const plan::Range& from = operation.accesses[0].range;
  const plan::Range& to = operation.accesses[1].range;
  const DType type = type_of(operation.unit, to.buffer);
  kernels::cast(on, {address(to), type}, {address(from), type_of(operation.unit, from.buffer)},
                to.size.count() / size_of(type).count());
}

void Executor::make_collectives() {
  for (const plan::Segment& segment : plan_.segments) {
    auto& collectives = collectives_.emplace_back();
    for (const Operation& operation : segment.operations) collectives.push_back(collective_of(operation));
  }
}

// A segment for each pair of accesses, source and target. Gathers are in place: the part that this rank contributes
// stands at its place in the whole.
Executor::Collective Executor::collective_of(const Operation& operation) {
  Collective result;
  const bool reduces = operation.kind == OperationKind::reduce_scatter;
  if (!is_collective(operation.kind) || operation.kind == OperationKind::broadcast) return result;
  for (std::size_t a = 0; a < operation.accesses.size(); a += 2) {
    const plan::Range& source = operation.accesses[a].range;
    const plan::Range& target = operation.accesses[a + 1].range;
    const std::size_t unit = operation.accesses[a].tenant;
    const std::string_view label =
        unit == plan::no_unit ? to_string(operation.kind) : std::string_view(plan_.units[unit].name);
    if (!reduces) {
      result.gathers.push_back({.data = address(target), .shard = source.size, .label = label});
      continue;
    }
    result.reductions.push_back({.data = address(source),
                                 .wire = operation.wire,
                                 .result = reinterpret_cast<float*>(address(target)),
                                 .shard_elements = plan_.layouts[unit].shard_elements(plan::Part::trained),
                                 .accumulate = operation.add,
                                 .divisor = static_cast<float>(operation.divisor),
                                 .label = label});
  }
  return result;
}

// The user writes parameters; what lies between them must be zero for norms and sums.
void Executor::prepare_gradient(const Operation& operation, Stream& on) {
  const plan::UnitLayout& layout = plan_.layouts[operation.unit];
  const Bytes element = size_of(plan_.precision(operation.unit).gradient);
  std::byte* gradient = address(operation.accesses[0].range);
  const auto clear = [&](std::size_t begin, std::size_t end) {
    if (begin < end) kernels::fill_zero(on, gradient + (element * begin).count(), element * (end - begin));
  };
  std::size_t end_of_last = 0;
  for (std::size_t p = 0; p < layout.parameters(); ++p) {
    if (layout.part(p) == plan::Part::frozen) continue;
    clear(end_of_last, layout.offset(p));
    end_of_last = layout.offset(p) + layout.elements(p);
  }
  clear(end_of_last, layout.padded_elements(plan::Part::trained));
}

void Executor::accumulate(const Operation& operation, Stream& on) {
  const DType type = plan_.precision(operation.unit).gradient;
  const kernels::Source from{address(operation.accesses[0].range), type};
  float* to = reinterpret_cast<float*>(address(operation.accesses[1].range));
  const std::size_t count = plan_.layouts[operation.unit].padded_elements(plan::Part::trained);
  if (operation.add) {
    kernels::accumulate(on, to, from, count);
  } else {
    kernels::cast(on, {to, DType::fp32}, from, count);
  }
}

// Called here, so that what it enqueues stands between the reduction and the norm.
void Executor::hook(const Operation& operation, Stream& on) {
  gradient_hook_({.unit = *units_[operation.unit],
                  .pieces = gradient_pieces_[operation.unit],
                  .loss_scale = &scalars()->loss_scale,
                  .stream = on});
}

void Executor::broadcast(const Operation& operation, Stream& on) {
  const plan::Range& range = operation.accesses[0].range;
  gather_communicator_->broadcast(
      on, {.data = address(range), .size = range.size, .root = 0, .label = plan_.units[operation.unit].name});
}

void Executor::begin_update(Stream& on) {
  const kernels::NormPartials partials{reinterpret_cast<const double*>(base(plan_.norms)), plan_.trained_units(),
                                       plan_.options.ranks};
  kernels::StepSettings settings = optimizer_.step_settings();
  settings.loss_scaling = loss_scaling_;
  kernels::begin_update(on, scalars(), partials, settings);
}

void Executor::optimize(const Operation& operation, Stream& on) {
  const std::size_t unit = operation.unit;
  const plan::UnitBuffers& buffers = plan_.unit_buffers[unit];
  const float* gradient = reinterpret_cast<const float*>(address(operation.accesses[0].range));
  float* master = reinterpret_cast<float*>(address(operation.accesses[2].range));
  for (std::size_t index = 0; index < runs_[unit].size(); ++index) {
    const OptimizerRun& run = runs_[unit][index];
    const std::span<float* const> states(run_states_[unit].data() + index * buffers.states.size(),
                                         buffers.states.size());
    optimizer_.update(
        on, {.master = master + run.first, .states = states, .gradient = gradient + run.first, .count = run.count},
        {.learning_rate = learning_rate_ * run.learning_rate_scale, .weight_decay = run.weight_decay}, scalars());
  }
}

void Executor::release(const Operation& operation, Stream& on) {
  if (!diagnostics_.poison) return;
  const plan::Range& slot = operation.accesses[0].range;
  kernels::poison(on, address(slot), slot.size);
}

}  // namespace tessera
