// Bytes and time of ring collectives, and what of that time a step hides behind its computation.
// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel
// Distrib. Comput. 69 (2009): the ring all-reduce is a reduce-scatter and an all-gather of N - 1 rounds each.
#pragma once

#include <cstddef>

namespace tools::cost {

struct Link {
  double bandwidth;    // bytes per second that each rank sends while it receives as many; > 0
  double latency = 0;  // seconds before a round's first byte arrives; >= 0
};

struct Traffic {
  double bytes;        // that each rank sends, and as many that it receives
  std::size_t rounds;  // in each, every rank sends one N-th of the buffer to its neighbour
  double seconds;      // rounds * latency + bytes / bandwidth
};

// `size`: of the whole buffer in bytes. ranks >= 1; one rank alone moves nothing.
Traffic ring_reduce_scatter(double size, std::size_t ranks, const Link& link);  // (N - 1) / N * size per rank
Traffic ring_all_gather(double size, std::size_t ranks, const Link& link);      // the same
Traffic ring_all_reduce(double size, std::size_t ranks, const Link& link);      // one after the other: twice that

// The backward pass has two matrix products (for inputs and for weights) where the forward pass has one.
constexpr double backward_part = 2.0 / 3.0;

struct Step {
  double seconds;  // compute + exposed
  double exposed;  // seconds of communication that nothing hides
  double share;    // exposed / seconds; 0 for a step of no time
};

// A step that computes for `compute` seconds and communicates for `communication` seconds, of which up to `cover`
// seconds run beside the computation: 0 hides nothing, `compute` gives max(compute, communication).
Step step(double compute, double communication, double cover);

}  // namespace tools::cost
