// Time goes from event to event; whoever was told something settles before it goes on.
#include "tessera/plan/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <numbers>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "plan/launch_list.hpp"
#include "plan/simulated_rank.hpp"
#include "plan/step_account.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/roles.hpp"

namespace tessera::plan {

namespace {

constexpr std::size_t warm_up_steps = 2;
constexpr std::size_t few_steps = 8;
constexpr std::size_t most_apart = 8;         // outer steps, where they are simulated
constexpr std::size_t most_outer_walk = 128;  // steps in which every fragment has its turn once
constexpr double equal_enough = 1e-9;         // of a step's time

bool are_equal(double step, double next) { return std::abs(next - step) <= equal_enough * next; }

// ---- what is asked for makes sense ----

void require_sense(const Plan& plan, const SimulationOptions& options) {
  const Sharing& sharing = options.sharing;
  if (!(sharing.processors > 0)) {
    throw UsageError(fmt::format("a rank cannot compute on {} processors", sharing.processors));
  }
  if (!(sharing.slowdown >= 1) || !std::isfinite(sharing.slowdown)) {
    throw UsageError(
        fmt::format("a collective slows what runs beside it down 1 time or more, not {} times", sharing.slowdown));
  }
  if (!(options.jitter.deviation >= 0) || !(options.jitter.deviation <= 2)) {
    throw UsageError(fmt::format("the deviation of jitter is from 0 to 2, not {}", options.jitter.deviation));
  }
  for (const SlowRank& slow : options.slow) {
    if (slow.rank >= plan.options.ranks) {
      throw UsageError(
          fmt::format("rank {} cannot be slow: there are {}, counted from 0", slow.rank, plan.options.ranks));
    }
    for (const double factor : {slow.computation, slow.communication}) {
      if (factor > 0 && std::isfinite(factor)) continue;
      throw UsageError(fmt::format("rank {} cannot take {} times as long as the others", slow.rank, factor));
    }
  }
}

using Seconds = std::vector<std::vector<double>>;  // by segment and operation

Seconds seconds_of(const Plan& plan, const std::function<double(const Operation&)>& duration) {
  Seconds result;
  for (std::size_t segment = 0; segment < plan.segments.size(); ++segment) {
    auto& seconds = result.emplace_back();
    for (const Operation& operation : plan.segments[segment].operations) {
      seconds.push_back(duration ? duration(operation) : 0.0);
      if (seconds.back() >= 0 && std::isfinite(seconds.back())) continue;
      throw UsageError(fmt::format("{} cannot take {} seconds", describe(plan, EventPoint{segment, seconds.size() - 1}),
                                   seconds.back()));
    }
  }
  return result;
}

// ---- chance ----

std::uint64_t mixed(std::uint64_t value) {  // splitmix64: Steele, Lea and Flood 2014
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

double uniform(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

// A function of seed, rank and launch, so that the order of events does not matter. Normal numbers by Box and Muller.
double jitter_factor(const Jitter& jitter, std::size_t rank, std::size_t launch) {
  if (jitter.deviation == 0) return 1;
  const std::uint64_t bits = mixed(mixed(mixed(jitter.seed) ^ rank) ^ launch);
  const double normal = std::sqrt(-2 * std::log(uniform(bits))) * std::cos(2 * std::numbers::pi * uniform(mixed(bits)));
  return std::exp(jitter.deviation * normal);
}

// ---- the representatives ----

// The first and the last along each axis, and those in the rows and columns of slow ranks; with jitter also others.
std::vector<std::size_t> representatives(const Plan& plan, const SimulationOptions& options) {
  std::array<std::set<std::size_t>, axis_count> along;
  const auto add = [&](const Coordinates& place) {
    for (std::size_t axis = 0; axis < axis_count; ++axis) along[axis].insert(place[axis]);
  };
  add(Coordinates{});
  add(plan.mesh.last());
  for (const SlowRank& slow : options.slow) add(plan.mesh.place_of(slow.rank));
  std::vector<Coordinates> places = {Coordinates{}};
  for (std::size_t axis = 0; axis < axis_count; ++axis) {
    const std::vector<Coordinates> known = std::exchange(places, {});
    for (const Coordinates& place : known) {
      for (const std::size_t value : along[axis]) {
        places.push_back(place);
        places.back()[axis] = value;
      }
    }
  }
  std::set<std::size_t> ranks;
  for (const Coordinates& place : places) ranks.insert(plan.mesh.rank_at(place));
  const std::size_t wanted = options.jitter.deviation > 0 ? std::min(most_jittered, plan.options.ranks) : 0;
  for (std::size_t i = 0; i < wanted; ++i) ranks.insert(i * plan.options.ranks / wanted);
  return {ranks.begin(), ranks.end()};
}

// Ranks follow one plan, or each its role's; all roles have ranks at the same places.
class Walk {
 public:
  Walk(std::span<const Plan* const> plans, std::span<const Durations> durations, const SimulationOptions& options,
       std::size_t steps)
      : of_role_(representatives(*plans.front(), options).size()) {
    for (std::size_t role = 0; role < plans.size(); ++role) {
      const Plan& plan = *plans[role];
      roles_.push_back(std::make_unique<Role>(plan, LaunchList(plan, options.program, steps, options.outer_spacing),
                                              seconds_of(plan, durations[role].on_stream),
                                              seconds_of(plan, durations[role].on_host)));
      for (const std::size_t rank : representatives(plan, options)) {
        ranks_.emplace_back(roles_.back()->list, rank, plan.mesh.place_of(rank),
                            pace_of(*roles_.back(), rank, options));
      }
    }
    make_groups();
  }

  void run() {
    std::vector<std::size_t> awake(ranks_.size());
    std::iota(awake.begin(), awake.end(), std::size_t{0});
    for (double now = 0; now < LaunchTimes::unknown; now = next_event(awake)) settle(now, awake);
    for (const SimulatedRank& rank : ranks_) {
      if (!rank.finished()) throw InternalError(stuck_text(rank));
    }
  }

  double end_of_step(std::size_t step, std::size_t role = 0) const {
    return ranks_[role * of_role_].times(roles_[role]->list.end_of_step(step)).end;
  }

  Simulation result(std::size_t window_steps, std::size_t role = 0) const {
    Simulation result;
    const LaunchList& list = roles_[role]->list;
    // One more step runs behind the window, so that its beginning is beside the window's end.
    const std::size_t end = list.steps() - 1;
    const StepWindow window{end_of_step(end - window_steps - 1, role), end_of_step(end - 1, role), end - window_steps,
                            end};
    result.begin = window.begin;
    result.window_steps = window_steps;
    result.step_seconds = (window.end - window.begin) / static_cast<double>(window_steps);
    for (std::size_t step = window.first_step; step < end; ++step) {
      result.step_times.push_back(end_of_step(step, role) - end_of_step(step - 1, role));
    }
    if (roles_.size() == 1) {
      account(roles_[role]->plan, list, ranks_, window, result);
    } else {
      account_work(list, std::span(ranks_).subspan(role * of_role_, of_role_), window, result);
    }
    return result;
  }

 private:
  struct Groups {
    std::vector<std::vector<std::size_t>> members;              // of each group
    std::vector<std::size_t> of_rank;                           // which group, by rank of the role
    std::array<std::vector<std::size_t>, stream_count> counts;  // by stream and group: who has arrived, or is done
  };
  struct Role {
    Role(const Plan& its_plan, LaunchList its_list, Seconds stream_seconds, Seconds host_seconds)
        : plan(its_plan),
          list(std::move(its_list)),
          on_stream(std::move(stream_seconds)),
          on_host(std::move(host_seconds)) {}
    const Plan& plan;
    LaunchList list;
    Seconds on_stream;
    Seconds on_host;
    std::map<unsigned, Groups> groups = {};  // by the bits of their axes
  };

  static RankPace pace_of(const Role& role, std::size_t rank, const SimulationOptions& options) {
    double computation = 1, communication = 1;
    for (const SlowRank& slow : options.slow) {
      if (slow.rank != rank) continue;
      computation *= slow.computation;
      communication *= slow.communication;
    }
    const auto on_stream = [&role, rank, computation, communication, jitter = options.jitter](std::size_t launch) {
      const EventPoint point = role.list[launch].point;
      const double seconds = role.on_stream[point.segment][point.operation];
      if (is_collective(role.list[launch].operation->kind)) return seconds * communication;
      return seconds * computation * jitter_factor(jitter, rank, launch);
    };
    const auto on_host = [&role, computation](std::size_t launch) {
      const EventPoint point = role.list[launch].point;
      return role.on_host[point.segment][point.operation] * computation;
    };
    return {on_stream, on_host, options.sharing, options.immediate_compute};
  }

  // Makes the groups of each set of axes along which the plan has collectives.
  void make_groups() {
    for (std::size_t role = 0; role < roles_.size(); ++role) {
      for (const Segment& segment : roles_[role]->plan.segments) {
        for (const Operation& operation : segment.operations) make_groups_of(role, operation);
      }
    }
  }

  void make_groups_of(std::size_t role, const Operation& operation) {
    auto& all = roles_[role]->groups;
    if (!is_collective(operation.kind) || all.contains(operation.group.bits())) return;
    Groups& groups = all[operation.group.bits()];
    std::map<std::size_t, std::size_t> names;  // what ranks of a group have in common: their place along other axes
    for (std::size_t rank = role * of_role_; rank < (role + 1) * of_role_; ++rank) {
      const std::size_t name = roles_[role]->plan.mesh.index_of(AxisSet::all() - operation.group, ranks_[rank].place());
      const std::size_t group = names.try_emplace(name, names.size()).first->second;
      if (group == groups.members.size()) groups.members.emplace_back();
      groups.members[group].push_back(rank);
      groups.of_rank.push_back(group);
    }
    for (auto& counts : groups.counts) counts.resize(groups.members.size());
  }

  // The next time at which something happens, and to whom; unknown when nothing does.
  double next_event(std::vector<std::size_t>& awake) const {
    double next = LaunchTimes::unknown;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const double event = ranks_[rank].next_event();
      if (event > next) continue;
      if (event < next) awake.clear();
      next = event;
      awake.push_back(rank);
    }
    return next;
  }

  void settle(double now, std::vector<std::size_t>& awake) {
    while (!awake.empty()) {
      const std::size_t rank = awake.back();
      awake.pop_back();
      ranks_[rank].settle(now);
      for (const SimulatedRank::Notice& notice : ranks_[rank].take_notices()) meet(rank, notice, now, awake);
    }
  }

  // A collective begins when the last of its group arrives, and ends when the last is done.
  void meet(std::size_t rank, const SimulatedRank::Notice& notice, double now, std::vector<std::size_t>& awake) {
    Role& role = *roles_[rank / of_role_];
    const Operation& operation = *role.list[ranks_[rank].head(notice.stream)].operation;
    if (operation.passes_message() && roles_.size() > 1) return meet_neighbour(rank, operation, notice, now, awake);
    if (operation.group.contains(Axis::pipeline)) return meet_roles(rank, operation, notice, now, awake);
    Groups& groups = role.groups.at(operation.group.bits());
    const std::size_t group = groups.of_rank[rank % of_role_];
    const std::vector<std::size_t>& members = groups.members[group];
    std::size_t& count = groups.counts[notice.stream][group];
    if (++count < members.size()) return;
    count = 0;
    for (const std::size_t member : members) go_on(member, notice.stream, notice.done, now, awake);
  }

  void go_on(std::size_t rank, std::size_t stream, bool done, double now, std::vector<std::size_t>& awake) {
    if (done) {
      ranks_[rank].end_work(stream, now);
    } else {
      ranks_[rank].begin_work(stream, now);
    }
    awake.push_back(rank);
  }

  // A message does when both its sides have come to it, or are done with it: the second one tells both.
  void meet_neighbour(std::size_t rank, const Operation& message, const SimulatedRank::Notice& notice, double now,
                      std::vector<std::size_t>& awake) {
    const std::size_t other = neighbour(rank / of_role_, roles_.size(), message) * of_role_ + rank % of_role_;
    const bool sends = message.collective_kind == CollectiveKind::send;
    const auto there = static_cast<std::size_t>(
        stream_of_message(sends ? CollectiveKind::receive : CollectiveKind::send, message.window));
    bool& came = messages_[{sends ? rank : other, sends ? notice.stream : there}];
    came = !came;
    if (came) return;
    go_on(rank, notice.stream, notice.done, now, awake);
    go_on(other, there, notice.done, now, awake);
  }

  // All roles' ranks at one place, or the first role's and the last's.
  void meet_roles(std::size_t rank, const Operation& collective, const SimulatedRank::Notice& notice, double now,
                  std::vector<std::size_t>& awake) {
    const bool of_ends = collective.kind == OperationKind::sum_tied && roles_.size() > 2;
    const std::size_t apart = of_ends ? ranks_.size() - of_role_ : of_role_;
    std::size_t& count = roles_met_[{rank % of_role_, notice.stream, of_ends}];
    if (++count < (of_ends ? 2 : roles_.size())) return;
    count = 0;
    for (std::size_t member = rank % of_role_; member < ranks_.size(); member += apart)
      go_on(member, notice.stream, notice.done, now, awake);
  }

  std::string stuck_text(const SimulatedRank& rank) const {
    const Role& role = *roles_[static_cast<std::size_t>(&rank - ranks_.data()) / of_role_];
    std::string text = fmt::format("the simulation never ends: rank {}", rank.rank());
    for (std::size_t stream = 0; stream < stream_count; ++stream) {
      const std::size_t launch = rank.head(stream);
      if (launch == LaunchList::none) continue;
      text += fmt::format(", {} stream at {}", to_string(static_cast<StreamId>(stream)),
                          describe(role.plan, role.list[launch].point));
    }
    return text;
  }

  std::size_t of_role_;  // ranks of each
  std::vector<std::unique_ptr<Role>> roles_;
  std::vector<SimulatedRank> ranks_;                              // of one role after the other
  std::map<std::pair<std::size_t, std::size_t>, bool> messages_;  // by sender and its stream: whether one side waits
  // They say who has arrived, by place, stream, and whether the two ends meet alone.
  std::map<std::tuple<std::size_t, std::size_t, bool>, std::size_t> roles_met_;
};

// Walks until steps take equal time, or else a few, and gives the walk with the steps to look at.
template <typename Report>
auto walk(std::span<const Plan* const> plans, std::span<const Durations> durations, const SimulationOptions& options,
          Report report) {
  for (const Plan* plan : plans) require_sense(*plan, options);
  const auto run = [&](std::size_t window_steps) {
    Walk walk(plans, durations, options, warm_up_steps + window_steps + 1);
    walk.run();
    return report(walk, window_steps);
  };
  if (options.steps > 0) return run(options.steps);
  {
    Walk walk(plans, durations, options, warm_up_steps + 2);
    walk.run();
    if (are_equal(walk.end_of_step(1) - walk.end_of_step(0), walk.end_of_step(2) - walk.end_of_step(1))) {
      return report(walk, 1);
    }
  }
  return run(few_steps);
}

}  // namespace

double Simulation::exposed_seconds() const { return std::accumulate(exposed.begin(), exposed.end(), 0.0); }

Simulation simulate(const Plan& plan, const Durations& durations, const SimulationOptions& options) {
  const Plan* const all = &plan;
  return walk({&all, 1}, {&durations, 1}, options,
              [](const Walk& walk, std::size_t window_steps) { return walk.result(window_steps); });
}

std::vector<Simulation> simulate(std::span<const RankRole> roles, std::span<const Durations> durations,
                                 const SimulationOptions& options) {
  if (roles.empty() || roles.size() != durations.size())
    throw UsageError(fmt::format("{} roles with {} durations: give one for each", roles.size(), durations.size()));
  std::vector<const Plan*> plans;
  for (const RankRole& role : roles) plans.push_back(&role.plan);
  return walk(plans, durations, options, [&](const Walk& walk, std::size_t window_steps) {
    std::vector<Simulation> result;
    for (std::size_t role = 0; role < plans.size(); ++role) result.push_back(walk.result(window_steps, role));
    return result;
  });
}

double outer_seconds(const Plan& plan, const Durations& durations, const SimulationOptions& options) {
  if (!plan.diverges()) return 0;
  const std::size_t fragments = plan.options.outer_fragments;
  const std::size_t apart = plan.options.outer_every / fragments;
  SimulationOptions with = options;
  with.outer_spacing = std::min(apart, std::clamp<std::size_t>(most_outer_walk / fragments, 1, most_apart));
  // Every fragment has its turn twice: the second time what came before has its outer steps, too.
  const std::size_t turn = with.outer_spacing * fragments;
  with.steps = 2 * turn;
  const std::vector<double> times = simulate(plan, durations, with).step_times;
  const double seen = std::accumulate(times.end() - static_cast<std::ptrdiff_t>(turn), times.end(), 0.0);
  const double alone = static_cast<double>(turn) * simulate(plan, durations, options).step_seconds;
  return std::max(0.0, seen - alone) / static_cast<double>(plan.options.outer_every);
}

}  // namespace tessera::plan
