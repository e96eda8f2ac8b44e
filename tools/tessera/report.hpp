// One plan, worked out: what `tessera plan` found, as text for people and as JSON for programs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accounting.hpp"
#include "json/json.hpp"
#include "request.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/plan/verify.hpp"

namespace tools {

struct PlanReport {
  const Subject& subject;
  Setting setting;
  tessera::plan::Plan plan;
  tessera::plan::MemoryReport memory = {};
  tessera::plan::Verification verification = {};
  Traffic traffic = {};
  tessera::Bytes persistent = {};
  double zero_paper = 0;   // models/persistent.hpp
  std::string title = {};  // of its column in tables: the strategy, or the stage
};

// Compiles, verifies and adds up. Throws UsageError for what cannot be planned.
PlanReport make_report(const Subject& subject, const Setting& setting,
                       const std::vector<tessera::plan::StateSpec>& optimizer_states);

// One for each stage of a pipeline, whose plans are verified together.
std::vector<PlanReport> stage_reports(const Subject& subject, const Setting& setting);
std::string text_of_stages(const std::vector<PlanReport>& stages);
Json json_of_stages(const std::vector<PlanReport>& stages);

std::string text_of(const PlanReport& report);
Json json_of(const PlanReport& report);

// The parts of the text, for tables of several plans.
std::string model_text(const Subject& subject, const tessera::plan::Plan& plan);  // "NAME: 1,234 parameters in 3 units"
std::string activations_note(const PlanReport& report);                           // a line
std::string verdict(const tessera::plan::Verification& verification);             // lines
std::string_view purpose(tessera::plan::Category category);

// All strategies side by side: bytes by category, peak, traffic, and what formulas say.

// One report for each strategy, the rest of the setting as it is.
std::vector<PlanReport> compare(const Subject& subject, Setting setting,
                                const std::vector<tessera::plan::StateSpec>& optimizer_states);

std::string text_of(const std::vector<PlanReport>& reports);
Json json_of(const std::vector<PlanReport>& reports);

}  // namespace tools
