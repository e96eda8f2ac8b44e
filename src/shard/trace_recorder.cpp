// The layout walks a step as the executor does: open() launches up to the first window, each close() up to the next,
// which the window around it may be; and where windows nest, open() what comes before the inner one.
#include "shard/trace_recorder.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera {

using plan::SegmentKind;
using Call = HostSection::Call;

TraceLayout::TraceLayout(const plan::Plan& plan, std::size_t of) : program(of) {
  const std::size_t last = plan.micro_batches(program) - 1;
  for (std::size_t micro = 0; micro <= last; ++micro) {
    const SegmentKind kind = last == 0       ? SegmentKind::only
                             : micro == 0    ? SegmentKind::first
                             : micro == last ? SegmentKind::last
                                             : SegmentKind::middle;
    add_segment(plan, plan.find(kind, program).value(), micro);
  }
  begin_section(Call::update, {}, last);
  add_segment(plan, plan.find(SegmentKind::update, program).value(), last);
  end_section();
}

void TraceLayout::begin_section(Call call, plan::WindowUse use, std::size_t micro_batch) {
  sections.push_back({call, use, micro_batch, host_stamps++, 0});
}

void TraceLayout::add_segment(const plan::Plan& plan, std::size_t segment, std::size_t micro_batch) {
  const auto& uses = plan.programs[plan.segments[segment].program].micro_batch;
  const auto& listed = plan.segments[segment].operations;
  const bool windows = plan.segments[segment].kind != SegmentKind::update;
  const std::vector<bool> closing = plan::closes(uses);
  std::size_t opened = 0;
  for (std::size_t index = 0; index < listed.size(); ++index) {
    const bool window = listed[index].kind == plan::OperationKind::window;
    const auto is_exchange = [&](std::size_t at) {
      return at < listed.size() && listed[at].kind == plan::OperationKind::exchange;
    };
    const bool goes_on = window && index > 0 && is_exchange(index - 1);
    const bool opens_after_close = window && !goes_on && opened > 0 && closing[opened - 1] && !uses[opened].resumes;
    if (windows && (index == 0 || opens_after_close)) {
      if (index > 0) end_section();
      begin_section(Call::open, uses[opened], micro_batch);
    }
    add_operation(listed[index], {segment, index}, micro_batch);
    if (window && is_exchange(index + 1)) {
      end_section();
      begin_section(Call::exchange, uses[opened], micro_batch);
    } else if (window) {
      end_section();
      const bool closes = closing[opened];
      begin_section(closes ? Call::close : Call::open, uses[closes ? opened : opened + 1], micro_batch);
      ++opened;
    }
    operations.back().end = stamps++;
  }
  if (windows) end_section();
}

void TraceLayout::add_operation(const plan::Operation& operation, plan::EventPoint point, std::size_t micro_batch) {
  TracedOperation traced{.point = point,
                         .micro_batch = micro_batch,
                         .section = sections.size() - 1,
                         .arrival = stamps++,
                         .waits = 0,
                         .end = 0};
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

const TraceSteps& checked(const TraceSteps& steps) {
  if (steps.first >= steps.next && steps.last >= steps.first) return steps;
  throw UsageError(
      fmt::format("steps {} to {} cannot be traced: the next step is {}, and a trace ends where it begins "
                  "or later",
                  steps.first, steps.last, steps.next));
}

}  // namespace

TraceRecorder::TraceRecorder(const plan::Plan& plan, std::size_t program, Device device, TraceSteps steps)
    : plan_(plan),
      layout_(plan_, program),
      steps_(checked(steps)),
      stamps_(device, layout_.stamps * step_count()),
      host_stamps_(Device::cpu(), layout_.host_stamps * step_count()),
      next_step_(steps.next) {}

bool TraceRecorder::begin_step() {
  const std::size_t step = next_step_++;
  return step >= steps_.first && step <= steps_.last;
}

void TraceRecorder::end_step() {
  ++recorded_;
  if (next_stamp_ == recorded_ * layout_.stamps && next_host_stamp_ == recorded_ * layout_.host_stamps) return;
  throw InternalError("a traced step took other time stamps than its plan has");
}

std::vector<std::int64_t> TraceRecorder::times() {
  const auto& streams = stamps_.nanoseconds();
  const auto& host = host_stamps_.nanoseconds();
  std::vector<std::int64_t> result;
  for (std::size_t step = 0; step < step_count(); ++step) {
    const auto append = [&](const std::vector<std::int64_t>& from, std::size_t count) {
      const auto begin = from.begin() + static_cast<std::ptrdiff_t>(step * count);
      result.insert(result.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
    };
    append(streams, layout_.stamps);
    append(host, layout_.host_stamps);
  }
  return result;
}

}  // namespace tessera
