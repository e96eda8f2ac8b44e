// Each collective is a number of rounds of size / N bytes per rank.
#include "ring.hpp"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.hpp"

namespace tools::cost {

namespace {

void require(bool holds, const char* text) {
  if (!holds) throw tessera::UsageError(text);
}

bool is_size(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

Traffic ring_reduce_scatter(double size, std::size_t ranks, const Link& link) {
  require(is_size(size), "a buffer has 0 bytes or more");
  require(ranks > 0, "a ring has 1 rank or more");
  require(is_size(link.bandwidth) && link.bandwidth > 0, "a link carries more than 0 bytes per second");
  require(is_size(link.latency), "a latency is 0 seconds or more");
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
  require(is_size(compute) && is_size(communication) && is_size(cover), "times are 0 seconds or more");
  const double exposed = std::max(0.0, communication - cover);
  const double seconds = compute + exposed;
  return {seconds, exposed, seconds > 0 ? exposed / seconds : 0};
}

}  // namespace tools::cost
