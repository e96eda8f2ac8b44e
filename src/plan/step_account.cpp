// Whatever begins does so in the moment in which something else ends: going back from end to beginning finds the path.
#include "plan/step_account.hpp"

#include <algorithm>
#include <utility>

#include "tessera/base/stretches.hpp"

namespace tessera::plan {

namespace {

bool is_with(const SimulatedRank& a, const SimulatedRank& b, AxisSet group) {
  for (std::size_t axis = 0; axis < axis_count; ++axis) {
    if (a.place()[axis] != b.place()[axis] && !group.contains(static_cast<Axis>(axis))) return false;
  }
  return true;
}

class Path {
 public:
  Path(const LaunchList& list, const std::vector<SimulatedRank>& ranks) : list_(list), ranks_(ranks) {}

  // Returns what leads up to a launch's beginning, or to its end, the latest first, back to `from`.
  std::vector<PathPart> to_begin(std::size_t rank, std::size_t launch, double from) const {
    std::vector<PathPart> parts;
    go_back(cause_of_ready(latest_arrival(rank, launch), launch), from, parts);
    return parts;
  }
  std::vector<PathPart> to_end(std::size_t rank, std::size_t launch, double from) const {
    std::vector<PathPart> parts;
    go_back({rank, launch, false}, from, parts);
    return parts;
  }

 private:
  // An operation on its stream, or the host while it launches one.
  struct Node {
    std::size_t rank;
    std::size_t launch;  // none: the beginning of everything
    bool on_host;
  };

  const LaunchTimes& times(const Node& node) const { return ranks_[node.rank].times(node.launch); }

  void go_back(Node node, double from, std::vector<PathPart>& parts) const {
    while (node.launch != LaunchList::none) {
      if (!node.on_host) node.rank = last_at_work(node.rank, node.launch);
      const double begin = node.on_host ? times(node).launch_begin : times(node).begin;
      const double end = node.on_host ? times(node).launch_end : times(node).end;
      if (end > from && end > begin) {
        PathPart part{ranks_[node.rank].rank(), std::nullopt, std::max(begin, from), end};
        if (!node.on_host) part.operation = list_[node.launch].point;
        parts.push_back(part);
      }
      if (begin <= from) return;
      node = node.on_host ? cause_of_launch(node) : cause_of_ready(latest_arrival(node.rank, node.launch), node.launch);
    }
  }

  template <typename Key>
  std::size_t latest_of_group(std::size_t rank, std::size_t launch, Key key) const {
    const Operation& operation = *list_[launch].operation;
    std::size_t latest = rank;
    if (!is_collective(operation.kind)) return latest;
    for (std::size_t other = 0; other < ranks_.size(); ++other) {
      if (!is_with(ranks_[rank], ranks_[other], operation.group)) continue;
      if (key(ranks_[other].times(launch)) > key(ranks_[latest].times(launch))) latest = other;
    }
    return latest;
  }
  std::size_t latest_arrival(std::size_t rank, std::size_t launch) const {
    return latest_of_group(rank, launch, [](const LaunchTimes& times) { return times.ready; });
  }
  std::size_t last_at_work(std::size_t rank, std::size_t launch) const {
    return latest_of_group(rank, launch, [](const LaunchTimes& times) { return times.work_end; });
  }

  Node ended_at(std::size_t rank, std::span<const std::size_t> awaited, double time) const {
    for (const std::size_t launch : awaited) {
      if (ranks_[rank].times(launch).end == time) return {rank, launch, false};
    }
    return {rank, LaunchList::none, false};
  }

  // Its stream, a wait, or the host, in this order where several ended together.
  Node cause_of_ready(std::size_t rank, std::size_t launch) const {
    const double ready = ranks_[rank].times(launch).ready;
    const std::size_t before = list_.before(launch);
    if (before != LaunchList::none && ranks_[rank].times(before).end == ready) return {rank, before, false};
    const Node awaited = ended_at(rank, list_.data_waits(launch), ready);
    return awaited.launch != LaunchList::none ? awaited : Node{rank, launch, true};
  }

  Node cause_of_launch(const Node& node) const {
    const double begin = times(node).launch_begin;
    const Node awaited = ended_at(node.rank, list_.throttle_waits(node.launch), begin);
    if (awaited.launch != LaunchList::none) return awaited;
    if (node.launch == 0) return {node.rank, LaunchList::none, true};
    const Node before{node.rank, node.launch - 1, true};
    const bool waited_for_work = ranks_[node.rank].immediate_compute() &&
                                 list_[before.launch].stream == compute_stream && times(before).end == begin;
    return {node.rank, before.launch, !waited_for_work};
  }

  const LaunchList& list_;
  const std::vector<SimulatedRank>& ranks_;
};

RankTimeline timeline(const LaunchList& list, const SimulatedRank& rank, const StepWindow& window) {
  RankTimeline result{rank.rank(), rank.place(), {}};
  for (std::size_t index = 0; index < list.size(); ++index) {
    const Launch& launch = list[index];
    if (launch.step < window.first_step || launch.step >= window.end_step) continue;
    const LaunchTimes& times = rank.times(index);
    result.operations.push_back({launch.point, launch.step - window.first_step, launch.micro_batch,
                                 times.ready - window.begin, times.begin - window.begin, times.end - window.begin});
  }
  return result;
}

// ---- what runs beside what ----

template <typename Chosen>
Stretches stretches_of(const LaunchList& list, const SimulatedRank& rank, const StepWindow& window, Chosen chosen) {
  Stretches result;
  for (std::size_t index = 0; index < list.size(); ++index) {
    const LaunchTimes& times = rank.times(index);
    const double begin = std::max(times.begin, window.begin);
    const double end = std::min(times.end, window.end);
    if (begin < end && chosen(list[index])) result.emplace_back(begin, end);
  }
  return merged(std::move(result));
}

// ---- what the compute stream waits for ----

// Adds of one stretch of standing still its parts that are collectives, by unit. A peer that works on alone while this
// rank stands in a collective counts for the collective.
void add_exposed(const Plan& plan, const std::vector<PathPart>& parts, std::size_t rank, std::vector<double>& exposed) {
  std::optional<std::size_t> waits_in;
  for (const PathPart& part : parts) {
    const Operation* operation = part.operation ? &plan.at(*part.operation) : nullptr;
    if (operation != nullptr && is_collective(operation->kind)) {
      waits_in = std::min(operation->unit, exposed.size() - 1);
    } else if (part.rank == rank) {
      waits_in.reset();
    }
    if (waits_in) exposed[*waits_in] += part.end - part.begin;
  }
}

std::vector<double> exposed_by_unit(const Plan& plan, const LaunchList& list, const std::vector<SimulatedRank>& ranks,
                                    const StepWindow& window) {
  std::vector<double> exposed(plan.units.size() + 1, 0);
  const Path path(list, ranks);
  double free_since = window.begin;
  for (const std::size_t launch : list.of_stream(compute_stream)) {
    const LaunchTimes& times = ranks.front().times(launch);
    if (times.end <= window.begin) continue;
    if (times.begin > window.end) break;  // what begins right at the end may have waited until then
    if (times.begin > free_since) {
      add_exposed(plan, path.to_begin(0, launch, free_since), ranks.front().rank(), exposed);
    }
    free_since = std::max(free_since, times.end);
  }
  for (double& seconds : exposed) seconds /= static_cast<double>(window.end_step - window.first_step);
  return exposed;
}

std::vector<PathPart> critical_path(const LaunchList& list, const std::vector<SimulatedRank>& ranks,
                                    const StepWindow& window) {
  std::vector<PathPart> parts = Path(list, ranks).to_end(0, list.end_of_step(window.end_step - 1), window.begin);
  std::reverse(parts.begin(), parts.end());
  for (PathPart& part : parts) {
    part.begin -= window.begin;
    part.end -= window.begin;
  }
  return parts;
}

}  // namespace

void account(const Plan& plan, const LaunchList& list, const std::vector<SimulatedRank>& ranks,
             const StepWindow& window, Simulation& result) {
  account_work(list, ranks, window, result);
  result.critical_path = critical_path(list, ranks, window);
  result.exposed = exposed_by_unit(plan, list, ranks, window);
}

void account_work(const LaunchList& list, std::span<const SimulatedRank> ranks, const StepWindow& window,
                  Simulation& result) {
  for (const SimulatedRank& rank : ranks) result.ranks.push_back(timeline(list, rank, window));
  const SimulatedRank& first = ranks.front();
  const Stretches computing =
      stretches_of(list, first, window, [](const Launch& l) { return l.stream == compute_stream; });
  const Stretches communicating =
      stretches_of(list, first, window, [](const Launch& l) { return is_collective(l.operation->kind); });
  const auto steps = static_cast<double>(window.end_step - window.first_step);
  result.computing = length(computing) / steps;
  result.communicating = length(communicating) / steps;
  result.hidden = common_length(computing, communicating) / steps;
}

}  // namespace tessera::plan
