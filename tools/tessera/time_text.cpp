// A headline, time by kind of operation, what of communication shows, and the critical path.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cost/quantity.hpp"
#include "text.hpp"
#include "time_report.hpp"

namespace tools {

namespace plan = tessera::plan;
using cost::percent_text;
using cost::seconds_text;

namespace {

constexpr std::size_t most_units = 8;

struct KindTime {
  std::size_t count = 0;
  double seconds = 0;   // on the first representative
  double critical = 0;  // on the path that decides the step
};

std::string kind_of(const plan::Plan& plan, plan::EventPoint point) {
  const plan::Operation& operation = plan.at(point);
  if (operation.kind == plan::OperationKind::window) return fmt::format("{} windows", to_string(operation.window));
  const tessera::AxisSet group = group_name(plan, operation.group);
  return fmt::format("{}{}", to_string(operation.kind), is_collective(operation.kind) ? group_text(group) : "");
}

constexpr const char* host = "launching";

// Per step; what takes no time is left out.
std::map<std::string, KindTime> times_by_kind(const TimeReport& report) {
  const plan::Simulation& simulation = report.simulation;
  const auto steps = static_cast<double>(simulation.window_steps);
  std::map<std::string, KindTime> kinds;
  for (const plan::TimedOperation& timed : simulation.ranks.front().operations) {
    if (timed.end <= timed.begin) continue;
    KindTime& kind = kinds[kind_of(report.plan, timed.point)];
    ++kind.count;
    kind.seconds += (timed.end - timed.begin) / steps;
  }
  for (const plan::PathPart& part : simulation.critical_path) {
    KindTime& kind = kinds[part.operation ? kind_of(report.plan, *part.operation) : host];
    kind.critical += (part.end - part.begin) / steps;
  }
  return kinds;
}

std::string kinds_text(const TimeReport& report) {
  const auto kinds = times_by_kind(report);
  std::vector<std::pair<std::string, KindTime>> sorted(kinds.begin(), kinds.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  std::vector<std::vector<std::string>> rows = {
      {"in each step, of rank 0", "count", "time", "critical path", "of step"}};
  for (const auto& [name, kind] : sorted) {
    rows.push_back({name, grouped(kind.count / report.simulation.window_steps), seconds_text(kind.seconds),
                    seconds_text(kind.critical), percent_text(kind.critical / report.step())});
  }
  if (report.outer > 0) {
    rows.push_back(
        {"outer steps, in the mean", "", "", seconds_text(report.outer), percent_text(report.outer / report.step())});
  }
  rows.push_back({"all", "", "", seconds_text(report.step()), percent_text(1)});
  return table(rows);
}

std::string unit_name(const plan::Plan& plan, std::size_t unit) {
  return unit < plan.units.size() ? plan.units[unit].name : "the norm";
}

// The largest first.
std::vector<std::pair<std::string, double>> exposed_units(const TimeReport& report) {
  std::vector<std::pair<std::string, double>> units;
  for (std::size_t unit = 0; unit < report.simulation.exposed.size(); ++unit) {
    const double seconds = report.simulation.exposed[unit];
    if (seconds > 0) units.emplace_back(unit_name(report.plan, unit), seconds);
  }
  std::stable_sort(units.begin(), units.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return units;
}

std::string exposed_text(const TimeReport& report) {
  const plan::Simulation& simulation = report.simulation;
  if (simulation.communicating <= 0) return "no communication\n";
  std::string text = fmt::format(
      "communication {} in a step, {} of it beside computation; computation waits {} for it ({} of the step)",
      seconds_text(simulation.communicating), percent_text(simulation.overlap()),
      seconds_text(simulation.exposed_seconds()), percent_text(simulation.exposed_seconds() / report.step()));
  const auto units = exposed_units(report);
  double others = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (i >= most_units) {
      others += units[i].second;
    } else {
      text += fmt::format("{}{} {}", i == 0 ? ":\n  " : ", ", units[i].first, seconds_text(units[i].second));
    }
  }
  if (others > 0) text += fmt::format(", {} other units {}", units.size() - most_units, seconds_text(others));
  return text + "\n";
}

double quantile(const std::vector<double>& sorted, double part) {
  return sorted[static_cast<std::size_t>(part * static_cast<double>(sorted.size() - 1))];
}

std::string distribution_text(const TimeReport& report, const TimeSetting& time) {
  if (report.distribution.empty()) return "";
  double mean = 0;
  for (const double step : report.distribution) mean += step / static_cast<double>(report.distribution.size());
  return fmt::format("with jitter of {}, over {} steps: mean {}, 5 % below {}, half below {}, 5 % above {}\n",
                     percent_text(time.jitter), grouped(report.distribution.size()), seconds_text(mean),
                     seconds_text(quantile(report.distribution, 0.05)),
                     seconds_text(quantile(report.distribution, 0.5)),
                     seconds_text(quantile(report.distribution, 0.95)));
}

}  // namespace

std::string rate_text(double rate) {
  return rate >= 100 ? grouped(static_cast<std::uint64_t>(rate)) : fmt::format("{:.3g}", rate);
}

std::string text_of(const TimeReport& report, const TimeSetting& time) {
  const char* const rows = report.tokens ? "tokens" : "samples";
  const auto ranks = static_cast<double>(report.plan.options.ranks);
  std::string text =
      fmt::format("\non {}: {} a step, {} {}/s on each rank, {} on all", time.machine.name, seconds_text(report.step()),
                  rate_text(report.rate()), rows, rate_text(ranks * report.rate()));
  if (report.peak > 0) {
    text += fmt::format(", {} of the peak of {:.4g} TFLOP/s", percent_text(report.share_of_peak()), report.peak / 1e12);
  }
  text += fmt::format("\n{}{}", distribution_text(report, time), exposed_text(report));
  if (report.plan.diverges()) {
    text += fmt::format("outer steps add {} to a step in the mean, {} to each {}\n", seconds_text(report.outer),
                        seconds_text(report.outer * static_cast<double>(report.plan.options.outer_every)),
                        grouped(report.plan.options.outer_every));
  }
  return text + "\n" + kinds_text(report);
}

Json json_of(const TimeReport& report, const TimeSetting& time) {
  Json kinds = Json::object(), exposed = Json::object(), path = Json::object();
  for (const auto& [name, kind] : times_by_kind(report)) {
    kinds[name] = kind.seconds;
    if (kind.critical > 0) path[name] = kind.critical;
  }
  for (const auto& [unit, seconds] : exposed_units(report)) exposed[unit] = seconds;
  Json json = {{"machine", time.machine.name},
               {"step_seconds", report.step()},
               {report.tokens ? "tokens_per_second_and_rank" : "samples_per_second_and_rank", report.rate()},
               {"outer_seconds", report.outer},
               {"model_flops", report.flops},
               {"share_of_peak", report.peak > 0 ? Json(report.share_of_peak()) : Json()},
               {"computing", report.simulation.computing},
               {"communicating", report.simulation.communicating},
               {"hidden", report.simulation.hidden},
               {"overlap", report.simulation.overlap()},
               {"exposed", report.simulation.exposed_seconds()},
               {"exposed_by_unit", exposed},
               {"time_by_kind", kinds},
               {"critical_path", path}};
  if (!report.distribution.empty()) {
    json["distribution"] = {{"p05", quantile(report.distribution, 0.05)},
                            {"p50", quantile(report.distribution, 0.5)},
                            {"p95", quantile(report.distribution, 0.95)}};
  }
  return json;
}

std::string text_of(const Subject& subject, const std::vector<TimedSetting>& settings) {
  std::vector<std::vector<std::string>> rows = {{"setting", "step", "rate of a rank", "of peak", "exposed", "memory"}};
  for (const TimedSetting& timed : settings) {
    rows.push_back({setting_text(subject, timed.setting), seconds_text(timed.step), rate_text(timed.rate) + "/s",
                    timed.share_of_peak > 0 ? percent_text(timed.share_of_peak) : "-", seconds_text(timed.exposed),
                    to_string(timed.peak)});
  }
  const bool has_stages = std::any_of(settings.begin(), settings.end(),
                                      [](const TimedSetting& timed) { return timed.setting.stages() > 1; });
  return table(rows) + (has_stages ? "exposed of stages: all the time in which each stands still, in the mean\n" : "");
}

Json json_of(const std::vector<TimedSetting>& settings) {
  Json list = Json::array();
  for (const TimedSetting& timed : settings) {
    const plan::PlanOptions& options = timed.setting.options;
    Json entry = {{"strategy", to_string(options.strategy)},
                  {"replicas", options.replicas},
                  {"prefetch", options.prefetch},
                  {"reshard_after_forward", resharding_json(options.reshard_after_forward)},
                  {"activation_checkpointing", timed.setting.activation_checkpointing},
                  {"batch", timed.setting.batch},
                  {"step_seconds", timed.step},
                  {"rate", timed.rate},
                  {"exposed", timed.exposed},
                  {"peak", timed.peak.count()},
                  {"host", timed.host.count()}};
    if (options.mesh) entry["mesh"] = options.mesh->text();
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace tools
