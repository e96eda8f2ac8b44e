// Steps are those that the executor runs: micro-batches, then the update.
#include "plan/launch_list.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera::plan {

namespace {

constexpr std::size_t most_launches = std::size_t{1} << 24;

std::size_t operations_of_step(const Plan& plan, std::size_t program) {
  const std::size_t micro_batches = plan.micro_batches(program);
  std::size_t count = 0;
  for (const Segment& segment : plan.segments) {
    if (segment.program != program) continue;
    switch (segment.kind) {
      case SegmentKind::only:
      case SegmentKind::first:
      case SegmentKind::last:
      case SegmentKind::update: count += segment.operations.size(); break;
      case SegmentKind::middle: count += segment.operations.size() * (micro_batches - 2); break;
      default: break;
    }
  }
  return count;
}

}  // namespace

SegmentKind kind_of(std::size_t micro_batch, std::size_t micro_batches) {
  if (micro_batches == 1) return SegmentKind::only;
  if (micro_batch == 0) return SegmentKind::first;
  return micro_batch + 1 == micro_batches ? SegmentKind::last : SegmentKind::middle;
}

LaunchList::LaunchList(const Plan& plan, std::size_t program, std::size_t steps, std::size_t outer_spacing)
    : plan_(plan), program_(program) {
  if (program >= plan.programs.size()) {
    throw UsageError(fmt::format("steps of program {} were asked for, and the plan has {}, counted from 0", program,
                                 plan.programs.size()));
  }
  const std::size_t each = operations_of_step(plan, program);
  if (each > most_launches / steps) {
    throw UsageError(fmt::format("{} steps of {} operations are too much to simulate: the limit is {} operations",
                                 steps, each, most_launches));
  }
  launches_.reserve(each * steps);
  for (const Segment& segment : plan.segments) latest_.emplace_back(segment.operations.size(), none);
  for (std::size_t step = 0; step < steps; ++step) {
    add_step(step);
    if (outer_spacing > 0 && (step + 1) % outer_spacing == 0) add_outer_step((step + 1) / outer_spacing - 1, step);
  }
}

void LaunchList::add_step(std::size_t step) {
  const std::size_t micro_batches = plan_.micro_batches(program_);
  for (std::size_t micro = 0; micro < micro_batches; ++micro) add_segment(kind_of(micro, micro_batches), step, micro);
  add_segment(SegmentKind::update, step, micro_batches - 1);
  if (streams_[compute_stream].empty()) {
    throw UsageError("a plan without operations on the compute stream has no steps");
  }
  ends_.push_back(streams_[compute_stream].back());
}

void LaunchList::add_outer_step(std::size_t turn, std::size_t step) {
  const auto segment = plan_.find_outer(turn % plan_.options.outer_fragments);
  if (!segment) throw UsageError("outer steps were asked for, and the plan has none");
  add_operations(*segment, step, plan_.micro_batches(program_) - 1);
}

void LaunchList::add_segment(SegmentKind kind, std::size_t step, std::size_t micro_batch) {
  const auto segment = plan_.find(kind, program_);
  if (!segment) throw UsageError(fmt::format("a plan without the segment {} has no steps", to_string(kind)));
  add_operations(*segment, step, micro_batch);
}

void LaunchList::add_operations(std::size_t segment, std::size_t step, std::size_t micro_batch) {
  const std::size_t count = plan_.segments[segment].operations.size();
  for (std::size_t operation = 0; operation < count; ++operation) add({segment, operation}, step, micro_batch);
}

void LaunchList::add(EventPoint point, std::size_t step, std::size_t micro_batch) {
  const Operation& operation = plan_.at(point);
  const std::size_t index = launches_.size();
  Launch launch{&operation, point, step, micro_batch, static_cast<std::size_t>(operation.stream), waits_.size(), 0, 0};
  const auto add_waits = [&](WaitType type, std::size_t& count) {
    for (const Wait& wait : operation.waits) {
      if (wait.type != type) continue;
      const EventPoint awaited = plan_.events[wait.event];
      const std::size_t latest = latest_[awaited.segment][awaited.operation];
      if (latest == none) continue;
      waits_.push_back(latest);
      ++count;
    }
  };
  add_waits(WaitType::data, launch.data_waits);
  add_waits(WaitType::throttle, launch.throttle_waits);
  std::vector<std::size_t>& stream = streams_[launch.stream];
  before_.push_back(stream.empty() ? none : stream.back());
  stream.push_back(index);
  latest_[point.segment][point.operation] = index;
  launches_.push_back(launch);
}

}  // namespace tessera::plan
