// Whole numbers stay whole: only rates and times are floating.
#include "cost/job.hpp"

#include <cmath>
#include <limits>

namespace tools::cost {

JobCost cost_of(const Job& job) {
  JobCost cost{};
  cost.global_batch = job.batch * job.ranks;
  cost.steps_per_epoch = (job.samples - 1) / cost.global_batch + 1;
  cost.steps = cost.steps_per_epoch * job.epochs;
  cost.samples_per_second =
      static_cast<double>(job.ranks) * job.throughput * (1 + job.precision_gain) * (1 - job.overhead);
  cost.seconds_per_epoch = static_cast<double>(job.samples) / cost.samples_per_second;
  cost.seconds = static_cast<double>(job.epochs) * cost.seconds_per_epoch;
  return cost;
}

LearningRate scaled(double base, double factor) { return {base * factor, base * std::sqrt(factor)}; }

double amdahl_speedup(double serial, std::size_t ranks) {
  return 1 / (serial + (1 - serial) / static_cast<double>(ranks));
}

double amdahl_limit(double serial) { return serial > 0 ? 1 / serial : std::numeric_limits<double>::infinity(); }

}  // namespace tools::cost
