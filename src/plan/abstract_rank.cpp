// Clocks, contents and conflicts of one rank.
#include "plan/abstract_rank.hpp"

#include <fmt/format.h>

#include <set>
#include <tuple>

namespace tessera::plan {

namespace {

constexpr std::size_t smallest_pruned = 16;

// A wait in the list before its record means that of an earlier run, as one for another segment does.
std::vector<EarlierRecord> earlier_records(const Plan& plan) {
  std::set<std::tuple<std::size_t, std::size_t, std::size_t>> found;
  for (std::size_t segment = 0; segment < plan.segments.size(); ++segment) {
    const auto& operations = plan.segments[segment].operations;
    for (std::size_t index = 0; index < operations.size(); ++index) {
      for (const Wait& wait : operations[index].waits) {
        const EventPoint point = plan.events[wait.event];
        if (wait.type != WaitType::data || (point.segment == segment && point.operation < index)) continue;
        found.insert({point.segment, point.operation, static_cast<std::size_t>(operations[index].stream)});
      }
    }
  }
  std::vector<EarlierRecord> result;
  for (const auto& [segment, operation, stream] : found) result.push_back({{segment, operation}, stream});
  return result;
}

// Most observers know all or nothing.
std::uint64_t count_up_to(const std::vector<std::uint64_t>& counts, std::uint64_t known) {
  if (counts.empty() || known < counts.front()) return 0;
  if (known >= counts.back()) return counts.size();
  return static_cast<std::uint64_t>(std::upper_bound(counts.begin(), counts.end(), known) - counts.begin());
}

}  // namespace

AbstractRank::AbstractRank(const Plan& plan, const Coordinates& place, std::size_t role)
    : plan_(&plan),
      place_(place),
      role_(role),
      contents_(plan.buffers.size()),
      past_(plan.buffers.size()),
      prune_at_(plan.buffers.size(), smallest_pruned),
      unread_(plan.buffers.size(), false),
      owed_(plan.buffers.size(), false),
      summed_(plan.buffers.size()),
      standings_(plan.units.size(), Standing::settled),
      queues_(stream_count),
      earlier_records_(earlier_records(plan)) {
  for (const Segment& segment : plan.segments)
    completed_.push_back(std::make_shared<Clocks>(segment.operations.size(), Clock{}));
}

void AbstractRank::enter(std::size_t segment) {
  segment_ = segment;
  const auto& operations = plan_->segments[segment].operations;
  for (auto& queue : queues_) queue.clear();
  for (std::size_t index = 0; index < operations.size(); ++index) {
    queues_[static_cast<std::size_t>(operations[index].stream)].push_back(index);
  }
  position_ = {};
  done_.assign(operations.size(), false);
  before_ = std::exchange(completed_[segment], std::make_shared<Clocks>(operations.size()));
  if (plan_->segments[segment].kind == SegmentKind::refresh) write_shards_from_outside();
}

// Somebody gave every rank its shards of masters and states, a loaded checkpoint's; nobody has the others' yet.
void AbstractRank::write_shards_from_outside() {
  for (std::size_t unit = 0; unit < plan_->units.size(); ++unit) {
    const UnitBuffers& buffers = plan_->unit_buffers[unit];
    const UnitLayout& layout = plan_->layouts[unit];
    for (const Part part : all_parts) {
      if (layout.shard_elements(part) > 0) write_content(my_shard(*plan_, unit, buffers[Role::master], part), unit);
    }
    std::vector<Content> states = buffers.states;
    states.insert(states.end(), {buffers[Role::anchor], buffers[Role::outer_momentum]});
    for (const Content& state : states) {
      if (state.exists()) write_content(my_shard(*plan_, unit, state), unit);
    }
    for (const Role follows : {Role::kept, Role::parameters, Role::host_rounded}) {
      const std::size_t buffer = buffers[follows].buffer;
      if (buffers[follows].exists() && buffer != buffers[Role::master].buffer) contents_[buffer].discard();
    }
  }
}

bool AbstractRank::finished() const {
  for (std::size_t stream = 0; stream < stream_count; ++stream) {
    if (head(stream) != none) return false;
  }
  return true;
}

std::size_t AbstractRank::head(std::size_t stream) const {
  return position_[stream] < queues_[stream].size() ? queues_[stream][position_[stream]] : none;
}

// A wait refers to the latest record launched before it: of this run when the recording operation stands earlier in the
// list, of an earlier run otherwise.
bool AbstractRank::runnable(std::size_t index) const {
  for (const Wait& wait : operation(index).waits) {
    const EventPoint point = plan_->events[wait.event];
    if (wait.type != WaitType::data || point.segment != segment_ || point.operation >= index) continue;
    if (!done_[point.operation]) return false;
  }
  return true;
}

Clock AbstractRank::start_of(std::size_t index) const {
  Clock clock = streams_[static_cast<std::size_t>(operation(index).stream)];
  for (const Wait& wait : operation(index).waits) {
    if (wait.type != WaitType::data) continue;
    const EventPoint point = plan_->events[wait.event];
    const bool earlier_run = point.segment == segment_ && point.operation >= index;
    join(clock, earlier_run ? (*before_)[point.operation] : (*completed_[point.segment])[point.operation]);
  }
  return clock;
}

void AbstractRank::complete(std::size_t index, const Report& report) {
  const Operation& current = operation(index);
  const std::size_t stream = static_cast<std::size_t>(current.stream);
  Clock clock = start_of(index);
  if (is_collective(current.kind) && !current.passes_message()) collectives_.push_back({index, clock});
  for (const Access& access : current.accesses) {
    check_access(point(index), access, clock, report);
    check_not_lost(point(index), access, report);
    check_summed(point(index), access, report);
  }
  const std::uint32_t count = ++clock[stream];
  for (const Access& access : current.accesses) {
    apply_access(point(index), access, count);
    note_unread(current, access);
  }
  note_summed(current);
  check_supposed(point(index), report);
  streams_[stream] = clock;
  (*completed_[segment_])[index] = clock;
  done_[index] = true;
  ++position_[stream];
}

void AbstractRank::check_access(EventPoint here, const Access& access, const Clock& start, const Report& report) {
  const std::size_t buffer = access.range.buffer;
  const Interval bytes = interval(access.range, place_);
  past_[buffer].for_each_overlapping({bytes, bytes}, [&](const PastAccess& past) {
    if ((!writes(access.mode) && !past.write) || knows(start, past)) return;
    report(ViolationKind::race, here, past.by,
           fmt::format("race on {}: {} does not wait for {}", plan_->buffers[buffer].name, describe(*plan_, here),
                       describe(*plan_, past.by)));
  });
  if (reads(access.mode) && !contents_[buffer].readable(access.tenant, bytes)) {
    report(ViolationKind::stale_read, here, here,
           fmt::format("{} reads bytes {} to {} of {}, which were not all written since {} took it",
                       describe(*plan_, here), bytes.begin, bytes.end, plan_->buffers[buffer].name,
                       access.tenant == no_unit ? std::string("the plan") : plan_->units[access.tenant].name));
  }
}

namespace {

bool uses_sum(OperationKind kind, const Access& access) {
  if (kind == OperationKind::transfer) return access.role == Role::gradient;
  return kind == OperationKind::sum_tied || kind == OperationKind::hook || kind == OperationKind::all_gather_sum ||
         kind == OperationKind::sum_of_squares || kind == OperationKind::optimize;
}

// Values that are brought to the host, or wait there to be brought to the device, stand in a place of their own;
// whoever writes it anew must not come before it was read. Frozen parameters are written where all that follows them is
// out of date.
bool waits_on_host(const Access& access) {
  return (access.role == Role::host_gradient || access.role == Role::host_rounded) && access.range.offset == Bytes(0);
}

// A slot of what has its home in another memory.
bool has_its_home_elsewhere(const Access& access) {
  return access.role == Role::master_slot || access.role == Role::state_slot;
}

}  // namespace

// Gradients travel by way of slots and of sums on the rank: each must have been taken on before its place is used
// again, and before its unit's norm and update. New masters and states must have been brought home by then, whoever
// else has read them.
void AbstractRank::check_not_lost(EventPoint here, const Access& access, const Report& report) {
  const OperationKind kind = plan_->at(here).kind;
  const bool begins_anew = kind == OperationKind::accumulate || kind == OperationKind::prepare_gradient;
  const bool ends = access.mode == AccessMode::discard ||
                    ((begins_anew || waits_on_host(access)) && access.mode == AccessMode::write);
  std::size_t buffer = ends ? access.range.buffer : no_buffer;
  if (!ends && uses_sum(kind, access) && access.tenant != no_unit)
    buffer = plan_->unit_buffers[access.tenant][Role::accumulation].buffer;
  if (access.range.size == Bytes(0) || buffer == no_buffer || (!unread_[buffer] && !owed_[buffer])) return;
  report(ViolationKind::lost, here, here,
         fmt::format("{} comes before {} what stands in {}", describe(*plan_, here),
                     unread_[buffer] ? "anybody has read" : "the host or the disk has", plan_->buffers[buffer].name));
}

// Every gradient reaches every replica, unless they train by themselves or have a unit each: what a hook sees, what
// counts in the norm and what updates is summed over all ranks that have the unit in common. What an outer step makes
// weights of is the mean of all replicas.
std::size_t AbstractRank::must_be_summed(EventPoint here, const Access& access) const {
  const OperationKind kind = plan_->at(here).kind;
  const PlanOptions& options = plan_->options;
  if (kind == OperationKind::outer_update && access.role == Role::outer_mean) {
    return plan_->mesh.size(outer_axes);
  }
  if (!uses_sum(kind, access) || !reads(access.mode) || access.role != Role::gradient) return 0;
  const AxisSet alone = options.outer_every > 0 ? outer_axes : AxisSet();
  return plan_->mesh.size(AxisSet::all() - plan_->units[access.tenant].apart - alone);
}

void AbstractRank::check_summed(EventPoint here, const Access& access, const Report& report) {
  if (access.tenant == no_unit || access.range.size == Bytes(0)) return;
  const std::size_t ranks = must_be_summed(here, access);
  const std::size_t buffer = access.range.buffer;
  if (ranks == 0) return;
  const Sum& sum = summed_[buffer];
  const bool all_of_it = contains(sum.bytes, interval(access.range, place_));
  const bool sums_now = plan_->at(here).kind == OperationKind::sum_tied;
  const std::size_t tied = plan_->units[access.tenant].is_of_two_roles() && !sums_now ? 1 : 0;
  if (sum.ranks == ranks && all_of_it && sum.tied == tied) return;
  if (sum.ranks == ranks && all_of_it) {
    return report(ViolationKind::lost, here, here,
                  fmt::format("{} uses {}, which has the other role's gradient {} times, not {}",
                              describe(*plan_, here), plan_->buffers[buffer].name, sum.tied, tied));
  }
  report(ViolationKind::lost, here, here,
         fmt::format("{} uses {}, {} is summed over {} of {} ranks", describe(*plan_, here),
                     plan_->buffers[buffer].name, all_of_it ? "which" : "of which only a part", sum.ranks, ranks));
}

// Bytes count as summed when they come from a gradient's buffer; those that windows write, staging and sums on the rank
// are this rank's alone. A gather of sums adds no rank, but what the others own.
void AbstractRank::note_summed(const Operation& operation) {
  const auto bytes = [&](std::size_t access) { return interval(operation.accesses[access].range, place_); };
  const auto buffer = [&](std::size_t access) { return operation.accesses[access].range.buffer; };
  if (operation.kind == OperationKind::accumulate) summed_[buffer(1)] = {1, bytes(1)};
  if (operation.kind == OperationKind::prepare_gradient) summed_[buffer(0)] = {1, bytes(0)};
  if (operation.kind == OperationKind::sum_tied) {
    std::size_t& tied = summed_[buffer(0)].tied;
    tied = std::min<std::size_t>(tied + 1, 2);
  }
  const bool gathers = operation.kind == OperationKind::all_gather_sum;
  if (operation.kind != OperationKind::reduce_scatter && !gathers) return;
  for (std::size_t a = 0; a + 1 < operation.accesses.size(); a += 2) {
    const bool in_place = buffer(a) == buffer(a + 1);
    if (in_place && !contains(summed_[buffer(a)].bytes, bytes(a))) continue;  // of what it takes, some is no sum
    const std::size_t ranks = plan_->mesh.size(operation.group);
    const std::size_t before = in_place ? summed_[buffer(a)].ranks : 1;
    // Whatever a broken plan does again and again, states stay few.
    summed_[buffer(a + 1)] = {gathers ? before : std::min(before * ranks, 2 * plan_->mesh.size()), bytes(a + 1),
                              gathers ? summed_[buffer(a)].tied : 0};
  }
}

// An update ahead of the norm is of values that were kept right before it, and nobody but what settles it uses what it
// made.
void AbstractRank::check_supposed(EventPoint here, const Report& report) {
  const Operation& operation = plan_->at(here);
  const auto names = [&](Role role) {
    return std::any_of(operation.accesses.begin(), operation.accesses.end(),
                       [&](const Access& access) { return access.role == role; });
  };
  const auto moves = [&](Standing from, Standing to) {
    if (std::exchange(standings_[operation.unit], to) == from) return;
    report(ViolationKind::lost, here, here,
           fmt::format("{} does not follow what an update ahead of the norm needs before it: values that are settled, "
                       "kept, updated, and settled again",
                       describe(*plan_, here)));
  };
  if (operation.unit == no_unit) return;
  if (operation.kind == OperationKind::keep) return moves(Standing::settled, Standing::kept);
  if (operation.kind == OperationKind::settle) return moves(Standing::supposed, Standing::settled);
  if (operation.kind == OperationKind::optimize && names(Role::supposed)) {
    const bool final = plan_->options.offload.ahead == Ahead::final;
    return moves(final ? Standing::settled : Standing::kept, Standing::supposed);
  }
  for (const Access& access : operation.accesses) {
    if (access.tenant == no_unit || standings_[access.tenant] == Standing::settled) continue;
    const bool is_of_it =
        access.role == Role::master || access.role == Role::state || access.role == Role::host_rounded;
    if (!is_of_it) continue;
    report(ViolationKind::lost, here, here,
           fmt::format("{} uses the {} of {}, of whose update it is not known yet whether it is taken back",
                       describe(*plan_, here), to_string(access.role), plan_->units[access.tenant].name));
  }
}

void AbstractRank::note_unread(const Operation& operation, const Access& access) {
  if (access.range.size == Bytes(0)) return;
  const std::size_t buffer = access.range.buffer;
  const Category category = plan_->buffers[buffer].category;
  const bool is_slot = category == Category::parameter_slots || category == Category::gradient_slots ||
                       category == Category::staging || waits_on_host(access);
  const bool is_written = access.mode == AccessMode::write || access.mode == AccessMode::update;
  if (operation.kind == OperationKind::transfer) {
    owed_[buffer] = false;
  } else if (is_written && has_its_home_elsewhere(access)) {
    owed_[buffer] = true;
  }
  if (!is_written) {
    // A sum on the rank may stand where it is reduced: others read the result there.
    if (is_slot || operation.kind == OperationKind::reduce_scatter) unread_[buffer] = false;
  } else if (is_slot || operation.kind == OperationKind::accumulate) {
    unread_[buffer] = true;
  }
}

void AbstractRank::apply_access(EventPoint here, const Access& access, std::uint32_t count) {
  const std::size_t buffer = access.range.buffer;
  const Interval bytes = interval(access.range, place_);
  if (bytes.begin >= bytes.end) return;  // an empty unit takes no part of the slot that it is given
  if (access.mode == AccessMode::discard) contents_[buffer].discard();
  if (access.mode == AccessMode::write || access.mode == AccessMode::update) write_content(access.range, access.tenant);

  const auto mine = static_cast<std::size_t>(plan_->at(here).stream);
  past_[buffer].erase_contained({bytes, bytes}, [&](const PastAccess& other) {
    return writes(access.mode) || (!other.write && other.lane == mine);
  });
  past_[buffer].insert({{bytes, bytes}, writes(access.mode), mine, count, here});
  if (past_[buffer].size() >= prune_at_[buffer]) forget_settled(buffer);
}

void AbstractRank::forget_settled(std::size_t buffer) {
  past_[buffer].erase_if([&](const PastAccess& access) { return settled(access); });
  prune_at_[buffer] = smallest_pruned + 2 * past_[buffer].size();
}

bool AbstractRank::settled(const PastAccess& access) const {
  return std::all_of(streams_.begin(), streams_.end(), [&](const Clock& clock) { return knows(clock, access); });
}

void AbstractRank::write_content(const Range& range, std::size_t tenant) {
  Contents& contents = contents_[range.buffer];
  const Interval bytes = interval(range, place_);
  if (is_same_everywhere(range)) return contents.write(tenant, bytes);
  // The norms are a table with a row per rank, of which each unit writes one column: the shard is the row.
  Range shard = range;
  for (std::size_t program = 0; program < plan_->programs.size(); ++program) {
    if (range.buffer == plan_->program_buffers[program].norms) shard = my_norms(*plan_, program);
  }
  contents.write_shard(tenant, bytes, {interval(shard, place_), hull(*plan_, shard)});
}

void AbstractRank::leave(const Report& report) {
  check_launch_order(report);
  // The next segment enters with its own; copies of this rank need none of it.
  before_.reset();
  collectives_.clear();
  done_.clear();
  for (std::size_t buffer = 0; buffer < past_.size(); ++buffer) forget_settled(buffer);
}

void AbstractRank::check_launch_order(const Report& report) {
  const auto& operations = plan_->segments[segment_].operations;
  std::sort(collectives_.begin(), collectives_.end(),
            [](const Started& a, const Started& b) { return a.operation < b.operation; });
  for (const auto& [index, clock] : collectives_) {
    const EventPoint here = point(index);
    const EventPoint last = std::exchange(last_collective_, here);
    if (last.segment == none || plan_->at(last).stream == operations[index].stream) continue;
    const auto last_lane = static_cast<std::size_t>(plan_->at(last).stream);
    const bool earlier_run = last.segment == segment_ && last.operation >= index;
    const Clocks& records = earlier_run ? *before_ : *completed_[last.segment];
    const bool completed_before = clock[last_lane] >= records[last.operation][last_lane];
    const bool ordered = std::any_of(
        operations[index].waits.begin(), operations[index].waits.end(),
        [&](const Wait& wait) { return wait.type == WaitType::order && plan_->events[wait.event] == last; });
    if (completed_before || ordered) continue;
    report(ViolationKind::order, here, last,
           fmt::format("no order of launch between {} and {}: ranks could launch them differently",
                       describe(*plan_, last), describe(*plan_, here)));
  }
}

std::vector<AbstractRank::Observer> AbstractRank::observers() const {
  std::vector<Observer> result;
  std::uint64_t who = 0;
  for (const Clock& clock : streams_) result.push_back({who++, clock});
  for (const EarlierRecord& record : earlier_records_) {
    Observer waiting{who++, streams_[record.waiter]};
    join(waiting.clock, (*completed_[record.point.segment])[record.point.operation]);
    if (waiting.clock != streams_[record.waiter]) result.push_back(waiting);
  }
  return result;
}

void AbstractRank::append_signature(std::vector<std::uint64_t>& out) const {
  const std::vector<Observer> observers = this->observers();
  for (const Observer& observer : observers) out.push_back(observer.who);
  out.insert(out.end(), {last_collective_.segment, last_collective_.operation});
  for (const Standing standing : standings_) out.push_back(static_cast<std::uint64_t>(standing));
  // leave() has left what is not settled; of that counts where it stands in its stream.
  std::array<std::vector<std::uint64_t>, stream_count> counts;
  std::size_t accesses = 0;
  for (const auto& buffer : past_) {
    for (const PastAccess& access : buffer) counts[access.lane].push_back(access.count);
    accesses += buffer.size();
  }
  for (auto& stream : counts) std::sort(stream.begin(), stream.end());
  out.reserve(out.size() + 9 * past_.size() + 4 * accesses + stream_count * observers.size());
  for (std::size_t buffer = 0; buffer < past_.size(); ++buffer) {
    out.push_back(contents_[buffer].tenant());
    const Sum& sum = summed_[buffer];
    for (const std::uint64_t value :
         {std::uint64_t{unread_[buffer]}, std::uint64_t{owed_[buffer]}, std::uint64_t{sum.ranks},
          std::uint64_t{sum.tied}, sum.bytes.begin, sum.bytes.end, std::uint64_t{contents_[buffer].written().size()}}) {
      out.push_back(value);
    }
    for (const Interval& bytes : contents_[buffer].written()) {
      out.push_back(bytes.begin);
      out.push_back(bytes.end);
    }
    out.push_back(past_[buffer].size());
    for (const PastAccess& access : past_[buffer]) {
      const auto& stream = counts[access.lane];
      const auto place = std::lower_bound(stream.begin(), stream.end(), access.count) - stream.begin();
      out.push_back(access.place.first.begin);
      out.push_back(access.place.first.end);
      out.push_back(access.lane * 2 + (access.write ? 1 : 0));
      out.push_back(static_cast<std::uint64_t>(place));
    }
  }
  for (const Observer& observer : observers) {
    for (std::size_t stream = 0; stream < stream_count; ++stream) {
      out.push_back(count_up_to(counts[stream], observer.clock[stream]));
    }
  }
}

}  // namespace tessera::plan
