// Runs the segments in the abstract on one rank, over every allowed sequence, and adds a wait wherever a conflicting
// earlier access is not yet known to have finished. A collective completes on a rank when every peer is finished with
// that rank's memory, so one rank's view is enough. verify() checks the result by other means, on several ranks.
#include "plan/waits.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "plan/access_list.hpp"

namespace tessera::plan {

namespace {

// known[s]: how many operations of stream s are known to have completed.
using Clock = std::array<std::uint64_t, stream_count>;

constexpr std::size_t none = static_cast<std::size_t>(-1);

void join(Clock& into, const Clock& other) {
  for (std::size_t s = 0; s < stream_count; ++s) into[s] = std::max(into[s], other[s]);
}

// An access that a later one may conflict with.
struct LiveAccess {
  Place place;
  bool write;
  std::size_t stream;
  EventPoint by;
};

struct State {
  std::array<Clock, stream_count> streams{};
  std::vector<AccessList<LiveAccess>> live;   // by buffer
  std::vector<std::vector<Clock>> completed;  // by segment and operation: the clock at its latest completion
  EventPoint last_collective{none, none};
};

class Deriver {
 public:
  explicit Deriver(Plan& plan) : plan_(plan) {
    for (std::size_t e = 0; e < plan.events.size(); ++e) event_of_[key(plan.events[e])] = e;
  }

  // True when a wait was added somewhere.
  bool explore() {
    added_ = false;
    useful_.clear();
    State start;
    start.live.resize(plan_.buffers.size());
    for (const Segment& segment : plan_.segments) start.completed.emplace_back(segment.operations.size(), Clock{});
    std::map<std::vector<std::uint64_t>, std::set<std::size_t>> seen;  // by state: the segments that followed
    std::vector<std::pair<std::size_t, State>> pending;
    pending.emplace_back(0, std::move(start));  // segment 0 is the cold start
    while (!pending.empty()) {
      auto [segment, state] = std::move(pending.back());
      pending.pop_back();
      run(segment, state);
      std::set<std::size_t>& followed = seen[signature(state)];
      std::vector<std::size_t> unseen = successors(plan_, segment);
      std::erase_if(unseen, [&](std::size_t next) { return !followed.insert(next).second; });
      for (const std::size_t next : unseen) {
        pending.emplace_back(next, next == unseen.back() ? std::move(state) : State(state));
      }
    }
    return added_;
  }

  // Drops waits that no state of the last exploration needed at their own operation.
  bool prune() {
    bool dropped = false;
    for (std::size_t s = 0; s < plan_.segments.size(); ++s) {
      for (std::size_t o = 0; o < plan_.segments[s].operations.size(); ++o) {
        auto& waits = plan_.segments[s].operations[o].waits;
        const auto keep = std::remove_if(waits.begin(), waits.end(), [&](const Wait& wait) {
          return !useful_.contains({s, o, wait.event});
        });
        dropped = dropped || keep != waits.end();
        waits.erase(keep, waits.end());
      }
    }
    return dropped;
  }

 private:
  struct Use {
    std::size_t segment;
    std::size_t operation;
    std::size_t event;
    auto operator<=>(const Use&) const = default;
  };
  static std::pair<std::size_t, std::size_t> key(EventPoint point) { return {point.segment, point.operation}; }
  static std::size_t stream_of(const Operation& operation) { return static_cast<std::size_t>(operation.stream); }

  const Clock& completed(const State& state, EventPoint point) const {
    return state.completed[point.segment][point.operation];
  }
  bool known(const State& state, const Clock& clock, EventPoint point) const {
    const std::size_t stream = stream_of(plan_.at(point));
    return clock[stream] >= completed(state, point)[stream];
  }

  bool known(const State& state, const Clock& clock, const LiveAccess& access) const {
    return clock[access.stream] >= count_of(state, access);
  }
  std::uint64_t count_of(const State& state, const LiveAccess& access) const {
    return completed(state, access.by)[access.stream];
  }

  void run(std::size_t segment, State& state) {
    for (std::size_t index = 0; index < plan_.segments[segment].operations.size(); ++index)
      run({segment, index}, state);
  }

  void run(EventPoint here, State& state) {
    Operation& operation = plan_.segments[here.segment].operations[here.operation];
    Clock& clock = state.streams[stream_of(operation)];
    wait_for_hazards(here, operation, clock, state);
    if (is_collective(operation.kind)) follow_last_collective(here, operation, clock, state);
    ++clock[stream_of(operation)];
    state.completed[here.segment][here.operation] = clock;
    remember(here, operation, state);
  }

  // Latest first: waiting for one usually implies the others.
  void wait_for_hazards(EventPoint here, Operation& operation, Clock& clock, const State& state) {
    std::vector<EventPoint> hazards = conflicts(operation, clock, state);
    std::sort(hazards.begin(), hazards.end(), [&](EventPoint a, EventPoint b) { return later(state, a, b); });
    for (const EventPoint hazard : hazards) {
      if (known(state, clock, hazard)) continue;
      add_wait(here, operation, hazard, WaitType::data);
      join(clock, completed(state, hazard));
    }
    // Waits found in other states are made in this one too.
    for (const Wait& wait : operation.waits) {
      if (wait.type == WaitType::data) join(clock, completed(state, plan_.events[wait.event]));
    }
  }

  // Consistent with happens-before: what knows more has a larger total. Ties by place, so that the result is one and
  // the same.
  bool later(const State& state, EventPoint a, EventPoint b) const {
    return std::pair(total(state, a), key(a)) > std::pair(total(state, b), key(b));
  }
  std::uint64_t total(const State& state, EventPoint point) const {
    std::uint64_t sum = 0;
    for (const std::uint64_t count : completed(state, point)) sum += count;
    return sum;
  }

  std::vector<EventPoint> conflicts(const Operation& operation, const Clock& clock, const State& state) const {
    std::vector<EventPoint> result;
    for (const Access& access : operation.accesses) {
      state.live[access.range.buffer].for_each_overlapping(place_of(access.range), [&](const LiveAccess& other) {
        if (!writes(access.mode) && !other.write) return;
        if (!known(state, clock, other)) result.push_back(other.by);
      });
    }
    return result;
  }

  Place place_of(const Range& range) const { return {interval(range, 0), interval(range, plan_.options.ranks - 1)}; }

  // One total order of launch over both communicators: unless completion already orders them, an order edge does.
  void follow_last_collective(EventPoint here, Operation& operation, const Clock& clock, State& state) {
    const EventPoint last = std::exchange(state.last_collective, here);
    if (last.segment == none || plan_.at(last).stream == operation.stream || known(state, clock, last)) return;
    add_wait(here, operation, last, WaitType::order);
  }

  void add_wait(EventPoint here, Operation& operation, EventPoint point, WaitType type) {
    const auto [entry, is_new] = event_of_.try_emplace(key(point), plan_.events.size());
    if (is_new) plan_.events.push_back(point);
    const Wait wait{entry->second, type};
    useful_.insert({here.segment, here.operation, wait.event});
    if (std::find(operation.waits.begin(), operation.waits.end(), wait) != operation.waits.end()) return;
    operation.waits.push_back(wait);
    added_ = true;
  }

  // A write stands for every earlier access that it covers: whoever conflicts with those conflicts with it.
  void remember(EventPoint here, const Operation& operation, State& state) {
    for (const Access& access : operation.accesses) {
      state.live[access.range.buffer].erase_contained(place_of(access.range), [&](const LiveAccess& other) {
        return writes(access.mode) || (!other.write && other.stream == stream_of(operation));
      });
    }
    for (const Access& access : operation.accesses) {
      state.live[access.range.buffer].insert({place_of(access.range), writes(access.mode), stream_of(operation), here});
    }
  }

  // What the future can depend on: the accesses that some stream does not know of, in the order of their streams, and
  // how many of them each stream and each event knows.
  std::vector<std::uint64_t> signature(const State& state) const {
    std::vector<std::uint64_t> result = {state.last_collective.segment, state.last_collective.operation};
    std::array<std::vector<std::uint64_t>, stream_count> counts;
    std::vector<std::pair<std::size_t, const LiveAccess*>> unsettled;  // with their buffers
    for (std::size_t buffer = 0; buffer < state.live.size(); ++buffer) {
      for (const LiveAccess& access : state.live[buffer]) {
        const std::uint64_t count = count_of(state, access);
        const bool settled = std::all_of(state.streams.begin(), state.streams.end(),
                                         [&](const Clock& clock) { return clock[access.stream] >= count; });
        if (settled) continue;
        unsettled.emplace_back(buffer, &access);
        counts[access.stream].push_back(count);
      }
    }
    for (auto& stream : counts) std::sort(stream.begin(), stream.end());
    for (const auto& [buffer, access] : unsettled) {
      const auto& stream = counts[access->stream];
      const auto place = std::lower_bound(stream.begin(), stream.end(), count_of(state, *access)) - stream.begin();
      result.insert(result.end(), {buffer, access->place.first.begin, access->by.segment, access->by.operation,
                                   static_cast<std::uint64_t>(place)});
    }
    const auto append = [&](const Clock& observer) {
      for (std::size_t s = 0; s < stream_count; ++s) {
        const auto end = std::upper_bound(counts[s].begin(), counts[s].end(), observer[s]);
        result.push_back(static_cast<std::uint64_t>(end - counts[s].begin()));
      }
    };
    for (const Clock& clock : state.streams) append(clock);
    for (const EventPoint point : crossing_events()) append(completed(state, point));
    return result;
  }

  // Events that another segment waits for.
  std::vector<EventPoint> crossing_events() const {
    std::set<std::size_t> crossing;
    for (std::size_t s = 0; s < plan_.segments.size(); ++s) {
      for (const Operation& operation : plan_.segments[s].operations) {
        for (const Wait& wait : operation.waits) {
          if (plan_.events[wait.event].segment != s) crossing.insert(wait.event);
        }
      }
    }
    std::vector<EventPoint> result;
    for (const std::size_t event : crossing) result.push_back(plan_.events[event]);
    return result;
  }

  Plan& plan_;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> event_of_;
  std::set<Use> useful_;
  bool added_ = false;
};

// The host stays at most one step ahead of the device: an update is launched when the one before it has finished.
void throttle_updates(Plan& plan) {
  const std::size_t update = *plan.find(SegmentKind::update);
  auto& operations = plan.segments[update].operations;
  const EventPoint end{update, operations.size() - 1};
  auto event = std::find(plan.events.begin(), plan.events.end(), end);
  if (event == plan.events.end()) event = plan.events.insert(event, end);
  operations.front().waits.push_back({static_cast<std::size_t>(event - plan.events.begin()), WaitType::throttle});
}

// Events that nothing waits for any more disappear.
void compact_events(Plan& plan) {
  std::vector<std::size_t> renamed(plan.events.size(), none);
  std::vector<EventPoint> events;
  for (Segment& segment : plan.segments) {
    for (Operation& operation : segment.operations) {
      for (Wait& wait : operation.waits) {
        if (renamed[wait.event] == none) {
          renamed[wait.event] = events.size();
          events.push_back(plan.events[wait.event]);
        }
        wait.event = renamed[wait.event];
      }
    }
  }
  plan.events = std::move(events);
}

}  // namespace

void derive_waits(Plan& plan) {
  Deriver deriver(plan);
  do {
    while (deriver.explore()) {
    }
  } while (deriver.prune());
  throttle_updates(plan);
  compact_events(plan);
}

}  // namespace tessera::plan
