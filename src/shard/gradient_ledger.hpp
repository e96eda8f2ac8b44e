// Which gradients a unit's backward windows were asked for, in this window and in this micro-batch: what is missing is
// an error or, for optional parameters and earlier windows, zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tessera {

class GradientLedger {
 public:
  explicit GradientLedger(std::size_t parameters) : in_window_(parameters, false), in_micro_batch_(parameters, false) {}

  void begin_micro_batch() {
    std::fill(in_micro_batch_.begin(), in_micro_batch_.end(), false);
    computed_ = false;
  }
  void begin_window() { std::fill(in_window_.begin(), in_window_.end(), false); }

  // True the first time in this window: nothing stands there yet that could be added to.
  bool ask(std::size_t parameter) {
    const bool first = !in_window_[parameter];
    in_window_[parameter] = true;
    in_micro_batch_[parameter] = true;
    return first;
  }
  // A window that the user did not skip.
  void end_computed_window() { computed_ = true; }
  bool computed_in_micro_batch() const { return computed_; }
  bool asked_in_window(std::size_t parameter) const { return in_window_[parameter]; }
  bool asked_in_micro_batch(std::size_t parameter) const { return in_micro_batch_[parameter]; }

 private:
  std::vector<bool> in_window_;
  std::vector<bool> in_micro_batch_;
  bool computed_ = false;
};

}  // namespace tessera
