// The arithmetic of a data-parallel job: steps, time, and the learning rate that goes with a larger batch.
// Sources: Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017), for linear scaling and
// warm-up; Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms" (2022), for Adam.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tools::cost {

struct Job {
  std::uint64_t samples;  // in the data set
  std::uint64_t batch;    // samples per rank and step
  std::uint64_t ranks;
  double throughput;          // samples per second of one rank alone, in fp32
  double precision_gain = 0;  // how much faster a rank is in half precision: 0.3 is 1.3 times
  double overhead = 0;        // the part of the time that goes into communication: 0.1 leaves 0.9
  std::uint64_t epochs = 1;
};

struct JobCost {
  std::uint64_t global_batch;     // batch * ranks
  std::uint64_t steps_per_epoch;  // rounded up: the last step may be short
  std::uint64_t steps;            // of all epochs
  double samples_per_second;      // ranks * throughput * (1 + precision_gain) * (1 - overhead)
  double seconds_per_epoch;       // samples / samples_per_second
  double seconds;                 // of all epochs
};

// Counts are 1 or more and within the limits of quantity.hpp, so that no product here is beyond 64 bits.
JobCost cost_of(const Job& job);

// Goyal et al. rise from the base rate to the scaled one over 5 epochs, and saw the accuracy fall beyond 8,192 samples.
constexpr std::uint64_t warm_up_epochs = 5;
constexpr std::uint64_t largest_proved_batch = 8192;

struct LearningRate {
  double linear;       // base * factor, for SGD
  double square_root;  // base * sqrt(factor), for Adam
};

// `base` was found good for one rank's batch; `factor`, how many times larger the batch is, is the number of ranks.
LearningRate scaled(double base, double factor);

// Amdahl's law: how far ranks help when a part of the work does not divide.
// Source: Amdahl, "Validity of the single processor approach to achieving large scale computing capabilities",
// AFIPS Spring Joint Computer Conference (1967).

// One rank's time over that of `ranks` when the fraction `serial` of it does not divide: 1 / (s + (1 - s) / N).
double amdahl_speedup(double serial, std::size_t ranks);

// Returns the speed that no number of ranks reaches, 1 / s; infinite where nothing is serial.
double amdahl_limit(double serial);

}  // namespace tools::cost
