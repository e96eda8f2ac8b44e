// A state's buffer of a unit is asked for by its place: 0 is the master, then come the optimizer's states, and with
// outer steps the anchor and the outer momentum.
#include "shard/carried_state.hpp"

#include <algorithm>
#include <optional>
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

// Calls visit(unit, parameter, state, from) for what the next plan keeps: its values come from that state of the old
// one. A parameter that starts to be trained sets out from its weights.
template <typename Visit>
void for_each_carried(const plan::Plan& old, const plan::Plan& next, std::span<const std::unique_ptr<Unit>> units,
                      const Visit& visit) {
  for (std::size_t state = 0; state < states_of(old); ++state) {
    for (const auto& unit : units) {
      for (std::size_t p = 0; p < unit->parameters().size(); ++p) {
        const bool kept = keeps(old, unit->index(), p, state) && are_alike(old, next, unit->index(), state);
        if (!keeps(next, unit->index(), p, state) || !(kept || is_anchor(next, state))) continue;
        visit(*unit, *unit->parameters()[p], state, kept ? state : 0);
      }
    }
  }
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

CarriedState::CarriedState(World& world, const plan::Plan& plan, std::span<const std::unique_ptr<Unit>> units,
                           Executor& from)
    : world_(world), plan_(plan), states_(states_of(plan)) {
  for (std::size_t state = 0; state < states_.size(); ++state) {
    for (const auto& unit : units) {
      for (const StatePiece& piece : pieces_of(plan, unit->index(), state, from)) {
        Share& share = states_[state][piece.parameter];
        share = {piece.first, std::vector<std::byte>(piece.bytes.size())};
        kernels::copy(from.compute(), share.bytes.data(), piece.bytes.data(), Bytes(piece.bytes.size()));
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
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    scalars_.push_back(step_scalars(from, program));
  }
  for (const auto& unit : units) begun_.push_back(from.operations().begun(unit->index()));
}

// States keep their age under another program's count, and what starts to be trained has seen no update.
std::vector<std::int64_t> CarriedState::begun(const plan::Plan& next, std::size_t unit) const {
  std::vector<std::int64_t> result = begun_[unit];
  if (!next.trains(unit)) return result;
  const std::int64_t now = scalars_[next.trainers[unit]].step;
  for (std::size_t p = 0; p < result.size(); ++p) {
    const bool kept = plan_.trains(unit) && plan_.layouts[unit].part(p) == plan::Part::trained;
    result[p] = kept ? result[p] + now - scalars_[plan_.trainers[unit]].step : now;
  }
  return result;
}

void CarriedState::restore(const plan::Plan& plan, std::span<const std::unique_ptr<Unit>> units, Executor& to) const {
  for_each_carried(plan_, plan, units,
                   [&](const Unit& unit, const Parameter& parameter, std::size_t state, std::size_t from) {
                     std::optional<std::span<const std::byte>> mine;
                     if (const auto share = states_[from].find(&parameter); share != states_[from].end())
                       mine = share->second.bytes;
                     const std::vector<std::byte> values = whole(world_, plan_, parameter, from, mine);
                     const Bytes value = size_of(content_of(plan, unit.index(), state).type);
                     for (const StatePiece& piece : pieces_of(plan, unit.index(), state, to)) {
                       if (piece.parameter != &parameter) continue;
                       kernels::copy(to.compute(), piece.bytes.data(), values.data() + (value * piece.first).count(),
                                     Bytes(piece.bytes.size()));
                     }
                     to.compute().synchronize();
                   });
  for (const auto& unit : units) to.operations().set_begun(unit->index(), begun(plan, unit->index()));
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

void CarriedState::look_on(World& world, const plan::Plan& old, const plan::Plan& next,
                           std::span<const std::unique_ptr<Unit>> units) {
  for_each_carried(old, next, units, [&](const Unit&, const Parameter& parameter, std::size_t, std::size_t from) {
    whole(world, old, parameter, from, std::nullopt);
  });
}

}  // namespace tessera
