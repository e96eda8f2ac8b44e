// A model is looked at between two steps; norms take one exchange for all parameters.
#include "tessera/shard/inspection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/hash.hpp"
#include "comm/collective_errors.hpp"
#include "shard/gathered.hpp"
#include "shard/model_state.hpp"
#include "shard/pieces.hpp"
#include "shard/plan_advice.hpp"
#include "tessera/kernels/norm.hpp"

namespace tessera {

namespace {

const plan::Content& content_of(const plan::Plan& plan, const Unit& unit, std::string_view state) {
  const plan::UnitBuffers& buffers = plan.unit_buffers[unit.index()];
  if (state == "master") return buffers[plan::Role::master];
  if (!plan.trains(unit.index())) {
    throw UsageError(fmt::format("unit {}: nothing of it is trained, so there is no \"{}\"", unit.name(), state));
  }
  if (state == "gradient") return buffers[plan::Role::gradient];
  for (const plan::Role role : {plan::Role::anchor, plan::Role::outer_momentum}) {
    if (state == to_string(role) && buffers[role].exists()) return buffers[role];
  }
  const std::vector<plan::StateSpec>& states = plan.unit_states(unit.index());
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (state == states[i].name) return buffers.states[i];
  }
  std::string known = "master, gradient";
  for (const plan::StateSpec& each : states) known.append(", ").append(each.name);
  if (plan.diverges()) known += ", anchor, outer momentum";
  throw UsageError(fmt::format("unit {}: no state \"{}\"; there are {}", unit.name(), state, known));
}

// Returns a content that has an fp32 value, or of a gradient one that can be widened to it, for each element.
const plan::Content& elements_of(const plan::Plan& plan, const Unit& unit, std::string_view state) {
  const plan::Content& content = content_of(plan, unit, state);
  if (content.type != DType::u8 && content.block == 1) return content;
  throw UsageError(
      fmt::format("unit {}: the state \"{}\" has not an fp32 value for each element: state_pieces() has its "
                  "values as they are",
                  unit.name(), state));
}

std::vector<GradientNorm> trained_parameters(const ModelState::InRole& role, std::size_t program) {
  const auto& [model, plan] = role;
  std::vector<GradientNorm> result;
  for (std::size_t u = 0; u < model->units.size(); ++u) {
    if (!plan->trains(u, program) || plan->units[u].tied) continue;
    for (std::size_t p = 0; p < plan->layouts[u].parameters(); ++p) {
      if (plan->layouts[u].part(p) == plan::Part::trained) result.push_back({model->units[u]->parameters()[p], 0.0});
    }
  }
  return result;
}

std::size_t program_or_current(ModelState& model, std::optional<std::size_t> program) {
  const std::size_t index = program.value_or(model.executor().program());
  if (index < model.plan.programs.size()) return index;
  throw UsageError(fmt::format("the step scalars of program {} were asked for, and the model has {}, counted from 0",
                               index, model.plan.programs.size()));
}

// Ranks that take steps together count alike; replicas that train apart, and roles, each for themselves. Collective.
template <typename Count>
void require_alike(ModelState& model, std::span<const Count> counts, const std::string& call) {
  const std::string_view mine(reinterpret_cast<const char*>(counts.data()), counts.size_bytes());
  const std::vector<std::uint64_t> all = gather_values(model.world(), fnv1a(mine), call);
  const plan::MeshShape& mesh = model.role ? *model.options.mesh : model.plan.mesh;
  const AxisSet apart = model.plan.diverging() | Axis::pipeline;
  for (std::size_t group = 0; group < mesh.size(apart); ++group) {
    std::vector<int> ranks;
    std::vector<std::uint64_t> theirs;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (mesh.index_of(apart, mesh.place_of(rank)) != group) continue;
      ranks.push_back(static_cast<int>(rank));
      theirs.push_back(all[rank]);
    }
    comm::require_equal(theirs, fmt::format("{}: what it is given, by its hash,", call), ranks);
  }
}

}  // namespace

// ---- parameters and states ----

std::vector<ParameterPiece> ModelInspection::pieces(const Unit& unit, std::string_view state) {
  ModelState& model = this->state();
  Executor& executor = model.executor_between_steps("pieces()");
  model.require_mine(unit);
  const plan::Content& content = elements_of(model.plan, unit, state);
  if (content.type == DType::fp32) return settled_pieces(executor, unit.index(), content);
  return settled_pieces(executor, unit.index(), content, model.copies[{unit.index(), std::string(state)}]);
}
void ModelInspection::round_masters(const Unit& unit) {
  ModelState& model = this->state();
  Executor& executor = model.executor_between_steps("round_masters()");
  model.require_mine(unit);
  const plan::Content& masters = content_of(model.plan, unit, "master");
  const auto copy = model.copies.find({unit.index(), "master"});
  if (copy == model.copies.end()) return;
  put_back_rounded(executor, unit.index(), masters, copy->second);
}
std::vector<StatePiece> ModelInspection::state_pieces(const Unit& unit, std::string_view state) {
  ModelState& model = this->state();
  Executor& executor = model.executor_between_steps("state_pieces()");
  model.require_mine(unit);
  const plan::Content& content = content_of(model.plan, unit, state);
  if (state == "gradient") {
    throw UsageError(fmt::format("unit {}: a gradient is no state: pieces() has it", unit.name()));
  }
  return settled_state_pieces(executor, unit.index(), content);
}
void ModelInspection::shards_changed() { state().executor().refresh(); }

std::vector<float> ModelInspection::whole(const Parameter& parameter, std::string_view state) {
  ModelState& model = this->state();
  Executor& executor = model.executor_between_steps("whole()");
  const std::vector<ModelState::InRole> roles = model.in_roles();
  const auto role = std::ranges::find_if(roles, [&](const ModelState::InRole& each) {
    return parameter.unit() != nullptr && each.model->is_mine(*parameter.unit());
  });
  if (role == roles.end()) ModelState::throw_foreign("parameter", parameter.shape());
  const plan::Plan& plan = *role->plan;
  const Unit& unit = *parameter.unit();
  if (state != "master" && plan.units[unit.index()].parameters[unit.index_of(parameter)].frozen) {
    throw UsageError(fmt::format("{} is frozen: of it there is a master alone, no \"{}\"", parameter.name(), state));
  }
  const plan::Content& content = elements_of(plan, unit, state);
  if (plan.layouts[unit.index()].offset(unit.index_of(parameter)) < content.begin) {
    throw UsageError(
        fmt::format("{} is seen whole by its optimizer, which keeps no \"{}\" of it", parameter.name(), state));
  }
  std::vector<float> copy;
  std::vector<ParameterPiece> mine;
  if (role->model == &model) mine = settled_pieces(executor, unit.index(), content, copy);
  const HostPieces here(stream(), std::move(mine));
  return whole_parameter(world(), plan, {parameter, state, plan.own(unit.index(), content)}, here.pieces());
}

std::span<float> ModelInspection::buffer(const Buffer& buffer) {
  Executor& executor = state().executor_between_steps("buffer()");
  executor.synchronize();
  if (state().refresh_buffers) state().refresh_buffers();
  return executor.memory().values(state().unit_of(buffer, "buffer"), buffer);
}
void ModelInspection::synchronize_buffers() {
  Executor& executor = state().executor_between_steps("synchronize_buffers()");
  if (state().refresh_buffers) state().refresh_buffers();
  executor.synchronize_buffers();
}
void ModelInspection::refresh_buffers_with(std::function<void()> refresh) {
  state().refresh_buffers = std::move(refresh);
}

// ---- norms and scalars ----

namespace {

void add_squares(Stream& host, std::span<const float> values, double& sum) {
  kernels::sum_of_squares(host, values.data(), values.size(), &sum);
}
void add_squares(Stream& host, std::span<const float> values, kernels::ExactSquares& sum) {
  kernels::exact_squares(host, values.data(), values.size(), &sum);
}
void add_to(double& sum, double more) { sum += more; }
void add_to(kernels::ExactSquares& sum, const kernels::ExactSquares& more) { kernels::add(sum, more); }
double total(double sum) { return sum; }
double total(const kernels::ExactSquares& sum) { return kernels::value_of(sum); }

// Sets the norms of a role's parameters to sums of squares: each of its ranks sums those of its pieces
// (kernels/norm.hpp), and the sums of the ranks that train together are added in rank order.
template <typename Sum>
void sum_squares(ModelState& model, const ModelState::InRole& role, std::vector<GradientNorm>& norms) {
  const plan::Plan& plan = *role.plan;
  World& world = model.world();
  Executor& executor = model.executor();
  std::vector<Sum> mine(norms.size()), sums(norms.size());
  Stream host(Device::cpu(), {.name = "gradient norms", .mode = StreamMode::immediate});
  std::vector<float> copy;
  std::size_t next = 0;  // pieces come in the order of the parameters
  for (std::size_t u = 0; role.model == &model && u < model.units.size(); ++u) {
    if (!plan.trains(u, executor.program()) || plan.units[u].tied) continue;
    const HostPieces here(executor.compute(),
                          settled_pieces(executor, u, plan.unit_buffers[u][plan::Role::gradient], copy));
    for (const ParameterPiece& piece : here.pieces()) {
      while (norms[next].parameter != piece.parameter) ++next;
      add_squares(host, piece.values, mine[next]);
    }
  }
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span<const Sum>(mine)),
                                                  "gradient norms of " + plan.programs[executor.program()].name);
  for (std::size_t rank = 0; rank < plan.options.ranks; ++rank) {
    for (std::size_t i = 0; i < norms.size(); ++i) {
      const Parameter& parameter = *norms[i].parameter;
      const std::size_t unit = parameter.unit()->index();
      const bool of_one = parameter.options().slice.has_value();  // whichever rank has a part of it
      if (!is_with(plan, rank, world, of_one ? plan.diverging() : plan.apart(unit))) continue;
      if (!plan.counts(unit, parameter.unit()->index_of(parameter), rank)) continue;
      Sum squares{};
      std::memcpy(&squares, all.data() + (plan.job_rank(rank) * norms.size() + i) * sizeof(Sum), sizeof(Sum));
      add_to(sums[i], squares);
    }
  }
  for (std::size_t i = 0; i < norms.size(); ++i) norms[i].norm = total(sums[i]);
}

}  // namespace

std::vector<GradientNorm> ModelInspection::gradient_norms() {
  Executor& executor = state().executor_between_steps("gradient_norms()");
  std::vector<GradientNorm> result;
  for (const ModelState::InRole& role : state().in_roles()) {
    std::vector<GradientNorm> norms = trained_parameters(role, executor.program());
    if (role.plan->has_granules()) {
      sum_squares<kernels::ExactSquares>(state(), role, norms);
    } else {
      sum_squares<double>(state(), role, norms);
    }
    result.insert(result.end(), norms.begin(), norms.end());
  }
  const kernels::StepScalars now = tessera::step_scalars(executor, executor.program());
  const double scale = static_cast<double>(now.applied_loss_scale);
  const auto divisor = static_cast<double>(plan().gradient_divisor(executor.program()));
  const double share = now.weight > 0.0 ? divisor / now.weight : 1.0;
  for (GradientNorm& entry : result) entry.norm = std::sqrt(entry.norm) * share / scale;
  return result;
}

kernels::StepScalars ModelInspection::step_scalars(std::optional<std::size_t> program) {
  Executor& executor = state().executor_between_steps("step_scalars()");
  return tessera::step_scalars(executor, program_or_current(state(), program));
}
void ModelInspection::set_step_scalars(const kernels::StepScalars& scalars, std::optional<std::size_t> program) {
  Executor& executor = state().executor_between_steps("set_step_scalars()");
  const std::size_t index = program_or_current(state(), program);
  // Bytes are compared, of which none lies between fields.
  static_assert(sizeof(scalars) == 4 * sizeof(double) + 2 * sizeof(std::int64_t) + 6 * sizeof(float));
  require_alike(state(), std::span(&scalars, 1), "set_step_scalars() of program " + plan().programs[index].name);
  tessera::set_step_scalars(executor, index, scalars);
}

std::vector<std::vector<std::int64_t>> ModelInspection::states_begun() const {
  std::vector<std::vector<std::int64_t>> result;
  for (const auto& unit : state().units) result.push_back(state().executor().operations().begun(unit->index()));
  return result;
}
void ModelInspection::set_states_begun(const std::vector<std::vector<std::int64_t>>& begun) {
  Executor& executor = state().executor_between_steps("set_states_begun()");
  if (begun.size() != state().units.size()) {
    throw UsageError(
        fmt::format("set_states_begun(): counts of {} units, and there are {}", begun.size(), state().units.size()));
  }
  std::vector<std::int64_t> all;
  for (const auto& unit : state().units) {
    const std::vector<std::int64_t>& counts = begun[unit->index()];
    all.insert(all.end(), counts.begin(), counts.end());
    if (counts.size() == unit->parameters().size()) continue;
    throw UsageError(fmt::format("set_states_begun(): of unit {} {} counts for {} parameters", unit->name(),
                                 counts.size(), unit->parameters().size()));
  }
  require_alike(state(), std::span<const std::int64_t>(all), "set_states_begun()");
  executor.synchronize();
  for (std::size_t unit = 0; unit < begun.size(); ++unit) {
    if (plan().trains(unit)) executor.operations().set_begun(unit, begun[unit]);
  }
}

// ---- memory, traces and the plan ----

ModelInspection::CheckpointMemory ModelInspection::checkpoint_memory() {
  ModelMemory& memory = state().executor().memory();
  return {.staging = memory.bytes(state().plan.checkpoint_staging), .copy = memory.bytes(state().plan.checkpoint_copy)};
}
std::vector<MemoryRegion> ModelInspection::regions() const { return state().executor().memory().regions(); }

std::shared_ptr<const std::string> ModelInspection::hold_plan(std::string why) {
  auto& held = state().held;
  auto reason = std::make_shared<const std::string>(std::move(why));
  std::erase_if(held, [](const auto& holder) { return holder.expired(); });
  held.push_back(reason);
  return reason;
}
void ModelInspection::require_between_steps(std::string_view call) const { state().executor_between_steps(call); }

Trace ModelInspection::trace(TraceSteps steps) {
  Executor& executor = state().executor_between_steps("trace()");
  executor.require_training("trace()");
  std::vector<TracedPlan> roles;
  for (const plan::Plan* role : plans()) roles.emplace_back(*role, executor.program(), steps, executor.updates());
  const auto recorder =
      std::make_shared<TraceRecorder>(std::move(roles), plan().options.role.value_or(0), world().device());
  executor.trace(recorder);
  return Trace(*this, recorder);
}

std::string ModelInspection::types_table() const {
  if (state().roles.empty()) return tessera::types_table(plan());
  std::string text;
  for (const plan::RankRole& role : state().roles) {
    text += fmt::format("{}{}\n{}", text.empty() ? "" : "\n", role.name, tessera::types_table(role.plan));
  }
  return text;
}

}  // namespace tessera
