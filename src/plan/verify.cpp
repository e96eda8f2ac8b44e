// Explores sequences of segments on representative ranks, each collective fused among those of its group: every
// sequence of two steps after the cold start, or, where a test asks for it, all that there are.
#include "tessera/plan/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/hash.hpp"
#include "plan/abstract_rank.hpp"
#include "plan/verify_parts.hpp"
#include "plan/verify_roles.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/draw.hpp"
#include "tessera/plan/roles.hpp"

namespace tessera::plan {

std::string_view to_string(ViolationKind kind) {
  switch (kind) {
    case ViolationKind::race: return "race";
    case ViolationKind::stale_read: return "stale read";
    case ViolationKind::lost: return "lost";
    case ViolationKind::layout: return "layout";
    case ViolationKind::order: return "order";
    case ViolationKind::mismatch: return "mismatch";
    case ViolationKind::deadlock: return "deadlock";
  }
  throw InternalError("a kind of violation without a name");
}

std::size_t neighbour(std::size_t role, std::size_t roles, const Operation& message) {
  const bool up = (message.window != WindowKind::backward) == (message.collective_kind == CollectiveKind::send);
  return (up ? role + 1 : role + roles - 1) % roles;
}

std::string_view last_name(const CollectiveSpec& collective) {
  const std::string_view name = collective.name;
  return name.substr(name.rfind('.') + 1);
}

namespace {

using Parties = std::vector<AbstractRank>;

class Explorer {
 public:
  Explorer(const Plan& plan, const Plan& deviating, Sequences sequences)
      : plan_(plan), deviating_(deviating), sequences_(sequences) {}
  Explorer(std::span<const RankRole> roles, const Plan& plan, const Plan& deviating)
      : plan_(plan), deviating_(deviating), sequences_(Sequences::of_two_steps), roles_(roles) {}

  Verification run() {
    check_alone(plan_);
    if (&plan_ != &deviating_) check_alone(deviating_);
    bool same = same_segments(deviating_);
    for (const RankRole& role : roles_) {
      if (&role.plan == &plan_) continue;
      check_alone(role.plan);
      same = same_segments(role.plan) && same;
    }
    if (same) {
      compare_launch_orders();
      explore();
    }
    return std::move(result_);
  }

 private:
  // Without running it.
  void check_alone(const Plan& plan) {
    verify_layout(plan, reporter());
    verify_sums(plan, reporter());
  }

  Report reporter() {
    return [this](ViolationKind kind, EventPoint here, EventPoint other, std::string text) {
      if (!seen_.insert({kind, here.segment, here.operation, other.segment, other.operation}).second) return;
      result_.violations.push_back({kind, std::move(text)});
    };
  }

  bool same_segments(const Plan& other) {
    bool same = plan_.segments.size() == other.segments.size();
    for (std::size_t s = 0; same && s < plan_.segments.size(); ++s) {
      same = plan_.segments[s].kind == other.segments[s].kind &&
             plan_.segments[s].fragment == other.segments[s].fragment &&
             plan_.segments[s].program == other.segments[s].program;
    }
    if (!same) reporter()(ViolationKind::mismatch, {}, {}, "ranks have different segments");
    return same;
  }

  // Per stream the fused run compares the ranks; between the streams only the order of the lists tells.
  void compare_launch_orders() {
    for (std::size_t s = 0; s < plan_.segments.size(); ++s) {
      const auto ours = collectives(plan_, s);
      const auto theirs = collectives(deviating_, s);
      for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
        if (plan_.at(ours[i]).stream == deviating_.at(theirs[i]).stream) continue;
        reporter()(ViolationKind::order, ours[i], theirs[i],
                   fmt::format("ranks launch collectives in different orders: the first rank {}, the last rank {}",
                               describe(plan_, ours[i]), describe(deviating_, theirs[i])));
        break;
      }
    }
  }

  static std::vector<EventPoint> collectives(const Plan& plan, std::size_t segment) {
    std::vector<EventPoint> result;
    const auto& operations = plan.segments[segment].operations;
    for (std::size_t index = 0; index < operations.size(); ++index) {
      if (is_collective(operations[index].kind)) result.push_back({segment, index});
    }
    return result;
  }

  // The first and the last rank along each axis; two also of a single rank. The last one may deviate.
  static std::vector<Coordinates> corners(const Plan& plan) {
    const Coordinates last = plan.mesh.last();
    std::vector<Coordinates> result = {Coordinates{}};
    for (std::size_t axis = 0; axis < axis_count; ++axis) {
      if (last[axis] == 0) continue;
      for (std::size_t known = result.size(); known-- > 0;) {
        result.push_back(result[known]);
        result.back()[axis] = last[axis];
      }
    }
    std::sort(result.begin(), result.end());
    if (result.size() == 1) result.push_back(last);
    return result;
  }

  void explore() {
    Parties start;
    const auto add = [&](const Plan& plan, std::size_t role) {
      const std::vector<Coordinates> places = corners(plan);
      for (std::size_t party = 0; party < places.size(); ++party) {
        const bool deviates = &plan == &plan_ && party + 1 == places.size();
        start.emplace_back(deviates ? deviating_ : plan, places[party], role);
      }
    };
    if (roles_.empty()) add(plan_, 0);
    for (std::size_t role = 0; role < roles_.size(); ++role) add(roles_[role].plan, role);
    sequences_ == Sequences::all ? explore_all(std::move(start)) : go_on({.segment = 0}, std::move(start));
  }

  // ---- two steps ----

  // Between steps anything may follow anything, and all orders of all programs would be too many to look at. The cold
  // start and two steps are enough (a program's step, its evaluation, the refresh). Leave from any sequence all but
  // these: that is a sequence, too, in which no stream knows of more (a wait means the latest completion of one and the
  // same operation, so that what is left out can only have told more) and in which nothing was written that was not
  // written before. So of a race only the steps of its two accesses are needed; of a stale read that of the reader, and
  // of whoever last took away what it reads; of what is lost that of the writer and of who needs the place; and of an
  // order of launch those of two collectives, of which one comes next after the other. Ranks get stuck inside one
  // segment, whatever came before it, and over how many ranks a gradient is summed is decided inside one step. The
  // same holds of the micro-batches in a step's middle, of which there may be any number: both ends of what goes
  // wrong are in two of them, in one and another step, or in one of them and elsewhere in its step.

  struct Position {
    std::size_t segment;  // 0 is the cold start
    std::size_t steps = 0;
    std::size_t middles = 0;  // micro-batches of the step that are neither its first nor its last
  };

  void go_on(const Position& here, Parties parties) {
    if (!run_segment(here.segment, parties)) return;
    const std::vector<Position> next = followers(here);
    for (std::size_t i = 0; i < next.size(); ++i) {
      go_on(next[i], i + 1 < next.size() ? Parties(parties) : std::move(parties));
    }
  }

  // A step repeats its middle only where no other step follows or came before it.
  std::vector<Position> followers(const Position& here) const {
    using enum SegmentKind;
    std::vector<Position> result;
    for (const std::size_t segment : successors(plan_, here.segment)) {
      Position next = here;
      next.segment = segment;
      const SegmentKind kind = plan_.segments[segment].kind;
      if (kind == middle && ++next.middles > (here.steps == 1 ? 2 : 1)) continue;
      const bool goes_on = kind == middle || kind == last || kind == update || kind == outer;
      if (!goes_on && (++next.steps > 2 || std::exchange(next.middles, 0) > 1)) continue;
      result.push_back(next);
    }
    return result;
  }

  // ---- all sequences, until no new state appears ----

  void explore_all(Parties start) {
    std::map<std::vector<std::uint64_t>, std::set<std::size_t>> seen;  // by state: the segments that followed
    std::vector<std::pair<std::size_t, Parties>> pending;
    pending.emplace_back(0, std::move(start));  // segment 0 is the cold start
    while (!pending.empty()) {
      auto [segment, parties] = std::move(pending.back());
      pending.pop_back();
      if (!run_segment(segment, parties)) continue;
      std::set<std::size_t>& followed = seen[signature(parties)];
      std::vector<std::size_t> unseen = successors(plan_, segment);
      std::erase_if(unseen, [&](std::size_t next) { return !followed.insert(next).second; });
      for (const std::size_t next : unseen) {
        pending.emplace_back(next, next == unseen.back() ? std::move(parties) : Parties(parties));
      }
    }
  }

  // False when the ranks got stuck; what comes after would say nothing.
  bool run_segment(std::size_t segment, Parties& parties) {
    ++result_.states;
    for (AbstractRank& party : parties) party.enter(segment);
    bool progress = true;
    while (progress) {
      progress = false;
      for (AbstractRank& party : parties) {
        for (std::size_t stream = 0; stream < stream_count; ++stream) {
          while (advance(parties, party, stream)) progress = true;
        }
      }
    }
    for (const AbstractRank& party : parties) {
      if (party.finished()) continue;
      report_stuck(parties);
      return false;
    }
    for (AbstractRank& party : parties) party.leave(reporter());
    return true;
  }

  bool advance(Parties& parties, AbstractRank& party, std::size_t stream) {
    const std::size_t index = party.head(stream);
    if (index == AbstractRank::none || !party.runnable(index)) return false;
    if (party.operation(index).passes_message() && !roles_.empty()) return pass(parties, party, stream);
    if (is_collective(party.operation(index).kind)) return fuse(parties, party, stream);
    party.complete(index, reporter());
    ++result_.operations;
    return true;
  }

  // Whether they differ along the group's axes alone. A single rank's two representatives do not differ.
  static bool is_with(const AbstractRank& party, const AbstractRank& other, AxisSet group) {
    if (party.role() != other.role() && !group.contains(Axis::pipeline)) return false;
    for (std::size_t axis = 0; axis < axis_count; ++axis) {
      const bool differs = party.place()[axis] != other.place()[axis];
      if (differs && !group.contains(static_cast<Axis>(axis))) return false;
    }
    return true;
  }

  // The representatives of the group in which a rank calls a collective, itself among them. Sums of tied gradients are
  // of the first role and the last, wherever they are called.
  template <typename AnyParties>
  auto group_of(AnyParties& parties, const AbstractRank& party, const Operation& collective) const {
    const bool of_ends = collective.kind == OperationKind::sum_tied && !roles_.empty();
    std::vector<decltype(&parties.front())> members;
    for (auto& other : parties) {
      const bool is_end = other.role() == 0 || other.role() + 1 == roles_.size();
      if (is_with(party, other, collective.group) && (is_end || !of_ends || &other == &party))
        members.push_back(&other);
    }
    return members;
  }

  // Completes one collective on every rank of its group at once: it starts when all have arrived and ends when all are
  // done.
  bool fuse(Parties& parties, const AbstractRank& caller, std::size_t stream) {
    const auto members = group_of(parties, caller, caller.operation(caller.head(stream)));
    for (const AbstractRank* member : members) {
      const std::size_t index = member->head(stream);
      if (index == AbstractRank::none || !member->runnable(index)) return false;
    }
    if (!agrees(members, stream)) return false;
    for (AbstractRank* member : members) {
      member->complete(member->head(stream), reporter());
      ++result_.operations;
    }
    return true;
  }

  static const CollectiveSpec& message_of(const AbstractRank& party, const Operation& operation) {
    return party.plan().units[operation.unit].collectives[operation.collective];
  }

  // The rank of the neighbouring role at the same coordinates: it and its counterpart meet, and both go on. A single
  // rank has two representatives, the n-th of which meets the other role's n-th.
  bool pass(Parties& parties, AbstractRank& party, std::size_t stream) {
    const Operation& mine = party.operation(party.head(stream));
    const auto nth = [&](const AbstractRank& of) {
      std::size_t before = 0;
      for (const AbstractRank* other = &parties.front(); other != &of; ++other) {
        before += other->role() == of.role() && other->place() == of.place() ? 1 : 0;
      }
      return before;
    };
    const CollectiveKind kind =
        mine.collective_kind == CollectiveKind::send ? CollectiveKind::receive : CollectiveKind::send;
    const auto there_on = static_cast<std::size_t>(stream_of_message(kind, mine.window));
    for (AbstractRank& other : parties) {
      if (other.role() != neighbour(party.role(), roles_.size(), mine)) continue;
      if (other.place() != party.place() || nth(other) != nth(party)) continue;
      const std::size_t index = other.head(there_on);
      if (index == AbstractRank::none || !other.runnable(index) || !other.operation(index).passes_message())
        return false;
      const Operation& theirs = other.operation(index);
      const CollectiveSpec &here = message_of(party, mine), &there = message_of(other, theirs);
      const bool fits = neighbour(other.role(), roles_.size(), theirs) == party.role() &&
                        mine.collective_kind != theirs.collective_kind && last_name(here) == last_name(there) &&
                        here.bytes() == there.bytes() && here.type == there.type && mine.wire == theirs.wire;
      if (!fits) return false;
      party.complete(party.head(stream), reporter());
      other.complete(index, reporter());
      result_.operations += 2;
      return true;
    }
    return false;
  }

  // Units of two roles have a place in each, and one name.
  static std::string_view unit_of(const AbstractRank& party, std::size_t unit) {
    return unit == no_unit ? std::string_view() : std::string_view(party.plan().units[unit].name);
  }

  static bool agrees(const std::vector<AbstractRank*>& members, std::size_t stream) {
    const AbstractRank& caller = *members.front();
    const Operation& first = caller.operation(caller.head(stream));
    const bool is_of_roles = first.kind == OperationKind::sum_tied;
    for (const AbstractRank* member : members) {
      const Operation& other = member->operation(member->head(stream));
      if (other.kind != first.kind || other.wire != first.wire) return false;
      if (is_of_roles ? unit_of(*member, other.unit) != unit_of(caller, first.unit) : other.unit != first.unit)
        return false;
      if (other.collective != first.collective || other.collective_kind != first.collective_kind ||
          other.window != first.window || other.whole_group != first.whole_group)
        return false;
      if (other.group != first.group || other.accesses.size() != first.accesses.size()) return false;
      for (std::size_t a = 0; a < first.accesses.size(); ++a) {
        if (other.accesses[a].range.size != first.accesses[a].range.size) return false;
        if (!is_of_roles && other.accesses[a].tenant != first.accesses[a].tenant) return false;
      }
    }
    return true;
  }

  // The head is a collective that may start, and the streams of the group's other ranks have ended or may start
  // something else.
  bool meets_no_partner(const Parties& parties, const AbstractRank& mine, std::size_t stream) const {
    const std::size_t head = mine.head(stream);
    if (mine.operation(head).passes_message()) return true;
    if (!is_collective(mine.operation(head).kind) || !mine.runnable(head)) return false;
    const auto members = group_of(parties, mine, mine.operation(head));
    return std::all_of(members.begin(), members.end(), [&](const AbstractRank* other) {
      return other->head(stream) == AbstractRank::none || other->runnable(other->head(stream));
    });
  }

  static std::string name_of(const Parties& parties, std::size_t party) {
    if (party == 0) return "first rank";
    if (party + 1 == parties.size()) return "last rank";
    return fmt::format("rank {}", parties[party].plan().mesh.rank_at(parties[party].place()));
  }

  void report_stuck(const Parties& parties) {
    std::string text = "ranks wait for each other for ever:";
    bool disagree = false;
    EventPoint here{};
    for (std::size_t party = 0; party < parties.size(); ++party) {
      for (std::size_t stream = 0; stream < stream_count; ++stream) {
        const std::size_t index = parties[party].head(stream);
        if (index == AbstractRank::none) continue;
        here = parties[party].point(index);
        text += fmt::format(" {}'s {} stream at {};", name_of(parties, party), to_string(static_cast<StreamId>(stream)),
                            describe(parties[party].plan(), here));
        disagree = disagree || meets_no_partner(parties, parties[party], stream);
      }
    }
    reporter()(disagree ? ViolationKind::mismatch : ViolationKind::deadlock, here, here, text);
  }

  static std::vector<std::uint64_t> signature(const Parties& parties) {
    std::vector<std::uint64_t> result;
    for (const AbstractRank& party : parties) party.append_signature(result);
    return result;
  }

  const Plan& plan_;
  const Plan& deviating_;
  Sequences sequences_;
  std::span<const RankRole> roles_;  // empty: there is one
  Verification result_;
  std::set<std::tuple<ViolationKind, std::size_t, std::size_t, std::size_t, std::size_t>> seen_;
};

}  // namespace

Verification verify(const Plan& plan, Sequences sequences) { return Explorer(plan, plan, sequences).run(); }

namespace {

void require_neighbours(std::span<const RankRole> roles, std::size_t role) {
  for (const Segment& segment : roles[role].plan.segments) {
    for (const Operation& operation : segment.operations) {
      if (!operation.passes_message()) continue;
      const RankRole& other = roles[neighbour(role, roles.size(), operation)];
      const auto name_of = [](const RankRole& of, const Operation& message) {
        return last_name(of.plan.units[message.unit].collectives[message.collective]);
      };
      const auto answers = [&](const Operation& theirs) {
        return theirs.passes_message() && theirs.collective_kind != operation.collective_kind &&
               theirs.window == operation.window && name_of(other, theirs) == name_of(roles[role], operation);
      };
      const bool found = std::any_of(other.plan.segments.begin(), other.plan.segments.end(), [&](const Segment& each) {
        return std::any_of(each.operations.begin(), each.operations.end(), answers);
      });
      if (found) continue;
      throw UsageError(fmt::format("{} of role {}: role {} has no other side of it",
                                   describe(roles[role].plan, operation), roles[role].name, other.name));
    }
  }
}

// A unit that is in two roles is tied in the last one, and counts in the norm and stands in files in the first.
void require_pairs(std::span<const RankRole> roles) {
  const auto has = [](const RankRole& role, const std::string& name, bool UnitSpec::*side) {
    return std::any_of(role.plan.units.begin(), role.plan.units.end(),
                       [&](const UnitSpec& unit) { return unit.name == name && unit.*side; });
  };
  for (const RankRole& role : roles) {
    for (const UnitSpec& unit : role.plan.units) {
      if (!unit.is_of_two_roles()) continue;
      const RankRole& place = unit.tied ? roles.back() : roles.front();
      const RankRole& other = unit.tied ? roles.front() : roles.back();
      const bool is_pair = &role == &place && &role != &other && unit.tied != unit.is_tied_to &&
                           has(other, unit.name, unit.tied ? &UnitSpec::is_tied_to : &UnitSpec::tied);
      if (is_pair) continue;
      throw UsageError(fmt::format("unit {} of role {} is of two roles, and the other half of it is not in role {}",
                                   unit.name, role.name, other.name));
    }
  }
}

}  // namespace

Verification verify(std::span<const RankRole> roles) {
  if (roles.empty()) throw UsageError("a job without roles has nothing to verify");
  const auto find = [&](const std::string& name) {
    return std::count_if(roles.begin(), roles.end(), [&](const RankRole& role) { return role.name == name; });
  };
  for (const RankRole& role : roles) {
    if (find(role.name) > 1)
      throw UsageError(fmt::format("two roles have the name \"{}\": give each its own", role.name));
    if (role.plan.mesh != roles.front().plan.mesh)
      throw UsageError(
          fmt::format("role {} is on a mesh {}, and role {} on {}: each rank sends to the one at its place", role.name,
                      role.plan.mesh.text(), roles.front().name, roles.front().plan.mesh.text()));
    require_neighbours(roles, static_cast<std::size_t>(&role - roles.data()));
  }
  require_pairs(roles);
  return Explorer(roles, roles.front().plan, roles.front().plan).run();
}

Verification verify(std::span<const RankRole> roles, std::size_t role, const Plan& deviating) {
  return Explorer(roles, roles[role].plan, deviating).run();
}

std::uint64_t hash(std::span<const RankRole> roles) {
  std::string text;
  for (const RankRole& role : roles) text += fmt::format("role {}\n{}", role.name, canonical_text(role.plan));
  return fnv1a(text);
}

Verification verify(const Plan& plan, const Plan& deviating) {
  return Explorer(plan, deviating, Sequences::of_two_steps).run();
}

}  // namespace tessera::plan
