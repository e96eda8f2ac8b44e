// The ring's formulas. A signature's bytes are one rank's part of gathers and scattered sums, else the whole buffer.
#include "comm/modelled/collective_time.hpp"

#include <algorithm>

namespace tessera::comm {
namespace {

double bytes_sent_of_segment(const Signature& signature, double ranks) {
  const auto bytes = static_cast<double>(signature.bytes.count());
  switch (signature.kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter: return (ranks - 1) * bytes;
    case CollectiveKind::all_reduce: return 2 * (ranks - 1) / ranks * bytes;
    case CollectiveKind::broadcast: return bytes;
    case CollectiveKind::creation:
    case CollectiveKind::barrier: break;
  }
  return 0;
}

double bytes_sent(const Signature& signature, double ranks) {
  double bytes = 0;
  for (std::size_t segment = 0; segment < signature.segments(); ++segment) {
    bytes += bytes_sent_of_segment(segment_of(signature, segment), ranks);
  }
  return bytes;
}

}  // namespace

std::chrono::nanoseconds duration_of(const CollectiveTime& time, const Signature& signature, int ranks) {
  if (ranks == 1) return std::chrono::nanoseconds(0);
  constexpr double longest = 365.0 * 24 * 3600;
  const double moving = time.bytes_per_second > 0 ? bytes_sent(signature, ranks) / time.bytes_per_second : 0;
  const double seconds = std::min(moving + std::chrono::duration<double>(time.latency).count(), longest);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace tessera::comm
