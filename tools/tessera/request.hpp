// What `tessera plan` is asked for: a model or a number of parameters, how it is trained, and which question about it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fit.hpp"
#include "options.hpp"
#include "parameters_report.hpp"
#include "subject.hpp"

namespace tools {

enum class OptimizerKind { adamw, sgd };

struct PlanRequest {
  // One of these two.
  std::optional<Subject> subject;
  std::optional<double> parameters;

  Setting setting;
  OptimizerKind optimizer = OptimizerKind::adamw;
  bool compare = false;
  std::optional<tessera::Bytes> fit;
  Freedom freedom;  // of --fit: what the command line did not settle
  bool draw = false;
  bool json = false;
};

// `arguments`: what follows `tessera plan`. Empty when only the help page was asked for, and printed. Throws
// OptionError; DataError for the file of --units.
std::optional<PlanRequest> parse_plan_request(std::vector<std::string> arguments);

std::vector<std::string> optimizer_states(OptimizerKind kind);

}  // namespace tools
