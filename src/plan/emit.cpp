// One function per segment. A strategy is which of these operations it emits.
#include "plan/passes.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "plan/buckets.hpp"
#include "plan/fragments.hpp"
#include "plan/ranges.hpp"
#include "plan/residency.hpp"
#include "plan/saved.hpp"

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

  // Held is what a unit has of one role: some part of it, or one of several states.
  struct Held {
    std::size_t unit;
    Role role;
    Part part = Part::trained;
    std::size_t state = 0;
  };
  void refresh_parameters(std::size_t unit, Part part, AxisSet known, bool rounded = false);
  void round(const Held& masters, AxisSet known);
  void gather_rounded(std::size_t unit, Part part, AxisSet known);
  void decode(std::size_t unit, Part part, StreamId stream);
  Role kept() const;
  Role rounded_to(std::size_t unit) const;
  bool masters_are_kept(std::size_t unit) const {
    return buffers(unit)[kept()].buffer == buffers(unit)[Role::master].buffer;
  }
  void windows(const std::vector<WindowUse>& windows, bool first, bool last);
  void gather(std::size_t unit, const Residency& stay);
  Access access(AccessMode mode, const Held& held, AxisSet over) const {
    Access access{{}, mode, held.unit, held.role, held.state};
    access.range = share_range(plan_, held.unit, plan_.content(access), held.part, over);
    return access;
  }
  Access whole(AccessMode mode, std::size_t unit, Role role) const {
    return {whole_range(plan_, unit, buffers(unit)[role]), mode, unit, role};
  }
  // Returns what this rank's update reads or writes.
  Access updated(AccessMode mode, const Held& held) const {
    return access(mode, held, plan_.sharding(held.unit).optimizer);
  }
  Access scalars(AccessMode mode) const { return {scalars_range(plan_, program_), mode, no_unit, Role::scalars}; }
  Access host_scalars(AccessMode mode, Role role = Role::host_scalars) const {
    const ProgramBuffers& of = plan_.program_buffers[program_];
    const std::size_t buffer = role == Role::supposed ? of.supposed : of.host_scalars;
    return {fixed_range(buffer, Bytes(0), scalars_size), mode, no_unit, role};
  }
  Access loss_scale() const { return {loss_scale_range(plan_, program_), AccessMode::read, no_unit, Role::scalars}; }
  void copy(const Held& from, const Held& to, AxisSet over, StreamId stream);
  // Makes what is sharded over some axes sharded over fewer.
  void all_gather(const Held& held, AxisSet from, AxisSet to);
  Operation& window(const WindowUse& use);
  void backward_window(const WindowUse& use);
  void stretch(const WindowUse& use);
  void window_with_collectives(const WindowUse& use);
  struct Message {
    WindowUse use;
    std::size_t index;     // of its unit's collectives
    std::size_t nth;       // of its uses in the segment
    std::size_t position;  // of its window
    std::size_t begin;     // received before the window at this position
    bool receives = false;
    bool passed = false;
  };
  std::vector<Message> messages(const std::vector<WindowUse>& windows) const;
  Access message_access(AccessMode mode, const Message& message) const {
    return {message_buffer(plan_, message.use.unit, message.index, message.nth), mode, message.use.unit,
            Role::collected};
  }
  void receive_before(std::size_t position, std::vector<Message>& messages);
  void use_messages(std::size_t position, const std::vector<Message>& messages);
  void pass(const Message& message);
  void release(StreamId stream, const Access& slot);
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
  StreamId stream_of_squares(std::size_t unit) const;
  void finish_reduction(const Bucket& bucket);
  bool is_of_two_roles(const Bucket& bucket) const;
  void sum_tied(const std::vector<Bucket>& buckets);
  // A visit is of values that stand in the host's memory, to where the device has them meanwhile.
  struct Visit {
    Held home;
    Held slot;
  };
  std::vector<Visit> masters_of_host(std::size_t unit, const std::vector<Part>& of) const;
  std::vector<Visit> states_of_host(std::size_t unit) const;
  std::vector<Visit> visits_in_update(std::size_t unit) const;
  std::vector<std::size_t> offloaded() const;
  void fetch_for_update(std::size_t unit) {
    move(StreamId::fetch, visits_in_update(unit), plan_.sharding(unit).optimizer);
  }
  void fetch_ahead();
  void move(StreamId direction, const std::vector<Visit>& visits, AxisSet over);  // by the stream fetch or evict
  void release(const std::vector<Visit>& visits, StreamId stream = StreamId::evict);
  static StreamId stream_of_casts(AxisSet known) { return known.empty() ? StreamId::compute : StreamId::gather; }
  void move_saved(const SavedMoves& moves, std::size_t position);
  Access saved(AccessMode mode, std::size_t unit, Role role = Role::saved) const {
    return {fixed_range(buffers(unit)[role].buffer, Bytes(0), plan_.units[unit].saved), mode, unit, role};
  }
  // These are for what the host's processors update.
  void bring_to_host(std::size_t unit);
  void bring_scalars_to_host(Role role);
  void bring_from_host(std::size_t unit, Part part);
  void round_on_host(std::size_t unit, Part part);
  void optimize_on_host(std::size_t unit, Role role_of_scalars);
  void suppose_scalars();
  void update_ahead(std::size_t unit);
  void keep(std::size_t unit);
  void settle(std::size_t unit);
  bool is_updated_ahead(std::size_t unit) const {
    return buffers(unit).are_updated_on_host() && plan_.options.offload.ahead != Ahead::no;
  }
  void follow_masters(std::size_t unit);
  void follow_states(std::size_t unit);
  std::vector<Held> directions(std::size_t unit) const;
  bool rounds_masters(std::size_t unit) const;
  void add_widened(Operation& update) const;
  void optimize(std::size_t unit);
  void bring_together(std::size_t group);
  void finish_whole(std::size_t group);
  void average_masters(std::size_t unit);
  void outer_update(std::size_t unit);

  std::vector<Part> parts(std::size_t unit) const;
  std::vector<Held> states(std::size_t unit, Role role = Role::state) const;
  bool is_offloaded(std::size_t unit) const {
    return trains(unit) && buffers(unit).are_offloaded() && !buffers(unit).are_updated_on_host();
  }
  bool has_untrained(std::size_t unit) const { return buffers(unit)[Role::untrained].exists(); }
  Access untrained(AccessMode mode, std::size_t unit) const {
    return {untrained_range(plan_, unit), mode, unit, Role::untrained};
  }
  bool trains(std::size_t unit) const { return plan_.trains(unit, program_); }
  const UnitBuffers& buffers(std::size_t unit) const { return plan_.unit_buffers[unit]; }

  const Plan& plan_;
  const bool stay_whole_ = plan_.parameters_stay_whole();  // parameters
  std::size_t program_ = no_program;                       // whose segment is written
  std::vector<std::size_t> open_;                          // units whose windows are open, the innermost last
  std::vector<Operation> operations_;
};

// Those that have elements; a unit without any counts as trained.
std::vector<Part> Emitter::parts(std::size_t unit) const {
  const UnitLayout& layout = plan_.layouts[unit];
  if (layout.padded_elements(Part::frozen) == 0) return {Part::trained};
  if (!plan_.trains(unit)) return {Part::frozen};
  return {Part::trained, Part::frozen};
}

std::vector<Emitter::Held> Emitter::states(std::size_t unit, Role role) const {
  std::vector<Held> result;
  for (std::size_t state = 0; state < buffers(unit).states.size(); ++state) {
    result.push_back({unit, role, Part::trained, state});
  }
  return result;
}

std::vector<Operation> Emitter::cold() {
  using enum AccessMode;
  for (program_ = 0; program_ < plan_.programs.size(); ++program_) {
    Operation& initialize = add(OperationKind::initialize_scalars, StreamId::compute, no_unit);
    initialize.accesses = {scalars(write)};
    // Nobody writes later what other roles count, or have units for and this one has not.
    for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) {
      if (!plan_.units[unit].tied || !trains(unit)) continue;
      initialize.accesses.push_back({my_norm(plan_, unit), write, no_unit, Role::norms});
    }
    const std::size_t mine = plan_.trained_units(program_);
    if (!plan_.shares_norms() || mine == plan_.options.role_units) continue;
    initialize.accesses.push_back(
        {my_cells(plan_, program_, plan_.first_norm() + mine, plan_.options.role_units - mine), write, no_unit,
         Role::norms});
  }
  for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) {
    Operation& initialize = add(OperationKind::initialize, StreamId::compute, unit);
    for (const Part part : parts(unit)) {
      initialize.accesses.push_back(access(write, {unit, Role::master, part}, plan_.own(unit)));
    }
    for (const Held& state : states(unit)) {
      initialize.accesses.push_back(access(write, state, plan_.sharding(unit).optimizer));
    }
    for (const Role outer : {Role::anchor, Role::outer_momentum}) {
      if (!buffers(unit)[outer].exists()) continue;
      initialize.accesses.push_back(access(write, {unit, outer}, plan_.common(unit)));
    }
    if (has_untrained(unit)) initialize.accesses.push_back(untrained(write, unit));
  }
  for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) follow_masters(unit);
  return take();
}

// Everybody's shards were written from outside: what ranks hold beyond their own follows, the optimizer's states too.
std::vector<Operation> Emitter::refresh() {
  for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) {
    follow_masters(unit);
    follow_states(unit);
  }
  return take();
}

std::vector<Operation> Emitter::synchronize() {
  for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) {
    const AxisSet group = plan_.mesh.group(plan_.common(unit));
    if (!has_untrained(unit) || group.empty()) continue;
    Operation& broadcast = add(OperationKind::broadcast, StreamId::gather, unit);
    broadcast.group = group;
    broadcast.accesses = {untrained(AccessMode::update, unit)};
  }
  return take();
}

// The parameters that a rank keeps follow the masters, of which each knows what is sharded over `known`: masters that
// are kept travel themselves, else their values in another type do, unless the update has `rounded` them.
void Emitter::refresh_parameters(std::size_t unit, Part part, AxisSet known, bool rounded) {
  const Held masters{unit, buffers(unit).masters(), part};
  all_gather(masters, known, buffers(unit)[Role::master].over);
  if (masters_are_kept(unit)) return;
  if (!rounded) round(masters, known);
  gather_rounded(unit, part, known);
}

void Emitter::round(const Held& masters, AxisSet known) {
  copy(masters, {masters.unit, rounded_to(masters.unit), masters.part}, buffers(masters.unit)[Role::master].over,
       stream_of_casts(known));
}

// Each rank knows what its masters were rounded to.
void Emitter::gather_rounded(std::size_t unit, Part part, AxisSet known) {
  const Role rounded = rounded_to(unit);
  all_gather({unit, rounded, part}, buffers(unit)[Role::master].over, buffers(unit)[kept()].over);
  if (rounded == Role::encoded) decode(unit, part, stream_of_casts(known));
}

// Makes what windows read of what has travelled.
void Emitter::decode(std::size_t unit, Part part, StreamId stream) {
  const Held encoded{unit, Role::encoded, part};
  copy(encoded, {unit, Role::parameters, part}, {}, stream);
  release(stream, access(AccessMode::discard, encoded, {}));
}

// Returns what a rank keeps of a unit's parameters between steps; the masters, where that is all.
Role Emitter::kept() const { return stay_whole_ ? Role::parameters : Role::kept; }

// Returns what masters are rounded to on their way to it.
Role Emitter::rounded_to(std::size_t unit) const {
  return kept() == Role::parameters && buffers(unit)[Role::encoded].exists() ? Role::encoded : kept();
}

void Emitter::all_gather(const Held& held, AxisSet from, AxisSet to) {
  const AxisSet group = plan_.mesh.group(from - to);
  if (group.empty()) return;
  Operation& gather = add(OperationKind::all_gather, StreamId::gather, held.unit);
  gather.group = group;
  gather.accesses = {access(AccessMode::read, held, from), access(AccessMode::write, held, to)};
}

void Emitter::copy(const Held& from, const Held& to, AxisSet over, StreamId stream) {
  add(OperationKind::cast, stream, from.unit).accesses = {access(AccessMode::read, from, over),
                                                          access(AccessMode::write, to, over)};
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
  const bool gathers = !stay_whole_;
  std::vector<Residency> stays(windows.size());
  if (gathers) {
    std::vector<std::size_t> slots;
    for (const UnitBuffers& unit : plan_.unit_buffers) slots.push_back(unit[Role::parameters].buffer);
    stays = residency(windows, slots, gathering(plan_));
  }
  const std::vector<bool> closing = closes(windows);
  const SavedMoves saved = saved_moves(plan_, windows);
  std::vector<bool> added(plan_.units.size(), false);
  const bool local = plan_.accumulation(program_) == AccumulationMode::local;

  const std::vector<Bucket> buckets = reduction_buckets(plan_, program_);
  auto bucket = buckets.begin();
  std::vector<Bucket> of_two_roles;
  std::size_t backward = 0;   // windows so far, of trained units
  bool begins_update = last;  // as long as no window goes backward
  std::vector<Message> passed = messages(windows);
  const std::vector<std::size_t> to_gather = gathering_windows(stays);
  auto next_gather = to_gather.begin();
  for (std::size_t position = 0; position < windows.size(); ++position) {
    for (; next_gather != to_gather.end() && stays[*next_gather].gather_before <= position; ++next_gather) {
      gather(windows[*next_gather].unit, stays[*next_gather]);
    }
    receive_before(position, passed);
    const WindowUse& use = windows[position];
    if (use.kind == WindowKind::backward && std::exchange(begins_update, false)) {
      fetch_ahead();
      suppose_scalars();
    }
    if (!use.resumes) open_.push_back(use.unit);
    window_with_collectives(use);
    use_messages(position, passed);
    if (closing[position]) open_.pop_back();
    if (gathers && stays[position].release_after) {
      release(StreamId::compute, whole(AccessMode::discard, use.unit, Role::parameters));
    }
    move_saved(saved, position);
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
    if (last) is_of_two_roles(*bucket) ? of_two_roles.push_back(*bucket) : finish_reduction(*bucket);
    ++bucket;
  }
  sum_tied(of_two_roles);
  for (const Bucket& each : of_two_roles) finish_reduction(each);
}

bool Emitter::is_of_two_roles(const Bucket& bucket) const {
  return std::ranges::any_of(bucket.units, [&](std::size_t unit) { return plan_.units[unit].is_of_two_roles(); });
}

// Behind all windows: the last role has its sum long before the first one has, which waits for what the last one's
// windows send. And in the order of names, which both roles know.
void Emitter::sum_tied(const std::vector<Bucket>& buckets) {
  std::vector<std::size_t> units;
  for (const Bucket& bucket : buckets) {
    std::ranges::copy_if(bucket.units, std::back_inserter(units),
                         [&](std::size_t unit) { return plan_.units[unit].is_of_two_roles(); });
  }
  std::ranges::sort(units, {}, [&](std::size_t unit) { return plan_.units[unit].name; });
  for (const std::size_t unit : units) {
    Operation& sum = add(OperationKind::sum_tied, StreamId::reduce, unit);
    sum.group = Axis::pipeline;
    sum.accesses = {access(AccessMode::update, {unit, Role::gradient}, plan_.own(unit))};
  }
}

// Into the slot that windows read: from what ranks keep, or, of a unit that is gathered again in this pass, by way of
// what is sharded over fewer axes, which stays for that.
void Emitter::gather(std::size_t unit, const Residency& stay) {
  const Content& resharded = buffers(unit)[Role::resharded];
  const bool is_encoded = buffers(unit)[Role::encoded].exists();
  const AxisSet between_steps = plan_.sharding(unit).parameters;
  const bool by_share = resharded.exists() && !(stay.first_gather && stay.last_gather);
  const AxisSet known = by_share ? resharded.over : between_steps;
  const std::vector<Part> all = parts(unit);
  for (const Part part : all) {
    const Held share{unit, by_share ? Role::resharded : Role::kept, part};
    const Held slot{unit, is_encoded ? Role::encoded : Role::parameters, part};
    if (by_share && stay.first_gather) {
      copy({unit, Role::kept, part}, share, between_steps, StreamId::gather);
      all_gather(share, between_steps, known);
    }
    copy(share, slot, known, StreamId::gather);
    if (by_share && stay.last_gather && part == all.back()) {
      release(StreamId::gather, whole(AccessMode::discard, unit, Role::resharded));
    }
    all_gather(slot, known, {});
    if (is_encoded) decode(unit, part, StreamId::gather);
  }
}

// Those around it stay whole while it is open.
Operation& Emitter::window(const WindowUse& use) {
  const std::size_t unit = use.unit;
  Operation& window = add(OperationKind::window, StreamId::compute, unit);
  window.window = use.kind;
  window.resumes = use.resumes;
  window.accesses = {whole(AccessMode::read, unit, Role::parameters)};
  if (buffers(unit)[Role::saved].exists() && use.kind != WindowKind::evaluate) {
    const bool begins = use.kind == WindowKind::forward && !use.resumes;
    window.accesses.push_back(saved(begins ? AccessMode::write : AccessMode::update, unit));
  }
  if (has_untrained(unit)) window.accesses.push_back(untrained(AccessMode::update, unit));
  for (const std::size_t around : open_) {
    if (around != unit) window.accesses.push_back(whole(AccessMode::read, around, Role::parameters));
  }
  return window;
}

// A unit in which this program trains nothing only passes the gradient of its input on.
void Emitter::backward_window(const WindowUse& use) {
  if (!trains(use.unit)) {
    window(use);
    return;
  }
  const Held gradient{use.unit, Role::gradient_slot};
  if (!use.resumes) {
    add(OperationKind::prepare_gradient, StreamId::compute, use.unit).accesses = {
        access(AccessMode::write, gradient, {})};
  }
  Operation& backward = window(use);
  backward.accesses.push_back(access(AccessMode::update, gradient, {}));
  backward.accesses.push_back(loss_scale());
}

void Emitter::stretch(const WindowUse& use) {
  if (use.kind == WindowKind::backward) {
    backward_window(use);
  } else {
    window(use);
  }
}

// Each collective ends one stretch of the window, which writes what this rank brings, and begins the next, which reads
// what came of it; where it overlaps, a stretch between the two may write what the next one brings, if that overlaps
// and stands elsewhere. One rank alone reads what it wrote.
void Emitter::window_with_collectives(const WindowUse& use) {
  const UnitSpec& unit = plan_.units[use.unit];
  std::vector<const CollectiveSpec*> came;  // one of each place, to be read until the next one takes it
  const auto has = [&](const Range& range, AccessMode mode) {
    operations_.back().accesses.push_back({range, mode, use.unit, Role::collected});
  };
  const auto resume = [&] {
    stretch({use.unit, use.kind, true});
    for (const CollectiveSpec* each : came) has(received(plan_, *each), AccessMode::read);
  };
  stretch(use);
  const CollectiveSpec* on_its_way = nullptr;
  for (const std::size_t index : collectives_in(unit, use.kind)) {
    const CollectiveSpec& spec = unit.collectives[index];
    if (is_message(spec.kind)) continue;
    const auto take_place = [&] {
      has(brought(plan_, spec), AccessMode::write);
      std::erase_if(came, [&](auto* each) { return buffer_of(plan_, *each) == buffer_of(plan_, spec); });
    };
    if (on_its_way != nullptr) {
      if (spec.overlaps && buffer_of(plan_, *on_its_way) != buffer_of(plan_, spec)) take_place();
      came.push_back(std::exchange(on_its_way, nullptr)), resume();
    }
    take_place();
    if (plan_.group_of(spec).empty()) continue;
    Operation& collective =
        add(OperationKind::collective, spec.overlaps ? StreamId::overlap : StreamId::compute, use.unit);
    collective.window = use.kind;
    collective.collective = index;
    collective.collective_kind = spec.kind;
    collective.group = plan_.group_of(spec);
    has(brought(plan_, spec), AccessMode::read);
    has(received(plan_, spec), AccessMode::write);
    if (spec.overlaps) on_its_way = &spec;
    if (!spec.overlaps) came.push_back(&spec);
    resume();
  }
  if (on_its_way != nullptr) came.push_back(on_its_way), resume();
}

// Each use of a message takes the next of its buffers. One is received into as soon as the window that last read it has
// closed, and those before it on its stream are on their way.
std::vector<Emitter::Message> Emitter::messages(const std::vector<WindowUse>& windows) const {
  std::vector<Message> result;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::size_t>> uses;  // of each: positions of its windows
  std::map<StreamId, std::size_t> latest;
  for (std::size_t position = 0; position < windows.size(); ++position) {
    const WindowUse use = windows[position];
    const std::vector<CollectiveSpec>& all = plan_.units[use.unit].collectives;
    for (const std::size_t index : collectives_in(plan_.units[use.unit], use.kind)) {
      if (!is_message(all[index].kind)) continue;
      std::vector<std::size_t>& before = uses[{use.unit, index}];
      Message message{.use = use, .index = index, .nth = before.size(), .position = position, .begin = position};
      message.receives = all[index].kind == CollectiveKind::receive;
      if (message.receives) {
        const std::size_t buffers = all[index].buffers;
        std::size_t& begin = latest[stream_of_message(CollectiveKind::receive, use.kind)];
        if (before.size() >= buffers) begin = std::max(begin, before[before.size() - buffers] + 1);
        message.begin = begin;
      }
      before.push_back(position);
      result.push_back(message);
    }
  }
  return result;
}

void Emitter::receive_before(std::size_t position, std::vector<Message>& messages) {
  for (Message& message : messages) {
    if (message.receives && message.begin <= position && !std::exchange(message.passed, true)) pass(message);
  }
}

// The window is the last operation.
void Emitter::use_messages(std::size_t position, const std::vector<Message>& messages) {
  const std::size_t window = operations_.size() - 1;
  for (const Message& message : messages) {
    if (message.position != position) continue;
    operations_[window].accesses.push_back(
        message_access(message.receives ? AccessMode::read : AccessMode::write, message));
    if (!message.receives) pass(message);
  }
}

void Emitter::pass(const Message& message) {
  const CollectiveKind kind = message.receives ? CollectiveKind::receive : CollectiveKind::send;
  Operation& operation = add(OperationKind::collective, stream_of_message(kind, message.use.kind), message.use.unit);
  operation.window = message.use.kind;
  operation.collective = message.index;
  operation.collective_kind = kind;
  operation.accesses = {message_access(message.receives ? AccessMode::write : AccessMode::read, message)};
}

// A slot is given back right after its last reader, on its stream: whoever takes it next waits for it.
void Emitter::release(StreamId stream, const Access& slot) {
  add(OperationKind::release, stream, slot.tenant).accesses = {slot};
}

void Emitter::accumulate(std::size_t unit, bool add_to_earlier) {
  Operation& sum = add(OperationKind::accumulate, StreamId::compute, unit);
  sum.add = add_to_earlier;
  sum.accesses = {access(AccessMode::read, {unit, Role::gradient_slot}, {}),
                  access(add_to_earlier ? AccessMode::update : AccessMode::write, {unit, Role::accumulation}, {})};
  release(StreamId::compute, access(AccessMode::discard, {unit, Role::gradient_slot}, {}));
}

// Into the wire's type at once, so that the slot is free before the bucket is full. The unit has one backward window.
void Emitter::stage(std::size_t unit) {
  add(OperationKind::convert, StreamId::reduce, unit).accesses = {
      access(AccessMode::read, {unit, Role::gradient_slot}, {}), access(AccessMode::write, {unit, Role::staging}, {})};
  release(StreamId::reduce, access(AccessMode::discard, {unit, Role::gradient_slot}, {}));
}

// In mode `local` once a step, in mode `reduced` for each micro-batch: along the innermost axis, and in the last one
// along the others in their order. All units of a bucket have the same axes.
void Emitter::reduce(const Bucket& bucket, bool first, bool last) {
  const std::size_t unit = bucket.units.front();
  const std::vector<AxisSet> axes = plan_.summed(unit);
  const auto divisor_of = [&](std::size_t axis) {
    return last && axis + 1 == axes.size() ? plan_.gradient_divisor(program_, unit) : 1;
  };
  // A gradient that stands in place and is one rank's alone is the sum.
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
  reduction.continues = adds && plan_.has_granules();
  reduction.divisor = sum.divisor;
  for (const std::size_t unit : bucket.units) {
    const Role source = accumulates(plan_, unit) ? Role::accumulation
                        : converts(plan_, unit)  ? Role::staging
                                                 : Role::gradient_slot;
    reduction.accesses.push_back(access(AccessMode::read, {unit, source}, {}));
    reduction.accesses.push_back(access(adds ? AccessMode::update : AccessMode::write, {unit, Role::gradient}, axis));
  }
  for (const std::size_t unit : bucket.units) release_reduced(unit);
}

// Reduces what each of an axis's ranks has summed so far, in their order, to the owner of each part of it.
void Emitter::reduce_further(const Bucket& bucket, AxisSet done, AxisSet axis, std::size_t divisor) {
  Operation& reduction = add(OperationKind::reduce_scatter, StreamId::reduce, bucket.units.front());
  reduction.group = plan_.mesh.group(axis);
  reduction.divisor = divisor;
  for (const std::size_t unit : bucket.units) {
    reduction.accesses.push_back(access(AccessMode::read, {unit, Role::gradient}, done));
    reduction.accesses.push_back(access(AccessMode::write, {unit, Role::gradient}, done | axis));
  }
}

void Emitter::release_reduced(std::size_t unit) {
  if (accumulates(plan_, unit) || is_written_in_place(plan_, unit)) return;
  const Role source = converts(plan_, unit) ? Role::staging : Role::gradient_slot;
  release(StreamId::reduce, access(AccessMode::discard, {unit, source}, {}));
}

// Squares are summed beside the next window, by the reduce stream's thread. But threads that share the compute stream
// sum those of a gradient that is final behind its window: a thread more would take a processor from them.
StreamId Emitter::stream_of_squares(std::size_t unit) const {
  const std::vector<AxisSet> axes = plan_.summed(unit);
  const bool stands = is_written_in_place(plan_, unit) && axes.size() == 1 && plan_.mesh.size(axes[0]) == 1 &&
                      plan_.gradient_divisor(program_, unit) == 1 && !plan_.units[unit].is_of_two_roles();
  const bool goes_on = plan_.options.gradient_hooks || plan_.has_granules() || buffers(unit).are_updated_on_host() ||
                       !plan_.mesh.group(plan_.own(unit) - plan_.sharding(unit).optimizer).empty();
  return plan_.options.threaded_compute && stands && !goes_on ? StreamId::compute : StreamId::reduce;
}

// The gradient of the whole step stands in the shards.
void Emitter::finish_reduction(const Bucket& bucket) {
  const auto mine = [&](AccessMode mode, std::size_t unit) {
    return access(mode, {unit, Role::gradient}, plan_.own(unit));
  };
  for (const std::size_t unit : bucket.units) {
    if (!plan_.options.gradient_hooks) break;
    add(OperationKind::hook, StreamId::reduce, unit).accesses = {mine(AccessMode::update, unit), loss_scale()};
  }
  const std::size_t first = bucket.units.front();
  const AxisSet group = plan_.mesh.group(plan_.own(first) - plan_.sharding(first).optimizer);
  if (!group.empty()) {
    Operation& gather = add(OperationKind::all_gather_sum, StreamId::reduce, first);
    gather.group = group;
    for (const std::size_t unit : bucket.units) {
      gather.accesses.push_back(mine(AccessMode::read, unit));
      gather.accesses.push_back(updated(AccessMode::write, {unit, Role::gradient}));
    }
  }
  for (const std::size_t unit : bucket.units) {
    if (!plan_.units[unit].tied) {
      add(OperationKind::sum_of_squares, stream_of_squares(unit), unit).accesses = {
          mine(AccessMode::read, unit), {my_norm(plan_, unit), AccessMode::write, no_unit, Role::norms}};
    }
    if (buffers(unit).are_updated_on_host()) bring_to_host(unit);
    if (is_updated_ahead(unit)) update_ahead(unit);
  }
}

std::vector<Operation> Emitter::update(std::size_t program) {
  program_ = program;
  add(OperationKind::weight, StreamId::reduce, no_unit).accesses = {
      {my_part(plan_, program_), AccessMode::write, no_unit, Role::norms}};
  if (plan_.shares_norms() && plan_.roles() > 1) {
    Operation& gather = add(OperationKind::gather_norms, StreamId::reduce, no_unit);
    gather.group = Axis::pipeline;
    gather.accesses = {
        {my_cells(plan_, program_, plan_.first_norm(), plan_.options.role_units), AccessMode::read, no_unit,
         Role::norms},
        {my_cells(plan_, program_, 0, plan_.norm_cells(program_)), AccessMode::write, no_unit, Role::norms}};
  }
  if (plan_.training_ranks() > 1) {
    Operation& gather = add(OperationKind::gather_norms, StreamId::reduce, no_unit);
    gather.group = plan_.mesh.group(plan_.training());
    gather.accesses = {{my_norms(plan_, program_), AccessMode::read, no_unit, Role::norms},
                       {all_norms(plan_, program_), AccessMode::write, no_unit, Role::norms}};
  }
  add(OperationKind::begin_update, StreamId::compute, no_unit).accesses = {
      {all_norms(plan_, program_), AccessMode::read, no_unit, Role::norms}, scalars(AccessMode::update)};
  bring_scalars_to_host(Role::host_scalars);
  const std::vector<std::size_t> moved = offloaded();
  std::size_t next = update_slots;  // those before it were brought beside the backward pass
  std::size_t group = 0;
  while (group < plan_.whole_groups.size() && plan_.whole_groups[group].program != program_) ++group;
  std::size_t travelling = no_group;
  const std::vector<std::size_t> units = updated_units(plan_, program_);
  for (const std::size_t unit : units) {
    if (buffers(unit).are_updated_on_host()) {
      is_updated_ahead(unit) ? settle(unit) : optimize_on_host(unit, Role::host_scalars);
      continue;
    }
    optimize(unit);
    // These gathers travel beside the other units' updates and the first windows of the next step.
    if (directions(unit).empty()) {
      refresh_parameters(unit, Part::trained, plan_.sharding(unit).optimizer, rounds_masters(unit));
    } else if (plan_.whole_groups[group].units.back() == unit) {
      // Tensors of one group travel while owners work on the one before.
      bring_together(group);
      if (travelling != no_group) finish_whole(travelling);
      travelling = group++;
    }
    if (is_offloaded(unit)) {
      move(StreamId::evict, visits_in_update(unit), plan_.sharding(unit).optimizer);
      release(visits_in_update(unit));
      if (next < moved.size()) fetch_for_update(moved[next++]);
    }
  }
  if (travelling != no_group) finish_whole(travelling);
  // Last, so that nothing else waits for the host.
  for (const std::size_t unit : units) {
    if (!buffers(unit).are_updated_on_host()) continue;
    bring_from_host(unit, Part::trained);
    gather_rounded(unit, Part::trained, plan_.sharding(unit).optimizer);
  }
  return take();
}

// Those that an update brings from elsewhere, in its order.
std::vector<std::size_t> Emitter::offloaded() const {
  std::vector<std::size_t> result = updated_units(plan_, program_);
  std::erase_if(result, [&](std::size_t unit) { return !is_offloaded(unit); });
  return result;
}

// The update that follows uses these first: nothing writes them in between.
void Emitter::fetch_ahead() {
  const std::vector<std::size_t> moved = offloaded();
  for (std::size_t i = 0; i < std::min(moved.size(), update_slots); ++i) fetch_for_update(moved[i]);
}

std::vector<Emitter::Held> Emitter::directions(std::size_t unit) const {
  std::vector<Held> result;
  for (std::size_t plane = 0; plane < buffers(unit).directions.size(); ++plane) {
    result.push_back({unit, Role::direction, Part::trained, plane});
  }
  return result;
}

// Whether an update writes beside its masters what they are rounded to.
bool Emitter::rounds_masters(std::size_t unit) const {
  if (plan_.precision(unit).encodes()) return false;
  return !masters_are_kept(unit) && buffers(unit)[Role::master].over == plan_.sharding(unit).optimizer;
}

void Emitter::add_widened(Operation& update) const {
  const Content& widened = buffers(update.unit)[Role::widened];
  if (!widened.exists()) return;
  const Range all = fixed_range(widened.buffer, Bytes(0), plan_.buffers[widened.buffer].size);
  update.accesses.push_back({all, AccessMode::write, update.unit, Role::widened});
}

void Emitter::optimize(std::size_t unit) {
  Operation& optimize = add(OperationKind::optimize, StreamId::compute, unit);
  optimize.accesses = {updated(AccessMode::read, {unit, Role::gradient}), scalars(AccessMode::read),
                       updated(AccessMode::update, {unit, buffers(unit).masters()})};
  const Role role = buffers(unit).state_slots.empty() ? Role::state : Role::state_slot;
  for (const Held& state : states(unit, role)) optimize.accesses.push_back(updated(AccessMode::update, state));
  add_widened(optimize);
  const std::vector<Held> whole = directions(unit);
  for (const Held& direction : whole) optimize.accesses.push_back(updated(AccessMode::write, direction));
  if (whole.empty() && rounds_masters(unit)) optimize.accesses.push_back(updated(AccessMode::write, {unit, kept()}));
}

void Emitter::bring_together(std::size_t index) {
  const WholeGroup& group = plan_.whole_groups[index];
  Operation& redistribute = add(OperationKind::redistribute, StreamId::reduce, group.units.front());
  redistribute.whole_group = index;
  redistribute.group = plan_.mesh.group(group.axes);
  for (const std::size_t unit : group.units) {
    for (const Held& direction : directions(unit)) {
      redistribute.accesses.push_back(updated(AccessMode::read, direction));
    }
  }
  redistribute.accesses.push_back(whole_access(plan_, group, AccessMode::write));
  for (const std::size_t unit : group.units) {
    for (const Held& direction : directions(unit)) release(StreamId::reduce, updated(AccessMode::discard, direction));
  }
}

// Owners work on their tensors, and every rank applies what comes back to its shares.
void Emitter::finish_whole(std::size_t index) {
  const WholeGroup& group = plan_.whole_groups[index];
  Operation& transform = add(OperationKind::transform, StreamId::compute, group.units.front());
  transform.whole_group = index;
  transform.accesses = {whole_access(plan_, group, AccessMode::update)};
  if (buffers(group.units.front())[Role::workspace].exists()) {
    transform.accesses.push_back(workspace_access(plan_, group));
  }
  Operation& redistribute = add(OperationKind::redistribute, StreamId::reduce, group.units.front());
  redistribute.whole_group = index;
  redistribute.group = plan_.mesh.group(group.axes);
  redistribute.accesses = {whole_access(plan_, group, AccessMode::read)};
  for (const std::size_t unit : group.units) {
    redistribute.accesses.push_back(updated(AccessMode::write, directions(unit).front()));
  }
  release(StreamId::reduce, whole_access(plan_, group, AccessMode::discard));
  for (const std::size_t unit : group.units) {
    Operation& apply = add(OperationKind::apply, StreamId::compute, unit);
    apply.accesses = {updated(AccessMode::read, directions(unit).front()), scalars(AccessMode::read),
                      updated(AccessMode::update, {unit, Role::master})};
    add_widened(apply);
    const bool rounds = rounds_masters(unit);
    if (rounds) apply.accesses.push_back(updated(AccessMode::write, {unit, kept()}));
    release(StreamId::compute, updated(AccessMode::discard, directions(unit).front()));
    refresh_parameters(unit, Part::trained, plan_.sharding(unit).optimizer, rounds);
  }
}

// The mean of the weights of all that train by themselves, what the outer optimizer makes of it, and that to everybody.
std::vector<Operation> Emitter::outer(const std::vector<std::size_t>& units) {
  for (const std::size_t unit : units) {
    const std::vector<Visit> masters = masters_of_host(unit, {Part::trained});
    move(StreamId::fetch, masters, plan_.own(unit));
    average_masters(unit);
    outer_update(unit);
    refresh_parameters(unit, Part::trained, plan_.common(unit));
    move(StreamId::evict, masters, plan_.sharding(unit).optimizer);
    release(masters);
  }
  return take();
}

// ---- between the memories ----

std::vector<Emitter::Visit> Emitter::masters_of_host(std::size_t unit, const std::vector<Part>& of) const {
  std::vector<Visit> result;
  if (!buffers(unit)[Role::master_slot].exists()) return result;
  for (const Part part : of) result.push_back({{unit, Role::master, part}, {unit, Role::master_slot, part}});
  return result;
}

std::vector<Emitter::Visit> Emitter::states_of_host(std::size_t unit) const {
  std::vector<Visit> result;
  for (std::size_t state = 0; state < buffers(unit).state_slots.size(); ++state) {
    result.push_back({{unit, Role::state, Part::trained, state}, {unit, Role::state_slot, Part::trained, state}});
  }
  return result;
}

std::vector<Emitter::Visit> Emitter::visits_in_update(std::size_t unit) const {
  std::vector<Visit> result = masters_of_host(unit, {Part::trained});
  const std::vector<Visit> states = states_of_host(unit);
  result.insert(result.end(), states.begin(), states.end());
  return result;
}

void Emitter::move(StreamId direction, const std::vector<Visit>& visits, AxisSet over) {
  if (visits.empty()) return;
  Operation& transfer = add(OperationKind::transfer, direction, visits.front().home.unit);
  for (const Visit& visit : visits) {
    const bool comes = direction == StreamId::fetch;
    transfer.accesses.push_back(access(AccessMode::read, comes ? visit.home : visit.slot, over));
    transfer.accesses.push_back(access(AccessMode::write, comes ? visit.slot : visit.home, over));
  }
}

// Masters give their slot back with both parts.
void Emitter::release(const std::vector<Visit>& visits, StreamId stream) {
  for (std::size_t i = 0; i < visits.size(); ++i) {
    const Held& slot = visits[i].slot;
    if (slot.role == Role::state_slot) release(stream, updated(AccessMode::discard, slot));
    const bool again = i > 0 && visits[i - 1].slot.role == Role::master_slot;
    if (slot.role == Role::master_slot && !again) {
      release(stream, whole(AccessMode::discard, slot.unit, Role::master_slot));
    }
  }
}

// Behind the window at this position of a pass.
void Emitter::move_saved(const SavedMoves& moves, std::size_t position) {
  const SavedMoves::Window& here = moves.windows[position];
  if (here.leaves) {
    add(OperationKind::transfer, StreamId::evict, *here.leaves).accesses = {
        saved(AccessMode::read, *here.leaves), saved(AccessMode::write, *here.leaves, Role::saved_home)};
    release(StreamId::evict, saved(AccessMode::discard, *here.leaves));
  }
  if (here.ends) release(StreamId::compute, saved(AccessMode::discard, *here.ends));
  if (here.comes) {
    add(OperationKind::transfer, StreamId::fetch, *here.comes).accesses = {
        saved(AccessMode::read, *here.comes, Role::saved_home), saved(AccessMode::write, *here.comes)};
  }
}

// Every gradient of the step is in the host's memory before the update begins.
void Emitter::bring_to_host(std::size_t unit) {
  add(OperationKind::transfer, StreamId::evict, unit).accesses = {
      updated(AccessMode::read, {unit, Role::gradient}), updated(AccessMode::write, {unit, Role::host_gradient})};
}

void Emitter::bring_scalars_to_host(Role role) {
  const Access there = host_scalars(AccessMode::write, role);
  if (there.range.buffer == no_buffer) return;
  add(OperationKind::transfer, StreamId::evict, no_unit).accesses = {scalars(AccessMode::read), there};
}

// The host has what the last update left, and makes of it what this one does if it need not look at any norm.
void Emitter::suppose_scalars() {
  if (plan_.program_buffers[program_].supposed == no_buffer) return;
  bring_scalars_to_host(Role::supposed);
  add(OperationKind::begin_update, StreamId::host, no_unit).accesses = {
      host_scalars(AccessMode::update, Role::supposed)};
}

void Emitter::update_ahead(std::size_t unit) {
  if (!buffers(unit).before.empty()) keep(unit);
  optimize_on_host(unit, Role::supposed);
}

void Emitter::keep(std::size_t unit) {
  Operation& keep = add(OperationKind::keep, StreamId::host, unit);
  std::vector<Held> values = states(unit);
  values.insert(values.begin(), {unit, Role::master});
  for (std::size_t value = 0; value < values.size(); ++value) {
    keep.accesses.push_back(updated(AccessMode::read, values[value]));
    keep.accesses.push_back(updated(AccessMode::write, {unit, Role::before, Part::trained, value}));
  }
}

void Emitter::settle(std::size_t unit) {
  Operation& settle = add(OperationKind::settle, StreamId::host, unit);
  settle.accesses = {updated(AccessMode::read, {unit, Role::host_gradient}), host_scalars(AccessMode::read),
                     host_scalars(AccessMode::read, Role::supposed), updated(AccessMode::update, {unit, Role::master})};
  for (const Held& state : states(unit)) settle.accesses.push_back(updated(AccessMode::update, state));
  std::vector<Access> kept;
  for (std::size_t value = 0; value < buffers(unit).before.size(); ++value) {
    kept.push_back(updated(AccessMode::read, {unit, Role::before, Part::trained, value}));
  }
  settle.accesses.insert(settle.accesses.end(), kept.begin(), kept.end());
  const bool encodes = plan_.precision(unit).encodes();
  if (!encodes) settle.accesses.push_back(updated(AccessMode::update, {unit, Role::host_rounded}));
  for (Access& each : kept) {
    each.mode = AccessMode::discard;
    release(StreamId::host, each);
  }
  if (encodes) round_on_host(unit, Part::trained);
}

void Emitter::bring_from_host(std::size_t unit, Part part) {
  add(OperationKind::transfer, StreamId::fetch, unit).accesses = {
      updated(AccessMode::read, {unit, Role::host_rounded, part}),
      updated(AccessMode::write, {unit, rounded_to(unit), part})};
}

void Emitter::round_on_host(std::size_t unit, Part part) {
  copy({unit, Role::master, part}, {unit, Role::host_rounded, part}, buffers(unit)[Role::master].over, StreamId::host);
}

void Emitter::optimize_on_host(std::size_t unit, Role role_of_scalars) {
  Operation& optimize = add(OperationKind::optimize, StreamId::host, unit);
  optimize.accesses = {updated(AccessMode::read, {unit, Role::host_gradient}),
                       host_scalars(AccessMode::read, role_of_scalars),
                       updated(AccessMode::update, {unit, Role::master})};
  for (const Held& state : states(unit)) optimize.accesses.push_back(updated(AccessMode::update, state));
  if (plan_.precision(unit).encodes()) {
    if (role_of_scalars == Role::host_scalars) round_on_host(unit, Part::trained);
  } else {
    optimize.accesses.push_back(updated(AccessMode::write, {unit, Role::host_rounded}));
  }
}

// Every rank has its own shards of the masters: what else it keeps of them and of the parameters follows, by way of the
// slot where masters stand in the host's memory.
void Emitter::follow_masters(std::size_t unit) {
  const AxisSet own = plan_.own(unit);
  const AxisSet mine = plan_.sharding(unit).optimizer;
  const std::vector<Visit> masters = masters_of_host(unit, parts(unit));
  if (masters.empty()) {
    for (const Part part : parts(unit)) {
      if (plan_.units[unit].updates_in == MemorySpace::device) {
        refresh_parameters(unit, part, own);
        continue;
      }
      round_on_host(unit, part);
      bring_from_host(unit, part);
      gather_rounded(unit, part, own);
    }
    return;
  }
  move(StreamId::fetch, masters, own);
  for (const Visit& visit : masters) {
    all_gather(visit.slot, own, mine);
    round(visit.slot, own);
  }
  const bool others_came = !plan_.mesh.group(own - mine).empty();
  if (others_came) move(StreamId::evict, masters, mine);
  release(masters, others_came ? StreamId::evict : stream_of_casts(own));
  for (const Part part : parts(unit)) gather_rounded(unit, part, own);
}

// The same of the optimizer's states, which are there where no other rank has the same.
void Emitter::follow_states(std::size_t unit) {
  const AxisSet own = plan_.own(unit);
  const AxisSet kept = plan_.sharding(unit).optimizer;
  if (plan_.mesh.group(own - kept).empty()) return;
  const std::vector<Visit> visits = states_of_host(unit);
  move(StreamId::fetch, visits, own);
  for (const Held& state : states(unit, visits.empty() ? Role::state : Role::state_slot)) {
    all_gather(state, plan_.own(unit, buffers(unit).states[state.state]), kept);
  }
  move(StreamId::evict, visits, kept);
  release(visits);
}

void Emitter::average_masters(std::size_t unit) {
  Operation& mean = add(OperationKind::reduce_scatter, StreamId::reduce, unit);
  mean.group = plan_.mesh.group(plan_.diverging());
  mean.divisor = plan_.mesh.size(plan_.diverging());
  mean.accesses = {access(AccessMode::read, {unit, buffers(unit).masters()}, plan_.own(unit)),
                   access(AccessMode::write, {unit, Role::outer_mean}, plan_.common(unit))};
}

void Emitter::outer_update(std::size_t unit) {
  const auto mine = [&](AccessMode mode, Role role) { return access(mode, {unit, role}, plan_.common(unit)); };
  add(OperationKind::outer_update, StreamId::compute, unit).accesses = {
      mine(AccessMode::read, Role::outer_mean), mine(AccessMode::update, Role::anchor),
      mine(AccessMode::update, Role::outer_momentum), mine(AccessMode::write, buffers(unit).masters())};
  release(StreamId::compute, mine(AccessMode::discard, Role::outer_mean));
}

}  // namespace

// Roles have the same segments, also where some have no buffers.
void emit_segments(Plan& plan) {
  Emitter emitter(plan);
  const auto add = [&](SegmentKind kind, std::vector<Operation> operations, std::size_t program = no_program) {
    if (operations.empty() && !(plan.options.role && kind == SegmentKind::synchronize)) return;
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
