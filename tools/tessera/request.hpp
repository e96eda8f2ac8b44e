// What `tessera plan` is asked for: a perceptron's widths, the options that shape a plan, and what to print.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "tessera/plan/compile.hpp"

namespace tools {

// A command line that cannot be followed. The text names the option.
class OptionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class OptimizerKind { adamw, sgd };

struct PlanRequest {
  std::vector<std::size_t> widths;  // of the layers' inputs, and of the last one's output
  tessera::plan::PlanOptions options;
  OptimizerKind optimizer = OptimizerKind::adamw;
  bool draw = false;
  bool json = false;
};

// `arguments`: what follows `tessera plan`. Empty when only the help page was asked for, and printed. Throws
// OptionError.
std::optional<PlanRequest> parse_plan_request(std::vector<std::string> arguments);

// Each layer, from in to out, is a unit "layers.N" with a weight [out, in] and a bias [out].
tessera::plan::CompileInput compile_input(const PlanRequest& request);

}  // namespace tools
