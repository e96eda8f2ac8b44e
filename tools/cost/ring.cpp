// Each collective is a number of rounds of size / N bytes per rank.
#include "cost/ring.hpp"

#include <algorithm>

namespace tools::cost {

Traffic ring_reduce_scatter(double size, std::size_t ranks, const Link& link) {
  const std::size_t rounds = ranks - 1;
  const double bytes = static_cast<double>(rounds) * size / static_cast<double>(ranks);
  return {bytes, rounds, static_cast<double>(rounds) * link.latency + bytes / link.bandwidth};
}

Traffic ring_all_gather(double size, std::size_t ranks, const Link& link) {
  return ring_reduce_scatter(size, ranks, link);
}

Traffic ring_all_reduce(double size, std::size_t ranks, const Link& link) {
  const Traffic reduce = ring_reduce_scatter(size, ranks, link);
  const Traffic gather = ring_all_gather(size, ranks, link);
  return {reduce.bytes + gather.bytes, reduce.rounds + gather.rounds, reduce.seconds + gather.seconds};
}

Step step(double compute, double communication, double cover) {
  const double exposed = std::max(0.0, communication - cover);
  const double seconds = compute + exposed;
  return {seconds, exposed, seconds > 0 ? exposed / seconds : 0};
}

}  // namespace tools::cost
