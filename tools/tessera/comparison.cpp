// A column for each strategy.
#include "comparison.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "text.hpp"

namespace tools {

namespace plan = tessera::plan;
using tessera::Bytes;

std::vector<PlanReport> compare(const Subject& subject, Setting setting,
                                const std::vector<std::string>& optimizer_states) {
  std::vector<PlanReport> reports;
  for (const tessera::Strategy strategy : tessera::all_strategies) {
    setting.options.strategy = strategy;
    reports.push_back(make_report(subject, setting, optimizer_states));
  }
  return reports;
}

namespace {

template <typename Text>
std::vector<std::string> row(std::string name, const std::vector<PlanReport>& reports, const Text& text) {
  std::vector<std::string> cells = {std::move(name)};
  for (const PlanReport& report : reports) cells.push_back(text(report));
  return cells;
}

bool has_any(const std::vector<PlanReport>& reports, std::size_t category) {
  return std::any_of(reports.begin(), reports.end(),
                     [&](const PlanReport& report) { return report.memory.categories[category].size > Bytes(0); });
}

std::string verdicts(const std::vector<PlanReport>& reports) {
  std::string text;
  for (const PlanReport& report : reports) {
    if (report.verification.ok()) continue;
    text += fmt::format("{}: {}", to_string(report.plan.options.strategy), verdict(report.verification));
  }
  return text.empty() ? "verified: all four are sound\n" : text;
}

}  // namespace

std::string text_of(const std::vector<PlanReport>& reports) {
  const PlanReport& first = reports.front();
  const plan::PlanOptions& options = first.plan.options;
  std::vector<std::vector<std::string>> rows = {row("on each rank", reports, [](const PlanReport& report) {
    return std::string(to_string(report.plan.options.strategy));
  })};
  for (std::size_t category = 0; category < plan::category_count; ++category) {
    if (!has_any(reports, category)) continue;
    rows.push_back(row(std::string(to_string(static_cast<plan::Category>(category))), reports,
                       [&](const PlanReport& report) { return to_string(report.memory.categories[category].size); }));
  }
  rows.push_back(row("peak", reports, [](const PlanReport& report) { return to_string(report.memory.peak); }));
  rows.push_back(row("live", reports, [](const PlanReport& report) { return to_string(report.memory.live); }));
  rows.push_back(
      row("sent in a step", reports, [](const PlanReport& report) { return to_string(report.traffic.moved); }));
  const auto bytes = [](double size) { return to_string(Bytes(static_cast<std::uint64_t>(size))); };
  rows.push_back(
      row("persists, by formula", reports, [&](const PlanReport& report) { return bytes(report.persistent); }));
  rows.push_back(row("the ZeRO paper's", reports, [&](const PlanReport& report) { return bytes(report.zero_paper); }));
  return fmt::format("{}; {}, {}, {}\n{}\n{}{}", model_text(first.subject, first.plan),
                     counted(options.ranks, "rank", "ranks"), to_string(options.precision.parameter),
                     counted(options.micro_batches, "micro-batch", "micro-batches"), verdicts(reports), table(rows),
                     activations_note(first));
}

nlohmann::ordered_json json_of(const std::vector<PlanReport>& reports) {
  nlohmann::ordered_json strategies;
  for (const PlanReport& report : reports) {
    strategies[std::string(to_string(report.plan.options.strategy))] = json_of(report);
  }
  return {{"model", reports.front().subject.name()}, {"strategies", strategies}};
}

}  // namespace tools
