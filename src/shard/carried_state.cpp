// A state's buffer of a unit is asked for by its place: 0 is the master, then come the optimizer's states, and with
// outer steps the anchor and the outer momentum.
#include "shard/carried_state.hpp"

#include <algorithm>
#include <string>

#include "shard/pieces.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera {

namespace {

const plan::Content& content_of(const plan::Plan& plan, std::size_t unit, std::size_t state) {
  const plan::UnitBuffers& buffers = plan.unit_buffers[unit];
  if (state == 0) return buffers[plan::Role::master];
  if (state <= buffers.states.size()) return buffers.states[state - 1];
  return state == buffers.states.size() + 1 ? buffers[plan::Role::anchor] : buffers[plan::Role::outer_momentum];
}

// The most that any unit has.
std::size_t states_of(const plan::Plan& plan) {
  std::size_t most = 0;
  for (const plan::UnitBuffers& unit : plan.unit_buffers) most = std::max(most, unit.states.size());
  return 1 + most + (plan.diverges() ? 2 : 0);
}
// Outer steps are of one program, and of one optimizer.
bool is_anchor(const plan::Plan& plan, std::size_t state) {
  return plan.diverges() && state == plan.optimizer_states_of(0).size() + 1;
}
bool has_state(const plan::Plan& plan, std::size_t unit, std::size_t state) {
  if (state == 0) return true;
  return plan.trains(unit) && (plan.diverges() || state <= plan.unit_buffers[unit].states.size());
}

bool trains(const plan::Plan& plan, std::size_t unit, std::size_t parameter) {
  return plan.trains(unit) && plan.layouts[unit].part(parameter) == plan::Part::trained;
}

std::vector<StatePiece> pieces_of(const plan::Plan& plan, std::size_t unit, std::size_t state, Executor& executor) {
  if (!has_state(plan, unit, state)) return {};
  return settled_state_pieces(executor, unit, content_of(plan, unit, state));
}

// Whether the plan keeps this state of the parameter.
bool keeps(const plan::Plan& plan, std::size_t unit, std::size_t parameter, std::size_t state) {
  if (state == 0 || !has_state(plan, unit, state)) return state == 0;
  if (plan.layouts[unit].part(parameter) == plan::Part::frozen) return false;
  const std::vector<plan::StateSpec>& states = plan.unit_states(unit);
  return state > states.size() || plan.has_value(unit, parameter, states[state - 1]);
}

// Values of one optimizer mean nothing to another one, to which a unit may go over with the program that trains it.
bool are_alike(const plan::Plan& before, const plan::Plan& after, std::size_t unit, std::size_t state) {
  if (state == 0 || before.diverges()) return true;
  const plan::Content& old = content_of(before, unit, state);
  const plan::Content& now = content_of(after, unit, state);
  return old.type == now.type && old.block == now.block;
}

std::vector<std::byte> whole(World& world, const plan::Plan& plan, const Parameter& parameter, std::size_t state,
                             std::optional<std::span<const std::byte>> mine) {
  const std::size_t unit = parameter.unit()->index();
  const plan::Content& content = content_of(plan, unit, state);
  const AxisSet owned = state == 0 ? plan.own(unit) : plan.own(unit, content);
  const std::string name = "carried state " + std::to_string(state);
  return whole_values(world, plan, {parameter, name, owned, content.type, content.block}, mine);
}

}  // namespace

void CarriedState::take(const plan::Plan& plan, std::span<const std::unique_ptr<Unit>> units, Executor* from) {
  Taken& now = taken_.emplace_back();
  now.plan = plan;
  now.states.resize(states_of(plan));
  for (const auto& unit : units) {
    for (std::size_t p = 0; p < unit->parameters().size(); ++p) {
      const Parameter* const parameter = unit->parameters()[p];
      if (trains(plan, unit->index(), p)) now.ages[parameter] = 0;
      for (std::size_t state = 0; state < now.states.size(); ++state) {
        if (keeps(plan, unit->index(), p, state)) now.states[state].try_emplace(parameter);
      }
    }
  }
  if (from != nullptr) copy(units, *from);
}

void CarriedState::copy(std::span<const std::unique_ptr<Unit>> units, Executor& from) {
  Taken& now = taken_.back();
  for (std::size_t state = 0; state < now.states.size(); ++state) {
    for (const auto& unit : units) {
      for (const StatePiece& piece : pieces_of(now.plan, unit->index(), state, from)) {
        std::vector<std::byte>& share = now.states[state].at(piece.parameter).emplace(piece.bytes.size());
        kernels::copy(from.compute(), share.data(), piece.bytes.data(), Bytes(piece.bytes.size()));
      }
    }
  }
  for (const auto& unit : units) {
    for (const Buffer* buffer : unit->buffers()) {
      const std::span<const float> values = from.memory().values(*unit, *buffer);
      buffers_[buffer].resize(values.size());
      kernels::copy(from.compute(), buffers_[buffer].data(), values.data(), Bytes(values.size_bytes()));
    }
  }
  from.compute().synchronize();
  scalars_.clear();
  for (std::size_t program = 0; program < now.plan.programs.size(); ++program) {
    scalars_.push_back(step_scalars(from, program));
  }
  for (const auto& unit : units) {
    const std::vector<std::int64_t>& begun = from.operations().begun(unit->index());
    for (std::size_t p = 0; p < begun.size(); ++p) {
      if (!trains(now.plan, unit->index(), p)) continue;
      now.ages[unit->parameters()[p]] = scalars_[now.plan.trainers[unit->index()]].step - begun[p];
    }
  }
}

const CarriedState::Taken* CarriedState::source_of(const plan::Plan& next, std::size_t unit, const Parameter& parameter,
                                                   std::size_t state) const {
  for (auto taken = taken_.rbegin(); taken != taken_.rend(); ++taken) {
    if (state >= taken->states.size() || !taken->states[state].contains(&parameter)) continue;
    return are_alike(taken->plan, next, unit, state) ? &*taken : nullptr;
  }
  return nullptr;
}

// States keep their age under another program's count, and what starts to be trained has seen no update.
std::vector<std::int64_t> CarriedState::begun(const plan::Plan& next, const Unit& unit) const {
  std::vector<std::int64_t> result(unit.parameters().size());
  if (!next.trains(unit.index())) return result;
  const std::int64_t now = scalars_[next.trainers[unit.index()]].step;
  for (std::size_t p = 0; p < result.size(); ++p) {
    result[p] = now;
    for (const Taken& taken : taken_) {
      const auto age = taken.ages.find(unit.parameters()[p]);
      if (age != taken.ages.end()) result[p] = now - age->second;
    }
  }
  return result;
}

void CarriedState::restore(World& world, const plan::Plan& next, std::span<const std::unique_ptr<Unit>> units,
                           Executor* to) {
  for (std::size_t state = 0; state < states_of(next); ++state) {
    for (const auto& unit : units) {
      for (std::size_t p = 0; p < unit->parameters().size(); ++p) {
        if (keeps(next, unit->index(), p, state)) restore(world, next, *unit->parameters()[p], state, to);
      }
    }
  }
  if (to != nullptr) restore_buffers_and_scalars(next, units, *to);
  for (Taken& taken : taken_) drop_what_goes_on(taken, next, units);
  std::erase_if(taken_, [](const Taken& taken) { return taken.ages.empty(); });
}

// The first anchor of a parameter that starts to be trained is its weights.
void CarriedState::restore(World& world, const plan::Plan& next, const Parameter& parameter, std::size_t state,
                           Executor* to) {
  const std::size_t unit = parameter.unit()->index();
  const bool starts = is_anchor(next, state) && !taken_.back().states[state].contains(&parameter);
  const std::size_t from = starts ? 0 : state;
  const Taken* const source = source_of(next, unit, parameter, from);
  if (source == nullptr) return;
  std::optional<std::span<const std::byte>> mine;
  if (const auto& share = source->states[from].at(&parameter)) mine = *share;
  const std::vector<std::byte> values = whole(world, source->plan, parameter, from, mine);
  if (to == nullptr) return;
  const Bytes value = size_of(content_of(next, unit, state).type);
  for (const StatePiece& piece : pieces_of(next, unit, state, *to)) {
    if (piece.parameter != &parameter) continue;
    kernels::copy(to->compute(), piece.bytes.data(), values.data() + (value * piece.first).count(),
                  Bytes(piece.bytes.size()));
  }
  to->compute().synchronize();
}

void CarriedState::restore_buffers_and_scalars(const plan::Plan& next, std::span<const std::unique_ptr<Unit>> units,
                                               Executor& to) const {
  for (const auto& unit : units) to.operations().set_begun(unit->index(), begun(next, *unit));
  for (const auto& unit : units) {
    for (const Buffer* buffer : unit->buffers()) {
      const std::vector<float>& values = buffers_.at(buffer);
      kernels::copy(to.compute(), to.memory().values(*unit, *buffer).data(), values.data(),
                    Bytes(values.size() * sizeof(float)));
    }
  }
  for (std::size_t program = 0; program < scalars_.size(); ++program) set_step_scalars(to, program, scalars_[program]);
  to.refresh();
}

// An anchor does not wait: weights may be loaded meanwhile.
void CarriedState::drop_what_goes_on(Taken& taken, const plan::Plan& next,
                                     std::span<const std::unique_ptr<Unit>> units) {
  for (const auto& unit : units) {
    for (std::size_t p = 0; p < unit->parameters().size(); ++p) {
      const Parameter* const parameter = unit->parameters()[p];
      const bool goes_on = trains(next, unit->index(), p);
      for (std::size_t state = 0; state < taken.states.size(); ++state) {
        if (goes_on || state == 0 || is_anchor(taken.plan, state)) taken.states[state].erase(parameter);
      }
      if (goes_on) taken.ages.erase(parameter);
    }
  }
}

}  // namespace tessera
