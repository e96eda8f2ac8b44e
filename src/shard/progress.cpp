// The allowed transitions.
#include "shard/progress.hpp"

#include <fmt/format.h>

#include "plan/launch_list.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

using plan::SegmentKind;
using plan::WindowKind;
using plan::WindowUse;

Progress::Progress(const plan::Plan& plan, std::size_t place) : plan_(&plan), place_(place) {
  for (const plan::Program& program : plan.programs) {
    closing_.push_back({plan::closes(program.micro_batch), plan::closes(program.evaluation)});
  }
}

const std::vector<WindowUse>& Progress::windows(std::size_t segment) const {
  return plan_->segments[segment].kind == SegmentKind::evaluation ? plan_->programs[program_].evaluation
                                                                  : plan_->programs[program_].micro_batch;
}

const std::vector<bool>& Progress::closing(std::size_t segment) const {
  const Closing& of_program = closing_[program_];
  return plan_->segments[segment].kind == SegmentKind::evaluation ? of_program.evaluation : of_program.micro_batch;
}

std::string Progress::describe(const WindowUse& use) const {
  return fmt::format("the {} window of unit {}", to_string(use.kind), plan_->units[use.unit].name);
}

// A model of one program need not know its name.
std::string Progress::of_program() const {
  return plan_->programs.size() == 1 ? "" : fmt::format(" of program \"{}\"", plan_->programs[program_].name);
}

void Progress::begin(std::size_t program) {
  if (phase_ != Phase::between_steps) {
    throw UsageError(
        fmt::format("program \"{}\" cannot begin: a step{} is not done, finish it with its windows and "
                    "update() first",
                    plan_->programs[program].name, of_program()));
  }
  program_ = program;
}

bool Progress::trains() const { return !plan_->programs[program_].micro_batch.empty(); }

void Progress::require_training(std::string_view call) const {
  if (trains()) return;
  throw UsageError(fmt::format("{} cannot come: the program{} has evaluation windows alone, and trains nothing", call,
                               plan_->programs.size() == 1 ? "" : " " + plan_->programs[program_].name));
}

std::size_t Progress::next_micro_batch() const {
  return plan_->find(plan::kind_of(micro_batches_done_, plan_->micro_batches(program_)), program_).value();
}

std::size_t Progress::check_open(const WindowUse& use) const {
  if (phase_ == Phase::in_window && closes()) {
    throw UsageError(fmt::format("{} cannot open: {} is still open, close it first", describe(use),
                                 describe(windows(segment_)[uses_begun_ - 1])));
  }
  if (phase_ == Phase::before_update) {
    throw UsageError(fmt::format("{} cannot open: all {} micro-batches of this step are done, so update() was expected",
                                 describe(use), plan_->micro_batches(program_)));
  }
  std::size_t segment = segment_;
  if (begins_segment()) {
    const bool evaluates = use.kind == WindowKind::evaluate;
    if (evaluates && phase_ != Phase::between_steps) {
      throw UsageError(
          fmt::format("{} cannot open between the micro-batches of a step: evaluate before the first or after "
                      "update()",
                      describe(use)));
    }
    const auto evaluation = plan_->find(SegmentKind::evaluation, program_);
    if (evaluates && !evaluation) {
      throw UsageError(fmt::format("{} cannot open: the program{} declares no evaluation", describe(use),
                                   plan_->programs.size() == 1 ? "" : " " + plan_->programs[program_].name));
    }
    if (!evaluates && !trains()) require_training(describe(use));  // the text is formed where it is needed alone
    if (!evaluates) require_granule(use);
    segment = evaluates ? *evaluation : next_micro_batch();
  }
  const WindowUse& expected = windows(segment)[begins_segment() ? 0 : uses_begun_];
  if (expected != use) {
    throw UsageError(
        fmt::format("{} was opened out of order: {}{} was expected", describe(use), describe(expected), of_program()));
  }
  return segment;
}

void Progress::require_granule(const WindowUse& use) const {
  const Granules granules = plan_->granules(program_, place_);
  if (skips_ || granules.total == 0 || micro_batches_done_ < granules.mine()) return;
  throw UsageError(
      fmt::format("{} cannot open: this rank has computed its {} of the {} granules of this step, so update() was "
                  "expected",
                  describe(use), granules.mine(), granules.total));
}

std::span<const WindowUse> Progress::next_window(std::size_t segment) const {
  const std::vector<WindowUse>& all = windows(segment);
  const std::size_t first = begins_segment() ? 0 : uses_begun_;
  std::size_t last = first;
  while (all[last].unit != all[first].unit || !closing(segment)[last]) ++last;
  return std::span(all).subspan(first, last + 1 - first);
}

void Progress::open(std::size_t segment) {
  if (begins_segment()) uses_begun_ = 0;
  segment_ = segment;
  ++uses_begun_;
  phase_ = Phase::in_window;
}

void Progress::check_close() const {
  if (closes()) return;
  throw UsageError(fmt::format("{} cannot close: {}{} was expected inside it",
                               describe(windows(segment_)[uses_begun_ - 1]), describe(next_use()), of_program()));
}

bool Progress::resumes() const { return phase_ == Phase::in_segment && next_use().resumes; }

void Progress::resume() {
  ++uses_begun_;
  phase_ = Phase::in_window;
}

void Progress::close(bool ended) {
  if (!ended) {
    phase_ = Phase::in_segment;
  } else if (plan_->segments[segment_].kind == SegmentKind::evaluation) {
    phase_ = Phase::between_steps;
  } else {
    ++micro_batches_done_;
    phase_ =
        micro_batches_done_ == plan_->micro_batches(program_) ? Phase::before_update : Phase::between_micro_batches;
  }
}

void Progress::check_update() const {
  require_training("update()");
  if (phase_ == Phase::before_update || phase_ == Phase::between_micro_batches) return;
  require_no_pass("update()");
  throw UsageError(
      fmt::format("update() came after {} of {} micro-batches: {}{} was expected, or skip_step() where data has ended",
                  micro_batches_done_, plan_->micro_batches(program_),
                  describe(plan_->programs[program_].micro_batch.front()), of_program()));
}

void Progress::require_no_pass(std::string_view call) const {
  if (phase_ != Phase::in_window && phase_ != Phase::in_segment) return;
  const bool open = phase_ == Phase::in_window;
  throw UsageError(fmt::format("{} came inside a pass: {} {}", call,
                               describe(windows(segment_)[uses_begun_ - (open ? 1 : 0)]),
                               open ? "is still open" : "was expected"));
}

void Progress::check_discard() const {
  require_training("discard_gradients()");
  require_no_pass("discard_gradients()");
}

void Progress::check_skip_step() const {
  require_training("skip_step()");
  if (phase_ == Phase::between_steps) return;
  throw UsageError("skip_step() came inside a step: one that has begun ends with its windows and update()");
}

void Progress::update() {
  skips_ = false;
  micro_batches_done_ = 0;
  phase_ = Phase::between_steps;
}

void Progress::check_between_steps(std::string_view call) const {
  if (phase_ == Phase::between_steps) return;
  throw UsageError(
      fmt::format("{} works between steps only: finish this one with its windows and update() first", call));
}

}  // namespace tessera
