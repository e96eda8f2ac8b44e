// Counts steps and stamps.
#include "shard/trace_recorder.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera {
namespace {

const TraceSteps& checked(const TraceSteps& steps) {
  if (steps.first >= steps.next && steps.last >= steps.first) return steps;
  throw UsageError(
      fmt::format("steps {} to {} cannot be traced: the next step is {}, and a trace ends where it begins "
                  "or later",
                  steps.first, steps.last, steps.next));
}

}  // namespace

TraceRecorder::TraceRecorder(const plan::Plan& plan, Device device, TraceSteps steps)
    : plan_(plan),
      layout_(plan_),
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
