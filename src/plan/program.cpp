// Programs: the default chain, and the check that a declared one makes sense.
#include "tessera/plan/program.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera::plan {

std::string_view to_string(WindowKind kind) {
  switch (kind) {
    case WindowKind::forward: return "forward";
    case WindowKind::backward: return "backward";
    case WindowKind::recompute: return "recompute";
    case WindowKind::evaluate: return "evaluate";
  }
  throw InternalError("a window kind without a name");
}

Program Program::chain(std::size_t units) {
  Program program;
  for (std::size_t unit = 0; unit < units; ++unit) {
    program.micro_batch.push_back({unit, WindowKind::forward});
    program.evaluation.push_back({unit, WindowKind::evaluate});
  }
  for (std::size_t unit = units; unit > 0; --unit) program.micro_batch.push_back({unit - 1, WindowKind::backward});
  return program;
}

namespace {

void check_unit(const WindowUse& use, std::size_t position, std::size_t units) {
  if (use.unit < units) return;
  throw UsageError(fmt::format("program: window {} ({}) names unit {}, but the model has {} units", position,
                               to_string(use.kind), use.unit, units));
}

void check_micro_batch(const Program& program, const std::vector<bool>& trained) {
  const std::size_t units = trained.size();
  std::vector<bool> forward(units, false);
  std::vector<bool> backward(units, false);
  for (std::size_t position = 0; position < program.micro_batch.size(); ++position) {
    const WindowUse& use = program.micro_batch[position];
    check_unit(use, position, units);
    switch (use.kind) {
      case WindowKind::forward: forward[use.unit] = true; break;
      case WindowKind::backward: backward[use.unit] = true; break;
      case WindowKind::recompute: break;
      case WindowKind::evaluate:
        throw UsageError(
            fmt::format("program: window {} of the micro-batch is an evaluate window; those belong to the "
                        "evaluation list",
                        position));
    }
    if (use.kind != WindowKind::forward && !forward[use.unit]) {
      throw UsageError(fmt::format("program: window {} ({}) of unit {} comes before any forward window of that unit",
                                   position, to_string(use.kind), use.unit));
    }
  }
  for (std::size_t unit = 0; unit < units; ++unit) {
    if (trained[unit] && !backward[unit])
      throw UsageError(fmt::format("program: unit {} has no backward window", unit));
  }
}

}  // namespace

void check(const Program& program, const std::vector<bool>& trained) {
  check_micro_batch(program, trained);
  for (std::size_t position = 0; position < program.evaluation.size(); ++position) {
    const WindowUse& use = program.evaluation[position];
    check_unit(use, position, trained.size());
    if (use.kind != WindowKind::evaluate) {
      throw UsageError(
          fmt::format("program: window {} of the evaluation is a {} window; only evaluate windows belong there",
                      position, to_string(use.kind)));
    }
  }
}

}  // namespace tessera::plan
