// One function for each question.
#include "commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "accounting.hpp"
#include "fit.hpp"
#include "json/json.hpp"
#include "report.hpp"
#include "request.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/draw.hpp"
#include "text.hpp"

namespace tools {

namespace {

void print_drawing(const PlanRequest& request, const PlanReport& report) {
  if (request.draw) fmt::print("\n{}", draw(report.plan));
}

bool answer_parameters(const PlanRequest& request, std::size_t states) {
  const tessera::plan::PlanOptions& options = request.setting.options;
  const ParametersQuestion question{*request.parameters, options.ranks, options.replicas, states};
  if (request.json) {
    print_object(json_of(question));
  } else {
    fmt::print("{}", text_of(question));
  }
  return true;
}

bool answer_plan(const PlanRequest& request, const std::vector<std::string>& states) {
  const PlanReport report = make_report(*request.subject, request.setting, states);
  if (request.json) {
    print_object(json_of(report));
  } else {
    fmt::print("{}", text_of(report));
  }
  print_drawing(request, report);
  return report.verification.ok();
}

bool answer_comparison(const PlanRequest& request, const std::vector<std::string>& states) {
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
                        [](const auto& a, const auto& b) { return a.memory.peak < b.memory.peak; });
  const tessera::plan::PlanOptions& options = question.setting.options;
  throw tessera::MemoryError(fmt::format("{} fits nowhere into {} on {}: the smallest, {}, {}", question.subject.name(),
                                         to_string(question.limit), counted(options.ranks, "rank", "ranks"),
                                         setting_text(question.subject, smallest.setting),
                                         reason(smallest, question.limit)));
}

// The table, then all about its first row.
bool answer_fit(const PlanRequest& request, const std::vector<std::string>& states) {
  const FitQuestion question{*request.subject, request.setting, request.freedom, *request.fit};
  const Fit fit = find_fit(question, states);
  require_some_fit(question, fit);
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
  const std::vector<std::string> states = optimizer_states(request->optimizer);
  if (request->parameters) return answer_parameters(*request, states.size());
  if (request->fit) return answer_fit(*request, states);
  if (request->compare) return answer_comparison(*request, states);
  return answer_plan(*request, states);
}

}  // namespace tools
