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

bool answer_parameters(const PlanRequest& request, const std::vector<tessera::plan::StateSpec>& states) {
  const tessera::plan::PlanOptions& options = request.setting.options;
  const ParametersQuestion question{*request.parameters, options.ranks, options.replicas, states};
  fmt::print("{}", request.json ? object_text(json_of(question)) : text_of(question));
  return true;
}

void draw_time(const PlanRequest& request, const std::vector<tessera::plan::StateSpec>& states,
               const TimeReport& report, const TimeSetting& time) {
  if (request.time.trace) write_timeline(report, time, *request.time.trace);
  if (request.time.figure) plot_scaling(*request.subject, request.setting, states, time, *request.time.figure);
}

// All about one setting, for people and for programs.
struct Answer {
  Json object;
  std::string text;
  bool sound;
};

Answer about_stages(const PlanRequest& request, const Setting& setting) {
  const std::vector<PlanReport> stages = stage_reports(*request.subject, setting);
  Answer answer{json_of_stages(stages), text_of_stages(stages), stages.front().verification.ok()};
  if (!request.time.asked) return answer;
  const TimeSetting machine = time_setting(request.time);
  const StageTimes times = stage_times(*request.subject, setting, machine);
  answer.object["step_seconds"] = times.step();
  answer.object["time"] = json_of(times, machine);
  answer.text += text_of(times, machine);
  if (request.time.trace) write_timeline(times, machine, *request.time.trace);
  return answer;
}

Answer about(const PlanRequest& request, const Setting& setting, const std::vector<tessera::plan::StateSpec>& states) {
  if (setting.stages() > 1) return about_stages(request, setting);
  const PlanReport report = make_report(*request.subject, setting, states);
  Answer answer{json_of(report), text_of(report), report.verification.ok()};
  if (request.time.asked) {
    const TimeSetting machine = time_setting(request.time);
    const TimeReport time = make_time_report(report.plan, *request.subject, setting, machine);
    const double moving = seconds_of_moving(time, *request.subject, setting, states, machine);
    answer.object["step_seconds"] = time.step();
    answer.object["time"] = json_of(time, machine);
    if (moving != 0) answer.object["time"]["seconds_of_moving"] = moving;
    answer.text += text_of(time, machine) + moving_text(time, moving);
    draw_time(request, states, time, machine);
  }
  if (request.draw) answer.text += "\n" + draw(report.plan);
  return answer;
}

bool answer_plan(const PlanRequest& request, const std::vector<tessera::plan::StateSpec>& states) {
  const Answer answer = about(request, request.setting, states);
  fmt::print("{}", request.json ? object_text(answer.object) : answer.text);
  return answer.sound;
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
  fmt::print("{}", request.json ? object_text(json_of(reports)) : text_of(reports));
  for (const PlanReport& report : reports) {
    if (request.draw) fmt::print("\n{}", draw(report.plan));
  }
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
bool answer_fastest(const PlanRequest& request, const FitQuestion& question, const Fit& fit,
                    const std::vector<tessera::plan::StateSpec>& states) {
  const TimeSetting setting = time_setting(request.time);
  const std::vector<TimedSetting> times = fastest_of(fit, question, states, setting);
  const Answer best = about(request, times.front().setting, states);
  if (request.json) {
    print_object({{"model", request.subject->name()},
                  {"machine", setting.machine.name},
                  {"settings", json_of(times)},
                  {"best", best.object}});
  } else {
    fmt::print("{} on {} of {}: what fits into {}, the fastest first\n\n{}\nThe first of them:\n\n{}",
               request.subject->name(), counted(request.setting.options.ranks, "rank", "ranks"), setting.machine.name,
               to_string(*request.fit), text_of(*request.subject, times), best.text);
  }
  return best.sound;
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
  if (request.time.fastest) return answer_fastest(request, question, fit, states);
  const Answer best = about(request, fit.fitting.front().setting, states);
  if (request.json) {
    Json object = json_of(question, fit);
    object["best"] = best.object;
    print_object(object);
  } else {
    fmt::print("{}\nThe first of them:\n\n{}", text_of(question, fit), best.text);
  }
  return best.sound;
}

}  // namespace

bool run_plan(std::vector<std::string> arguments) {
  const std::optional<PlanRequest> request = parse_plan_request(std::move(arguments));
  if (!request) return true;
  const std::vector<tessera::plan::StateSpec> states = optimizer_states(request->setting.optimizer);
  if (request->parameters) return answer_parameters(*request, states);
  if (request->fit) return answer_fit(*request, states);
  if (request->compare) return answer_comparison(*request, states);
  return answer_plan(*request, states);
}

}  // namespace tools
