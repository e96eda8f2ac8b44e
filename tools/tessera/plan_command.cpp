// One function for each question.
#include "commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "accounting.hpp"
#include "fit_search.hpp"
#include "json/json.hpp"
#include "report.hpp"
#include "request.hpp"
#include "stage_times.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/draw.hpp"
#include "text.hpp"
#include "time_report.hpp"

namespace tools {

namespace {

void print_drawing(const PlanRequest& request, const PlanReport& report) {
  if (request.draw) fmt::print("\n{}", draw(report.plan));
}

bool answer_parameters(const PlanRequest& request, const std::vector<tessera::plan::StateSpec>& states) {
  const tessera::plan::PlanOptions& options = request.setting.options;
  const ParametersQuestion question{*request.parameters, options.ranks, options.replicas, states};
  if (request.json) {
    print_object(json_of(question));
  } else {
    fmt::print("{}", text_of(question));
  }
  return true;
}

void draw_time(const PlanRequest& request, const std::vector<tessera::plan::StateSpec>& states,
               const TimeReport& report, const TimeSetting& time) {
  if (request.time.trace) write_timeline(report, time, *request.time.trace);
  if (request.time.figure) plot_scaling(*request.subject, request.setting, states, time, *request.time.figure);
}

bool answer_plan(const PlanRequest& request, const std::vector<tessera::plan::StateSpec>& states) {
  const PlanReport report = make_report(*request.subject, request.setting, states);
  Json object = json_of(report);
  std::string text = text_of(report);
  if (request.time.asked) {
    const TimeSetting setting = time_setting(request.time);
    const TimeReport time = make_time_report(report.plan, *request.subject, request.setting, setting);
    object["step_seconds"] = time.step();
    object["time"] = json_of(time, setting);
    const double moving = seconds_of_moving(time, *request.subject, request.setting, states, setting);
    text += text_of(time, setting) + moving_text(time, moving);
    if (moving != 0) object["time"]["seconds_of_moving"] = moving;
    draw_time(request, states, time, setting);
  }
  if (request.json) {
    print_object(object);
  } else {
    fmt::print("{}", text);
  }
  print_drawing(request, report);
  return report.verification.ok();
}

bool answer_stages(const PlanRequest& request) {
  const std::vector<PlanReport> stages = stage_reports(*request.subject, request.setting);
  Json object = json_of_stages(stages);
  std::string text = text_of_stages(stages);
  if (request.time.asked) {
    const TimeSetting setting = time_setting(request.time);
    std::vector<tessera::plan::RankRole> roles;
    for (const PlanReport& stage : stages) roles.push_back({stage.title, stage.plan});
    const StageTimes times = stage_times(*request.subject, request.setting, std::move(roles), setting);
    object["step_seconds"] = times.step();
    object["time"] = json_of(times, setting);
    text += text_of(times, setting);
    if (request.time.trace) write_timeline(times, setting, *request.time.trace);
  }
  if (request.json) {
    print_object(object);
  } else {
    fmt::print("{}", text);
  }
  return stages.front().verification.ok();
}

bool answer_time_comparison(const PlanRequest& request, const std::vector<tessera::plan::StateSpec>& states) {
  const TimeSetting setting = time_setting(request.time);
  const std::vector<TimedSetting> times = compare_times(*request.subject, request.setting, states, setting);
  if (request.json) {
    print_object({{"model", request.subject->name()}, {"machine", setting.machine.name}, {"settings", json_of(times)}});
  } else {
    fmt::print("{} on {} of {}\n\n{}", request.subject->name(), counted(request.setting.options.ranks, "rank", "ranks"),
               setting.machine.name, text_of(*request.subject, times));
  }
  return true;
}

bool answer_comparison(const PlanRequest& request, const std::vector<tessera::plan::StateSpec>& states) {
  if (request.time.asked) return answer_time_comparison(request, states);
  const std::vector<PlanReport> reports = compare(*request.subject, request.setting, states);
  if (request.json) {
    print_object(json_of(reports));
  } else {
    fmt::print("{}", text_of(reports));
  }
  for (const PlanReport& report : reports) print_drawing(request, report);
  return std::all_of(reports.begin(), reports.end(), [](const auto& report) { return report.verification.ok(); });
}

void require_some_fit(const FitQuestion& question, const Fit& fit) {
  if (!fit.fitting.empty()) return;
  const FitCandidate& smallest =
      *std::min_element(fit.too_large.begin(), fit.too_large.end(),
                        [](const auto& a, const auto& b) { return a.memory.device() < b.memory.device(); });
  const tessera::plan::PlanOptions& options = question.setting.options;
  throw tessera::MemoryError(fmt::format("{} fits nowhere into {} on {}: the smallest, {}, {}", question.subject.name(),
                                         to_string(question.limit), counted(options.ranks, "rank", "ranks"),
                                         setting_text(question.subject, smallest.setting), reason(question, smallest)));
}

// Lists what fits, by predicted time, then all about the first.
bool answer_fastest(const PlanRequest& request, const Fit& fit, const std::vector<tessera::plan::StateSpec>& states) {
  const TimeSetting setting = time_setting(request.time);
  const std::vector<TimedSetting> times = fastest_of(fit, *request.subject, states, setting);
  const PlanReport best = make_report(*request.subject, times.front().setting, states);
  const TimeReport time = make_time_report(best.plan, *request.subject, times.front().setting, setting);
  const double moving = seconds_of_moving(time, *request.subject, times.front().setting, states, setting);
  if (request.json) {
    Json object = {{"model", request.subject->name()}, {"machine", setting.machine.name}, {"settings", json_of(times)}};
    object["best"] = json_of(best);
    object["best"]["time"] = json_of(time, setting);
    if (moving != 0) object["best"]["time"]["seconds_of_moving"] = moving;
    print_object(object);
  } else {
    fmt::print("{} on {} of {}: what fits into {}, the fastest first\n\n{}\nThe first of them:\n\n{}{}{}",
               request.subject->name(), counted(request.setting.options.ranks, "rank", "ranks"), setting.machine.name,
               to_string(*request.fit), text_of(*request.subject, times), text_of(best), text_of(time, setting),
               moving_text(time, moving));
  }
  print_drawing(request, best);
  return best.verification.ok();
}

// The table, then all about its first row.
bool answer_fit(const PlanRequest& request, const std::vector<tessera::plan::StateSpec>& states) {
  const FitQuestion question{.subject = *request.subject,
                             .setting = request.setting,
                             .freedom = request.freedom,
                             .limit = *request.fit,
                             .host_limit = request.host_memory,
                             .disk = !request.disk.empty()};
  const Fit fit = find_fit(question, states);
  require_some_fit(question, fit);
  if (request.time.fastest) return answer_fastest(request, fit, states);
  const PlanReport best = make_report(*request.subject, fit.fitting.front().setting, states);
  if (request.json) {
    Json object = json_of(question, fit);
    object["best"] = json_of(best);
    print_object(object);
  } else {
    fmt::print("{}\nThe first of them:\n\n{}", text_of(question, fit), text_of(best));
  }
  print_drawing(request, best);
  return best.verification.ok();
}

}  // namespace

bool run_plan(std::vector<std::string> arguments) {
  const std::optional<PlanRequest> request = parse_plan_request(std::move(arguments));
  if (!request) return true;
  const std::vector<tessera::plan::StateSpec> states = optimizer_states(request->setting.optimizer);
  if (request->parameters) return answer_parameters(*request, states);
  if (request->setting.stages() > 1) return answer_stages(*request);
  if (request->fit) return answer_fit(*request, states);
  if (request->compare) return answer_comparison(*request, states);
  return answer_plan(*request, states);
}

}  // namespace tools
