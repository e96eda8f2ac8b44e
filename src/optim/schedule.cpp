// Warm-up and decay of the learning rate.
#include "tessera/optim/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "optim/settings.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

namespace {

// How much of (learning_rate - minimum) is left after the part `p` of the decay.
double remaining(Decay decay, double p) {
  switch (decay) {
    case Decay::constant: return 1.0;
    case Decay::linear: return 1.0 - p;
    case Decay::cosine: return (1.0 + std::cos(std::numbers::pi * p)) / 2.0;
  }
  throw InternalError("Schedule: a decay that does not exist");
}

}  // namespace

Schedule::Schedule(ScheduleSettings settings) : settings_(settings) {
  optim::require_not_negative({"Schedule", "learning_rate", settings.learning_rate});
  optim::require_not_negative({"Schedule", "min_learning_rate", settings.min_learning_rate});
  if (settings.min_learning_rate > settings.learning_rate) {
    throw UsageError(fmt::format("Schedule: min_learning_rate is {}, above the learning_rate of {}",
                                 settings.min_learning_rate, settings.learning_rate));
  }
  if (settings.decay != Decay::constant && settings.total_steps <= settings.warmup_steps) {
    throw UsageError(fmt::format("Schedule: total_steps must be above warmup_steps for a decay, but they are {} and {}",
                                 settings.total_steps, settings.warmup_steps));
  }
}

float Schedule::at(std::size_t step) const {
  const double peak = settings_.learning_rate;
  const std::size_t warmup = settings_.warmup_steps;
  if (step < warmup) return static_cast<float>(peak * static_cast<double>(step) / static_cast<double>(warmup));
  if (settings_.decay == Decay::constant) return settings_.learning_rate;
  const double p = static_cast<double>(step - warmup) / static_cast<double>(settings_.total_steps - warmup);
  const double minimum = settings_.min_learning_rate;
  return static_cast<float>(minimum + (peak - minimum) * remaining(settings_.decay, std::min(p, 1.0)));
}

}  // namespace tessera
