// The layout walks a step as the executor does: open() launches up to the first window, each close() up to the next,
// which the window around it may be; and where windows nest, open() what comes before the inner one.
#include "shard/trace_recorder.hpp"

#include <fmt/format.h>

#include <utility>

#include "plan/launch_list.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

using plan::SegmentKind;
using Call = HostSection::Call;

TraceLayout::TraceLayout(const plan::Plan& plan, std::size_t of, std::optional<std::size_t> outer) : program(of) {
  const std::size_t micro_batches = plan.micro_batches(program);
  const std::size_t last = micro_batches - 1;
  for (std::size_t micro = 0; micro < micro_batches; ++micro) {
    add_segment(plan, plan.find(plan::kind_of(micro, micro_batches), program).value(), micro);
  }
  add_call(Call::update, plan, plan.find(SegmentKind::update, program).value(), last);
  if (outer) add_call(Call::outer, plan, *outer, last);
}

// All of a segment without windows.
void TraceLayout::add_call(Call call, const plan::Plan& plan, std::size_t segment, std::size_t micro_batch) {
  begin_section(call, {}, micro_batch);
  const auto& listed = plan.segments[segment].operations;
  for (std::size_t index = 0; index < listed.size(); ++index) {
    add_operation(listed[index], {segment, index}, micro_batch);
    operations.back().end = stamps++;
  }
  end_section();
}

void TraceLayout::begin_section(Call call, plan::WindowUse use, std::size_t micro_batch) {
  sections.push_back({call, use, micro_batch, host_stamps++, 0});
}

void TraceLayout::add_segment(const plan::Plan& plan, std::size_t segment, std::size_t micro_batch) {
  const auto& uses = plan.programs[plan.segments[segment].program].micro_batch;
  const auto& listed = plan.segments[segment].operations;
  const std::vector<bool> closing = plan::closes(uses);
  std::size_t opened = 0;
  for (std::size_t index = 0; index < listed.size(); ++index) {
    const bool window = listed[index].kind == plan::OperationKind::window;
    const auto is_collective = [&](std::size_t at) {
      return at < listed.size() && listed[at].kind == plan::OperationKind::collective && !listed[at].passes_message();
    };
    const bool overlapped = window && index > 0 && listed[index - 1].stream == plan::StreamId::overlap;
    const bool goes_on =
        window && index > 0 &&
        (is_collective(index - 1) || (index > 1 && listed[index - 2].stream == plan::StreamId::overlap));
    const bool opens_after_close = window && !goes_on && opened > 0 && closing[opened - 1] && !uses[opened].resumes;
    if (index == 0 || opens_after_close) {
      if (index > 0) end_section();
      begin_section(Call::open, uses[opened], micro_batch);
    }
    add_operation(listed[index], {segment, index}, micro_batch);
    if (overlapped || (window && is_collective(index + 1))) {
      end_section();
      begin_section(Call::collect, uses[opened], micro_batch);
    } else if (window) {
      end_section();
      const bool closes = closing[opened];
      begin_section(closes ? Call::close : Call::open, uses[closes ? opened : opened + 1], micro_batch);
      ++opened;
    }
    operations.back().end = stamps++;
  }
  end_section();
}

void TraceLayout::add_operation(const plan::Operation& operation, plan::EventPoint point, std::size_t micro_batch) {
  TracedOperation traced{
      .point = point, .micro_batch = micro_batch, .section = sections.size() - 1, .arrival = stamps++};
  for (const plan::Wait& wait : operation.waits) {
    if (wait.type == plan::WaitType::data) ++traced.waits;
    if (wait.type == plan::WaitType::throttle) {
      if (traced.throttle_waits++ == 0) traced.throttle = host_stamps;
      host_stamps += 2;
    }
  }
  stamps += traced.waits;
  operations.push_back(traced);
}

namespace {

constexpr std::size_t most_steps = std::size_t{1} << 16;

const TraceSteps& checked(const TraceSteps& steps) {
  if (steps.last >= steps.first && steps.last - steps.first >= most_steps) {
    throw UsageError(
        fmt::format("steps {} to {} cannot be traced: a trace is of at most {} steps, whose memory it takes "
                    "at once",
                    steps.first, steps.last, most_steps));
  }
  if (steps.first >= steps.next && steps.last >= steps.first) return steps;
  throw UsageError(
      fmt::format("steps {} to {} cannot be traced: the next step is {}, and a trace ends where it begins "
                  "or later",
                  steps.first, steps.last, steps.next));
}

std::vector<TraceLayout> layouts_of(const plan::Plan& plan, std::size_t program) {
  std::vector<TraceLayout> layouts = {{plan, program}};
  const std::size_t fragments = plan.diverges() ? plan.options.outer_fragments : 0;
  for (std::size_t fragment = 0; fragment < fragments; ++fragment) {
    layouts.emplace_back(plan, program, plan.find_outer(fragment));
  }
  return layouts;
}

}  // namespace

TracedPlan::TracedPlan(const plan::Plan& plan, std::size_t program, TraceSteps steps, std::size_t updates)
    : plan_(plan),
      layouts_(layouts_of(plan_, program)),
      steps_(checked(steps)),
      updates_(updates + steps.first - steps.next) {}

const TraceLayout& TracedPlan::layout(std::size_t step) const {
  const auto outer = plan_.outer_after(updates_ + (step - steps_.first) + 1);
  return layouts_[outer ? 1 + plan_.segments[*outer].fragment : 0];
}

std::size_t TracedPlan::sum_over_steps(std::size_t TraceLayout::*count) const {
  std::size_t sum = 0;
  for (std::size_t step = steps_.first; step <= steps_.last; ++step) sum += layout(step).*count;
  return sum;
}

std::size_t TracedPlan::stamps() const {
  return sum_over_steps(&TraceLayout::stamps) + sum_over_steps(&TraceLayout::host_stamps);
}

TraceRecorder::TraceRecorder(std::vector<TracedPlan> plans, std::size_t role, Device device)
    : plans_(std::move(plans)),
      role_(role),
      stamps_(device, mine().sum_over_steps(&TraceLayout::stamps)),
      host_stamps_(Device::cpu(), mine().sum_over_steps(&TraceLayout::host_stamps)),
      next_step_(steps().next) {}

const TracedPlan& TraceRecorder::of_rank(std::size_t rank) const {
  if (plans_.size() == 1) return plans_.front();
  const plan::Coordinates place = mine().plan().options.mesh->place_of(rank);
  return plans_[place[static_cast<std::size_t>(Axis::pipeline)]];
}

bool TraceRecorder::begin_step() {
  const std::size_t step = next_step_++;
  return step >= steps().first && step <= steps().last;
}

void TraceRecorder::end_step() {
  const TraceLayout& recorded = mine().layout(steps().first + recorded_++);
  expected_stamps_ += recorded.stamps;
  expected_host_stamps_ += recorded.host_stamps;
  if (next_stamp_ == expected_stamps_ && next_host_stamp_ == expected_host_stamps_) return;
  throw InternalError("a traced step took other time stamps than its plan has");
}

std::vector<std::int64_t> TraceRecorder::times() {
  auto stream = stamps_.nanoseconds().begin();
  auto host = host_stamps_.nanoseconds().begin();
  std::vector<std::int64_t> result;
  for (std::size_t step = steps().first; step <= steps().last; ++step) {
    const auto append = [&](auto& from, std::size_t count) {
      const auto begin = std::exchange(from, from + static_cast<std::ptrdiff_t>(count));
      result.insert(result.end(), begin, from);
    };
    append(stream, mine().layout(step).stamps);
    append(host, mine().layout(step).host_stamps);
  }
  return result;
}

}  // namespace tessera
