// Whole numbers stay whole: only rates and times are floating.
#include "cost/job.hpp"

#include <cmath>
#include <limits>

#include "job.hpp"
#include "tessera/base/error.hpp"

namespace tools::cost {

namespace {

std::uint64_t product(std::uint64_t a, std::uint64_t b, const char* overflow) {
  if (a > std::numeric_limits<std::uint64_t>::max() / b) throw tessera::UsageError(overflow);
  return a * b;
}

void check(const Job& job) {
  if (job.samples == 0 || job.batch == 0 || job.ranks == 0 || job.epochs == 0)
    throw tessera::UsageError("a job has 1 sample, batch, rank and epoch or more");
  if (!std::isfinite(job.throughput) || job.throughput <= 0)
    throw tessera::UsageError("a throughput is above 0 samples per second");
  if (!std::isfinite(job.precision_gain) || job.precision_gain < 0)
    throw tessera::UsageError("a gain of precision is 0 or more");
  if (!(job.overhead >= 0 && job.overhead < 1)) throw tessera::UsageError("an overhead is 0 or more and below 1");
}

}  // namespace

JobCost cost_of(const Job& job) {
  check(job);
  JobCost cost{};
  cost.global_batch = product(job.batch, job.ranks, "the global batch is beyond 64 bits");
  cost.steps_per_epoch = (job.samples - 1) / cost.global_batch + 1;
  cost.steps = product(cost.steps_per_epoch, job.epochs, "the number of steps is beyond 64 bits");
  cost.samples_per_second =
      static_cast<double>(job.ranks) * job.throughput * (1 + job.precision_gain) * (1 - job.overhead);
  cost.seconds_per_epoch = static_cast<double>(job.samples) / cost.samples_per_second;
  cost.seconds = static_cast<double>(job.epochs) * cost.seconds_per_epoch;
  return cost;
}

LearningRate scaled(double base, double factor) {
  if (!std::isfinite(base) || base <= 0) throw tessera::UsageError("a learning rate is above 0");
  if (!std::isfinite(factor) || factor <= 0) throw tessera::UsageError("a batch grows by a factor above 0");
  return {base * factor, base * std::sqrt(factor)};
}

namespace {

void check_fraction(double serial) {
  if (!(serial >= 0 && serial <= 1)) throw tessera::UsageError("a serial fraction is from 0 to 1");
}

}  // namespace

double amdahl_speedup(double serial, std::size_t ranks) {
  check_fraction(serial);
  if (ranks == 0) throw tessera::UsageError("a speed-up is that of 1 rank or more");
  return 1 / (serial + (1 - serial) / static_cast<double>(ranks));
}

double amdahl_limit(double serial) {
  check_fraction(serial);
  return serial > 0 ? 1 / serial : std::numeric_limits<double>::infinity();
}

}  // namespace tools::cost
