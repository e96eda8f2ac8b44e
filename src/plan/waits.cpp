// Runs the segments in the abstract on one rank, over every allowed sequence of two phases of the plan (Phase),
// and adds a wait wherever a conflicting earlier access is not yet known to be complete. A collective completes on a
// rank when every peer is finished with that rank's memory, so one rank's view is enough. verify() checks the result by
// other means, on several ranks.
#include "plan/passes.hpp"

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "plan/places.hpp"

namespace tessera::plan {

namespace {

// A plan's sequences of segments are looked at two phases at a time. Between steps anything may follow anything, and
// all orders of all programs would be too many to look at. Two phases at a time are enough. Leave from any sequence of
// segments only the cold start and the segments of two phases: that is a sequence, too, in which no stream knows of
// more (a wait means the latest completion of one and the same operation, so that what is left out can only have told
// more) and in which less was written. So of a race only the phases of its two accesses are needed; of a stale read
// that of the reader, and of whoever last took away what it reads; of what is lost that of the writer and of who needs
// the place; and of an order of launch those of two collectives, of which one comes next after the other. Ranks get
// stuck inside one segment, whatever came before it. Over how many ranks a gradient is summed is decided inside one
// phase, its trainer's steps.
//
// A phase is a program's steps with what belongs to them, its evaluation, the refresh, or the sharing of buffers.
struct Phase {
  SegmentKind kind;
  std::size_t program;
  auto operator<=>(const Phase&) const = default;
};

Phase phase_of(const Segment& segment) {
  using enum SegmentKind;
  switch (segment.kind) {
    case cold:
    case refresh:
    case synchronize: return {segment.kind, no_program};
    case evaluation: return {evaluation, segment.program};
    case outer: return {update, 0};  // with outer steps there is one program
    default: return {update, segment.program};
  }
}

using PairOfPhases = std::pair<Phase, Phase>;

// Every two phases that follow the cold start; a single one twice.
std::vector<PairOfPhases> pairs_of_phases(const Plan& plan) {
  std::vector<Phase> phases;
  for (const Segment& segment : plan.segments) {
    if (segment.kind != SegmentKind::cold) phases.push_back(phase_of(segment));
  }
  std::sort(phases.begin(), phases.end());
  phases.erase(std::unique(phases.begin(), phases.end()), phases.end());
  if (phases.size() == 1) return {{phases.front(), phases.front()}};
  std::vector<PairOfPhases> pairs;
  for (auto one = phases.begin(); one != phases.end(); ++one) {
    for (auto other = std::next(one); other != phases.end(); ++other) pairs.emplace_back(*one, *other);
  }
  return pairs;
}

// Returns what may follow a segment, as far as it is of the two.
std::vector<std::size_t> successors_among(const Plan& plan, std::size_t segment, const PairOfPhases& pair) {
  std::vector<std::size_t> result = successors(plan, segment);
  std::erase_if(result, [&](std::size_t next) {
    const Phase phase = phase_of(plan.segments[next]);
    return phase != pair.first && phase != pair.second;
  });
  return result;
}

// Operations are numbered through all segments.
using Id = std::uint32_t;
constexpr Id nobody = static_cast<Id>(-1);

// known[s]: how many operations of stream s are known to have completed.
using Clock = std::array<std::uint32_t, stream_count>;

void join(Clock& into, const Clock& other) {
  for (std::size_t s = 0; s < stream_count; ++s) into[s] = std::max(into[s], other[s]);
}

// The last write of a place, or a stream's last read of it since. A write stands for every earlier access that it
// covers, and a stream's last read for its earlier ones: whoever conflicts with those conflicts with it.
struct Live {
  Place place;
  std::uint32_t number;  // of the place
  std::uint32_t slot;    // 0: the write; 1 + stream: a read
  Id point;
};

// The accesses are one buffer's. One that every stream knows to be complete is no hazard any more and is dropped now
// and then: a slot that units of many sizes take in turn has few live accesses, whatever their number.
struct LiveAccesses {
  AccessList<Live> list;
  std::size_t prune_at = 16;
};

struct State {
  std::array<Clock, stream_count> streams{};
  std::vector<LiveAccesses> live;    // by buffer
  std::vector<Clock> completed;      // by operation: the clock at its latest completion
  std::vector<std::size_t> history;  // segments that have run, each once, the latest last
  Id last_collective = nobody;
};

// A wait for the latest completion of an operation.
struct DerivedWait {
  Id point;
  WaitType type;
  bool useful;  // in some state of the last exploration nothing else implied it
};

// The derivation needs this of an operation, in one place.
struct Step {
  std::size_t segment;
  std::size_t stream;
  bool collective;
  std::vector<DerivedWait> waits;
};

std::vector<Step> steps_of(const Plan& plan) {
  std::vector<Step> steps;
  for (std::size_t s = 0; s < plan.segments.size(); ++s) {
    for (const Operation& operation : plan.segments[s].operations) {
      // A message has a communicator of two ranks for itself: its order beside others is nobody's business.
      const bool is_ordered = is_collective(operation.kind) && !operation.passes_message();
      steps.push_back({s, static_cast<std::size_t>(operation.stream), is_ordered, {}});
    }
  }
  return steps;
}

class Deriver {
 public:
  explicit Deriver(const Plan& plan) : plan_(plan), places_(plan), steps_(steps_of(plan)), marked_(steps_.size()) {
    Id next = 0;
    for (const Segment& segment : plan.segments) {
      begins_.push_back(next);
      next += static_cast<Id>(segment.operations.size());
    }
    begins_.push_back(next);
    for (const Step& step : steps_) streams_.push_back(static_cast<std::uint8_t>(step.stream));
  }

  std::vector<Step> run() {
    do {
      while (explore()) {
      }
    } while (prune());
    return std::move(steps_);
  }

 private:
  using Signature = std::vector<std::uint32_t>;
  using Counts = std::array<std::vector<std::uint32_t>, stream_count>;

  // True when a wait was added somewhere.
  bool explore() {
    added_ = false;
    for (Step& step : steps_) {
      for (DerivedWait& wait : step.waits) wait.useful = false;
    }
    State start;
    start.live.resize(plan_.buffers.size());
    start.completed.resize(steps_.size());
    for (const PairOfPhases& pair : pairs_of_phases(plan_)) explore(pair, start);
    return added_;
  }

  void explore(const PairOfPhases& pair, const State& start) {
    std::map<Signature, std::set<std::size_t>> seen;  // by state: the segments that followed
    std::vector<std::pair<std::size_t, State>> pending;
    pending.emplace_back(0, start);  // segment 0 is the cold start
    while (!pending.empty()) {
      auto [segment, state] = std::move(pending.back());
      pending.pop_back();
      run(segment, state);
      std::set<std::size_t>& followed = seen[signature(state)];
      std::vector<std::size_t> unseen = successors_among(plan_, segment, pair);
      std::erase_if(unseen, [&](std::size_t next) { return !followed.insert(next).second; });
      for (const std::size_t next : unseen) {
        pending.emplace_back(next, next == unseen.back() ? std::move(state) : State(state));
      }
    }
  }

  // Drops waits that no state of the last exploration needed at their own operation.
  bool prune() {
    bool dropped = false;
    for (Step& step : steps_) {
      dropped = std::erase_if(step.waits, [](const DerivedWait& wait) { return !wait.useful; }) > 0 || dropped;
    }
    if (dropped) list_crossing();
    return dropped;
  }

  bool known(const State& state, const Clock& clock, Id point) const {
    const std::size_t stream = streams_[point];
    return clock[stream] >= state.completed[point][stream];
  }

  void run(std::size_t segment, State& state) {
    std::erase(state.history, segment);
    state.history.push_back(segment);
    for (Id here = begins_[segment]; here < begins_[segment + 1]; ++here) run_step(here, state);
  }

  void run_step(Id here, State& state) {
    const Step& step = steps_[here];
    Clock& clock = state.streams[step.stream];
    wait_for_hazards(here, clock, state);
    if (step.collective) follow_last_collective(here, clock, state);
    ++clock[step.stream];
    state.completed[here] = clock;
    remember(here, state);
  }

  // Latest first: waiting for one usually implies the others.
  void wait_for_hazards(Id here, Clock& clock, const State& state) {
    find_hazards(here, clock, state);
    std::sort(hazards_.begin(), hazards_.end(), [&](Id a, Id b) { return later(state, a, b); });
    for (const Id hazard : hazards_) {
      if (known(state, clock, hazard)) continue;
      add_wait(here, hazard, WaitType::data);
      join(clock, state.completed[hazard]);
    }
    // Waits found in other states are made in this one too.
    for (const DerivedWait& wait : steps_[here].waits) {
      if (wait.type == WaitType::data) join(clock, state.completed[wait.point]);
    }
  }

  // Consistent with happens-before: what knows more has a larger total. Ties by place, so that the result is one and
  // the same.
  bool later(const State& state, Id a, Id b) const {
    return std::pair(total(state, a), a) > std::pair(total(state, b), b);
  }
  std::uint64_t total(const State& state, Id point) const {
    std::uint64_t sum = 0;
    for (const std::uint64_t count : state.completed[point]) sum += count;
    return sum;
  }

  // Conflicting accesses that are not known to be complete.
  void find_hazards(Id here, const Clock& clock, const State& state) {
    hazards_.clear();
    const auto check = [&](Id point) {
      if (!known(state, clock, point)) hazards_.push_back(point);
    };
    for (const PlaceUse& use : places_.of(here)) {
      const AccessList<Live>& list = state.live[places_.buffer(use.place)].list;
      list.for_each_overlapping(places_.bytes(use.place), [&](const Live& live) {
        if (use.write || live.slot == 0) check(live.point);
      });
    }
  }

  // One total order of launch over both communicators: unless completion already orders them, an order edge does.
  void follow_last_collective(Id here, const Clock& clock, State& state) {
    const Id last = std::exchange(state.last_collective, here);
    if (last == nobody || steps_[last].stream == steps_[here].stream || known(state, clock, last)) return;
    add_wait(here, last, WaitType::order);
  }

  void add_wait(Id here, Id point, WaitType type) {
    bool found = false;
    for (DerivedWait& wait : steps_[here].waits) {
      if (wait.point != point) continue;
      wait.useful = true;
      found = found || wait.type == type;
    }
    if (found) return;
    steps_[here].waits.push_back({point, type, true});
    note_crossing(here, steps_[here].waits.back());
    added_ = true;
  }

  void remember(Id here, State& state) const {
    const auto read = static_cast<std::uint32_t>(1 + steps_[here].stream);
    for (const PlaceUse& use : places_.of(here)) {
      state.live[places_.buffer(use.place)].list.erase_contained(
          places_.bytes(use.place), [&](const Live& live) { return use.write || live.slot == read; });
    }
    for (const PlaceUse& use : places_.of(here)) {
      LiveAccesses& live = state.live[places_.buffer(use.place)];
      live.list.insert({places_.bytes(use.place), use.place, use.write ? 0 : read, here});
      if (live.list.size() >= live.prune_at) drop_settled(state, live);
    }
  }

  void drop_settled(const State& state, LiveAccesses& live) const {
    live.list.erase_if([&](const Live& access) { return settled(state, access.point); });
    live.prune_at = 16 + 2 * live.list.size();
  }

  // The future can depend on this: the accesses that some stream does not know of, in the order of their streams, and
  // how many of them each stream knows, and each that waits for an earlier segment will know then.
  Signature signature(const State& state) {
    Signature result = {state.last_collective};
    list_unsettled(state, result);
    result.push_back(nobody);
    Counts counts;
    count_marked(state, counts, result);
    result.push_back(nobody);
    std::array<Clock, stream_count> ranks{};
    for (std::size_t s = 0; s < stream_count; ++s) {
      ranks[s] = places_in(counts, state.streams[s]);
      result.insert(result.end(), ranks[s].begin(), ranks[s].end());
    }
    result.push_back(static_cast<std::uint32_t>(crossing_.size()));
    for (const auto& [point, stream] : crossing_) {
      Clock clock = state.completed[point];
      join(clock, state.streams[stream]);
      clock = places_in(counts, clock);
      if (clock == ranks[stream]) continue;  // the stream will learn nothing
      result.insert(result.end(), {point, static_cast<std::uint32_t>(stream)});
      result.insert(result.end(), clock.begin(), clock.end());
    }
    return result;
  }

  static Clock places_in(const Counts& counts, const Clock& observer) {
    Clock result{};
    for (std::size_t s = 0; s < stream_count; ++s) result[s] = count_up_to(counts[s], observer[s]);
    return result;
  }

  // Most observers know all or nothing.
  static std::uint32_t count_up_to(const std::vector<std::uint32_t>& counts, std::uint32_t known) {
    if (counts.empty() || known < counts.front()) return 0;
    if (known >= counts.back()) return static_cast<std::uint32_t>(counts.size());
    return static_cast<std::uint32_t>(std::upper_bound(counts.begin(), counts.end(), known) - counts.begin());
  }

  void list_unsettled(const State& state, Signature& result) {
    std::fill(marked_.begin(), marked_.end(), std::uint8_t{0});
    for (const LiveAccesses& live : state.live) {
      for (const Live& access : live.list) {
        if (settled(state, access.point)) continue;
        marked_[access.point] = 1;
        result.insert(result.end(), {access.number, access.slot, access.point});
      }
    }
  }

  bool settled(const State& state, Id point) const {
    const std::size_t stream = streams_[point];
    const std::uint32_t count = state.completed[point][stream];
    return std::all_of(state.streams.begin(), state.streams.end(),
                       [&](const Clock& clock) { return clock[stream] >= count; });
  }

  // Counts marked operations, by stream and ascending: their places in the stream. Appends the segments that they are
  // of.
  void count_marked(const State& state, Counts& counts, Signature& result) const {
    for (const std::size_t segment : state.history) {
      std::array<bool, stream_count> any{};
      for (Id point = begins_[segment]; point < begins_[segment + 1]; ++point) {
        if (marked_[point] == 0) continue;
        const std::size_t stream = streams_[point];
        any[stream] = true;
        counts[stream].push_back(state.completed[point][stream]);
      }
      for (std::size_t s = 0; s < stream_count; ++s) {
        if (any[s]) result.push_back(static_cast<std::uint32_t>(segment * stream_count + s));
      }
    }
  }

  void note_crossing(Id here, const DerivedWait& wait) {
    if (steps_[wait.point].segment == steps_[here].segment) return;
    const std::pair entry(wait.point, steps_[here].stream);
    const auto place = std::lower_bound(crossing_.begin(), crossing_.end(), entry);
    if (place == crossing_.end() || *place != entry) crossing_.insert(place, entry);
  }

  void list_crossing() {
    crossing_.clear();
    for (Id here = 0; here < steps_.size(); ++here) {
      for (const DerivedWait& wait : steps_[here].waits) note_crossing(here, wait);
    }
  }

  const Plan& plan_;
  Places places_;
  std::vector<Step> steps_;
  std::vector<std::uint8_t> streams_;                 // of operations
  std::vector<Id> begins_;                            // of segments, and the end
  std::vector<std::pair<Id, std::size_t>> crossing_;  // what another segment waits for, and on which stream; sorted
  std::vector<std::uint8_t> marked_;                  // by operation
  std::vector<Id> hazards_;
  bool added_ = false;
};

// The host stays at most one step ahead of the device: an update is launched when the one before it has finished,
// whichever program's that was.
void throttle_updates(const Plan& plan, std::vector<Step>& steps) {
  std::vector<Id> firsts;
  std::vector<Id> lasts;
  Id next = 0;
  for (const Segment& segment : plan.segments) {
    const auto operations = static_cast<Id>(segment.operations.size());
    if (segment.kind == SegmentKind::update) {
      firsts.push_back(next);
      lasts.push_back(next + operations - 1);
    }
    next += operations;
  }
  for (const Id first : firsts) {
    for (const Id last : lasts) steps[first].waits.push_back({last, WaitType::throttle, true});
  }
}

// Events in the order in which waits name them first.
void write_waits(Plan& plan, const std::vector<Step>& steps) {
  std::vector<EventPoint> points;
  for (std::size_t s = 0; s < plan.segments.size(); ++s) {
    for (std::size_t o = 0; o < plan.segments[s].operations.size(); ++o) points.push_back({s, o});
  }
  std::vector<std::size_t> events(steps.size(), no_unit);
  for (std::size_t here = 0; here < steps.size(); ++here) {
    Operation& operation = plan.segments[points[here].segment].operations[points[here].operation];
    for (const DerivedWait& wait : steps[here].waits) {
      std::size_t& event = events[wait.point];
      if (event == no_unit) {
        event = plan.events.size();
        plan.events.push_back(points[wait.point]);
      }
      operation.waits.push_back({event, wait.type});
    }
  }
}

}  // namespace

void derive_waits(Plan& plan) {
  std::vector<Step> steps = Deriver(plan).run();
  throttle_updates(plan, steps);
  write_waits(plan, steps);
}

}  // namespace tessera::plan
