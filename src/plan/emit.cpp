// One function per segment. A strategy is which of these operations it emits.
#include "plan/passes.hpp"

#include <utility>

#include "plan/buckets.hpp"
#include "plan/fragments.hpp"
#include "plan/ranges.hpp"
#include "plan/residency.hpp"

namespace tessera::plan {

namespace {

class Emitter {
 public:
  explicit Emitter(const Plan& plan) : plan_(plan) {}

  std::vector<Operation> cold();
  std::vector<Operation> refresh();
  std::vector<Operation> micro_batch(std::size_t program, bool first, bool last);
  std::vector<Operation> update(std::size_t program);
  std::vector<Operation> outer(const std::vector<std::size_t>& units);
  std::vector<Operation> evaluation(std::size_t program);
  std::vector<Operation> synchronize();

 private:
  Operation& add(OperationKind kind, StreamId stream, std::size_t unit) {
    operations_.push_back({.kind = kind, .stream = stream, .unit = unit, .accesses = {}, .waits = {}});
    return operations_.back();
  }
  std::vector<Operation> take() { return std::exchange(operations_, {}); }

  void refresh_parameters(std::size_t unit, Part part, AxisSet known, bool rounded = false);
  std::size_t kept(std::size_t unit) const;
  void windows(const std::vector<WindowUse>& windows, bool first, bool last);
  void gather(std::size_t unit, const Residency& stay);
  // Some of a unit's part in one of its buffers.
  struct Held {
    std::size_t unit;
    Part part;
    std::size_t buffer;
    DType type;
  };
  void copy(const Held& from, const Held& to, AxisSet over, StreamId stream);
  // Of what is sharded over some axes, so that it is sharded over fewer.
  void all_gather(const Held& held, AxisSet from, AxisSet to);
  Operation& window(const WindowUse& use);
  void backward_window(const WindowUse& use);
  void stretch(const WindowUse& use);
  void window_with_exchanges(const WindowUse& use);
  void release_parameters(std::size_t unit);
  void release_resharded(std::size_t unit);
  void release_gradient(std::size_t unit, StreamId stream);
  void accumulate(std::size_t unit, bool add_to_earlier);
  void stage(std::size_t unit);
  void reduce(const Bucket& bucket, bool first, bool last);
  struct Sum {
    bool adds;  // to those of earlier micro-batches, where each is reduced
    std::size_t divisor;
  };
  void reduce_first(const Bucket& bucket, AxisSet axis, const Sum& sum);
  void reduce_further(const Bucket& bucket, AxisSet done, AxisSet axis, std::size_t divisor);
  void release_reduced(std::size_t unit);
  void finish_reduction(const Bucket& bucket);
  void average_masters(std::size_t unit);
  void outer_update(std::size_t unit);

  DType parameter_type(std::size_t unit) const { return plan_.precision(unit).parameter; }
  DType gradient_type(std::size_t unit) const { return plan_.precision(unit).gradient; }
  std::vector<Part> parts(std::size_t unit) const;
  bool trains(std::size_t unit) const { return plan_.trains(unit, program_); }
  Held held(std::size_t unit, Part part, std::size_t buffer) const;
  Range range_of(const Held& held, AxisSet over) const {
    return share_range(plan_, held.unit, held.buffer, held.type, held.part, over);
  }
  Range share(std::size_t unit, std::size_t buffer, AxisSet over) const {
    return share_range(plan_, unit, buffer, DType::fp32, Part::trained, over);
  }
  const UnitBuffers& buffers(std::size_t unit) const { return plan_.unit_buffers[unit]; }

  const Plan& plan_;
  std::size_t program_ = no_program;  // whose segment is written
  std::vector<std::size_t> open_;     // units whose windows are open, the innermost last
  std::vector<Operation> operations_;
};

// Those that have elements; a unit without any counts as trained.
std::vector<Part> Emitter::parts(std::size_t unit) const {
  const UnitLayout& layout = plan_.layouts[unit];
  if (layout.padded_elements(Part::frozen) == 0) return {Part::trained};
  if (!plan_.trains(unit)) return {Part::frozen};
  return {Part::trained, Part::frozen};
}

std::vector<Operation> Emitter::cold() {
  for (std::size_t program = 0; program < plan_.programs.size(); ++program) {
    add(OperationKind::initialize_scalars, StreamId::compute, no_unit).accesses = {
        {scalars_range(plan_, program), AccessMode::write, no_unit}};
  }
  for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) {
    Operation& initialize = add(OperationKind::initialize, StreamId::compute, unit);
    for (const Part part : parts(unit)) {
      initialize.accesses.push_back({my_shard(plan_, unit, buffers(unit).master, part), AccessMode::write, unit});
    }
    for (const std::size_t state : buffers(unit).states) {
      initialize.accesses.push_back({updated(plan_, unit, state), AccessMode::write, unit});
    }
    for (const std::size_t outer : {buffers(unit).anchor, buffers(unit).outer_momentum}) {
      if (outer != no_buffer)
        initialize.accesses.push_back({share(unit, outer, plan_.common(unit)), AccessMode::write, unit});
    }
    if (buffers(unit).untrained != no_buffer) {
      initialize.accesses.push_back({untrained_range(plan_, unit), AccessMode::write, unit});
    }
  }
  for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) {
    for (const Part part : parts(unit)) refresh_parameters(unit, part, plan_.own(unit));
  }
  return take();
}

// Everybody's shards were written from outside: what ranks hold beyond their own follows, the optimizer's states too.
std::vector<Operation> Emitter::refresh() {
  for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) {
    for (const Part part : parts(unit)) refresh_parameters(unit, part, plan_.own(unit));
    for (const std::size_t state : buffers(unit).states) {
      all_gather({unit, Part::trained, state, DType::fp32}, plan_.own(unit), plan_.sharding(unit).optimizer);
    }
  }
  return take();
}

std::vector<Operation> Emitter::synchronize() {
  for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) {
    const AxisSet group = plan_.mesh.group(plan_.common(unit));
    if (buffers(unit).untrained == no_buffer || group.empty()) continue;
    Operation& broadcast = add(OperationKind::broadcast, StreamId::gather, unit);
    broadcast.group = group;
    broadcast.accesses = {{untrained_range(plan_, unit), AccessMode::update, unit}};
  }
  return take();
}

// What a rank keeps of the parameters follows the masters, of which each knows what is sharded over `known`: masters
// that are kept travel themselves, else their values in the parameters' type do, unless the update has `rounded` them.
void Emitter::refresh_parameters(std::size_t unit, Part part, AxisSet known, bool rounded) {
  const Held masters = held(unit, part, buffers(unit).master);
  const Held parameters = held(unit, part, kept(unit));
  const AxisSet of_masters = plan_.placement(unit, masters.buffer);
  all_gather(masters, known, of_masters);
  if (parameters.buffer == masters.buffer) return;
  if (!rounded) copy(masters, parameters, of_masters, known.empty() ? StreamId::compute : StreamId::gather);
  all_gather(parameters, of_masters, plan_.placement(unit, parameters.buffer));
}

// What a rank keeps of a unit's parameters between steps; the masters, where that is all.
std::size_t Emitter::kept(std::size_t unit) const {
  return plan_.parameters_stay_whole() ? buffers(unit).parameters : buffers(unit).kept;
}

// Masters are fp32, and all else that is kept of parameters has the type in which windows read them.
Emitter::Held Emitter::held(std::size_t unit, Part part, std::size_t buffer) const {
  return {unit, part, buffer, buffer == buffers(unit).master ? DType::fp32 : parameter_type(unit)};
}

void Emitter::all_gather(const Held& held, AxisSet from, AxisSet to) {
  const AxisSet group = plan_.mesh.group(from - to);
  if (group.empty()) return;
  Operation& gather = add(OperationKind::all_gather, StreamId::gather, held.unit);
  gather.group = group;
  gather.accesses = {{range_of(held, from), AccessMode::read, held.unit},
                     {range_of(held, to), AccessMode::write, held.unit}};
}

void Emitter::copy(const Held& from, const Held& to, AxisSet over, StreamId stream) {
  add(OperationKind::cast, stream, from.unit).accesses = {{range_of(from, over), AccessMode::read, from.unit},
                                                          {range_of(to, over), AccessMode::write, to.unit}};
}

std::vector<Operation> Emitter::micro_batch(std::size_t program, bool first, bool last) {
  program_ = program;
  windows(plan_.programs[program].micro_batch, first, last);
  return take();
}

std::vector<Operation> Emitter::evaluation(std::size_t program) {
  program_ = program;
  windows(plan_.programs[program].evaluation, false, false);
  return take();
}

void Emitter::windows(const std::vector<WindowUse>& windows, bool first, bool last) {
  const bool gathers = !plan_.parameters_stay_whole();
  std::vector<Residency> stays(windows.size());
  if (gathers) {
    std::vector<std::size_t> slots;
    for (const UnitBuffers& unit : plan_.unit_buffers) slots.push_back(unit.parameters);
    stays = residency(windows, slots, gathering(plan_));
  }
  const std::vector<bool> closing = closes(windows);
  std::vector<bool> added(plan_.units.size(), false);
  const bool local = plan_.accumulation(program_) == AccumulationMode::local;

  const std::vector<Bucket> buckets = reduction_buckets(plan_, program_);
  auto bucket = buckets.begin();
  std::size_t backward = 0;  // windows so far, of trained units
  const std::vector<std::size_t> to_gather = gathering_windows(stays);
  auto next_gather = to_gather.begin();
  for (std::size_t position = 0; position < windows.size(); ++position) {
    for (; next_gather != to_gather.end() && stays[*next_gather].gather_before <= position; ++next_gather) {
      gather(windows[*next_gather].unit, stays[*next_gather]);
    }
    const WindowUse& use = windows[position];
    if (!use.resumes) open_.push_back(use.unit);
    window_with_exchanges(use);
    if (closing[position]) open_.pop_back();
    if (gathers && stays[position].release_after) release_parameters(use.unit);
    if (use.kind != WindowKind::backward || !trains(use.unit)) continue;
    if (!closing[position]) continue;
    const bool accumulating = accumulates(plan_, use.unit);
    if (accumulating) {
      accumulate(use.unit, added[use.unit] || (local && !first));
      added[use.unit] = true;
    }
    const bool reduces = last || !local;
    if (reduces && converts(plan_, use.unit)) stage(use.unit);
    if (backward++ != bucket->closes) continue;
    if (reduces) reduce(*bucket, first, last);
    if (last) finish_reduction(*bucket);
    ++bucket;
  }
}

// Into the slot that windows read: from what ranks keep, or, of a unit that is gathered again in this pass, by way of
// what is sharded over fewer axes, which stays for that.
void Emitter::gather(std::size_t unit, const Residency& stay) {
  const std::size_t resharded = buffers(unit).resharded;
  const AxisSet between_steps = plan_.sharding(unit).parameters;
  const bool by_share = resharded != no_buffer && !(stay.first_gather && stay.last_gather);
  const AxisSet known = by_share ? plan_.placement(unit, resharded) : between_steps;
  const std::vector<Part> all = parts(unit);
  for (const Part part : all) {
    const Held kept = held(unit, part, buffers(unit).kept);
    const Held share = by_share ? held(unit, part, resharded) : kept;
    const Held slot = held(unit, part, buffers(unit).parameters);
    if (by_share && stay.first_gather) {
      copy(kept, share, between_steps, StreamId::gather);
      all_gather(share, between_steps, known);
    }
    copy(share, slot, known, StreamId::gather);
    if (by_share && stay.last_gather && part == all.back()) release_resharded(unit);
    all_gather(slot, known, {});
  }
}

// Those around it stay whole while it is open.
Operation& Emitter::window(const WindowUse& use) {
  const std::size_t unit = use.unit;
  Operation& window = add(OperationKind::window, StreamId::compute, unit);
  window.window = use.kind;
  window.resumes = use.resumes;
  window.accesses = {
      {whole_range(plan_, unit, buffers(unit).parameters, parameter_type(unit)), AccessMode::read, unit}};
  if (buffers(unit).untrained != no_buffer) {
    window.accesses.push_back({untrained_range(plan_, unit), AccessMode::update, unit});
  }
  for (const std::size_t around : open_) {
    if (around == unit) continue;
    window.accesses.push_back(
        {whole_range(plan_, around, buffers(around).parameters, parameter_type(around)), AccessMode::read, around});
  }
  return window;
}

// A unit in which this program trains nothing only passes the gradient of its input on.
void Emitter::backward_window(const WindowUse& use) {
  if (!trains(use.unit)) {
    window(use);
    return;
  }
  const Range gradient = gradient_range(plan_, use.unit, buffers(use.unit).gradient_slot, gradient_type(use.unit));
  if (!use.resumes) {
    add(OperationKind::prepare_gradient, StreamId::compute, use.unit).accesses = {
        {gradient, AccessMode::write, use.unit}};
  }
  Operation& backward = window(use);
  backward.accesses.push_back({gradient, AccessMode::update, use.unit});
  backward.accesses.push_back({loss_scale_range(plan_, program_), AccessMode::read, no_unit});
}

void Emitter::stretch(const WindowUse& use) {
  if (use.kind == WindowKind::backward) {
    backward_window(use);
  } else {
    window(use);
  }
}

// Each exchange ends one stretch of the window, which writes what this rank brings, and begins the next, which reads
// everybody's. One rank alone reads what it wrote.
void Emitter::window_with_exchanges(const WindowUse& use) {
  stretch(use);
  const UnitSpec& unit = plan_.units[use.unit];
  for (const std::size_t index : exchanges_in(unit, use.kind)) {
    const ExchangeSpec& spec = unit.exchanges[index];
    const Access mine{my_exchanged(plan_, spec), AccessMode::write, use.unit};
    operations_.back().accesses.push_back(mine);
    if (plan_.group_of(spec).empty()) continue;
    Operation& exchange = add(OperationKind::exchange, StreamId::compute, use.unit);
    exchange.window = use.kind;
    exchange.exchange = index;
    exchange.group = plan_.group_of(spec);
    exchange.accesses = {{mine.range, AccessMode::read, use.unit},
                         {all_exchanged(plan_, spec), AccessMode::write, use.unit}};
    stretch({use.unit, use.kind, true});
    operations_.back().accesses.push_back({all_exchanged(plan_, spec), AccessMode::read, use.unit});
  }
}

// On the compute stream, right after the last reader: whoever gathers next waits for it.
void Emitter::release_parameters(std::size_t unit) {
  add(OperationKind::release, StreamId::compute, unit).accesses = {
      {whole_range(plan_, unit, buffers(unit).parameters, parameter_type(unit)), AccessMode::discard, unit}};
}

// On the stream that alone knows of it.
void Emitter::release_resharded(std::size_t unit) {
  const std::size_t buffer = buffers(unit).resharded;
  add(OperationKind::release, StreamId::gather, unit).accesses = {
      {fixed_range(buffer, Bytes(0), plan_.buffers[buffer].size), AccessMode::discard, unit}};
}

void Emitter::release_gradient(std::size_t unit, StreamId stream) {
  add(OperationKind::release, stream, unit).accesses = {
      {gradient_range(plan_, unit, buffers(unit).gradient_slot, gradient_type(unit)), AccessMode::discard, unit}};
}

void Emitter::accumulate(std::size_t unit, bool add_to_earlier) {
  Operation& sum = add(OperationKind::accumulate, StreamId::compute, unit);
  sum.add = add_to_earlier;
  sum.accesses = {
      {gradient_range(plan_, unit, buffers(unit).gradient_slot, gradient_type(unit)), AccessMode::read, unit},
      {gradient_range(plan_, unit, buffers(unit).accumulation, DType::fp32),
       add_to_earlier ? AccessMode::update : AccessMode::write, unit}};
  release_gradient(unit, StreamId::compute);
}

// Into the wire's type at once, so that the slot is free before the bucket is full. The unit has one backward window.
void Emitter::stage(std::size_t unit) {
  add(OperationKind::convert, StreamId::reduce, unit).accesses = {
      {gradient_range(plan_, unit, buffers(unit).gradient_slot, gradient_type(unit)), AccessMode::read, unit},
      {gradient_range(plan_, unit, buffers(unit).staging, wire_type(plan_, unit)), AccessMode::write, unit}};
  release_gradient(unit, StreamId::reduce);
}

// In mode `local` once a step, in mode `reduced` for each micro-batch: along the innermost axis, and in the last one
// along the others in their order. All units of a bucket have the same axes.
void Emitter::reduce(const Bucket& bucket, bool first, bool last) {
  const std::size_t unit = bucket.units.front();
  const std::vector<AxisSet> axes = plan_.summed(unit);
  const auto divisor_of = [&](std::size_t axis) {
    return last && axis + 1 == axes.size() ? plan_.gradient_divisor(program_, unit) : 1;
  };
  // What stands in place and is one rank's alone is the sum.
  const bool is_the_sum = plan_.mesh.size(axes[0]) == 1 && divisor_of(0) == 1 && is_written_in_place(plan_, unit);
  if (!is_the_sum) reduce_first(bucket, axes[0], {.adds = !first, .divisor = divisor_of(0)});
  AxisSet done = axes[0];
  for (std::size_t next = 1; last && next < axes.size(); ++next) {
    reduce_further(bucket, done, axes[next], divisor_of(next));
    done = done | axes[next];
  }
}

// From sums on the rank, from slots, from staging, or from where the sum is to stand. In mode `reduced` micro-batches
// add up here.
void Emitter::reduce_first(const Bucket& bucket, AxisSet axis, const Sum& sum) {
  const bool adds = plan_.accumulation(program_) == AccumulationMode::reduced && sum.adds;
  Operation& reduction = add(OperationKind::reduce_scatter, StreamId::reduce, bucket.units.front());
  reduction.group = plan_.mesh.group(axis);
  reduction.wire = wire_type(plan_, reduction.unit);
  reduction.add = adds;
  reduction.divisor = sum.divisor;
  for (const std::size_t unit : bucket.units) {
    const UnitBuffers& own = buffers(unit);
    const std::size_t source = accumulates(plan_, unit) ? own.accumulation
                               : converts(plan_, unit)  ? own.staging
                                                        : own.gradient_slot;
    reduction.accesses.push_back({gradient_range(plan_, unit, source, reduction.wire), AccessMode::read, unit});
    reduction.accesses.push_back(
        {share(unit, own.gradient, axis), adds ? AccessMode::update : AccessMode::write, unit});
  }
  for (const std::size_t unit : bucket.units) release_reduced(unit);
}

// What each of an axis's ranks has summed so far, in their order, to the owner of each part of it.
void Emitter::reduce_further(const Bucket& bucket, AxisSet done, AxisSet axis, std::size_t divisor) {
  Operation& reduction = add(OperationKind::reduce_scatter, StreamId::reduce, bucket.units.front());
  reduction.group = plan_.mesh.group(axis);
  reduction.divisor = divisor;
  for (const std::size_t unit : bucket.units) {
    reduction.accesses.push_back({share(unit, buffers(unit).gradient, done), AccessMode::read, unit});
    reduction.accesses.push_back({share(unit, buffers(unit).gradient, done | axis), AccessMode::write, unit});
  }
}

void Emitter::release_reduced(std::size_t unit) {
  if (accumulates(plan_, unit) || is_written_in_place(plan_, unit)) return;
  if (!converts(plan_, unit)) return release_gradient(unit, StreamId::reduce);
  add(OperationKind::release, StreamId::reduce, unit).accesses = {
      {gradient_range(plan_, unit, buffers(unit).staging, wire_type(plan_, unit)), AccessMode::discard, unit}};
}

// The gradient of the whole step stands in the shards.
void Emitter::finish_reduction(const Bucket& bucket) {
  const auto mine = [&](std::size_t unit) {
    return share_range(plan_, unit, buffers(unit).gradient, sum_type(plan_, unit), Part::trained, plan_.own(unit));
  };
  for (const std::size_t unit : bucket.units) {
    if (!plan_.options.gradient_hooks) break;
    add(OperationKind::hook, StreamId::reduce, unit).accesses = {
        {mine(unit), AccessMode::update, unit}, {loss_scale_range(plan_, program_), AccessMode::read, no_unit}};
  }
  const std::size_t first = bucket.units.front();
  const AxisSet group = plan_.mesh.group(plan_.own(first) - plan_.sharding(first).optimizer);
  if (!group.empty()) {
    Operation& gather = add(OperationKind::all_gather_sum, StreamId::reduce, first);
    gather.group = group;
    for (const std::size_t unit : bucket.units) {
      gather.accesses.push_back({mine(unit), AccessMode::read, unit});
      gather.accesses.push_back({updated(plan_, unit, buffers(unit).gradient), AccessMode::write, unit});
    }
  }
  for (const std::size_t unit : bucket.units) {
    add(OperationKind::sum_of_squares, StreamId::reduce, unit).accesses = {
        {mine(unit), AccessMode::read, unit}, {my_norm(plan_, unit), AccessMode::write, no_unit}};
  }
}

std::vector<Operation> Emitter::update(std::size_t program) {
  program_ = program;
  add(OperationKind::weigh, StreamId::reduce, no_unit).accesses = {
      {my_part(plan_, program_), AccessMode::write, no_unit}};
  if (plan_.training_ranks() > 1) {
    Operation& gather = add(OperationKind::gather_norms, StreamId::reduce, no_unit);
    gather.group = plan_.mesh.group(plan_.training());
    gather.accesses = {{my_norms(plan_, program_), AccessMode::read, no_unit},
                       {all_norms(plan_, program_), AccessMode::write, no_unit}};
  }
  add(OperationKind::begin_update, StreamId::compute, no_unit).accesses = {
      {all_norms(plan_, program_), AccessMode::read, no_unit},
      {scalars_range(plan_, program_), AccessMode::update, no_unit}};
  for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) {
    if (!trains(unit)) continue;
    Operation& optimize = add(OperationKind::optimize, StreamId::compute, unit);
    optimize.accesses = {{updated(plan_, unit, buffers(unit).gradient, sum_type(plan_, unit)), AccessMode::read, unit},
                         {scalars_range(plan_, program_), AccessMode::read, no_unit},
                         {updated(plan_, unit, buffers(unit).master), AccessMode::update, unit}};
    for (const std::size_t state : buffers(unit).states) {
      optimize.accesses.push_back({updated(plan_, unit, state), AccessMode::update, unit});
    }
    const AxisSet known = plan_.sharding(unit).optimizer;
    const bool rounds = kept(unit) != buffers(unit).master && plan_.placement(unit, buffers(unit).master) == known;
    if (rounds) {
      optimize.accesses.push_back(
          {share_range(plan_, unit, kept(unit), parameter_type(unit), Part::trained, known), AccessMode::write, unit});
    }
    // What travels does so beside the other units' updates and the first windows of the next step.
    refresh_parameters(unit, Part::trained, known, rounds);
  }
  return take();
}

// The mean of the weights of all that train by themselves, what the outer optimizer makes of it, and that to everybody.
std::vector<Operation> Emitter::outer(const std::vector<std::size_t>& units) {
  for (const std::size_t unit : units) {
    average_masters(unit);
    outer_update(unit);
    refresh_parameters(unit, Part::trained, plan_.common(unit));
  }
  return take();
}

void Emitter::average_masters(std::size_t unit) {
  Operation& mean = add(OperationKind::reduce_scatter, StreamId::reduce, unit);
  mean.group = plan_.mesh.group(plan_.diverging());
  mean.divisor = plan_.mesh.size(plan_.diverging());
  mean.accesses = {{share(unit, buffers(unit).master, plan_.own(unit)), AccessMode::read, unit},
                   {share(unit, buffers(unit).outer_mean, plan_.common(unit)), AccessMode::write, unit}};
}

void Emitter::outer_update(std::size_t unit) {
  const auto mine = [&](std::size_t buffer) { return share(unit, buffer, plan_.common(unit)); };
  add(OperationKind::outer_update, StreamId::compute, unit).accesses = {
      {mine(buffers(unit).outer_mean), AccessMode::read, unit},
      {mine(buffers(unit).anchor), AccessMode::update, unit},
      {mine(buffers(unit).outer_momentum), AccessMode::update, unit},
      {mine(buffers(unit).master), AccessMode::write, unit}};
  add(OperationKind::release, StreamId::compute, unit).accesses = {
      {mine(buffers(unit).outer_mean), AccessMode::discard, unit}};
}

}  // namespace

void emit_segments(Plan& plan) {
  Emitter emitter(plan);
  const auto add = [&](SegmentKind kind, std::vector<Operation> operations, std::size_t program = no_program) {
    if (operations.empty()) return;
    plan.segments.push_back({.kind = kind, .operations = std::move(operations), .program = program});
  };
  add(SegmentKind::cold, emitter.cold());
  add(SegmentKind::refresh, emitter.refresh());
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    const std::size_t micro_batches = plan.micro_batches(program);
    if (micro_batches == 1) {
      add(SegmentKind::only, emitter.micro_batch(program, true, true), program);
    } else {
      add(SegmentKind::first, emitter.micro_batch(program, true, false), program);
      if (micro_batches > 2) add(SegmentKind::middle, emitter.micro_batch(program, false, false), program);
      add(SegmentKind::last, emitter.micro_batch(program, false, true), program);
    }
    add(SegmentKind::update, emitter.update(program), program);
  }
  const std::vector<std::vector<std::size_t>> fragments = outer_fragments(plan);
  for (std::size_t fragment = 0; fragment < fragments.size(); ++fragment) {
    add(SegmentKind::outer, emitter.outer(fragments[fragment]));
    plan.segments.back().fragment = fragment;
  }
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    add(SegmentKind::evaluation, emitter.evaluation(program), program);
  }
  add(SegmentKind::synchronize, emitter.synchronize());
}

}  // namespace tessera::plan
