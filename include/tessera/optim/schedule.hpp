// The learning rate of each step: a linear warm-up, then constant or decaying to a minimum. A pure function of the
// step, so a resumed run continues it without any state.
#pragma once

#include <cstddef>

#pragma GCC visibility push(default)

namespace tessera {

enum class Decay { constant, linear, cosine };

struct ScheduleSettings {
  float learning_rate = 1e-3f;     // at the end of the warm-up; finite, >= 0
  float min_learning_rate = 0.0f;  // at total_steps, where the rate decays; in [0, learning_rate]
  std::size_t warmup_steps = 0;
  std::size_t total_steps =
      0;  // of the whole schedule, the warm-up included; decays need it, and more than warmup_steps
  Decay decay = Decay::constant;
};

class Schedule {
 public:
  explicit Schedule(ScheduleSettings settings);  // throws UsageError naming the setting and its value

  // The rate of step `step`, counted from 1; computed in double, rounded once.
  //   step <= warmup_steps: learning_rate * step / warmup_steps; step warmup_steps is the first to get all of it
  //   later steps, where p = (step - warmup_steps) / (total_steps - warmup_steps), at most 1:
  //     constant: learning_rate
  //     linear:   min + (learning_rate - min) * (1 - p)
  //     cosine:   min + (learning_rate - min) * (1 + cos(pi p)) / 2      (Loshchilov & Hutter 2017, one period)
  // Step total_steps gets the minimum, and so does every step after it.
  float at(std::size_t step) const;

 private:
  ScheduleSettings settings_;
};

}  // namespace tessera

#pragma GCC visibility pop
