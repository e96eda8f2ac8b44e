// One function for each kind.
#include "shard/operations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "device/cuda/cuda_queue.hpp"
#include "plan/collective_memory.hpp"
#include "plan/ranges.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/parallel.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/kernels/norm.hpp"
#include "tessera/kernels/step_scalars.hpp"

namespace tessera {

using plan::Access;
using plan::Operation;
using plan::OperationKind;

namespace {

// Each stream has a kind.
struct CommunicatorKind {
  const char* name;
  std::size_t plan::Plan::*staging;
};
constexpr CommunicatorKind communicator_kinds[plan::stream_count] = {{"window", &plan::Plan::window_staging},
                                                                     {"gather", &plan::Plan::gather_staging},
                                                                     {"reduce", &plan::Plan::reduce_staging},
                                                                     {},
                                                                     {},
                                                                     {},
                                                                     {"overlap", &plan::Plan::window_staging}};

kernels::Accumulate added(const Operation& reduction) {
  if (!reduction.add) return kernels::Accumulate::no;
  return reduction.continues ? kernels::Accumulate::terms : kernels::Accumulate::sum;
}

void require_parts_that_fit(const kernels::StepScalars& now) {
  if (std::isnan(now.weight)) {
    throw CommunicationError(
        "some ranks gave a weight to update() and others did not: in one step all that compute do, or none");
  }
  if (std::isfinite(now.weight)) return;
  throw CommunicationError("the weights that ranks gave to update() add up to more than a double can hold");
}

}  // namespace

Operations::Operations(const ExecutorInput& input, ModelMemory& memory)
    : plan_(input.plan),
      units_(input.units),
      optimizers_(input.optimizers),
      rank_(input.plan.rank_of(static_cast<std::size_t>(input.world.rank()))),
      seed_(input.seed),
      poison_(input.diagnostics.poison),
      loss_scaling_(input.loss_scaling),
      outer_(input.outer),
      begun_(input.units.size()),
      gradient_hook_(input.gradient_hook),
      memory_(memory),
      roles_(input.roles),
      skipped_steps_(input.plan.programs.size(), SkippedSteps(input.world)),
      tasks_see_memory_(input.world.device().kind() == DeviceKind::cpu),
      on_host_(Device::cpu(), {.name = "host", .mode = StreamMode::immediate}),
      supposed_rates_(input.units.size()),
      heaviest_steps_(input.plan.programs.size(), 0.0) {
  for (std::size_t program = 0; program < plan_.programs.size(); ++program) {
    granule_weights_.reserve(plan_.granules(program).rounds());
  }
  for (const plan::UnitSpec& unit : plan_.units) evaluated_.push_back(unit.name + ", evaluated");
  stretches_.resize(units_.size());
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    set_begun(unit, std::vector<std::int64_t>(units_[unit]->parameters().size()));
    const bool hooked = plan_.options.gradient_hooks && plan_.trains(unit);
    gradient_pieces_.push_back(hooked ? memory_.pieces(unit, plan_.unit_buffers[unit][plan::Role::gradient])
                                      : std::vector<ParameterPiece>{});
  }
  find_owned_tensors();
  for (const plan::Segment& segment : plan_.segments) {
    auto& calls = calls_.emplace_back();
    for (const Operation& operation : segment.operations) {
      calls.push_back(call_of(operation, segment.kind == plan::SegmentKind::evaluation));
    }
  }
}

namespace {

Mesh mesh_of(World& world, const plan::MeshShape& shape) {
  std::vector<MeshAxis> axes;
  shape.outwards_in([&](Axis axis) {
    axes.push_back({std::string(to_string(axis)), static_cast<int>(shape.size(axis))});
  });
  return world.mesh(std::move(axes));
}

// Ranks stand in the order of the shards that they own.
Group group_of(World& world, const Mesh& mesh, const plan::MeshShape& shape, AxisSet axes) {
  std::vector<std::string> names;
  shape.inwards_out([&](Axis axis) {
    if (axes.contains(axis)) names.emplace_back(to_string(axis));
  });
  if (names.empty()) return world.mesh({{"rank", world.size()}, {"alone", 1}}).group("alone");
  return mesh.group_of(names);
}

// A message goes from one to the other of a pair (Mesh::pairs_of), whose first is the one that stands first.
struct Link {
  int pairs_from;
  int sender;
};

Link link_of(const plan::Plan& plan, const Operation& message) {
  const std::size_t roles = plan.options.mesh->size(Axis::pipeline), mine = *plan.options.role;
  const std::size_t other = plan::neighbour(mine, roles, message);
  const bool sends = message.collective_kind == CollectiveKind::send;
  const std::size_t from = sends ? mine : other, first = std::min(mine, other);
  const bool goes_up = message.window != plan::WindowKind::backward;
  const bool around = goes_up ? from + 1 == roles : from == 0;  // from the last role to the first, or back
  return {around ? 2 : static_cast<int>(first % 2), from == first ? 0 : 1};
}

}  // namespace

// Every rank makes those of all roles, in one order.
void Operations::make_communicators(World& world) {
  const Mesh mesh = mesh_of(world, plan_.options.role ? *plan_.options.mesh : plan_.mesh);
  std::map<std::pair<std::size_t, unsigned>, AxisSet> groups;
  std::array<bool, 3> messages{};
  bool has_tied = false;
  const auto note = [&](const plan::Plan& plan) {
    for (const plan::Segment& segment : plan.segments) {
      for (const Operation& operation : segment.operations) {
        if (operation.passes_message()) messages[static_cast<std::size_t>(link_of(plan, operation).pairs_from)] = true;
        const bool is_copy = operation.kind == OperationKind::redistribute && operation.group.empty();
        const bool is_tied = operation.kind == OperationKind::sum_tied;
        has_tied = has_tied || is_tied;
        if (is_collective(operation.kind) && !operation.passes_message() && !is_copy && !is_tied)
          groups[{static_cast<std::size_t>(operation.stream), operation.group.bits()}] = operation.group;
      }
    }
  };
  if (roles_.empty()) note(plan_);
  for (const plan::RankRole& role : roles_) note(role.plan);
  for (const auto& [key, axes] : groups) {
    const CommunicatorKind& kind = communicator_kinds[key.first];
    CommunicatorUse use{.staging = memory_.bytes(plan_.*kind.staging)};
    const plan::MeshShape& shape = plan_.options.role ? *plan_.options.mesh : plan_.mesh;
    if (const Group group = group_of(world, mesh, shape, axes); !group.is_everybody()) use.group = group;
    communicators_[key.first][key.second] = world.make_communicator(kind.name, use);
  }
  if (has_tied) {
    const std::span<std::byte> staging = memory_.bytes(plan_.reduce_staging);
    const std::size_t both = std::min<std::size_t>(staging.size(), plan::tied_staging(roles_).count());
    tied_ = world.make_communicator(
        "tied units", {.staging = staging.first(both), .group = mesh.pairs_of(to_string(Axis::pipeline), 2)});
  }
  for (int from = 0; from < 3; ++from) {
    if (!messages[static_cast<std::size_t>(from)]) continue;
    for (std::size_t back = 0; back < 2; ++back) {
      const CommunicatorUse use{.staging = memory_.bytes(plan_.window_staging),
                                .group = mesh.pairs_of(to_string(Axis::pipeline), from),
                                .carries_messages = true};
      links_[static_cast<std::size_t>(from)][back] =
          world.make_communicator(back == 0 ? "forward messages" : "backward messages", use);
    }
  }
}

template <typename Work>
void Operations::compute(const Operation& operation, Stream& on, const Work& work) {
  if (operation.stream != plan::StreamId::host || tasks_see_memory_) return work(on);
  in_task(on, work);
}

template <typename Work>
void Operations::in_task(Stream& on, const Work& work) {
  on.submit([this, &on, work] {
    // Until what the stream waits for is in the host's memory.
    if (!tasks_see_memory_) device::cuda_queue(on).synchronize();
    work(on_host_);
    on_host_.rethrow_failure();
  });
}

void Operations::launch(plan::EventPoint point, Stream& on) {
  const Operation& operation = plan_.at(point);
  Call& call = calls_[point.segment][point.operation];
  switch (operation.kind) {
    case OperationKind::initialize: return initialize(operation, on);
    case OperationKind::initialize_scalars: return initialize_scalars(operation, on);
    case OperationKind::cast:
    case OperationKind::convert:
      return compute(operation, on, [this, &operation](Stream& here) { cast(operation, here); });
    case OperationKind::collective: return collect(operation, call, on);
    case OperationKind::all_gather:
    case OperationKind::all_gather_sum: return communicator_of(operation).all_gather(on, call.gathers);
    case OperationKind::prepare_gradient: return prepare_gradient(operation, on);
    case OperationKind::accumulate: return accumulate(operation, on);
    case OperationKind::sum_tied: return sum_tied(operation, on);
    case OperationKind::hook: return hook(operation, on);
    case OperationKind::broadcast: return broadcast(operation, on);
    case OperationKind::reduce_scatter: return communicator_of(operation).reduce_scatter(on, call.reductions);
    case OperationKind::weight: return write_weight(operation, on);
    case OperationKind::gather_norms: return gather_norms(operation, call, on);
    case OperationKind::sum_of_squares: return sum_of_squares(operation, on);
    case OperationKind::begin_update: {
      const std::size_t program = plan_.segments[point.segment].program;
      return is_supposed(operation) ? suppose(operation, program, on) : begin_update(program, on);
    }
    case OperationKind::optimize: {
      const StepOf step = step_of(operation);
      return compute(operation, on, [this, &operation, step](Stream& here) { optimize(operation, step, here); });
    }
    case OperationKind::keep: return in_task(on, [this, &operation](Stream&) { keep(operation); });
    case OperationKind::settle: return settle(operation, on);
    case OperationKind::redistribute: return redistribute(operation, call, on);
    case OperationKind::transform: return transform(operation, on);
    case OperationKind::apply: return apply(operation, on);
    case OperationKind::outer_update: return outer_update(operation, on);
    case OperationKind::release: return release(operation, on);
    case OperationKind::transfer: return transfer(operation, on);
    case OperationKind::window: break;
  }
  throw InternalError("an operation that the executor cannot run");
}

// Values are computed on the host in fp32, rounded to nearest where masters are of 16 bits, and on a CUDA device taken
// there by the task that computed them.
void Operations::fill_initial(const kernels::Target& to, std::size_t count, const FillValues& fill, Stream& on) {
  const bool on_host = on.device().kind() == DeviceKind::cpu, is_fp32 = to.type == DType::fp32;
  const Bytes size = size_of(to.type) * count;
  if (on_host && is_fp32) return fill({static_cast<float*>(to.data), count});
  std::vector<float> values(count);
  fill(values);
  std::vector<bf16> rounded(is_fp32 ? 0 : count);
  std::transform(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rounded.size()), rounded.begin(),
                 [](float value) { return bf16(value); });
  const void* const from = is_fp32 ? static_cast<const void*>(values.data()) : rounded.data();
  if (on_host) {
    std::memcpy(to.data, from, size.count());
    return;
  }
  device::cuda_queue(on).copy(to.data, from, size);
  device::cuda_queue(on).synchronize();
}

// An element of a slice has the value of the whole tensor's.
void Operations::fill_slice(std::size_t unit, const plan::ParameterSpec& spec, const StatePiece& piece,
                            std::span<float> values) const {
  const std::size_t variant = plan_.variant_of(unit, rank_);
  const std::string name = plan::name_of_variant(plan_.units[unit], spec, variant);
  spec.map().for_each_run(
      variant, piece.first, values.size(), [&](std::size_t own, std::size_t whole, std::size_t count) {
        piece.parameter->initial().fill(values.subspan(own - piece.first, count), seed_, name, whole);
      });
}

// The arena starts at zero, and with it padding and the optimizer's states.
void Operations::initialize(const Operation& operation, Stream& on) {
  const std::size_t unit = operation.unit;
  on.submit([this, unit, &on] {
    const plan::Content& master = plan_.unit_buffers[unit][plan::Role::master];
    for (const StatePiece& piece : memory_.state_pieces(unit, master)) {
      const kernels::Target to{piece.bytes.data(), master.type};
      const std::size_t count = piece.bytes.size() / size_of(master.type).count();
      const plan::ParameterSpec& spec = plan_.units[unit].parameters[units_[unit]->index_of(*piece.parameter)];
      fill_initial(
          to, count, [&](std::span<float> values) { fill_slice(unit, spec, piece, values); }, on);
    }
    for (const Buffer* state : units_[unit]->buffers()) {
      const std::span<float> there = memory_.values(*units_[unit], *state);
      const std::string name = plan::name_of_variant(plan_.units[unit], state->name(), plan_.variant_of(unit, rank_));
      const auto fill = [&](std::span<float> values) { state->initial().fill(values, seed_, name, 0); };
      fill_initial({there.data(), DType::fp32}, there.size(), fill, on);
    }
  });
  set_anchor(unit, on);
}

// The first outer step starts at the initial weights, which all ranks have in common.
void Operations::set_anchor(std::size_t unit, Stream& on) {
  const plan::UnitBuffers& buffers = plan_.unit_buffers[unit];
  if (!buffers[plan::Role::anchor].exists()) return;
  const auto mine = [&](plan::Role role) {
    return plan::share_range(plan_, unit, buffers[role], plan::Part::trained, plan_.common(unit));
  };
  const plan::Range anchor = mine(plan::Role::anchor);
  kernels::copy(on, address(anchor), address(mine(plan::Role::master)), anchor.size);
}

kernels::Source Operations::source(const Access& access) { return {address(access.range), plan_.content(access).type}; }
kernels::Target Operations::target(const Access& access) { return {address(access.range), plan_.content(access).type}; }
float* Operations::floats(const Access& access) { return reinterpret_cast<float*>(address(access.range)); }

std::size_t Operations::elements(const Access& access) const {
  return elements_in(plan_.content(access).type, access.range.size);
}

void Operations::cast(const Operation& operation, Stream& on) {
  const Access& to = operation.target();
  kernels::cast(on, target(to), source(operation.source()), elements(to));
}

// A segment for each pair of accesses, source and target. Gathers are in place: the part that this rank contributes
// stands at its place in the whole. Gathers of evaluations say so: a rank that evaluates once more than others is told
// with the first of them.
Operations::Call Operations::call_of(const Operation& operation, bool evaluates) {
  if (operation.kind == OperationKind::collective) return call_in_window(operation);
  Call result;
  if (operation.kind == OperationKind::redistribute) {
    const plan::WholeGroup& group = plan_.whole_groups[operation.whole_group];
    result.transfers =
        operation.goes_to_owners() ? transfers_to_owners(plan_, group) : transfers_from_owners(plan_, group);
    return result;
  }
  const bool reduces = operation.kind == OperationKind::reduce_scatter;
  if (!is_collective(operation.kind) || operation.kind == OperationKind::broadcast ||
      operation.kind == OperationKind::sum_tied)
    return result;
  for (std::size_t move = 0; move < operation.moves(); ++move) {
    const plan::Range& source = operation.source(move).range;
    const plan::Range& target = operation.target(move).range;
    const std::size_t unit = operation.source(move).tenant;
    const std::string_view label = unit == plan::no_unit
                                       ? to_string(operation.kind)
                                       : std::string_view(evaluates ? evaluated_[unit] : plan_.units[unit].name);
    if (!reduces) {
      result.gathers.push_back({.data = address(target), .shard = source.size, .label = label});
      continue;
    }
    result.reductions.push_back({.data = address(source),
                                 .wire = operation.wire,
                                 .result = reinterpret_cast<float*>(address(target)),
                                 .shard_elements = target.size.count() / sizeof(float),
                                 .accumulate = added(operation),
                                 .divisor = static_cast<float>(operation.divisor),
                                 .label = label});
  }
  return result;
}

// A message is a broadcast between two neighbours; each direction has a communicator of its own.
void Operations::pass_message(const Operation& operation, Stream& on) {
  const Link link = link_of(plan_, operation);
  const bool back = operation.window == plan::WindowKind::backward;
  const plan::Range& range = operation.accesses.front().range;
  const plan::CollectiveSpec& spec = plan_.units[operation.unit].collectives[operation.collective];
  links_[static_cast<std::size_t>(link.pairs_from)][back ? 1 : 0]->broadcast(
      on, {.data = address(range), .size = range.size, .root = link.sender, .label = plan::last_name(spec)});
}

Operations::Call Operations::call_in_window(const Operation& operation) {
  if (operation.passes_message()) return {};
  const plan::CollectiveSpec& spec = plan_.units[operation.unit].collectives[operation.collective];
  const plan::Range mine = plan::my_collected(plan_, spec), received = plan::received(plan_, spec);
  std::byte* const all = base(mine.buffer);
  Call result;
  if (spec.kind == CollectiveKind::all_to_all) {
    const int ranks = static_cast<int>(plan_.mesh.size(operation.group));
    for (int from = 0; from < ranks; ++from) {
      for (int to = 0; to < ranks; ++to) {
        const auto place = [&](int of) { return spec.bytes() * static_cast<std::size_t>(of); };
        result.transfers.push_back({from, to, place(to), received.offset + place(from), spec.bytes()});
      }
    }
    return result;
  }
  if (spec.kind != CollectiveKind::reduce_scatter)
    result.gathers.push_back({.data = all, .shard = mine.size, .label = spec.name});
  if (!plan::sums(spec.kind)) return result;
  std::byte* sums = address(mine);
  if (plan::rounds_sums(plan_, spec)) {
    result.rounded = {spec.kind == CollectiveKind::reduce_scatter ? address(received) : sums, *spec.type};
    sums = address(received) + (received.size - mine.size * 2).count();
  }
  result.reductions.push_back({.data = all,
                               .wire = *spec.type,
                               .result = reinterpret_cast<float*>(sums),
                               .shard_elements = mine.size.count() / size_of(*spec.type).count(),
                               .label = spec.name});
  return result;
}

void Operations::collect(const Operation& operation, const Call& call, Stream& on) {
  if (operation.passes_message()) return pass_message(operation, on);
  Communicator& communicator = communicator_of(operation);
  if (!call.transfers.empty()) {
    const plan::CollectiveSpec& spec = plan_.units[operation.unit].collectives[operation.collective];
    std::byte* const data = base(operation.accesses.front().range.buffer);
    return communicator.redistribute(on, {.data = data, .transfers = call.transfers, .label = spec.name});
  }
  if (!call.reductions.empty()) communicator.reduce_scatter(on, call.reductions);
  if (call.rounded.data != nullptr) {
    const ReduceScatter& sum = call.reductions.front();
    kernels::cast(on, call.rounded, {sum.result, DType::fp32}, sum.shard_elements);
  }
  if (!call.gathers.empty()) communicator.all_gather(on, call.gathers);
}

// Ranks at one place have the same shards in both roles.
void Operations::sum_tied(const Operation& operation, Stream& on) {
  const Access& gradient = operation.operand(plan::Role::gradient);
  tied_->all_reduce(
      on, {.data = floats(gradient), .elements = elements(gradient), .label = plan_.units[operation.unit].name});
}

// The user writes parameters; what lies between them must be zero for norms and sums.
void Operations::prepare_gradient(const Operation& operation, Stream& on) {
  const plan::UnitLayout& layout = plan_.layouts[operation.unit];
  const Access& slot = operation.operand(plan::Role::gradient_slot);
  const Bytes element = size_of(plan_.content(slot).type);
  std::byte* gradient = address(slot.range);
  const auto clear = [&](std::size_t begin, std::size_t end) {
    if (begin < end) kernels::fill_zero(on, gradient + (element * begin).count(), element * (end - begin));
  };
  std::size_t end_of_last = 0;
  for (const std::size_t p : layout.trained()) {
    clear(end_of_last, layout.offset(p));
    end_of_last = layout.offset(p) + layout.elements(p);
  }
  clear(end_of_last, layout.padded_elements(plan::Part::trained));
}

void Operations::accumulate(const Operation& operation, Stream& on) {
  const Access& slot = operation.operand(plan::Role::gradient_slot);
  const Access& sum = operation.operand(plan::Role::accumulation);
  if (operation.add) {
    kernels::accumulate(on, floats(sum), source(slot), elements(slot));
  } else {
    kernels::cast(on, target(sum), source(slot), elements(slot));
  }
}

// Parameters that are alike on ranks which have the unit apart count once, and stand last in the trained part.
std::size_t Operations::counted_elements(std::size_t unit, std::size_t elements) const {
  if (plan_.variant_of(unit, rank_) == 0) return elements;
  const plan::UnitLayout& layout = plan_.layouts[unit];
  const std::size_t first = layout.share_begin(rank_, plan_.own(unit));
  return std::min(elements, std::max(layout.alike_begin(), first) - first);
}

void Operations::sum_of_squares(const Operation& operation, Stream& on) {
  const Access& gradient = operation.operand(plan::Role::gradient);
  std::byte* const norm = address(operation.operand(plan::Role::norms).range);
  if (plan_.has_granules()) {
    kernels::exact_squares(on, source(gradient), elements(gradient), reinterpret_cast<kernels::ExactSquares*>(norm));
  } else {
    const bool computes = operation.stream == plan::StreamId::compute;
    kernels::sum_of_squares(on, source(gradient), counted_elements(operation.unit, elements(gradient)),
                            reinterpret_cast<double*>(norm), computes ? kernels::Threads::all : kernels::Threads::one);
  }
}

// Called here, so that what it enqueues stands between the reduction and the norm.
void Operations::hook(const Operation& operation, Stream& on) {
  gradient_hook_({.unit = *units_[operation.unit],
                  .pieces = gradient_pieces_[operation.unit],
                  .loss_scale = &memory_.scalars(plan_.trainers[operation.unit])->loss_scale,
                  .stream = on});
}

void Operations::broadcast(const Operation& operation, Stream& on) {
  const plan::Range& range = operation.operand(plan::Role::untrained).range;
  communicator_of(operation).broadcast(
      on, {.data = address(range), .size = range.size, .root = 0, .label = plan_.units[operation.unit].name});
}

// Labels are compared between ranks: with the learning rate in this one, ranks that ask for different updates are told
// before anything is updated.
void Operations::gather_norms(const Operation& operation, Call& call, Stream& on) {
  NormLabel& label = norm_labels_[next_norm_label_++ % norm_labels_.size()];
  const bool several = plan_.programs.size() > 1;
  const std::string_view program = several ? plan_.programs[program_].name : std::string_view();
  const auto end = learning_rate_ ? fmt::format_to_n(label.data(), label.size(), "norms, in update({}){}{}",
                                                     *learning_rate_, several ? " of program " : "", program)
                                        .out
                                  : fmt::format_to_n(label.data(), label.size(), "norms, in discard_gradients(){}{}",
                                                     several ? " of program " : "", program)
                                        .out;
  call.gathers.front().label = {label.data(), end};
  communicator_of(operation).all_gather(on, call.gathers);
  if (!operation.group.contains(Axis::pipeline)) note_parts(on);  // norms alone go from role to role
}

void Operations::initialize_scalars(const Operation& operation, Stream& on) {
  kernels::set_scalars(on, scalars_at(operation), {.loss_scale = loss_scaling_.initial});
  for (const Access& access : operation.accesses) {
    if (access.role == plan::Role::norms) kernels::fill_zero(on, address(access.range), access.range.size);
  }
}

void Operations::set_step(std::size_t program, std::optional<float> asked, const kernels::StepPart& part,
                          std::span<const double> granule_weights) {
  program_ = program;
  learning_rate_ = asked;
  expected_rate_.reset();
  part_ = part;
  granule_weights_.assign(granule_weights.begin(), granule_weights.end());
}

void Operations::write_weight(const Operation& operation, Stream& on) {
  kernels::set_part(on, reinterpret_cast<kernels::StepPart*>(address(operation.operand(plan::Role::norms).range)),
                    part_, granule_weights_, plan_.granules(program_).rounds());
  if (plan_.training_ranks() == 1) note_parts(on);
}

// Dropped, as all of a stream's tasks are, where an earlier one of them has failed.
void Operations::note_parts(Stream& on) {
  if (tasks_see_memory_) on.submit([this] { norms_arrived_ = true; });
}

void Operations::begin_update(std::size_t program, Stream& on) {
  kernels::StepSettings settings = optimizers_[program]->step_settings();
  kernels::StepScalars* const scalars = memory_.scalars(program);
  settings.loss_scaling = loss_scaling_;
  const kernels::NormPartials partials{
      .values = reinterpret_cast<const double*>(base(plan_.program_buffers[program].norms)),
      .units = plan_.norm_cells(program),
      .ranks = plan_.training_ranks(),
      .divisor = static_cast<double>(plan_.gradient_divisor(program)),
      .exact = plan_.has_granules(),
      .rounds = plan_.granules(program).rounds(),
      .any_order = plan_.shares_norms()};  // a schedule says which units a role has
  kernels::begin_update(on, scalars, partials, settings);
  if (!tasks_see_memory_) return;
  on.submit([this, program, scalars] {
    if (!norms_arrived_.exchange(false)) return;  // what is there is older: the stream that brings them has failed
    require_parts_that_fit(*scalars);
    skipped_steps_[program].look(*scalars);
  });
}

// On a CUDA device this is noticed when somebody looks: FullyShard::last_step(). Such a step has changed nothing.
void Operations::look_at(std::size_t program, const kernels::StepScalars& now) {
  require_parts_that_fit(now);
  skipped_steps_[program].look(now);
}

// A unit's own rate is to the step's as the two optimizers' are to each other.
float Operations::learning_rate_of(std::size_t unit, float asked) const {
  const Optimizer& program = *optimizers_[plan_.trainers[unit]];
  const Optimizer& own = optimizer_of(unit);
  if (&own == &program) return asked;
  return asked == program.learning_rate() ? own.learning_rate()
                                          : own.learning_rate() * (asked / program.learning_rate());
}

bool Operations::is_supposed(const Operation& operation) {
  const bool begins = operation.kind == OperationKind::begin_update || operation.kind == OperationKind::optimize;
  return begins && std::any_of(operation.accesses.begin(), operation.accesses.end(),
                               [](const Access& access) { return access.role == plan::Role::supposed; });
}

Operations::StepOf Operations::step_of(const Operation& operation) {
  const std::size_t unit = operation.unit;
  if (!is_supposed(operation)) {
    return {learning_rate_of(unit, learning_rate_.value_or(0.0f)), scalars_at(operation)};
  }
  const float asked = expected_rate_.value_or(optimizers_[plan_.trainers[unit]]->learning_rate());
  supposed_rates_[unit] = learning_rate_of(unit, asked);
  return {supposed_rates_[unit], scalars_at(operation)};
}

// Writes what a step comes to whose norm is finite and not clipped, and which weighs as much as the heaviest so far;
// the first one, its micro-batches.
void Operations::suppose(const Operation& operation, std::size_t program, Stream& on) {
  kernels::StepSettings settings = optimizers_[program]->step_settings();
  settings.clip_norm = 0.0f;
  in_task(on, [this, scalars = scalars_at(operation), program, settings](Stream& here) {
    double& heaviest = heaviest_steps_[program];
    heaviest = std::max(heaviest, scalars->weight);
    const auto divisor = static_cast<double>(plan_.gradient_divisor(program));
    const kernels::StepPart part{heaviest > 0.0 ? heaviest : divisor, kernels::StepPart::Kind::samples};
    const auto* const row = reinterpret_cast<const double*>(&part);  // `here` has read it when the call is back
    kernels::begin_update(here, scalars, {.values = row, .units = 0, .ranks = 1, .divisor = divisor}, settings);
  });
}

namespace {

constexpr std::size_t worth_a_thread = std::size_t{1} << 16;  // bytes

void copy_in_shares(std::byte* to, const std::byte* from, Bytes size) {
  parallel::in_shares(
      {.count = size.count(), .least = worth_a_thread, .unit = 64},
      [&](std::size_t begin, std::size_t end, std::size_t) { std::memcpy(to + begin, from + begin, end - begin); });
}

// Compares what an optimizer reads.
bool agree(const kernels::StepScalars& a, const kernels::StepScalars& b) {
  return a.skip == b.skip && a.gradient_factor == b.gradient_factor && a.step == b.step &&
         a.decay_power[0] == b.decay_power[0] && a.decay_power[1] == b.decay_power[1];
}

}  // namespace

void Operations::keep(const Operation& operation) {
  for (std::size_t move = 0; move < operation.moves(); ++move) {
    const plan::Range& from = operation.source(move).range;
    copy_in_shares(address(operation.target(move).range), address(from), from.size);
  }
}

// The unit has been updated as no other rank's may be any more.
void Operations::refuse(const Operation& operation, const StepOf& step, float supposed) const {
  const auto why = [&] {
    if (step.scalars->skip != 0) return std::string("skipped or dropped");
    if (step.learning_rate == supposed) return fmt::format("to be multiplied with {}", step.scalars->gradient_factor);
    return fmt::format(
        "made at a learning rate of {}, not of {}: say it to FullyShard::expect() before its first "
        "backward window",
        step.learning_rate, supposed);
  };
  throw UsageError(fmt::format(
      "unit {} was updated ahead of the norm of all gradients, and the step is {}: its weights are those of no step. "
      "Clip, skip and drop nothing and let every step have the same weight, or take offload.ahead = revocable; and go "
      "on from a checkpoint",
      plan_.units[operation.unit].name, why()));
}

// An update that is skipped writes nothing, not even what masters are rounded to.
void Operations::round_again(const Operation& operation, Stream& on) {
  const auto rounded = std::find_if(operation.accesses.begin(), operation.accesses.end(),
                                    [](const Access& access) { return access.role == plan::Role::host_rounded; });
  if (rounded == operation.accesses.end()) return;
  const Access& master = operation.operand(plan::Role::master);
  kernels::cast(on, target(*rounded), source(master), elements(master));
}

// Values from before the step stand in the order of masters and states.
void Operations::settle(const Operation& operation, Stream& on) {
  const float rate = learning_rate_of(operation.unit, learning_rate_.value_or(0.0f));
  const StepOf step{rate, scalars_at(operation, plan::Role::host_scalars)};
  const float supposed = supposed_rates_[operation.unit];  // now: tasks run later than the next step's launches
  in_task(on, [this, &operation, step, supposed](Stream& here) {
    if (step.learning_rate == supposed && agree(*step.scalars, *scalars_at(operation, plan::Role::supposed))) return;
    if (plan_.options.offload.ahead == Ahead::final) refuse(operation, step, supposed);
    for (const Access& before : operation.accesses) {
      if (before.role != plan::Role::before) continue;
      const auto home = std::find_if(operation.accesses.begin(), operation.accesses.end(), [&](const Access& access) {
        return before.state == 0 ? access.role == plan::Role::master
                                 : access.role == plan::Role::state && access.state + 1 == before.state;
      });
      copy_in_shares(address(home->range), address(before.range), before.range.size);
    }
    round_again(operation, here);
    optimize(operation, step, here);
  });
}

bool Operations::has_own_decays(std::size_t unit) const {
  const kernels::StepSettings own = optimizer_of(unit).step_settings();
  const kernels::StepSettings counted = optimizers_[plan_.trainers[unit]]->step_settings();
  return !std::equal(std::begin(own.decay), std::end(own.decay), std::begin(counted.decay));
}

void Operations::outer_update(const Operation& operation, Stream& on) {
  const auto operand = [&](plan::Role role) { return floats(operation.operand(role)); };
  kernels::outer_update(on,
                        {.master = operand(plan_.unit_buffers[operation.unit].masters()),
                         .anchor = operand(plan::Role::anchor),
                         .momentum_buffer = operand(plan::Role::outer_momentum),
                         .mean = operand(plan::Role::outer_mean),
                         .count = elements(operation.operand(plan::Role::outer_mean))},
                        outer_);
}

void Operations::transfer(const Operation& operation, Stream& on) {
  for (std::size_t move = 0; move < operation.moves(); ++move) {
    const plan::Range& from = operation.source(move).range;
    const plan::Range& to = operation.target(move).range;
    if (memory_.is_on_disk(from) || memory_.is_on_disk(to)) {
      on.submit([this, &from, &to, &on] { visit_disk(from, to, on); });
    } else {
      kernels::copy(on, address(to), address(from), from.size);
    }
  }
}

// Each direction has a stream, and with it a thread that may wait for the disk. A CUDA device's memory is out of the
// disk's reach: values pass through staging, a part at a time.
void Operations::visit_disk(const plan::Range& from, const plan::Range& to, Stream& on) {
  const bool reads = memory_.is_on_disk(from);
  const Bytes place = memory_.place_on_disk(reads ? from : to);
  std::byte* const here = address(reads ? to : from);
  const auto move = [&](Bytes done, std::span<std::byte> values) {
    reads ? memory_.disk().read(place + done, values) : memory_.disk().write(place + done, values);
  };
  if (tasks_see_memory_) return move(Bytes(0), {here, from.size.count()});
  const std::span<std::byte> staging = memory_.bytes(reads ? plan_.fetch_staging : plan_.evict_staging);
  device::CudaQueue& queue = device::cuda_queue(on);
  for (Bytes done; done < from.size; done += Bytes(staging.size())) {
    const Bytes part = std::min(Bytes(staging.size()), from.size - done);
    std::byte* const of_device = here + done.count();
    if (reads) move(done, staging.first(part.count()));
    queue.copy(reads ? of_device : staging.data(), reads ? staging.data() : of_device, part);
    queue.synchronize();
    if (!reads) move(done, staging.first(part.count()));
  }
}

void Operations::release(const Operation& operation, Stream& on) {
  if (!poison_) return;
  const plan::Range& slot = operation.accesses.front().range;
  compute(operation, on, [this, &slot](Stream& here) { kernels::poison(here, address(slot), slot.size); });
}

}  // namespace tessera
