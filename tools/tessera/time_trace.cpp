// The timeline of a predicted step in the format of measured ones (docs/guide.md), so that `tessera trace` reads both.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "tessera/base/error.hpp"
#include "time_report.hpp"

namespace tools {

namespace plan = tessera::plan;

namespace {

std::size_t thread_of(plan::StreamId stream) { return 1 + static_cast<std::size_t>(stream); }

Json name_event(const char* what, std::size_t rank, std::size_t thread, const std::string& name) {
  return {{"ph", "M"}, {"pid", rank}, {"tid", thread}, {"name", what}, {"args", {{"name", name}}}};
}

std::string category_of(const plan::Operation& operation) {
  if (operation.kind == plan::OperationKind::window) return "window";
  return is_collective(operation.kind) ? "communication" : "computation";
}

class Timeline {
 public:
  explicit Timeline(const TimeReport& report) : report_(report) {
    for (const plan::RankTimeline& rank : report.simulation.ranks) {
      for (const plan::TimedOperation& timed : rank.operations) origin_ = std::min(origin_, timed.begin);
    }
  }

  void add(const plan::RankTimeline& rank) {
    events_.push_back(name_event("process_name", rank.rank, 0, fmt::format("ranks like {}", rank.rank)));
    for (std::size_t id = 0; id < plan::stream_count; ++id) {
      const auto stream = static_cast<plan::StreamId>(id);
      if (!report_.plan.uses(stream)) continue;
      events_.push_back(name_event("thread_name", rank.rank, thread_of(stream), std::string(to_string(stream))));
    }
    for (const plan::TimedOperation& timed : rank.operations) {
      if (timed.end > timed.begin) add(rank.rank, timed);
    }
  }

  Json document(const std::string& machine) const {
    const plan::PlanOptions& options = report_.plan.options;
    Json about = {{"tessera_trace", 1},
                  {"ranks", options.ranks},
                  {"strategy", to_string(options.strategy)},
                  {"prefetch", options.prefetch},
                  {"micro_batches", report_.plan.micro_batches(0)},
                  {"units", report_.plan.units.size()},
                  {"first_step", 1},
                  {"last_step", report_.simulation.window_steps},
                  {"clocks", "predicted on " + machine}};
    return {{"displayTimeUnit", "ms"}, {"otherData", about}, {"traceEvents", events_}};
  }

 private:
  void add(std::size_t rank, const plan::TimedOperation& timed) {
    const plan::Operation& operation = report_.plan.at(timed.point);
    const std::string unit = operation.unit == plan::no_unit ? "" : report_.plan.units[operation.unit].name;
    Json about = {{"step", 1 + timed.step},
                  {"micro_batch", timed.micro_batch},
                  {"segment", to_string(report_.plan.segments[timed.point.segment].kind)},
                  {"operation", timed.point.operation},
                  {"kind", to_string(operation.kind)},
                  {"unit", unit},
                  {"bytes", static_cast<std::uint64_t>(traced_bytes(operation))}};
    if (operation.kind == plan::OperationKind::window) about["pass"] = to_string(operation.window);
    events_.push_back({{"ph", "X"},
                       {"pid", rank},
                       {"tid", thread_of(operation.stream)},
                       {"ts", (timed.begin - origin_) * 1e6},
                       {"dur", (timed.end - timed.begin) * 1e6},
                       {"name", describe(report_.plan, operation)},
                       {"cat", category_of(operation)},
                       {"args", about}});
  }

  const TimeReport& report_;
  double origin_ = 0;
  Json events_ = Json::array();
};

}  // namespace

void write_timeline(const TimeReport& report, const TimeSetting& time, const std::string& path) {
  Timeline timeline(report);
  for (const plan::RankTimeline& rank : report.simulation.ranks) timeline.add(rank);
  std::ofstream file(path, std::ios::binary);
  file << timeline.document(time.machine.name).dump() << "\n";
  file.close();
  if (!file) throw tessera::DataError(fmt::format("{}: cannot be written", path));
}

}  // namespace tools
