// The timeline of a predicted step in the format of measured ones (docs/guide.md), so that `tessera trace` reads both.
#include <fmt/format.h>

#include <algorithm>

#include "stage_times.hpp"
#include "text.hpp"
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
  explicit Timeline(double origin) : origin_(origin) {}

  // `ranks` are the plan's representatives, whose clocks all began at `begin`.
  void add(const plan::Plan& planned, const std::vector<plan::RankTimeline>& ranks, double begin) {
    for (const plan::RankTimeline& rank : ranks) {
      const std::size_t name = planned.job_rank(rank.rank);
      events_.push_back(name_event("process_name", name, 0, fmt::format("ranks like {}", name)));
      for (std::size_t id = 0; id < plan::stream_count; ++id) {
        const auto stream = static_cast<plan::StreamId>(id);
        if (!planned.uses(stream)) continue;
        events_.push_back(name_event("thread_name", name, thread_of(stream), std::string(to_string(stream))));
      }
      for (const plan::TimedOperation& timed : rank.operations) {
        if (timed.end > timed.begin) add(planned, name, timed, begin);
      }
    }
  }

  // `micro_batches` of a step, and the window's steps.
  Json document(const plan::Plan& planned, std::size_t micro_batches, std::size_t steps,
                const std::string& machine) const {
    const plan::PlanOptions& options = planned.options;
    Json about = {{"tessera_trace", 1},
                  {"ranks", planned.job_ranks()},
                  {"stages", planned.roles()},
                  {"strategy", to_string(options.strategy)},
                  {"prefetch", options.prefetch},
                  {"micro_batches", micro_batches},
                  {"units", planned.units.size()},
                  {"first_step", 1},
                  {"last_step", steps},
                  {"clocks", "predicted on " + machine}};
    return {{"displayTimeUnit", "ms"}, {"otherData", about}, {"traceEvents", events_}};
  }

 private:
  void add(const plan::Plan& planned, std::size_t rank, const plan::TimedOperation& timed, double begin) {
    const plan::Operation& operation = planned.at(timed.point);
    const std::string unit = operation.unit == plan::no_unit ? "" : planned.units[operation.unit].name;
    Json about = {{"step", 1 + timed.step},
                  {"micro_batch", timed.micro_batch},
                  {"segment", to_string(planned.segments[timed.point.segment].kind)},
                  {"operation", timed.point.operation},
                  {"kind", to_string(operation.kind)},
                  {"unit", unit},
                  {"bytes", static_cast<std::uint64_t>(traced_bytes(operation))}};
    if (operation.kind == plan::OperationKind::window) about["pass"] = to_string(operation.window);
    events_.push_back({{"ph", "X"},
                       {"pid", rank},
                       {"tid", thread_of(operation.stream)},
                       {"ts", (begin + timed.begin - origin_) * 1e6},
                       {"dur", (timed.end - timed.begin) * 1e6},
                       {"name", describe(planned, operation)},
                       {"cat", category_of(operation)},
                       {"args", about}});
  }

  double origin_;
  Json events_ = Json::array();
};

// When the first of a simulation's operations begins, where the window does at `begin`.
double first_of(const plan::Simulation& simulation, double begin) {
  double first = 0;
  for (const plan::RankTimeline& rank : simulation.ranks) {
    for (const plan::TimedOperation& timed : rank.operations) first = std::min(first, timed.begin);
  }
  return begin + first;
}

}  // namespace

void write_timeline(const TimeReport& report, const TimeSetting& time, const std::string& path) {
  const plan::Simulation& simulation = report.simulation;
  Timeline timeline(first_of(simulation, 0));
  timeline.add(report.plan, simulation.ranks, 0);
  const Json document =
      timeline.document(report.plan, report.plan.micro_batches(0), simulation.window_steps, time.machine.name);
  write_file(path, document.dump() + "\n");
}

void write_timeline(const StageTimes& times, const TimeSetting& time, const std::string& path) {
  double origin = times.stages.front().begin;
  for (const plan::Simulation& stage : times.stages) origin = std::min(origin, first_of(stage, stage.begin));
  Timeline timeline(origin);
  for (std::size_t stage = 0; stage < times.stages.size(); ++stage) {
    timeline.add(times.roles[stage].plan, times.stages[stage].ranks, times.stages[stage].begin);
  }
  const Json document = timeline.document(times.roles.front().plan, times.micro_batches,
                                          times.stages.front().window_steps, time.machine.name);
  write_file(path, document.dump() + "\n");
}

}  // namespace tools
