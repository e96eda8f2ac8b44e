// All strategies side by side: bytes by category, peak, traffic, and what formulas say.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report.hpp"

namespace tools {

// One report for each strategy, the rest of the setting as it is.
std::vector<PlanReport> compare(const Subject& subject, Setting setting,
                                const std::vector<std::string>& optimizer_states);

std::string text_of(const std::vector<PlanReport>& reports);
nlohmann::ordered_json json_of(const std::vector<PlanReport>& reports);

}  // namespace tools
