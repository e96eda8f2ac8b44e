// Programs: the default chain, the check that declared ones make sense, and which of them trains a unit.
#include "tessera/plan/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/error.hpp"

namespace tessera::plan {

std::string_view to_string(WindowKind kind) {
  switch (kind) {
    case WindowKind::forward: return "forward";
    case WindowKind::backward: return "backward";
    case WindowKind::recompute: return "recompute";
    case WindowKind::evaluate: return "evaluate";
    case WindowKind::backward_input: return "backward input";
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

std::vector<bool> closes(const std::vector<WindowUse>& windows) {
  std::vector<bool> result(windows.size(), true);
  std::map<std::size_t, bool> resumed;  // by unit: whether the use that follows is of the same window
  for (std::size_t position = windows.size(); position > 0; --position) {
    const WindowUse& use = windows[position - 1];
    result[position - 1] = !resumed[use.unit];
    resumed[use.unit] = use.resumes;
  }
  return result;
}

namespace {

using Windows = std::vector<WindowUse>;

class Recomputation {
 public:
  Recomputation(const Windows& windows, const std::vector<bool>& units)
      : windows_(windows), units_(units), closing_(closes(windows)) {}

  Windows run() {
    Windows result;
    for (std::size_t position = 0; position < windows_.size(); ++position) {
      const WindowUse& use = windows_[position];
      const bool opens = !use.resumes && use.unit < units_.size() && units_[use.unit];
      if (opens && use.kind == WindowKind::forward) forwards_[use.unit].push_back(position);
      if (opens && use.kind == WindowKind::backward) {
        const Windows again = take_forward(use.unit);
        if (!stands_before(position)) insert(again, position, result);
      }
      result.push_back(use);
    }
    return result;
  }

 private:
  // Takes the unit's latest forward window, and what was open inside it.
  Windows take_forward(std::size_t unit) {
    std::vector<std::size_t>& begun = forwards_[unit];
    if (begun.empty()) return {{unit, WindowKind::forward}};  // trainers() refuses the program
    std::size_t at = begun.back();
    begun.pop_back();
    Windows result = {windows_[at]};
    while (windows_[at].unit != unit || !closing_[at]) result.push_back(windows_[++at]);
    return result;
  }

  // The window around the two may go on between them.
  bool stands_before(std::size_t position) const {
    if (position == 0) return false;
    std::size_t before = position - 1;
    if (windows_[before].resumes && !closing_[before]) --before;
    return windows_[before].unit == windows_[position].unit && windows_[before].kind == WindowKind::recompute;
  }

  void insert(const Windows& forward, std::size_t position, Windows& result) const {
    for (const WindowUse& use : forward) {
      if (use.kind != WindowKind::forward) {
        throw UsageError(
            fmt::format("unit {} recomputes, but a {} window of unit {} is open inside its forward window: leave the "
                        "setting out, and give the program the recompute windows that it should have",
                        windows_[position].unit, to_string(use.kind), use.unit));
      }
      result.push_back({use.unit, WindowKind::recompute, use.resumes});
    }
    const bool inside_another = position > 0 && !closing_[position - 1];
    if (inside_another) result.push_back({windows_[position - 1].unit, windows_[position - 1].kind, true});
  }

  const Windows& windows_;
  const std::vector<bool>& units_;
  std::vector<bool> closing_;
  std::map<std::size_t, std::vector<std::size_t>> forwards_;  // by unit: those that were not gone back through
};

class Checker {
 public:
  Checker(std::span<const Program> programs, std::span<const Trainable> units) : programs_(programs), units_(units) {}

  std::vector<std::size_t> run() {
    check_names();
    trainers_.assign(units_.size(), no_program);
    for (std::size_t index = 0; index < programs_.size(); ++index) {
      const Program& program = programs_[index];
      check_evaluation(program);
      const std::vector<bool> backward = check_micro_batch(program);
      check_nesting(program, program.micro_batch);
      check_nesting(program, program.evaluation);
      assign(index, backward);
    }
    require_all_trained();
    return std::move(trainers_);
  }

 private:
  // A model of one program need not know its name.
  std::string of(const Program& program) const {
    return programs_.size() == 1 ? "program" : fmt::format("program \"{}\"", program.name);
  }

  // A unit's name is told, too, where the model has names.
  std::string of(std::size_t unit) const {
    const std::string_view name = units_[unit].name;
    return name.empty() ? fmt::format("unit {}", unit) : fmt::format("unit {} ({})", unit, name);
  }

  void check_names() const {
    if (programs_.empty())
      throw UsageError("the model has no program: give it one, or leave it the chain of its units");
    std::set<std::string_view> names;
    for (const Program& program : programs_) {
      if (program.name.empty()) throw UsageError("a program without a name: name each, errors and traces tell by it");
      if (!names.insert(program.name).second) {
        throw UsageError(fmt::format("two programs have the name \"{}\": give each its own", program.name));
      }
    }
  }

  void check_unit(const Program& program, std::size_t position, const WindowUse& use) const {
    if (use.unit < units_.size()) return;
    throw UsageError(fmt::format("{}: window {} ({}) names unit {}, but the model has {} units", of(program), position,
                                 to_string(use.kind), use.unit, units_.size()));
  }

  void check_evaluation(const Program& program) const {
    for (std::size_t position = 0; position < program.evaluation.size(); ++position) {
      const WindowUse& use = program.evaluation[position];
      check_unit(program, position, use);
      if (use.kind == WindowKind::evaluate) continue;
      throw UsageError(fmt::format("{}: window {} of the evaluation is a {} window; only evaluate windows belong there",
                                   of(program), position, to_string(use.kind)));
    }
  }

  // Which units have a backward window.
  std::vector<bool> check_micro_batch(const Program& program) const {
    std::vector<bool> forward(units_.size(), false);
    std::vector<bool> backward(units_.size(), false);
    for (std::size_t position = 0; position < program.micro_batch.size(); ++position) {
      const WindowUse& use = program.micro_batch[position];
      check_unit(program, position, use);
      if (use.kind == WindowKind::evaluate) {
        throw UsageError(
            fmt::format("{}: window {} of the micro-batch is an evaluate window; those belong to the evaluation list",
                        of(program), position));
      }
      if (use.kind == WindowKind::forward) forward[use.unit] = true;
      if (use.kind == WindowKind::backward) backward[use.unit] = true;
      if (forward[use.unit]) continue;
      throw UsageError(fmt::format("{}: window {} ({}) of {} comes before any forward window of that unit", of(program),
                                   position, to_string(use.kind), of(use.unit)));
    }
    if (programs_.size() > 1 && program.micro_batch.empty()) {
      throw UsageError(fmt::format("{} has no windows: list them, or give it the pass that opens them", of(program)));
    }
    return backward;
  }

  // The windows that are open at each position, the innermost last.
  void check_nesting(const Program& program, const std::vector<WindowUse>& windows) const {
    const std::vector<bool> closing = closes(windows);
    std::vector<WindowUse> open;
    for (std::size_t position = 0; position < windows.size(); ++position) {
      const WindowUse& use = windows[position];
      const std::string what =
          fmt::format("{}: window {} ({}) of {}", of(program), position, to_string(use.kind), of(use.unit));
      if (!use.resumes) {
        open.push_back(use);
      } else if (open.empty() || open.back().unit != use.unit || open.back().kind != use.kind) {
        throw UsageError(
            fmt::format("{} resumes a window that is not open there, or inside which another one is", what));
      } else if (windows[position - 1].unit == use.unit) {
        throw UsageError(fmt::format("{} resumes a window inside which none was open", what));
      }
      if (closing[position]) open.pop_back();
    }
  }

  void assign(std::size_t index, const std::vector<bool>& backward) {
    const Program& program = programs_[index];
    for (const std::size_t unit : program.trains.value_or(std::vector<std::size_t>{})) {
      if (unit >= units_.size()) {
        throw UsageError(
            fmt::format("{} trains unit {}, but the model has {} units", of(program), unit, units_.size()));
      }
      if (units_[unit].trained && !backward[unit]) {
        throw UsageError(fmt::format("{}: {}, which it trains, has no backward window", of(program), of(unit)));
      }
    }
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      if (!units_[unit].trained || !backward[unit] || !is_for(program, unit)) continue;
      if (trainers_[unit] == no_program) {
        trainers_[unit] = index;
      } else if (units_[unit].parameters) {
        throw UsageError(
            fmt::format("{} is trained by two programs, \"{}\" and \"{}\": say which units each trains, or put both "
                        "backward passes into one",
                        of(unit), programs_[trainers_[unit]].name, program.name));
      }
    }
  }

  static bool is_for(const Program& program, std::size_t unit) {
    return !program.trains || std::find(program.trains->begin(), program.trains->end(), unit) != program.trains->end();
  }

  void require_all_trained() const {
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      if (!units_[unit].trained || !units_[unit].parameters || trainers_[unit] != no_program) continue;
      if (programs_.size() == 1 && !programs_.front().trains)
        throw UsageError(
            fmt::format("program: {} has no backward window: give it one, or freeze its parameters", of(unit)));
      throw UsageError(fmt::format("no program trains {}: name it in one, or freeze its parameters", of(unit)));
    }
  }

  std::span<const Program> programs_;
  std::span<const Trainable> units_;
  std::vector<std::size_t> trainers_;
};

}  // namespace

Program recomputing(const Program& program, const std::vector<bool>& units) {
  Program result = program;
  result.micro_batch = Recomputation(program.micro_batch, units).run();
  return result;
}

std::vector<std::size_t> trainers(std::span<const Program> programs, std::span<const Trainable> units) {
  return Checker(programs, units).run();
}

}  // namespace tessera::plan
