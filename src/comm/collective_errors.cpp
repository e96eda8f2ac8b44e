// Errors of collectives in words: what happened, on which ranks, and what to look at.
#include "comm/collective_errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "comm/rank_list.hpp"

namespace tessera::comm {
namespace {

// A communicator that is still being made has no sequence numbers, and its name is the label.
std::string place(const Standstill& standstill) {
  const Signature& signature = standstill.signature;
  if (signature.kind == CollectiveKind::creation) return brief(signature);
  return fmt::format("{} (communicator {}, #{})", brief(signature), standstill.communicator, signature.sequence);
}

// The first segment about which ranks disagree. What has one segment alone is that segment.
std::size_t disputed_segment(const std::vector<Signature>& signatures) {
  const Signature& first = signatures.front();
  std::size_t disputed = static_cast<std::size_t>(-1);
  for (const Signature& other : signatures) {
    const std::size_t both = std::min(first.segments(), other.segments());
    std::size_t segment = 0;
    while (segment < both && segment_of(first, segment) == segment_of(other, segment)) ++segment;
    if (segment < std::max(first.segments(), other.segments())) disputed = std::min(disputed, segment);
  }
  return disputed;
}

}  // namespace

std::string timeout_text(const Standstill& standstill, std::chrono::milliseconds timeout) {
  return fmt::format(
      "{} waited up to {:.3g} s in {} for {}, which did not come; raise the timeout if they are only slow",
      rank_list(standstill.waiting), std::chrono::duration<double>(timeout).count(), place(standstill),
      rank_list(standstill.missing));
}

std::string stuck_text(const Standstill& standstill, std::chrono::milliseconds timeout) {
  return fmt::format(
      "{} did not end within {:.3g} s, though {} came to it: a device or a connection between devices hangs, or the "
      "timeout is too short",
      place(standstill), std::chrono::duration<double>(timeout).count(), rank_list(standstill.waiting));
}

std::string left_text(const Standstill& standstill) {
  return fmt::format("{} left the job while {} waited in {}; every rank must call the same collectives",
                     rank_list(standstill.missing) + (standstill.missing.size() == 1 ? " has" : " have"),
                     rank_list(standstill.waiting), place(standstill));
}

std::string ended_text(const Standstill& standstill) {
  return fmt::format(
      "the process{} of {} ended while {} waited in {}; what it last said, or its launcher, may tell why",
      standstill.missing.size() == 1 ? "" : "es",
      rank_list(standstill.missing) + (standstill.missing.size() == 1 ? " has" : " have"),
      rank_list(standstill.waiting), place(standstill));
}

std::string disagreement_text(std::string_view communicator, const std::vector<Signature>& signatures) {
  const bool creation = std::all_of(signatures.begin(), signatures.end(),
                                    [](const Signature& each) { return each.kind == CollectiveKind::creation; });
  const std::string where = creation ? "" : fmt::format(" in communicator {}", communicator);
  const std::size_t disputed = disputed_segment(signatures);
  // Whoever lists fewer segments is described by its last.
  const auto call = [&](const Signature& signature) {
    return "called " + describe(signature, std::min(disputed, signature.segments() - 1));
  };
  return fmt::format("the ranks disagree{}: {}", where, ranks_by_value(signatures, call));
}

}  // namespace tessera::comm
