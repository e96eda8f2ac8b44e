// Errors of collectives in words: what happened, on which ranks, and what to look at.
#include "comm/collective_errors.hpp"

#include <fmt/format.h>

#include "comm/patience.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

// ---- lists of ranks ----
//
// A run of three and more ranks is written as a range, so that the error of a large world stays one line.

namespace {

std::size_t end_of_run(std::span<const int> ranks, std::size_t begin) {
  std::size_t end = begin + 1;
  while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
  return end;
}

}  // namespace

std::string rank_list(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t next = 0; next < ranks.size();) {
    const std::size_t end = end_of_run(ranks, next);
    const bool range = end - next >= 3;
    if (next > 0) text += ", ";
    text += range ? fmt::format("{}-{}", ranks[next], ranks[end - 1]) : fmt::to_string(ranks[next]);
    next = range ? end : next + 1;
  }
  return text;
}

// ---- errors ----

namespace {

std::string place(const Standstill& standstill) { return place_text(standstill.communicator, standstill.signature); }

std::string have(std::span<const int> ranks) { return rank_list(ranks) + (ranks.size() == 1 ? " has" : " have"); }

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

std::string place_text(std::string_view communicator, const Signature& signature) {
  if (signature.kind == CollectiveKind::creation) return brief(signature);
  return fmt::format("{} (communicator {}, #{})", brief(signature), communicator, signature.sequence);
}

std::string timeout_text(const Standstill& standstill, std::chrono::milliseconds timeout) {
  return fmt::format(
      "{} waited up to {:.3g} s in {} for {}, which did not come; raise the timeout if they are only slow",
      rank_list(standstill.waiting), in_seconds(timeout), place(standstill), rank_list(standstill.missing));
}

std::string stuck_text(const Standstill& standstill, std::chrono::milliseconds timeout) {
  return fmt::format(
      "{} did not end within {:.3g} s, though {} came to it: a device or a connection between devices hangs, or the "
      "timeout is too short",
      place(standstill), in_seconds(timeout), rank_list(standstill.waiting));
}

std::string left_text(const Standstill& standstill) {
  return fmt::format("{} left the job while {} waited in {}; every rank must call the same collectives",
                     have(standstill.missing), rank_list(standstill.waiting), place(standstill));
}

std::string ended_text(const Standstill& standstill) {
  return fmt::format(
      "the process{} of {} ended while {} waited in {}; what it last said, or its launcher, may tell why",
      standstill.missing.size() == 1 ? "" : "es", have(standstill.missing), rank_list(standstill.waiting),
      place(standstill));
}

std::string never_left_text(std::span<const int> waiting, std::span<const int> staying,
                            std::chrono::milliseconds timeout) {
  const bool one = staying.size() == 1;
  return fmt::format("{} waited up to {:.3g} s for {}, which {} nothing: {} stopped?", rank_list(waiting),
                     in_seconds(timeout), rank_list(staying),
                     one ? "has not left the job and does" : "have not left the job and do",
                     one ? "was its process" : "were their processes");
}

std::string disagreement_text(std::string_view communicator, const std::vector<Signature>& signatures,
                              std::span<const int> ranks) {
  const bool creation = std::all_of(signatures.begin(), signatures.end(),
                                    [](const Signature& each) { return each.kind == CollectiveKind::creation; });
  const std::string where = creation ? "" : fmt::format(" in communicator {}", communicator);
  const std::size_t disputed = disputed_segment(signatures);
  // Whoever lists fewer segments is described by its last.
  const auto call = [&](const Signature& signature) {
    return "called " + describe(signature, std::min(disputed, signature.segments() - 1));
  };
  return fmt::format("the ranks disagree{}: {}", where, ranks_by_value(signatures, call, ranks));
}

void require_equal(const std::vector<std::uint64_t>& values, std::string_view what, std::span<const int> ranks) {
  if (std::all_of(values.begin(), values.end(), [&](std::uint64_t other) { return other == values.front(); })) return;
  const auto in_words = [](std::uint64_t each) { return fmt::format("said {}", each); };
  throw CommunicationError(fmt::format("{} must be equal: {}", what, ranks_by_value(values, in_words, ranks)));
}

}  // namespace tessera::comm
