// Where the program stands: which segment runs, which window may open next. The state machine of a model; every
// transition that the contract does not allow is a UsageError that says what was expected.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/plan.hpp"

namespace tessera {

class Progress {
 public:
  // `place`: of the rank among those that train together.
  Progress(const plan::Plan& plan, std::size_t place);

  enum class Phase {
    between_steps,  // a step, an evaluation, a refresh or an inspection may begin
    in_segment,     // inside a micro-batch or an evaluation, between two windows
    in_window,      // one is open, or several inside each other
    between_micro_batches,
    before_update,  // all micro-batches are done
  };

  // The program whose windows and updates follow. Throws inside a step.
  void begin(std::size_t program);
  std::size_t program() const { return program_; }

  // The segment that a window of this kind would begin or continue; throws when `use` is not the next window.
  std::size_t check_open(const plan::WindowUse& use) const;
  void open(std::size_t segment);
  // Throws where the program has a window inside the open one that has not been opened.
  void check_close() const;
  // `ended`: that was the segment's last window.
  void close(bool ended);
  // Whether the window around the one that closed goes on now, and not the pass.
  bool resumes() const;
  void resume();
  bool trains() const;  // the program has windows that train
  void require_training(std::string_view call) const;
  // Micro-batches of this step that others alone compute may come: the windows that follow are skipped.
  void skip_rest() { skips_ = true; }
  void check_update() const;  // at least one micro-batch is done, and none is open
  void check_skip_step() const;
  void check_discard() const;  // no micro-batch is open
  void update();
  void check_between_steps(std::string_view call) const;

  bool begins_step() const { return phase_ == Phase::between_steps; }  // or an evaluation
  bool ends_step() const { return phase_ == Phase::before_update; }
  std::size_t micro_batches_done() const { return micro_batches_done_; }  // of this step
  bool begins_segment() const { return phase_ != Phase::in_segment && phase_ != Phase::in_window; }
  bool is_inside_window() const { return phase_ == Phase::in_window; }
  // The use that is under way, or was the last; and the one that comes next in its pass.
  bool closes() const { return closing(segment_)[uses_begun_ - 1]; }
  const plan::WindowUse& next_use() const { return windows(segment_)[uses_begun_]; }
  // The uses of the window that comes next, which check_open() has found in this segment, and of those inside it.
  std::span<const plan::WindowUse> next_window(std::size_t segment) const;

 private:
  // A program's entry says where windows close, and which stay open around others.
  struct Closing {
    std::vector<bool> micro_batch;
    std::vector<bool> evaluation;
  };
  const std::vector<plan::WindowUse>& windows(std::size_t segment) const;
  const std::vector<bool>& closing(std::size_t segment) const;
  std::size_t next_micro_batch() const;
  std::string describe(const plan::WindowUse& use) const;
  std::string of_program() const;
  void require_no_pass(std::string_view call) const;

  // With granules a rank may have none in the last round.
  void require_granule(const plan::WindowUse& use) const;

  const plan::Plan* plan_;
  std::size_t place_;
  bool skips_ = false;
  std::vector<Closing> closing_;
  Phase phase_ = Phase::between_steps;
  std::size_t program_ = 0;
  std::size_t segment_ = 0;
  std::size_t uses_begun_ = 0;  // of windows, in the segment
  std::size_t micro_batches_done_ = 0;
};

}  // namespace tessera
