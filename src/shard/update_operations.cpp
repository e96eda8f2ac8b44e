// Updates of what a rank has of a unit. Masters of 16 bits are widened into one place, stretch after stretch, and
// rounded from there.
#include <algorithm>

#include "base/hash.hpp"
#include "plan/ranges.hpp"
#include "shard/operations.hpp"
#include "shard/optimizer_runs.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/kernels/rounding.hpp"
#include "tessera/shard/whole_tensors.hpp"

namespace tessera {

using plan::Access;
using plan::Operation;
using plan::Role;

namespace {

kernels::Source after(const kernels::Source& source, std::size_t elements) {
  return {static_cast<const std::byte*>(source.data) + (size_of(source.type) * elements).count(), source.type};
}
kernels::Target after(const kernels::Target& target, std::size_t elements) {
  return {static_cast<std::byte*>(target.data) + (size_of(target.type) * elements).count(), target.type};
}

OptimizerGroup settings_of(const OptimizerRun& run, float learning_rate) {
  OptimizerGroup group = run.group;
  group.learning_rate = learning_rate * run.learning_rate_scale;
  return group;
}

// The host's processors update masters where they stand; else they are where the device has them.
const Access& masters_in(const Operation& operation) {
  return *std::find_if(operation.accesses.begin(), operation.accesses.end(), [](const Access& access) {
    return access.role == Role::master || access.role == Role::master_slot;
  });
}

}  // namespace

void Operations::set_begun(std::size_t unit, std::vector<std::int64_t> begun) {
  begun_[unit] = std::move(begun);
  stretches_[unit].clear();
  if (!plan_.trains(unit)) return;
  std::vector<OptimizerRun> runs = optimizer_runs(plan_, unit, rank_, optimizer_of(unit), begun_[unit]);
  for (OptimizerRun& run : runs) run.group.own_decays = has_own_decays(unit);
  const std::size_t count = plan_.layouts[unit].elements(plan_.sharding(unit).optimizer, plan::Part::trained);
  const bool widens = plan_.unit_buffers[unit][Role::widened].exists();
  const std::size_t most = widens ? plan::widened_elements : std::max<std::size_t>(count, 1);
  for (std::size_t first = 0; first < count; first += most) {
    stretches_[unit].push_back(stretch_of(unit, runs, first, std::min(most, count - first)));
  }
}

Operations::Stretch Operations::stretch_of(std::size_t unit, std::span<const OptimizerRun> runs, std::size_t first,
                                           std::size_t count) {
  const plan::UnitBuffers& buffers = plan_.unit_buffers[unit];
  Stretch stretch{.first = first, .count = count, .runs = {}, .states = {}, .update = nullptr, .rounds = {}};
  for (OptimizerRun run : runs) {
    const std::size_t begin = std::max(run.first, first), end = std::min(run.first + run.count, first + count);
    if (begin >= end) continue;
    run.first = begin - first;
    run.count = end - begin;
    stretch.runs.push_back(run);
  }
  const bool has_slots = !buffers.state_slots.empty() && !buffers.are_updated_on_host();
  const auto add_states = [&](std::size_t element, bool some_have_none) {
    for (const plan::Content& state : has_slots ? buffers.state_slots : buffers.states) {
      const bool none = state.begin > 0 && some_have_none;
      const Bytes place = none ? Bytes(0) : state.size(memory_.place_in(unit, state, element));
      stretch.states.push_back(none ? nullptr : reinterpret_cast<float*>(base(state.buffer) + place.count()));
    }
  };
  add_states(first, true);
  for (const OptimizerRun& run : stretch.runs) add_states(first + run.first, run.whole.has_value());
  if (buffers.directions.empty()) stretch.update = optimizer_of(unit).prepare(stretch.runs);
  if (buffers[Role::widened].exists()) stretch.rounds = rounds_of(unit, first, count);
  return stretch;
}

std::vector<kernels::RoundedSpans> Operations::rounds_of(std::size_t unit, std::size_t first, std::size_t count) {
  const AxisSet over = plan_.sharding(unit).optimizer;
  const plan::UnitBuffers& buffers = plan_.unit_buffers[unit];
  auto* const masters = reinterpret_cast<bf16*>(
      address(plan::share_range(plan_, unit, buffers[Role::master], plan::Part::trained, over)));
  const auto* const widened = reinterpret_cast<const float*>(base(buffers[Role::widened].buffer));
  std::vector<kernels::RoundedSpans> result;
  for (const plan::ShardPiece& piece : plan_.layouts[unit].pieces(rank_, over)) {
    if (plan_.layouts[unit].part(piece.parameter) == plan::Part::frozen) continue;
    const std::size_t begin = std::max(piece.shard_offset, first);
    const std::size_t end = std::min(piece.shard_offset + piece.count, first + count);
    if (begin >= end) continue;
    const plan::ParameterSpec& parameter = plan_.units[unit].parameters[piece.parameter];
    const std::size_t variant = plan_.variant_of(unit, rank_);
    const PhiloxKey key = key_of(seed_, plan::name_of_variant(plan_.units[unit], parameter, variant));
    const std::size_t here = piece.parameter_offset + (begin - piece.shard_offset);  // in the parameter
    parameter.map().for_each_run(variant, here, end - begin, [&](std::size_t own, std::size_t whole, std::size_t run) {
      result.push_back({.to = masters + begin + (own - here),
                        .from = widened + (begin - first) + (own - here),
                        .count = run,
                        .key = key,
                        .first = whole});
    });
  }
  return result;
}

// An element that an update leaves alone, because it is skipped or has no part in it, is rounded to itself.
template <typename Update>
void Operations::for_each_stretch(const Operation& operation, Stream& on, const Update& update) {
  const plan::UnitBuffers& buffers = plan_.unit_buffers[operation.unit];
  const kernels::Target masters = target(masters_in(operation));
  for (const Stretch& stretch : stretches_[operation.unit]) {
    const kernels::Target here = after(masters, stretch.first);
    if (!buffers[Role::widened].exists()) {
      update(stretch, static_cast<float*>(here.data));
      continue;
    }
    auto* const widened = reinterpret_cast<float*>(base(buffers[Role::widened].buffer));
    kernels::cast(on, {widened, DType::fp32}, {here.data, here.type}, stretch.count);
    update(stretch, widened);
    for (const kernels::RoundedSpans& each : stretch.rounds) {
      kernels::round_stochastically(on, each, scalars_at(operation));
    }
  }
}

void Operations::optimize(const Operation& operation, const StepOf& step, Stream& on) {
  const std::size_t unit = operation.unit;
  const plan::UnitBuffers& buffers = plan_.unit_buffers[unit];
  // Parameters of another type than the masters' stand beside them.
  const auto beside = std::find_if(operation.accesses.begin(), operation.accesses.end(), [](const Access& access) {
    const bool are_parameters =
        access.role == Role::kept || access.role == Role::parameters || access.role == Role::host_rounded;
    return access.mode != plan::AccessMode::read && are_parameters;
  });
  const Access* const rounded = beside == operation.accesses.end() ? nullptr : &*beside;
  const bool rounds = rounded != nullptr && optimizer_of(unit).rounds();
  const Access& gradient = operation.accesses.front();
  for_each_stretch(operation, on, [&](const Stretch& stretch, float* masters) {
    OptimizerSpans all{.master = masters,
                       .states = std::span(stretch.states).first(buffers.states.size()),
                       .gradient = after(source(gradient), stretch.first),
                       .count = stretch.count};
    if (rounds) all.parameters = after(target(*rounded), stretch.first);
    if (stretch.update != nullptr) return stretch.update->update(on, all, step.learning_rate, step.scalars);
    update_runs(unit, stretch, all, step, on);
  });
  const Access& master = masters_in(operation);
  if (rounded != nullptr && !rounds) kernels::cast(on, target(*rounded), source(master), elements(master));
}

void Operations::update_runs(std::size_t unit, const Stretch& stretch, const OptimizerSpans& all, const StepOf& step,
                             Stream& on) {
  const std::vector<plan::Content>& directions = plan_.unit_buffers[unit].directions;
  const std::size_t states = all.states.size();
  for (std::size_t index = 0; index < stretch.runs.size(); ++index) {
    const OptimizerRun& run = stretch.runs[index];
    const OptimizerGroup group = settings_of(run, step.learning_rate);
    OptimizerSpans spans{.master = all.master + run.first,
                         .states = std::span(stretch.states).subspan((index + 1) * states, states),
                         .gradient = after(all.gradient, run.first),
                         .count = run.count};
    if (run.whole) {
      for (std::size_t plane = 0; plane < directions.size(); ++plane) {
        directions_[unit][plane] =
            after(kernels::Target{base(directions[plane].buffer), directions[plane].type}, stretch.first + run.first);
      }
      optimizer_of(unit).whole_tensors()->direct(on, spans, directions_[unit], group, step.scalars);
      continue;
    }
    if (all.parameters.data != nullptr) spans.parameters = after(all.parameters, run.first);
    optimizer_of(unit).update(on, spans, group, step.scalars);
  }
}

void Operations::apply(const Operation& operation, Stream& on) {
  const std::size_t unit = operation.unit;
  const kernels::Source direction = source(operation.operand(Role::direction));
  const WholeTensors& steps = *optimizer_of(unit).whole_tensors();
  for_each_stretch(operation, on, [&](const Stretch& stretch, float* masters) {
    for (const OptimizerRun& run : stretch.runs) {
      if (!run.whole) continue;
      steps.apply(on,
                  {.master = masters + run.first,
                   .direction = after(direction, stretch.first + run.first),
                   .count = run.count,
                   .shape = units_[unit]->parameters()[*run.whole]->shape()},
                  settings_of(run, step_of(operation).learning_rate), scalars_at(operation));
    }
  });
  const Access& rounded = operation.accesses.back();
  if (rounded.role != Role::kept && rounded.role != Role::parameters) return;
  const Access& master = operation.operand(Role::master);
  kernels::cast(on, target(rounded), source(master), elements(master));
}

}  // namespace tessera
